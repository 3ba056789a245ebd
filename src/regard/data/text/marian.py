"""The vocabulary of a Marian (Opus-MT) model that is stored on this machine: two .spm files and vocab.json."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from regard.config import read_json
from regard.data.text.tokens import MAX_SIZE, Tokenizer, Tokenizers
from regard.errors import DataError

_MAX_FILE = 2**26


def open_marian(folder: Path) -> Tokenizers:
    """The tokenizers of a folder with source.spm, target.spm and vocab.json (and target_vocab.json if they differ).

    The .spm files split text into pieces; vocab.json has their numbers, the same for both languages. Decoding starts
    with the padding token, as in Marian. With several target languages, a source starts with a code such as `>>deu<<`.
    """
    folder = Path(folder)
    if absent := [n for n in ("source.spm", "target.spm", "vocab.json") if not (folder / n).is_file()]:
        raise DataError(f"{' and '.join(absent)} missing", where=folder, do="copy all files of the model here")
    names = _vocabulary(folder / "vocab.json")
    apart = folder / "target_vocab.json"
    shared = not apart.is_file()
    target_names = names if shared else _vocabulary(apart)
    codes = tuple(n for n in names if n.startswith(">>") and n.endswith("<<")) if shared else ()
    return Tokenizers(
        _tokenizer(folder / "source.spm", names, codes), _tokenizer(folder / "target.spm", target_names, ()), shared
    )


def _vocabulary(path: Path) -> tuple[str, ...]:
    """The tokens in the order of their numbers, which must be 0, 1, 2 and so on."""
    numbers: Any = read_json(path, _MAX_FILE)
    if not isinstance(numbers, dict) or not all(type(n) is int for n in numbers.values()) or len(numbers) > MAX_SIZE:
        raise DataError("the vocabulary is no table of tokens and their numbers", where=path)
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise DataError("the numbers of tokens leave gaps, or one is given twice", where=path)
    for name in ("<pad>", "</s>", "<unk>"):
        if name not in numbers:
            raise DataError(f"the vocabulary has no {name}", where=path, do="use the files of a Marian model")
    return tuple(sorted(numbers, key=numbers.__getitem__))


def _tokenizer(path: Path, names: tuple[str, ...], codes: tuple[str, ...]) -> Tokenizer:
    pad, end, unknown = (names.index(name) for name in ("<pad>", "</s>", "<unk>"))
    if not path.is_file():
        raise DataError("a file of the model is missing", where=path)
    if (size := path.stat().st_size) > _MAX_FILE:
        raise DataError(f"the file has {size:,} bytes; at most {_MAX_FILE:,} are read", where=path)
    model = {"spm": base64.b64encode(path.read_bytes()).decode()}
    tokenizer = Tokenizer("sentencepiece", names, model, pad=pad, start=pad, end=end, unknown=unknown, codes=codes)
    try:
        tokenizer.require_usable()
    except ValueError as error:
        raise DataError(str(error), where=path, do="copy the model's files again") from None
    return tokenizer
