"""Images with numbers: a table with a path and one or more columns of numbers per row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from regard.console import Progress, columns
from regard.data import ImageDataset
from regard.image_groups import ImageData
from regard.tasks.image_columns import open_columns, read_columns, refuse_values


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

    def exchanged(self, order: Sequence[int]) -> Self:
        return replace(self, values=self.values[list(order)])

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
    source = open_columns(data, names, how, size, "numbers", "path and numbers")
    values = np.array([[_number(text) for text in source.columns[name]] for name in names]).T
    wrong = [(n, names[place]) for n, place in np.argwhere(~np.isfinite(values)).tolist()]
    refuse_values(data, source, wrong, "numbers", "correct these rows, or delete them")
    return read_columns(NumberDataset, data, source, progress, columns=names, values=values)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
