"""Which sentences the words on a command line stand for: themselves, the lines of files, or what is piped in.

`-` is what is piped in. A word that names a file is that file's lines. A word without spaces that looks like a path (it
has a / or ends like a file's name: test.en) must be a file. Anything else is a sentence.
"""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.text.lines import decode_lines, read_lines
from regard.errors import DataError

_PATH = re.compile(r"\S*/\S*|\S+\.[A-Za-z]\w{0,5}")
_PIPE = "a sentence that looks like this can be piped in: echo … | regard predict RUN -"


def sentences(words: Sequence[str]) -> Iterator[str]:
    """A sentence per line or word; a word that stands for nothing is an error before any is given."""
    if not words:
        raise DataError("there are no sentences to translate", do="give some, a text file, or - for standard input")
    sources = [_source(word) for word in words]
    return (text for source in sources for text in _texts(source))


def _source(word: str) -> Path | str:
    """The file that a word names, or the word itself."""
    if not word.strip():
        raise DataError("a sentence is empty", do="give a sentence, a text file, or - for standard input")
    if word == "-":
        return word
    path = Path(word).expanduser()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if _PATH.fullmatch(word):
            raise DataError("there is no such file", where=word, do=f"give a text file; {_PIPE}") from None
        return word
    except (OSError, ValueError):  # longer than any file's name, or no name at all
        return word
    if stat.S_ISDIR(mode):
        raise DataError("a folder is no sentence", where=word, do=f"give the files in it; {_PIPE}")
    return path


def _texts(source: Path | str) -> Iterator[str]:
    if source == "-":
        lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer)
        for number, text in enumerate(decode_lines(lines, "standard input")):
            yield text if number else text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    elif isinstance(source, str):
        yield source
    else:
        lines = decode_lines(read_lines(source), source)
        first = next(lines, None)
        if first is None:
            raise DataError("the file has no lines", where=source)
        yield first
        yield from lines
