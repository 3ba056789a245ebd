"""Lines of text from plain or gzipped files: bounded as they are read, split at line feeds only, each checked.

Python's own idea of a line also ends at U+0085, U+2028 and other characters, which stand inside sentences of real
corpora; one of them would shift every later line against the other language.
"""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from regard.errors import DataError

MAX_BYTES = 2**30
"""Of one file once unpacked; a few kilobytes of gzip can claim to be any size."""
MAX_LINES = 20_000_000
MAX_LINE_BYTES = 2**20
LONGEST = 2000
"""Characters of one sentence; longer ones are paragraphs, or two files that were joined without a line feed."""

_CHUNK = 2**20
_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"  # a byte order mark, which some editors put before UTF-8
_CONTROL = frozenset(chr(n) for n in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)) - {"\t"}


class Sentence(NamedTuple):
    """The text of one line, or what is wrong with it: `kind` is empty where nothing is."""

    text: str
    kind: str = ""
    detail: str = ""


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends, \\n or \\r\\n; what follows the last line feed is a line if not empty."""
    total, lines, rest = 0, 0, b""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise DataError("this is no file", where=path, do="give text in a file of its own")
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            while chunk := file.read(_CHUNK):
                rest += chunk.removeprefix(_MARK) if not total else chunk
                total += len(chunk)
                *whole, rest = rest.split(b"\n")
                lines += len(whole)
                for line in whole:
                    yield line.removesuffix(b"\r")
                _require(total <= MAX_BYTES, f"more than {MAX_BYTES:,} bytes", path, "split it into smaller ones")
                _require(lines <= MAX_LINES, f"more than {MAX_LINES:,} lines", path, "split it into smaller ones")
                most = f"more than {MAX_LINE_BYTES:,} bytes in line {lines + 1}"
                _require(len(rest) <= MAX_LINE_BYTES, most, path, "give text with one sentence per line")
    except FileNotFoundError:
        raise DataError("there is no such file", where=path) from None
    except (OSError, EOFError, zlib.error) as error:  # a damaged archive is one of these
        raise DataError(f"the file cannot be read after {total:,} bytes: {error}", where=path) from None
    if rest:
        yield rest.removesuffix(b"\r")


def _require(holds: bool, what: str, path: Path, do: str) -> None:
    if not holds:
        raise DataError(f"the file has {what}", where=path, do=do)


def read_sentence(line: bytes) -> Sentence:
    """A line as a sentence: UTF-8, composed (NFC), without spaces around it; otherwise text is kept as it is.

    Composed, because a letter with an accent, or a Korean syllable, has two spellings that look alike, and files of
    one corpus may differ in them.

    >>> read_sentence("  Ein Ma\\u0308dchen. ".encode())
    Sentence(text='Ein Mädchen.', kind='', detail='')
    >>> read_sentence(b"caf\\xe9").detail
    'byte 4 is 0xE9'
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Sentence("", "not UTF-8", f"byte {error.start + 1} is 0x{line[error.start]:02X}")
    return check_sentence(text)


def check_sentence(text: str) -> Sentence:
    """The same for text that is decoded already."""
    text = unicodedata.normalize("NFC", text).strip(" \t\u3000\xa0")
    if not text:
        return Sentence("", "empty")
    if len(text) > LONGEST:
        return Sentence(text, "too long", f"{len(text):,} characters, more than {LONGEST:,}")
    if not text.isprintable() and (odd := next((c for c in text if c in _CONTROL), "")):
        return Sentence(text, "control character", f"U+{ord(odd):04X}")
    return Sentence(text)
