"""SentencePiece models (.spm) without the sentencepiece package: a small reader of the file, and its tokenizer.

The file is a protocol buffer: pieces with scores, how they were trained, and a table of character replacements (Kudo &
Richardson, 2018). Nothing in it is trusted: lengths are checked before anything is read. Characters are replaced here
and not by the library, whose way drops accents of letters that have several.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.errors import DataError, missing

MAX_BYTES = 2**26
MAX_PIECES = 2**20
_MAX_PIECE = 1000  # bytes

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_ALGORITHMS = {1: "unigram", 2: "bpe"}


class Charsmap:
    """Replacements of characters, in the double-array trie (Aoe, 1989) that Darts-clone stores them in.

    A unit's low byte is the byte that leads to it, bit 8 says that a leaf is below, bit 31 that this is one, and the
    rest how far away units below are, by exclusive or. A leaf says where in `texts` the replacement begins.
    """

    def __init__(self, contents: bytes):
        size = struct.unpack("<I", contents[:4])[0] if len(contents) >= 4 else -1
        if size < 4 or size % 4 or size + 4 > len(contents):
            raise ValueError("its table of characters is cut off")
        self.units = struct.unpack(f"<{size // 4}I", contents[4 : 4 + size])
        self.texts = contents[4 + size :]
        self.texts.decode()
        single = [bytes([n]) for n in range(1, 128) if self.longest(bytes([n]), 0)[0]]
        double = [bytes([a]) for a in range(1, 128) if any(self.longest(bytes([a, b]), 0)[0] > 1 for b in range(128))]
        # Plain ASCII is passed over, but for what is replaced by itself and what may go on with another character.
        plain = b"".join(map(re.escape, {*single, *double})) or b"\x80"
        self._maybe = re.compile(b"[\x80-\xff" + plain + b"]|[\x00-\x7f](?=[\x80-\xff])")

    def longest(self, text: bytes, at: int) -> tuple[int, bytes]:
        """How many bytes from `at` on are replaced, and by what; none where nothing matches."""
        length, replacement, unit = 0, b"", self._below(0)
        for n in range(at, len(text)):
            unit ^= text[n]
            if unit >= len(self.units) or self.units[unit] & 0x800000FF != text[n]:
                break
            leads = self.units[unit] & 256
            unit = self._below(unit)
            if leads and unit < len(self.units):
                start = self.units[unit] & 0x7FFFFFFF
                end = self.texts.find(b"\0", start)
                if end >= 0 and (start == 0 or self.texts[start - 1] == 0):
                    length, replacement = n + 1 - at, self.texts[start:end]
        return length, replacement

    def _below(self, unit: int) -> int:
        value = self.units[unit]
        return unit ^ ((value >> 10) << ((value & 512) >> 6))

    def apply(self, text: bytes) -> bytes:
        """The text with the longest match replaced at every place, from left to right."""
        parts, at = [], 0
        while found := self._maybe.search(text, at):
            start = found.start()
            length, replacement = self.longest(text, start)
            parts.append(text[at:start])
            at = start + length
            if not length:
                at = start + 1
                while at < len(text) and text[at] & 0xC0 == 0x80:  # the rest of the character
                    at += 1
                replacement = text[start:at]
            parts.append(replacement)
        return b"".join([*parts, text[at:]])


@dataclass(frozen=True)
class Spm:
    """What a model file says: pieces, scores and kinds in order, and how text is brought to them."""

    algorithm: str
    pieces: list[str]
    scores: list[float]
    kinds: list[int]
    charsmap: str = ""
    """The replacements of characters, in base64, so that all of this can be JSON."""
    prefix: bool = True
    squeeze: bool = True
    """Whether spaces around a text are taken off, and several in a row become one."""
    byte_fallback: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def normalise(self, text: str) -> str:
        """The text as the pieces have it: characters replaced, and spaces as `▁`."""
        if self.charsmap:
            text = self._characters.apply(text.encode(errors="replace")).decode(errors="replace")
        if self.squeeze:
            text = re.sub(" +", " ", text).strip(" ")
        return ((" " if self.prefix and text else "") + text).replace(" ", "▁")

    @property
    def unknown(self) -> int:
        """The number of the piece that stands for what is not known."""
        return self.kinds.index(_UNKNOWN)

    def require_sound(self) -> None:
        """Raises ValueError where the parts do not fit together, before anything relies on them."""
        if self.algorithm not in _ALGORITHMS.values():
            raise ValueError(f"the algorithm {self.algorithm!r}")
        if not len(self.pieces) == len(self.scores) == len(self.kinds) <= MAX_PIECES:
            raise ValueError("pieces, scores and kinds differ in number")
        if not all(isinstance(piece, str) for piece in self.pieces) or len(set(self.pieces)) < len(self.pieces):
            raise ValueError("pieces must be texts, each once")
        if not all(isinstance(s, float | int) and math.isfinite(s) for s in self.scores):
            raise ValueError("a score is no number")
        if self.kinds.count(_UNKNOWN) != 1 or not set(self.kinds) <= set(range(1, 7)):
            raise ValueError("there must be one unknown piece")
        if self.charsmap:
            _ = self._characters

    @cached_property
    def _characters(self) -> Charsmap:
        return Charsmap(base64.b64decode(self.charsmap, validate=True))


def read_spm(path: Path) -> Spm:
    """The contents of a model file, checked."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise DataError(f"the file has {size:,} bytes; at most {MAX_BYTES:,} are read", where=path)
        contents = path.read_bytes()
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror}", where=path) from None
    try:
        return _parse(contents)
    except ValueError as error:
        raise DataError(
            f"this is no SentencePiece model that can be used: {error}", where=path, do="copy the model's files again"
        ) from None


