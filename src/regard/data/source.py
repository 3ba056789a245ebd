"""A dataset in any format: classes, samples, and a function that reads a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.data.images import read_image

UNLABELLED = ("unlabelled",)
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Sample:
    """One labelled image: its name within the source, label, split and group."""

    key: str
    label: int
    split: str | None = None
    group: str | None = None
    """Such as a patient; a group is never divided between splits."""


@dataclass(frozen=True)
class Files:
    """Reads samples from image files. A class, not a closure, so that it can be sent to worker processes."""

    paths: list[Path]

    def __call__(self, index: int) -> tuple[Tensor, str]:
        return read_image(self.paths[index])


@dataclass(frozen=True)
class Pixels:
    """Reads samples from arrays (channels, *size) in memory."""

    arrays: list[np.ndarray]

    def __call__(self, index: int) -> tuple[Tensor, str]:
        pixels = torch.from_numpy(self.arrays[index])
        return pixels, "L" if len(pixels) == 1 else "RGB"


@dataclass(frozen=True)
class Source:
    """A dataset: classes, samples, and a reader. `why` says how its format was recognised."""

    name: str
    kind: str
    why: str
    classes: tuple[str, ...]
    samples: tuple[Sample, ...]
    reader: Callable[[int], tuple[Tensor, str]] = field(repr=False)
    ignored: tuple[str, ...] = ()
    """Files that are not part of it: other formats, images without a class."""
    labelled: bool = True
    """If false, all samples have the same meaningless class."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    """All columns of a table, one text per sample."""

    def read(self, index: int) -> tuple[Tensor, str]:
        """The pixels (channels, *size) of one sample and the mode of the file."""
        return self.reader(index)

    def without_labels(self) -> Source:
        """The same images and splits, without labels."""
        samples = tuple(replace(sample, label=0) for sample in self.samples)
        return replace(self, classes=UNLABELLED, samples=samples, labelled=False)

    def counts(self) -> dict[str, Counter[int]]:
        """Samples per split ("all" where the source names none) and class."""
        table: dict[str, Counter[int]] = {}
        for sample in self.samples:
            table.setdefault(sample.split or "all", Counter())[sample.label] += 1
        return table
