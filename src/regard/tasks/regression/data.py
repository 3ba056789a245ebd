"""Images with numbers: a table with a path and one or more columns of numbers per row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.console import Progress, columns
from regard.data import ImageDataset, open_source, scan
from regard.errors import DataError, did_you_mean
from regard.setting_groups import ImageData
from regard.tasks.images import refuse_labels, tell_plan

SHOWN = 5


@dataclass
class NumberDataset(ImageDataset):
    """What was read: images, and the numbers (N, columns) of each."""

    columns: tuple[str, ...] = ()
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), repr=False)

    @property
    def tested(self) -> bool:
        return True

    def summary(self) -> str:
        source = self.source
        return f"{source.kind} ({source.why}), {len(source.samples):,} images, numbers from {', '.join(self.columns)}"

    def fingerprint(self) -> str:
        return hashlib.sha256((super().fingerprint() + self.values.tobytes().hex()).encode()).hexdigest()

    def conflicting(self) -> list[list[int]]:
        """Equal images with different numbers."""
        return [group for group in self.duplicates() if len({self.values[i].tobytes() for i in group}) > 1]

    def describe(self) -> str:
        rows = [
            (name, f"{v.mean():.4g}", f"{v.std():.4g}", f"{v.min():.4g}", f"{v.max():.4g}")
            for name, v in zip(self.columns, self.values.T, strict=True)
        ]
        table = columns(("column", "mean", "deviation", "smallest", "largest"), rows)
        return f"{table}\n\n{super().describe()}"

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        return [
            row | {name: f"{value:.17g}" for name, value in zip(self.columns, values, strict=True)}
            for row, values in zip(super().split_rows(splits), self.values, strict=True)
        ]

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        return super().to_json(splits, note) | {"columns": list(self.columns)}


def read_numbers(
    data: str | Path,
    names: tuple[str, ...],
    progress: Progress,
    how: ImageData,
    size: int | tuple[int, ...] | None = None,
) -> NumberDataset:
    """Read every image once, and the numbers of the named columns; `size` is that of volumes, if it is given."""
    refuse_labels(how, "name the numbers by --column")
    source = open_source(data, labels=False, how=how, size=size)
    if not source.columns:
        raise DataError(
            "numbers are read from a table, and this is none",
            where=data,
            do="give a .csv or .tsv with path and numbers",
        )
    for name in names:
        if name not in source.columns:
            raise DataError(f"the table has no column {name!r}", where=data, do=did_you_mean(name, source.columns))
    values = np.array([[_number(text) for text in source.columns[name]] for name in names]).T
    bad = [
        f"row {source.rows[n]} ({source.samples[n].key}): {name} is {source.columns[name][n]!r}"
        for n, row in enumerate(values)
        for name, value in zip(names, row, strict=True)
        if not math.isfinite(value)
    ]
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        what = f"{len(bad)} values are no numbers: {'; '.join(bad[:SHOWN])}{more}"
        raise DataError(what, where=data, do="correct these rows, or delete them")
    why, _, unused = source.why.partition("; columns not used: ")
    unused = ", ".join(name for name in unused.split(", ") if name and name not in names)
    source = replace(source, why=f"{why}; columns not used: {unused}" if unused else why)
    with progress.bar("reading", len(source.samples)) as tick:
        read = scan(source, lambda done, total: tick(done))
    tell_plan(read, progress)
    held: dict[str, Any] = {f.name: getattr(read, f.name) for f in fields(ImageDataset)} | {"path": str(data)}
    return NumberDataset(**held, columns=names, values=values)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