def _parse(contents: bytes) -> Spm:
    pieces, scores, kinds = [], [], []
    trainer: dict[int, Any] = {}
    normaliser: dict[int, Any] = {}
    for number, value in _fields(contents):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            text = _bytes(piece.get(1, b""))
            if not 0 < len(text) <= _MAX_PIECE or len(pieces) >= MAX_PIECES:
                raise ValueError("a piece is empty or too long, or there are too many")
            pieces.append(text.decode())
            scores.append(_float(piece.get(2, bytes(4))))
            kinds.append(_whole(piece.get(3, _NORMAL)))
        elif number == 2:
            trainer |= dict(_fields(_bytes(value)))
        elif number == 3:
            normaliser |= dict(_fields(_bytes(value)))
    algorithm = _ALGORITHMS.get(_whole(trainer.get(3, 1)))
    if algorithm is None:
        raise ValueError("it is of a kind other than unigram and BPE")
    if trainer.get(24) or not normaliser.get(5, 1):
        raise ValueError("it marks spaces behind words, or not at all")
    made = Spm(
        algorithm,
        pieces,
        scores,
        kinds,
        base64.b64encode(_bytes(normaliser.get(2, b""))).decode(),
        bool(normaliser.get(3, 1)),
        bool(normaliser.get(4, 1)),
        bool(trainer.get(35)),
    )
    made.require_sound()
    return made


def spm_engine(spm: Spm) -> Any:
    """The library's tokenizer for texts that are normalised."""
    try:
        from tokenizers import Tokenizer, models
    except ImportError:
        raise missing("tokenizers", "text") from None
    # What never stands for text has a name that no text has.
    silent = (_UNKNOWN, _CONTROL, _UNUSED)
    names = [f"\uffff{n}" if k in silent else p for n, (p, k) in enumerate(zip(spm.pieces, spm.kinds, strict=True))]
    try:
        if spm.algorithm == "unigram":
            scored = list(zip(names, spm.scores, strict=True))
            return Tokenizer(models.Unigram(scored, spm.unknown, spm.byte_fallback))
        numbers = {piece: n for n, piece in enumerate(names)}
        merges, unknown = _merges(spm, numbers), names[spm.unknown]
        return Tokenizer(models.BPE(numbers, merges, unk_token=unknown, fuse_unk=True, byte_fallback=spm.byte_fallback))
    except Exception as error:  # the library's own errors have no class of their own
        raise ValueError(f"the pieces cannot be used: {error}") from None


def _merges(spm: Spm, numbers: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, those with the best score first."""
    ways = []
    for piece, score, kind in zip(spm.pieces, spm.scores, spm.kinds, strict=True):
        for at in range(1, len(piece)) if kind == _NORMAL else ():
            if piece[:at] in numbers and piece[at:] in numbers:
                ways.append((-score, numbers[piece[:at]], numbers[piece[at:]], piece[:at], piece[at:]))
    return [(left, right) for *_, left, right in sorted(ways)]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: numbers, or bytes (of a text, a message, or a number of fixed length)."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if length > len(message) - at:
            raise ValueError("it is cut off")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is too long")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number stands where text should be")
    return value


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("text stands where a number should be")
    return value


def _float(value: int | bytes) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise ValueError("a score is no number")
    return float(struct.unpack("<f", value)[0])
