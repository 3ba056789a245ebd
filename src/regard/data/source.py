"""A dataset in any format: classes, samples, and a function that reads a sample."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import read_image
from regard.image_groups import MAX_MEGAPIXELS

UNLABELLED = ("unlabelled",)
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "eval", "evaluation"),
    "test": ("test", "testing"),
}
"""The usual names of each split."""
_FILLERS = {"set", "data", "dataset", "image", "images", "imgs", "split"}


def split_names(names: Iterable[str]) -> dict[str, str]:
    """Those of the names that mean a split, and which: in any case, as training_set, val2017 or Testing.

    What is called eval is the validation split, or the test split where there is another for validation and none to
    test on.

    >>> split_names(["Training", "test_set", "cats"])
    {'Training': 'train', 'test_set': 'test'}
    >>> split_names(["train", "dev", "eval"])
    {'train': 'train', 'dev': 'val', 'eval': 'test'}
    """
    splits: dict[str, str] = {}
    for name in names:
        words = [word for word in re.findall(r"[a-z]+", name.lower()) if word not in _FILLERS]
        known = [split for split, own in SPLITS.items() if len(words) == 1 and words[0].removesuffix("set") in own]
        splits |= dict.fromkeys([name] if known else [], known[0] if known else "")
    evals = [name for name in splits if "eval" in name.lower()]
    others = {split for name, split in splits.items() if name not in evals}
    return splits | (dict.fromkeys(evals, "test") if "val" in others and "test" not in others else {})


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
    max_megapixels: float = MAX_MEGAPIXELS

    def __call__(self, index: int) -> tuple[Tensor, str]:
        return read_image(self.paths[index], self.max_megapixels)


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
    """Files that lie there but are no part of it: other formats, images that belong to no class."""
    left_out: tuple[str, ...] = ()
    """Folders that are no part of it, each with the reason."""
    labelled: bool = True
    """If false, all samples have the same meaningless class."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    """Of a table: its other columns, one text per sample."""
    rows: Sequence[int] = field(default=(), repr=False)
    """Of a table: the line that each sample stands in."""
    settle: Callable[[Source, Callable[[int, int], None]], Source] | None = field(default=None, repr=False)
    """Of volumes: looks at all samples for what they have in common, and gives the source that can be read."""
    survey: Any = field(default=None, repr=False)
    """Of volumes that have been looked at: a `regard.data.volumes.survey.Survey`."""

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
