"""What every data set offers, whatever it holds: keys, groups, strata, splits, a fingerprint, problems."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from regard.errors import DataError, did_you_mean

UNUSED = "unused"
"""The split of training samples that a run leaves out."""
LISTED = 20


def existing_path(data: str | Path, known: str) -> Path:
    """The file or folder that is meant; `known` says what can be given."""
    if "://" in str(data):
        raise DataError(f"{data} is an address; data is read from this machine only", do="download it first")
    path = Path(data).expanduser()
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        raise DataError("there is no such data", where=path, do=near or f"give {known}")
    if not (path.is_dir() or path.is_file()):
        raise DataError("this is neither a file nor a folder", where=path, do=f"give {known}")
    return path


def listed(lines: Sequence[str], most: int = LISTED) -> list[str]:
    """The first lines, indented, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return [f"    {line}" for line in [*lines[:most], *more]]


class Dataset(Protocol):
    """Images, volumes and sentence pairs; the splitter and the runner know no more than this."""

    samples_word: ClassVar[str]
    """What the samples are, in the plural."""
    whole_tests: ClassVar[bool]
    """Whether a test set that the data names is scored whole, as published figures are, seen samples included."""

    @property
    def path(self) -> str:
        """What was asked to be read."""
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
        """Whether a test split is worth cutting: not of samples without labels."""
        ...

    def strata(self) -> Sequence[int]:
        """Of each sample the stratum that a split keeps in proportion: its class, or 0."""
        ...

    def stratum_name(self, stratum: int) -> str: ...

    def ties(self, number: int) -> list[Hashable]:
        """What must not be divided over splits: samples that share one of these stay together."""
        ...

    def require_trainable(self, splits: Sequence[str]) -> None: ...

    def require_usable(self, share: float = 0.0) -> None:
        """An error if more than this share of the samples cannot be used."""
        ...

    def fingerprint(self) -> str: ...

    def describe(self) -> str: ...

    def summary(self) -> str:
        """One line: what it is and how large."""
        ...

    def warnings(self, splits: Sequence[str]) -> list[str]: ...

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]: ...

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of splits.csv, by which samples are known again."""
        ...

    def seen(self, rows: Sequence[Mapping[str, str]]) -> set[int]:
        """The samples that occur in these rows of a run's splits.csv."""
        ...
