"""Which format a dataset has, and how that was recognised."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.arrays import arrays_source
from regard.data.dataset import existing_path
from regard.data.folders import folder_source, unlabelled_folder
from regard.data.source import Pixels, Sample, Source
from regard.data.tables import has_columns, table_source
from regard.errors import DataError

TABLES = (".csv", ".tsv")


def open_source(data: str | Path, labels: bool = True) -> Source:
    """The dataset of a folder, table, archive or the name `digits`; without its labels if not wanted.

    >>> open_source("digits").why
    'the hand-written digits that come with scikit-learn'
    """
    source = _open(data, labels)
    return source if labels else source.without_labels()


def _open(data: str | Path, labels: bool) -> Source:
    if str(data) == "digits":
        return _digits()
    path = existing_path(data, "a folder, .csv, .tsv, .npz or digits")
    if path.is_dir():
        tables = [p for p in sorted(path.iterdir()) if p.suffix.lower() in TABLES and has_columns(p)]
        if len(tables) == 1:
            why = f"a folder with the table {tables[0].name} of paths and labels in it"
            return table_source(tables[0], why, whole_folder=True)
        return folder_source(path) if labels else unlabelled_folder(path)
    if path.suffix.lower() in TABLES:
        return table_source(path, f"the file's ending {path.suffix}", labels=labels)
    if path.suffix.lower() == ".npz":
        return arrays_source(path, labels)
    ending = path.suffix or "nameless"
    raise DataError(f"a {ending} file is no known data", where=path, do="give a folder, .csv, .tsv or .npz")


def _digits() -> Source:
    """1,797 digits of 8 × 8 pixels; every fifth of each class is the test set, fixed for all seeds."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    pixels = (bunch.images * (255 / 16)).round().astype(np.uint8)[:, None]
    seen: Counter[int] = Counter()
    samples = []
    for number, label in enumerate(int(n) for n in bunch.target):
        samples.append(Sample(f"digit-{number:04d}", label, "test" if seen[label] % 5 == 4 else "train"))
        seen[label] += 1
    return Source(
        name="digits",
        kind="digits",
        why="the hand-written digits that come with scikit-learn",
        classes=tuple(str(n) for n in range(10)),
        samples=tuple(samples),
        reader=Pixels(list(pixels)),
    )
