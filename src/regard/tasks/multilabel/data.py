"""Images with several labels: a table with a path and one column per label; a label may be missing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from regard.console import Progress, columns
from regard.data import ImageDataset
from regard.data.tables import is_missing, natural
from regard.errors import DataError, counted
from regard.image_groups import LabelColumnData
from regard.tasks.image_columns import open_columns, read_columns
from regard.tasks.multilabel.settings import label_names

MOST_CLASSES = 20
"""Of one label: a column with more is not a label."""
PER_STRATUM = 6
"""Independent images from which a combination of labels is a stratum of its own."""
LABELS = tuple[tuple[str, tuple[str, ...]], ...]
"""Labels by name, each with its classes."""


@dataclass
class LabelDataset(ImageDataset):
    """What was read: images, and the number of each one's class (N, labels), -1 where a label is missing."""

    labels: LABELS = ()
    codes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int), repr=False)

    @property
    def tested(self) -> bool:
        return True

    @property
    def unlabelled(self) -> np.ndarray:
        """Which images have no label at all."""
        return np.all(self.codes < 0, axis=1)

    def strata(self) -> list[int]:
        """Combinations of labels, missing ones included; rare combinations together."""
        combinations = [tuple(row) for row in self.codes.tolist()]
        owners = [sample.group or f"sample {n}" for n, sample in enumerate(self.source.samples)]
        independent = Counter(own for own, _ in set(zip(combinations, owners, strict=True)))
        usual = [own for own, count in independent.most_common() if count >= PER_STRATUM]
        rare = sum(count for own, count in independent.items() if own not in usual)
        number = {own: n for n, own in enumerate(sorted(usual), start=1)}
        pooled = 0 if rare >= PER_STRATUM or not usual else number[usual[0]]
        return [number.get(own, pooled) for own in combinations]

    def traits(self) -> np.ndarray:
        """Every class of every label, and the combinations of them; none where all labels are missing."""
        classes = [np.eye(len(own) + 1)[self.codes[:, n]][:, :-1] for n, (_, own) in enumerate(self.labels)]
        strata = np.array(self.strata())
        return np.hstack([*classes, np.eye(strata.max() + 1)[strata]]) * ~self.unlabelled[:, None]

    def exchanged(self, order: Sequence[int]) -> Self:
        return replace(self, codes=self.codes[np.asarray(order)])

    def stratum_name(self, stratum: int) -> str:
        return "the group of images with one combination of labels"

    def require_trainable(self, splits: Sequence[str]) -> None:
        for n, (label, classes) in enumerate(self.labels):
            own = {name: set(self.codes[[s == name for s in splits], n].tolist()) - {-1} for name in ("train", "val")}
            lacking = [classes[c] for c in range(len(classes)) if c not in own["train"]]
            if lacking:
                what = f"{label}: no training image of {', '.join(lacking)}"
                raise DataError(what, where=self.name, do="add some, or give other splits")
            if len(own["val"]) < 2:
                what = f"{label}: the val split has one class only, so weights cannot be chosen by it"
                raise DataError(what, where=self.name, do="add some, give other splits, or a larger --holdout")

    def summary(self) -> str:
        source = self.source
        known = ", ".join(f"{label} ({len(classes)} classes)" for label, classes in self.labels)
        return f"{source.kind} ({source.why}), {counted(len(source.samples), 'images')}, labels {known}"

    def warnings(self, splits: Sequence[str]) -> list[str]:
        lines = super().warnings(splits)
        missing = (self.codes < 0).sum(0)
        parts = [f"{label} {count}" for (label, _), count in zip(self.labels, missing, strict=True) if count]
        if parts:
            lines.append(f"missing labels, which do not count: {', '.join(parts)} of {len(self.codes)}")
        return lines

    def fingerprint(self) -> str:
        held = super().fingerprint() + repr(self.labels) + str(self.codes.tolist())
        return hashlib.sha256(held.encode()).hexdigest()

    def conflicting(self) -> list[list[int]]:
        """Equal images with different labels."""
        return [group for group in self.duplicates() if len({tuple(self.codes[i]) for i in group}) > 1]

    def counts(self, splits: Sequence[str]) -> dict[str, dict[str, dict[str, int]]]:
        """By label and split: images of each class, and those without."""
        table: dict[str, dict[str, dict[str, int]]] = {}
        for n, (label, classes) in enumerate(self.labels):
            for part in sorted(set(splits)):
                own = Counter(self.codes[[name == part for name in splits], n].tolist())
                numbers = {name: own[c] for c, name in enumerate(classes)} | {"missing": own[-1]}
                table.setdefault(label, {})[part] = numbers
        return table

    def describe(self) -> str:
        splits = [sample.split or "all" for sample in self.source.samples]
        parts = [name for name in ("train", "val", "test", "all") if name in splits]
        rows = [
            (label, name, *(held[part][name] for part in parts))
            for label, held in self.counts(splits).items()
            for name in held[parts[0]]
        ]
        return f"{columns(('label', 'class', *parts), rows)}\n\n{super().describe()}"

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        return [
            row | {f"label_{label}": text for (label, _), text in zip(self.labels, self.texts(n), strict=True)}
            for n, row in enumerate(super().split_rows(splits))
        ]

    def texts(self, number: int) -> list[str]:
        """The classes of one image, "" where a label is missing."""
        return ["" if c < 0 else classes[c] for (_, classes), c in zip(self.labels, self.codes[number], strict=True)]

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        labels = {label: list(classes) for label, classes in self.labels}
        return super().to_json(splits, note) | {"labels": labels, "label_counts": self.counts(splits)}


def read_labels(
    data: str | Path,
    progress: Progress,
    how: LabelColumnData,
    size: int | tuple[int, ...] | None = None,
    known: LABELS | None = None,
) -> LabelDataset:
    """Read every image once, and its labels; `known` are those of a trained model, which no others may occur beside."""
    names = label_names(how)
    bare = replace(how, label_column=None)
    source = open_columns(data, names, bare, size, "several labels", "a column for each label")
    texts = {name: ["" if is_missing(t) else t.strip() for t in source.columns[name]] for name in names}
    labels = known or tuple((name, _classes(name, own, data)) for name, own in texts.items())
    codes = np.full((len(source.samples), len(names)), -1)
    for n, (name, classes) in enumerate(labels):
        odd = sorted(set(texts[name]) - {"", *classes})
        if odd:
            what = f"{name} has classes that the model does not know: {', '.join(odd[:10])}"
            raise DataError(what, where=data, do=f"it knows {', '.join(classes)}")
        codes[:, n] = [classes.index(text) if text else -1 for text in texts[name]]
    return read_columns(LabelDataset, data, source, progress, labels=labels, codes=codes)


def _classes(name: str, texts: Sequence[str], data: str | Path) -> tuple[str, ...]:
    classes = tuple(sorted(set(texts) - {""}, key=natural))
    if len(classes) < 2:
        what = f"{name} has {'one class only' if classes else 'no value'}: there is nothing to tell apart"
        raise DataError(what, where=data, do="leave it out of --label-column")
    if len(classes) > MOST_CLASSES:
        do = "a number is predicted by --column; leave it out of --label-column"
        raise DataError(f"{name} has {len(classes)} different values, too many for a label", where=data, do=do)
    return classes
