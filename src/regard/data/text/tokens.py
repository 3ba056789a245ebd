"""Tokenizers trained on the user's text: byte-level BPE and WordPiece, stored as plain JSON.

Encoding uses the libraries `tokenizers` and `sentencepiece`. Decoding uses a table of each token's bytes, so that it is
the same for every kind and gives the characters of each token.

- BPE (Sennrich et al., 2016) over bytes: any text can be encoded, and decoding gives it back exactly.
- WordPiece (Wu et al., 2016), with `##` where a word continues, as in BERT, but with case and spaces kept:
  `▁` begins what follows a space. Words with characters that training never saw become one unknown token.
- A space is put before each text, so that a word has the same token at the start of a sentence as elsewhere.
- Each digit is one token, so numbers that training never saw can still be copied.
- Text is composed (NFC) first. Names of special tokens have no special meaning inside a text.
- SentencePiece (Kudo & Richardson, 2018), trained by others: normalization and splitting are those of its file.
- "library": a file of the library `tokenizers`, trained by others, likewise.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import read_json
from regard.errors import ConfigError, DataError, RunError, did_you_mean, missing

KINDS = ("bpe", "wordpiece")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
MAX_SIZE = 2**20
UNKNOWN = " ⁇".encode()
"""The text of an unknown token."""

_MAX_FILE = 2**27
_SURROGATE = re.compile("[\ud800-\udfff]")  # from bytes on the command line that are not UTF-8
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


class Piece(NamedTuple):
    """One token: its text, its characters `start` to `end` of the decoded sentence, and the number of its word.

    A special token has no characters and the word -1; its text is its name.
    """

    text: str
    start: int
    end: int
    word: int


@dataclass(frozen=True)
class Tokenizer:
    """Text to token numbers and back. `model` is what the library needs in addition to the names of the tokens.

    >>> tokenizer = train_tokenizer(["ein Baum", "ein Haus", "zwei Häuser"] * 4, size=270)
    >>> tokenizer.size, tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown
    (270, 0, 1, 2, 3)
    >>> tokenizer.decode(tokenizer.encode(["zwei Bäume 한"])[0])
    'zwei Bäume 한'
    >>> [(piece.text, piece.word) for piece in tokenizer.pieces(tokenizer.encode(["ein Haus"], end=True)[0])]
    [('ein', 0), ('H', 1), ('au', 1), ('s', 1), ('</s>', -1)]
    """

    kind: str
    vocabulary: tuple[str, ...] = field(repr=False)
    model: dict[str, Any] = field(repr=False)
    pad: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3
    codes: tuple[str, ...] = ()
    """Tokens at the start of a text that ask for something, such as a language: they are never split."""

    @property
    def size(self) -> int:
        """Tokens in all, special ones too."""
        return len(self.vocabulary)

    def encode(self, texts: Sequence[str], *, start: bool = False, end: bool = False) -> list[list[int]]:
        """The tokens of each text, with start and end tokens if asked for."""
        for number, text in enumerate(texts):
            if not text.isascii() and _SURROGATE.search(text):
                raise DataError(f"text {number + 1} is not Unicode: half of a pair of surrogates", do="give UTF-8")
        bodies = list(texts)
        heads = [[self.start] if start else [] for _ in texts]
        for n, text in enumerate(bodies) if self.codes else ():
            if code := self._code.match(text):
                bodies[n] = text[code.end() :].removeprefix(" ")
                heads[n].append(self._numbers[code[0]])
        tail = [self.end] if end else []
        return [[*head, *ids, *tail] for head, ids in zip(heads, self._encode(bodies), strict=True)]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if self.kind != "sentencepiece":
            return [row.ids for row in self._engine.encode_batch_fast(texts, add_special_tokens=False)]
        # Pieces are looked up by name, as in Marian: a piece unknown here may be a token of the other language.
        rows = self._engine.encode(texts, out_type=str)
        return [[self._plain.get(piece, self.unknown) for piece in row] for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens up to the first end token; special tokens have no text."""
        return b"".join(self._spelling[i] for i in self._until_end(ids)).decode(errors="replace").removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[Piece]:
        """Every token with its characters in the decoded text, and its word: letters and what joins them, or one mark.

        A token with some bytes of a character counts as that character. Spaces before a word belong to no token.
        """
        ids = [int(i) for i in ids]
        spoken = len(list(self._until_end(ids)))
        reader, length, spans = codecs.getincrementaldecoder("utf-8")("replace"), 0, []
        text = b"".join(self._spelling[i] for i in ids[:spoken]).decode(errors="replace")
        for number, i in enumerate(ids):
            first = length
            for byte in self._spelling[i] if number < spoken else b"":
                length += len(reader.decode(bytes([byte])))
            last = length + bool(reader.getstate()[0])  # within a character, which is then touched
            spans.append((first, max(first, min(last, len(text)))))
        shift = int(text.startswith(" "))
        words = {at: n for n, word in enumerate(_WORD.finditer(text)) for at in range(word.start(), word.end())}
        return [self._piece(i, text, span, words, shift) for i, span in zip(ids, spans, strict=True)]

    def _piece(self, i: int, text: str, span: tuple[int, int], words: dict[int, int], shift: int) -> Piece:
        first, last = span
        while first < last and text[first].isspace():
            first += 1
        begin, stop = max(0, first - shift), max(0, last - shift)
        if i in self._special:
            return Piece(self.vocabulary[i], begin, begin, -1)
        # A space belongs to the word after it.
        word = next((words[at] for at in range(first, max(last, first + 1)) if at in words), -1)
        return Piece(text[first:last], begin, stop, word)

    def _until_end(self, ids: Iterable[int]) -> Iterable[int]:
        return takewhile(lambda i: i != self.end, map(int, ids))

    def save(self, path: Path) -> None:
        """One JSON file; nothing in it can run."""
        special = {name: getattr(self, name) for name in ("pad", "start", "end", "unknown")}
        contents = {"kind": self.kind, **special, "codes": self.codes, "model": self.model}
        path.write_text(json.dumps(contents | {"vocabulary": self.vocabulary}, ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """What `save` wrote.

        >>> made = train_tokenizer(["a b c"], size=270)
        >>> made.save(tmp / "tokenizer.json")
        >>> Tokenizer.load(tmp / "tokenizer.json") == made
        True
        """
        contents = read_json(path, _MAX_FILE)
        try:
            contents |= {"vocabulary": tuple(contents["vocabulary"]), "codes": tuple(contents["codes"])}
            loaded = Tokenizer(**contents)
            loaded.require_usable()
        except (TypeError, KeyError, ValueError) as error:
            raise RunError(f"this is no tokenizer: {error}", where=path, do="restore the file from the run") from None
        return loaded

    def require_usable(self) -> None:
        """Raises ValueError if numbers and names do not match."""
        names = self.vocabulary
        if not 4 < len(names) <= MAX_SIZE or not all(isinstance(n, str) and len(n) < 1000 for n in names):
            raise ValueError(f"a vocabulary has 5 to {MAX_SIZE:,} tokens that are texts")
        if len(set(names)) < len(names) or not set(self.codes) <= set(names):
            raise ValueError("tokens must be there, and once only")
        if not all(isinstance(i, int) and 0 <= i < len(names) for i in (self.pad, self.start, self.end, self.unknown)):
            raise ValueError("special tokens are out of range")
        if self.kind == "library" and self.library_names() != names:
            raise ValueError("its tokens are not those of the library's file")
        _ = self._engine, self._spelling

    def library_names(self) -> tuple[str, ...]:
        """The tokens of the library's file in the order of their numbers, which must be 0, 1, 2 and so on."""
        numbers: dict[str, int] = self._engine.get_vocab(with_added_tokens=True)
        if len(numbers) > MAX_SIZE or sorted(numbers.values()) != list(range(len(numbers))):
            raise ValueError(f"the numbers of tokens leave gaps, or there are more than {MAX_SIZE:,}")
        return tuple(sorted(numbers, key=numbers.__getitem__))

    @cached_property
    def spelling(self) -> dict[bytes, int]:
        """The number of the first token with these bytes, special ones left out: tokens of two kinds compare so."""
        special = {*self._special, self.unknown}
        return {self._spelling[n]: n for n in reversed(range(self.size)) if n not in special}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: n for n, name in enumerate(self.vocabulary)}

    @cached_property
    def _plain(self) -> dict[str, int]:
        """Numbers of all tokens but the special ones, which a text cannot contain."""
        return {name: n for name, n in self._numbers.items() if n not in self._special}

    @cached_property
    def _code(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(code) for code in sorted(self.codes, key=len, reverse=True)))

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset({self.pad, self.start, self.end, *(self._numbers[code] for code in self.codes)})

    @cached_property
    def _spelling(self) -> list[bytes]:
        """The bytes of each token."""
        way = _joined_by(self.model) if self.kind == "library" else self.kind
        if way == "bpe":
            back = {char: byte for byte, char in byte_letters().items()}
            spelt = [bytes(back[c] for c in t) if all(c in back for c in t) else t.encode() for t in self.vocabulary]
        elif way == "bert":
            spelt = [(t[2:] if t.startswith("##") else f" {t}").encode() for t in self.vocabulary]
        elif way == "wordpiece":
            spelt = [t.removeprefix("##").replace("▁", " ").encode() for t in self.vocabulary]
        else:
            fallback = way == "pieces" or any(self._engine.is_byte(n) for n in range(self._engine.get_piece_size()))
            bytes_of = {f"<0x{n:02X}>": bytes([n]) for n in range(256)} if fallback else {}
            spelt = [bytes_of.get(t, t.replace("▁", " ").encode()) for t in self.vocabulary]
        spelt[self.unknown] = UNKNOWN
        for i in self._special:
            spelt[i] = b""
        return spelt

    @cached_property
    def _engine(self) -> Any:
        if self.kind == "sentencepiece":
            return sentencepiece_engine(self.model)
        if self.kind == "library":
            return library_engine(self.model)
        return make_engine(self.kind, self.vocabulary, self.model, self.vocabulary[self.unknown])


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where it can be printed, the next free one otherwise."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


