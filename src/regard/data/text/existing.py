"""Tokenizers that others have trained, from one file on this machine.

- `vocab.txt`: WordPiece as in BERT, one token per line; special tokens [PAD], [CLS], [SEP], [UNK].
- `tokenizer.json`: a file of the library `tokenizers`, or one of a run.
- `.model` or `.spm`: SentencePiece.

Special tokens are found by name. A text is encoded as the file's own library encodes it; the names of special tokens
inside a text are special there too. Start and end tokens are added by us, never by the file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config import read_json
from regard.data.text.tokens import MAX_SIZE, Tokenizer, Tokenizers, sentencepiece_engine
from regard.errors import DataError, missing

MAX_FILE = 2**26
ROLES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "start": ("[CLS]", "<s>", "<bos>", "[BOS]", "<|startoftext|>"),
    "end": ("[SEP]", "</s>", "<eos>", "[EOS]", "<|endoftext|>"),
    "unknown": ("[UNK]", "<unk>", "<|unk|>"),
}
"""Names of special tokens. Decoding starts with padding where no start token is known, as in Marian and T5."""


def open_tokenizer(path: str | Path) -> Tokenizers:
    """One tokenizer for both languages, from a `vocab.txt`, a `tokenizer.json` or a SentencePiece model.

    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ein", "haus", "##er"]
    >>> _ = (tmp / "vocab.txt").write_text("\\n".join(words))
    >>> tokenizer = open_tokenizer(tmp / "vocab.txt").source
    >>> tokenizer.encode(["Ein Hauser [MASK]"], start=True, end=True)
    [[2, 5, 6, 7, 4, 3]]
    """
    path = Path(path).expanduser()
    if path.is_dir():
        do = "give a file in it, such as tokenizer.json or vocab.txt"
        raise DataError("this is a folder, not a tokenizer", where=path, do=do)
    if not path.is_file():
        what = "there is no such tokenizer: it is neither a kind that can be trained nor a file"
        raise DataError(what, where=path, do="give bpe, wordpiece, keep (with --from), or a file such as vocab.txt")
    if (size := path.stat().st_size) > MAX_FILE:
        raise DataError(f"the file has {size:,} bytes; at most {MAX_FILE:,} are read", where=path)
    readers = {".txt": _bert, ".json": _library, ".model": _sentencepiece, ".spm": _sentencepiece}
    if path.suffix not in readers:
        raise DataError("this is no tokenizer that can be read", where=path, do="give .txt, .json, .model or .spm")
    try:
        tokenizer = readers[path.suffix](path)
        tokenizer.require_usable()
    except ValueError as error:
        raise DataError(str(error), where=path, do="copy the file again from where it came") from None
    return Tokenizers(tokenizer, tokenizer, True)


def _bert(path: Path) -> Tokenizer:
    """As transformers' BertTokenizer. Lowercase if the file beside it says so or no token has capitals."""
    try:
        names = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"the vocabulary is not UTF-8: {error.reason}") from None
    if len(set(names)) < len(names) or len(names) > MAX_SIZE:
        raise ValueError(f"the vocabulary names a token twice, or has more than {MAX_SIZE:,}")
    special = _roles(names)
    beside = path.with_name("tokenizer_config.json")
    said = read_json(beside).get("do_lower_case") if beside.is_file() else None
    capitals = any(name != name.lower() for name in names if not name.startswith("["))
    lower = bool(said) if said is not None else not capitals
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError:
        raise missing("tokenizers", "text") from None
    engine = BertWordPieceTokenizer(
        {name: n for n, name in enumerate(names)}, unk_token=names[special["unknown"]], sep_token=names[special["end"]],
        cls_token=names[special["start"]], pad_token=names[special["pad"]], lowercase=lower,
    )  # fmt: skip
    return Tokenizer("library", tuple(names), {"json": engine.to_str()}, **special)


def _library(path: Path) -> Tokenizer:
    contents: Any = read_json(path, MAX_FILE)
    if isinstance(contents, dict) and "kind" in contents:
        return Tokenizer.load(path)
    if not isinstance(contents, dict) or not isinstance(contents.get("model"), dict):
        raise ValueError("this is no tokenizer of the library tokenizers: it has no model")
    text = json.dumps(contents | {"truncation": None, "padding": None, "post_processor": None}, ensure_ascii=False)
    # Numbers and names as the library has them, tokens added later too.
    names = Tokenizer("library", (), {"json": text}).library_names()
    return Tokenizer("library", names, {"json": text}, **_roles(names))


def _sentencepiece(path: Path) -> Tokenizer:
    """Most models have no padding token: one is added after the last."""
    model = {"spm": base64.b64encode(path.read_bytes()).decode()}
    engine = sentencepiece_engine(model)
    if (count := engine.get_piece_size()) > MAX_SIZE:
        raise ValueError(f"the model has {count:,} tokens; {MAX_SIZE:,} are the most")
    names = [engine.id_to_piece(n) for n in range(count)]
    given = {"pad": engine.pad_id(), "start": engine.bos_id(), "end": engine.eos_id(), "unknown": engine.unk_id()}
    if given["pad"] < 0 and not any(name in ROLES["pad"] for name in names):
        names.append("<pad>")
    return Tokenizer("sentencepiece", tuple(names), model, **_roles(names, given))


def _roles(names: Sequence[str], given: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The number of each special token: as `given`, or found by its name."""
    numbers = {name: n for n, name in enumerate(names)}
    roles = {role: n for role, n in (given or {}).items() if n >= 0}
    for role, known in ROLES.items():
        if role not in roles and (there := [name for name in known if name in numbers]):
            roles[role] = numbers[there[0]]
    if absent := [role for role in ROLES if role not in roles and role != "start"]:
        asked = "; ".join(f"{role}: {', '.join(ROLES[role])}" for role in absent)
        raise ValueError(f"the vocabulary has no special token for {' and '.join(absent)} (names looked for: {asked})")
    roles.setdefault("start", roles["pad"])
    if len({roles["pad"], roles["end"], roles["unknown"]}) < 3:
        raise ValueError("one token is padding, end or unknown at a time: they must be three")
    return roles
