"""What the commands do with sentences."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from regard.console import columns
from regard.errors import DataError

if TYPE_CHECKING:
    from regard.interpreter import Interpreter
    from regard.tasks import Translated


def translate(interpreter: Interpreter, inputs: tuple[str, ...], out: str | None, best: int, beams: int) -> None:
    """A translation a line, as soon as it is there; with `best`, it and the next best ones, each with its score."""
    if not inputs:
        raise DataError("there are no sentences to translate", do="give some, a text file, or - for what is piped in")
    together = 1 if inputs == ("-",) and sys.stdin.isatty() else 64
    found = interpreter.predict_many(_sentences(inputs), best=best, beams=max(beams, best), together=together)
    if out:
        print(save_translations(found, Path(out)))
        return
    for number, answer in enumerate(found):
        if best == 1:
            print(answer.text, flush=True)
            continue
        lines = [f"{score:8.3f}  {text}" for text, score in ((answer.text, answer.score), *answer.others)]
        print("\n".join([""] * (number > 0) + lines), flush=True)


def _sentences(inputs: Iterable[str]) -> Iterator[str]:
    """Of a file its lines, of - the lines that are piped in, of anything else itself."""
    for word in inputs:
        path = Path(word[:255])  # longer than any file is called
        if word == "-":
            yield from sys.stdin
        elif path.is_file() or (" " not in word and path.suffix == ".txt"):
            yield from _lines(path)
        else:
            yield word


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        do = "give a text file in UTF-8, or a sentence"
        raise DataError(f"the sentences cannot be read: {error}", where=path, do=do) from None


def save_translations(answers: Iterable[Translated], path: Path) -> Path:
    """A row a sentence, .csv or .json."""
    from regard.weights import to_json, write_text

    rows = [{"source": a.source, "translation": a.text, "score": round(a.score, 4)} for a in answers]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        write_text(path, to_json(rows))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["source", "translation", "score"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return path


def explain_words(
    run: str, inputs: tuple[str, ...], out: str, kind: str, layer: int | None, head: int | None, form: str
) -> None:
    """A picture a sentence, and whether to believe what its words are said to be worth."""
    from regard import api
    from regard.interpreter import Interpreter

    interpreter, path, rows = api.load(run), Path(out), []
    assert isinstance(interpreter, Interpreter)
    for number, text in enumerate(_sentences(inputs), start=1):
        reason = interpreter.explain(text)
        own = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        print(reason.save(own, kind, layer=-1 if layer is None else layer, head=head, form=form))
        found, scores = reason.attention, reason.scores
        rows.append((found.source.text, found.target.text, f"{scores.gain:+.3f} ± {scores.spread:.3f}", reason.verdict))
    print(columns(("source", "translation", "gain over random orders, nats a token", "verdict"), rows))


@dataclass
class Compare:
    """Whether runs translate better than a first one, by paired tests on the same sentences."""

    runs: Positional[tuple[str, ...]]
    """Run folders; all others are compared with the first."""

    def run(self) -> None:
        from regard import api

        if not self.runs:
            raise DataError("there are no runs to compare", do="give two run folders or more")
        rows = [
            (other, name, f"{c.difference.value:+.2f}", f"{c.difference.low:+.2f} to {c.difference.high:+.2f}",
             f"{c.randomised:.4f}", f"{c.bootstrap:.4f}")
            for other, figures in api.compare(*self.runs).items() for name, c in figures.items()
        ]  # fmt: skip
        print(f"ahead of {self.runs[0]} by")
        print(columns(("run", "figure", "difference", "95 % interval", "p (randomisation)", "p (bootstrap)"), rows))