def make_engine(kind: str, vocabulary: Sequence[str], model: dict[str, Any], unknown: str) -> Any:
    """The library's tokenizer, always built here: a file can give it tokens, but no other settings."""
    try:
        from tokenizers import Tokenizer as Engine
        from tokenizers import models, normalizers, pre_tokenizers
    except ImportError:
        raise missing("tokenizers", "text") from None
    numbers = {token: n for n, token in enumerate(vocabulary)}
    try:
        if kind == "bpe":
            engine = Engine(models.BPE(numbers, [(a, b) for a, b in model["merges"]]))
            parts = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        elif kind == "wordpiece":
            engine = Engine(models.WordPiece(numbers, unk_token=unknown, max_input_chars_per_word=1000))
            parts = [pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Punctuation()]
        else:
            raise ValueError(f"kind is {kind!r}")
    except Exception as error:  # the library's own errors have no class of their own
        raise ValueError(f"the tokens cannot be used: {error}") from None
    engine.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), *parts])
    return engine


def library_engine(model: dict[str, Any]) -> Any:
    """The library's tokenizer for a file of its own, whose text is in `model`."""
    try:
        from tokenizers import Tokenizer as Engine
    except ImportError:
        raise missing("tokenizers", "text") from None
    if list(model) != ["json"]:
        raise ValueError("the library's tokenizer is missing")
    try:
        return Engine.from_str(model["json"])
    except Exception as error:  # the library's own errors have no class of their own
        raise ValueError(f"the library cannot read it: {error}") from None


