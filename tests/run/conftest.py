"""Shared by tests of runs: a small cross-validation."""

from pathlib import Path

import pytest

import regard
from regard.weights import Run
from tests.run.folded import FAST, write_table


@pytest.fixture(scope="session")
def folded(tmp_path_factory) -> tuple[Path, Run]:
    """Three folds of 60 pictures of 30 patients, four of them in a test split; and their table."""
    root = tmp_path_factory.mktemp("folded")
    splits: list[object] = ["test" if n < 8 else "train" for n in range(60)]
    data = write_table(root / "data", 60, signal=25.0, per_patient=2, split=splits)
    return data, regard.train(data, folds=3, out=root / "out", **FAST)
