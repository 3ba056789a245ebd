"""The protocol of all data sets: keys, groups, strata, splits, a fingerprint, problems."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from regard.errors import DataError, nearby_data

UNUSED = "unused"
"""The split of training samples that a run leaves out."""
LISTED = 20


def existing_path(data: str | Path, known: str) -> Path:
    """The path of the data, which must exist; `known` names the accepted formats, for the error message."""
    if "://" in str(data):
        raise DataError(f"{data} is an address; data is read from this machine only", do="download it first")
    path = Path(data).expanduser()
    if not path.exists():
        raise DataError("there is no such data", where=path, do=nearby_data(path) or f"give {known}")
    if not (path.is_dir() or path.is_file()):
        raise DataError("this is neither a file nor a folder", where=path, do=f"give {known}")
    return path


def listed(lines: Sequence[str], most: int = LISTED) -> list[str]:
    """The first lines, indented, and the number of further lines."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return [f"    {line}" for line in [*lines[:most], *more]]


class Dataset(Protocol):
    """Images, volumes or sentence pairs. The splitter and the runner use only this protocol."""

    samples_word: ClassVar[str]
    """Plural noun for the samples, such as images."""
    whole_tests: ClassVar[bool]
    """Whether a given test set is scored completely, as in published figures, with samples that training has too."""

    @property
    def path(self) -> str:
        """The path or name that the user gave."""
        ...

    @property
    def reading(self) -> dict[str, Any]:
        """The settings that it was read by; empty where it was not read for a run."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def why(self) -> str:
        """How the format was recognised."""
        ...

    def __len__(self) -> int: ...

    def key(self, number: int) -> str: ...

    def given_splits(self) -> list[str | None]:
        """The split that the data names for each sample, if any."""
        ...

    @property
    def tested(self) -> bool:
        """Whether to make a test split: not for samples without labels."""
        ...

    def strata(self) -> Sequence[int]:
        """The stratum of each sample: its class, or 0. Splits keep the proportions of strata."""
        ...

    def stratum_name(self, stratum: int) -> str: ...

    def traits(self) -> np.ndarray | None:
        """Of data with several labels: which traits, such as a class of one label, each sample has, (N, traits).

        Folds and splits then keep the proportions of all traits; samples without any are in none. Else None.
        """
        ...

    def ties(self, number: int) -> list[Hashable]:
        """Keys of a sample; samples that share a key stay in the same split."""
        ...

    def require_trainable(self, splits: Sequence[str]) -> None: ...

    def require_usable(self, share: float = 0.0) -> None:
        """Raise an error if more than this share of the samples cannot be used."""
        ...

    def fingerprint(self) -> str: ...

    def describe(self) -> str: ...

    def summary(self) -> str:
        """One line: kind and size of the data set."""
        ...

    def warnings(self, splits: Sequence[str]) -> list[str]: ...

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]: ...

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of splits.csv, from which `seen` recognises samples."""
        ...

    def seen(self, rows: Sequence[Mapping[str, str]]) -> set[int]:
        """The samples that occur in these rows of a run's splits.csv."""
        ...


def leaked(dataset: Dataset, splits: Sequence[str], part: str) -> set[int]:
    """The samples of a split that occur in training too; or in validation, which chooses the weights."""
    earlier = ("train",) if part == "val" else ("train", "val")
    rows = [row for row in dataset.split_rows(splits) if row["split"] in earlier]
    return dataset.seen(rows) & {i for i, name in enumerate(splits) if name == part}