def _joined_by(model: dict[str, Any]) -> str:
    """How tokens of a library's file are joined to a text: by bytes, by ## where a word continues, or by ▁."""
    contents = json.loads(model["json"])
    decoder = contents.get("decoder") or {}
    kinds = [decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", ()))]
    if contents["model"].get("type") == "WordPiece":
        if contents["model"].get("continuing_subword_prefix", "##") != "##":
            raise ValueError("words of its WordPiece continue with another prefix than ##")
        return "bert"
    if "ByteLevel" in kinds:
        return "bpe"
    if {"Metaspace", "ByteFallback"} & set(kinds):
        return "pieces"
    raise ValueError(f"its decoder is {kinds[0]}; ByteLevel, WordPiece and Metaspace are known")


def sentencepiece_engine(model: dict[str, Any]) -> Any:
    """The library's tokenizer for a model file, whose bytes are in `model` as base64."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise missing("sentencepiece", "text") from None
    if list(model) != ["spm"] or not (contents := base64.b64decode(model["spm"], validate=True)):
        raise ValueError("the SentencePiece model is missing")
    try:
        return SentencePieceProcessor(model_proto=contents)
    except Exception as error:  # RuntimeError, and others in other versions
        raise ValueError(f"this is no SentencePiece model: {error}") from None


def train_tokenizer(texts: Iterable[str], size: int, kind: str = "bpe", codes: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of at most `size` tokens for these texts; the same texts give exactly the same tokenizer."""
    if kind not in KINDS:
        raise ConfigError(f"there is no tokenizer {kind!r}", do=did_you_mean(kind, KINDS))
    if bad := [code for code in codes if not code or " " in code or code in SPECIAL]:
        raise ConfigError(f"{bad[0]!r} cannot be a code", do="give words without spaces, such as <de>")
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    if not any(text.strip() for text in texts):
        raise DataError("there is no text to learn a tokenizer from")
    try:
        from tokenizers import pre_tokenizers, trainers
    except ImportError:
        raise missing("tokenizers", "text") from None
    first = [*SPECIAL, *codes]
    if kind == "bpe":
        letters, trainer = pre_tokenizers.ByteLevel.alphabet(), trainers.BpeTrainer
    else:
        letters, trainer = sorted({c for text in texts for c in text} - {" "} | {"▁"}), trainers.WordPieceTrainer
        # The library would number these in a different order each time.
        first += [f"##{c}" for c in letters if c not in string.punctuation and unicodedata.category(c)[0] != "P"]
    least = len(first) + len(letters)
    if not least < size <= MAX_SIZE:
        raise ConfigError(
            f"a vocabulary of {size:,} tokens is too {'small' if size <= MAX_SIZE else 'large'}: {kind} needs more "
            f"than {least:,} for single characters, and may have {MAX_SIZE:,}",
            do="choose a size between these" + (", or bpe" if kind == "wordpiece" else ""),
        )
    empty = make_engine(kind, first, {"merges": []}, SPECIAL[3])
    learn = trainer(vocab_size=size, special_tokens=first, initial_alphabet=letters, show_progress=False)
    empty.train_from_iterator(texts, learn)
    made = json.loads(empty.to_str())["model"]
    names = sorted(made["vocab"], key=made["vocab"].__getitem__)
    model = {"merges": [list(pair) for pair in made["merges"]]} if kind == "bpe" else {}
    return Tokenizer(kind, tuple(names), model, codes=tuple(codes))


class Tokenizers(NamedTuple):
    """The tokenizers of source and target; `shared` if a number means the same in both, so embeddings can be shared."""

    source: Tokenizer
    target: Tokenizer
    shared: bool

    def save(self, folder: Path) -> None:
        """source.json and target.json, or tokenizer.json where they are one and the same."""
        if self.source is self.target:
            self.source.save(folder / "tokenizer.json")
        else:
            self.source.save(folder / "source.json")
            self.target.save(folder / "target.json")

    @staticmethod
    def load(folder: Path) -> Tokenizers:
        if (folder / "tokenizer.json").is_file():
            both = Tokenizer.load(folder / "tokenizer.json")
            return Tokenizers(both, both, True)
        source, target = Tokenizer.load(folder / "source.json"), Tokenizer.load(folder / "target.json")
        return Tokenizers(source, target, source.vocabulary == target.vocabulary)


def train_tokenizers(
    sources: Sequence[str],
    targets: Sequence[str],
    size: int,
    kind: str = "bpe",
    *,
    joint: bool = True,
    codes: Sequence[str] = (),
) -> Tokenizers:
    """One tokenizer for both languages, as in the Transformer's paper, or one for each; `codes` begin sources.

    >>> pair = train_tokenizers(["a tree"], ["ein Baum"], 270, joint=False)
    >>> pair.shared, pair.source.size, pair.target.size
    (False, 265, 267)
    """
    sources = [_without_code(text, codes) for text in sources]
    if joint:
        both = train_tokenizer([*sources, *targets], size, kind, codes)
        return Tokenizers(both, both, True)
    source = train_tokenizer(sources, size, kind, codes)
    return Tokenizers(source, train_tokenizer(targets, size, kind), False)


def _without_code(text: str, codes: Sequence[str]) -> str:
    """The text without its code, so that the code's letters are not learned as a word."""
    word, _, rest = text.partition(" ")
    return rest if word in codes else text
