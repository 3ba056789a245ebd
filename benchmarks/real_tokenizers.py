"""Downloaded tokenizers: are our numbers those of their own libraries, on every seventh sentence of Multi30k?

    python benchmarks/real_tokenizers.py MULTI30K FILE…

MULTI30K is the folder with train.en.gz and so on. A FILE is a vocab.txt with a tokenizer.json beside it, which is the
reference; a tokenizer.json; or a SentencePiece .model. Decoded sentences of Multi30k are compared too: for WordPiece
after encoding them again, as it keeps neither case nor spaces around marks.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

from regard.data.text.existing import open_tokenizer

MORE = (
    "Hello, how are you doing?", "The Frenchman spoke in the [MASK] language and ate 🍜", "[CLS] [SEP] [MASK] [UNK]",
    "영희가 신호등을 보고 길을 건너는데", "  two  spaces ", "ÀÉîöü ß ﬁ 中文字", "a" * 300,
)  # fmt: skip


def reference(path: Path, lines: list[str]) -> list[list[int]]:
    """The numbers by the file's own library."""
    if path.suffix == ".model":
        import sentencepiece

        engine: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return engine.encode(lines)
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(path.with_name("tokenizer.json")))
    library.no_truncation()
    library.no_padding()
    return [encoding.ids for encoding in library.encode_batch(lines, add_special_tokens=False)]


def main() -> None:
    folder, *files = map(Path, sys.argv[1:])
    lines = list(MORE)
    for path in sorted(folder.glob("train.*.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines += [line.rstrip("\n") for line in file][::7]
    for path in files:
        own = open_tokenizer(path).source
        numbers = own.encode(lines)
        texts = [own.decode(each) for each in numbers]
        other = sum(a != b for a, b in zip(numbers, reference(path, lines), strict=True))
        again, wanted = (texts, lines) if path.suffix == ".model" else (own.encode(texts), numbers)
        kept = again[len(MORE) :] == wanted[len(MORE) :]
        print(f"{path.name}: {own.size:,} tokens, {len(lines):,} sentences, {other} with other numbers; back: {kept}")


if __name__ == "__main__":
    main()
