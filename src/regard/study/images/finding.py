"""What an experiment found: sentences, a table and a figure, written into one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.drawing import style
from regard.study.figure import save
from regard.weights import Run, write_text


@dataclass(frozen=True)
class Finding:
    kind: str
    title: str
    rows: list[dict[str, Any]]
    sentences: list[str]
    draw: Callable[[], Any]
    """Makes the figure."""
    out: Path

    def summary(self) -> list[str]:
        return self.sentences

    def write(self) -> None:
        """study.md, study.json, study.csv, study.svg and study.png."""
        folder = Run(self.out)
        folder.write_rows("study.csv", self.rows)
        folder.write_json("study.json", {"kind": self.kind, "summary": self.sentences, "rows": self.rows})
        with style():
            save(self.draw(), self.out / "study")
        write_text(self.out / "study.md", self.markdown())

    def markdown(self) -> str:
        names = list(self.rows[0])
        lines = [[_cell(row[name]) for name in names] for row in self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *lines])
        said = "\n".join(f"- {line}" for line in self.sentences)
        return f"# {self.title}\n\n{said}\n\n{table}\n\n![{self.title}](study.svg)\n"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
