"""What the scripts in benchmarks/ promise of being called again."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import regard
from benchmarks import volumes_small
from regard.errors import RunError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of every run that was asked for; none is made."""
    asked: list[dict[str, Any]] = []

    def make(data: object, **settings: Any) -> Any:
        asked.append(settings)
        return SimpleNamespace(read_json=lambda name: {"figures": {"auroc": {"value": settings.get("lr", 0.5)}}})

    monkeypatch.setattr(regard, "train", make)
    monkeypatch.setattr(regard, "pretrain", make)
    return asked


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["volumes_small.py", "some.npz", *map(str, words)])
    volumes_small.main()


def test_small_volumes_are_resumed_pretraining_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (tmp_path / "out", "--models", "vit3d_nano", "--seeds", 2, "--pretrain", 5, "--set", "lr=0.25")
    run(monkeypatch, *words)
    assert [settings["resume"] for settings in calls] == [True] * 4, "a pre-training and a run per seed"
    assert "| vit3d_nano | 2 | 0.250 (0.250, 0.250) |" in capsys.readouterr().out
    run(monkeypatch, *words)
    assert len(calls) == 4, "what has finished is kept"


def test_small_volumes_of_other_settings_are_not_told_as_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    words = (tmp_path / "out", "--models", "vit3d_nano", "--seeds", 1)
    run(monkeypatch, *words, "--set", "lr=0.25")
    for other in (("--set", "lr=0.5"), ("--set", "lr=0.25", "--pretrain", 5), ("--set", "lr=0.25", "--from", "x")):
        with pytest.raises(RunError, match="runs of other settings"):
            run(monkeypatch, *words, *other)
    run(monkeypatch, *words, "--set", "lr=0.25")
    assert len(calls) == 1


def test_small_volumes_are_validated_without_the_test_volumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        f"{part}_images": draw.integers(0, 2, (n, 2, 2, 2)) for part, n in (("train", 6), ("val", 3), ("test", 4))
    }
    arrays |= {f"{name.removesuffix('images')}labels": np.arange(len(own)) for name, own in arrays.items()}
    np.savez(tmp_path / "some.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    models = ("--models", "vit3d_nano", "monai_resnet18")
    run(monkeypatch, tmp_path / "out", *models, "--seeds", 1, "--validate", "--set", "lr=0.25", "vit3d:patch=7")
    assert [settings["folds"] for settings in calls] == [5, 5]
    assert [settings.get("patch") for settings in calls] == [7, None], "for models of that name alone"
    assert all(settings["lr"] == 0.25 for settings in calls)
    with np.load(tmp_path / "out" / "trainval.npz") as held:
        assert held["labels"].tolist() == [*range(6), *range(3)]
        assert np.array_equal(held["images"][6:], arrays["val_images"])
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "other", "--validate", "--pretrain", 3)
