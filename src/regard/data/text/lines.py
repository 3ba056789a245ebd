"""Lines of text from plain or gzipped files: size limits, split at line feeds only, each line checked.

Python's `splitlines` also splits at U+0085, U+2028 and other characters, which occur inside sentences of real corpora.
One of them would shift all later lines against the other language.
"""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from regard.errors import DataError

MAX_BYTES = 2**30
"""Limit of one unpacked file: a few kilobytes of gzip can unpack to any size."""
MAX_LINES = 20_000_000
MAX_LINE_BYTES = 2**20
LONGEST = 2000
"""Limit of characters per sentence; longer ones are paragraphs, or files joined without a line feed."""

_CHUNK = 2**20
_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"  # a byte order mark, which some editors put before UTF-8
_CONTROL = frozenset(chr(n) for n in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)) - {"\t"}


class Sentence(NamedTuple):
    """The text of one line, or its problem; without a problem `kind` is empty."""

    text: str
    kind: str = ""
    detail: str = ""


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without \\n or \\r\\n. Text after the last line feed is a line too."""
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


def decode_lines(lines: Iterable[bytes], where: object) -> Iterator[str]:
    """Lines as text; one that is not UTF-8 is an error that names it."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} is 0x{line[error.start]:02X}, which is not UTF-8",
                where=f"{where}, line {number}",
                do="save it as UTF-8",
            ) from None


def _require(holds: bool, what: str, path: Path, do: str) -> None:
    if not holds:
        raise DataError(f"the file has {what}", where=path, do=do)


def read_sentence(line: bytes) -> Sentence:
    """A line as a sentence: decoded from UTF-8, composed (NFC), stripped of spaces; otherwise unchanged.

    Composed, because a letter with an accent, or a Korean syllable, has two encodings that look the same, and files of
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
