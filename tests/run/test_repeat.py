"""Several seeds are several runs, and their spread is told."""

import json

import numpy as np
import pytest

import regard
from regard.errors import ConfigError, RunError
from regard.tasks import images
from tests.conftest import settings_of

FLAGS = ("--model", "vit_nano", "--depth", 1, "--size", 16, "--epochs", 1, "--explain", 0, "--seed", 3)
SETTINGS = {"model": "vit_nano", "depth": 1, "size": (16, 16), "epochs": 1, "explain": 0, "quiet": True}


def test_three_seeds_are_three_runs_and_finished_ones_are_kept(cli, picture_folder, tmp_path):
    command = ("train", picture_folder, "--seeds", 3, "--out", tmp_path / "all", *FLAGS)
    code, out, _ = cli(*command, "--quiet")
    assert code == 0
    folders = [tmp_path / "all" / f"seed{n}" for n in (3, 4, 5)]
    values = [json.loads((f / "summary.json").read_text())["figures"]["log_loss"]["value"] for f in folders]
    assert len(set(values)) == 3
    assert [settings_of(f)["seed"]["value"] for f in folders] == [3, 4, 5]
    summary = json.loads((tmp_path / "all" / "summary.json").read_text())
    assert summary["seeds"] == [3, 4, 5]
    assert summary["figures"]["log_loss"]["values"] == values
    assert summary["figures"]["log_loss"]["mean"] == pytest.approx(np.mean(values))
    assert summary["figures"]["log_loss"]["std"] == pytest.approx(np.std(values, ddof=1))
    assert out.splitlines()[0].split() == ["figure", "mean", "±", "deviation", "seed", "3", "seed", "4", "seed", "5"]

    written = {f: (f / "checkpoints" / "best.safetensors").stat().st_mtime_ns for f in folders}
    for name in ("report.html", "summary.json", "checkpoints/state.safetensors"):  # as if it had been stopped
        (folders[1] / name).unlink()
    code, _, err = cli(*command)
    assert code == 0
    assert "seed 3: finished before" in err
    assert {f for f in folders if (f / "checkpoints" / "best.safetensors").stat().st_mtime_ns != written[f]} == {
        folders[1]
    }
    again = json.loads((tmp_path / "all" / "summary.json").read_text())
    for made in (summary, again):
        assert made["compute"].pop("device_hours") > 0
    assert again == summary, "the same seed, the same figures"


def test_the_images_are_read_once_for_all_seeds(picture_folder, tmp_path, monkeypatch):
    """Images beside parallel text, too: the task is what it is for the first seed."""
    for language in ("en", "de"):
        (picture_folder / f"train.{language}").write_text("a\nb\n")
    read, scan = [], images.scan
    monkeypatch.setattr(images, "scan", lambda *given: read.append(given) or scan(*given))
    regard.train(picture_folder, seeds=2, out=tmp_path / "all", **SETTINGS)
    assert len(read) == 1
    regard.train(picture_folder, seeds=2, out=tmp_path / "all", **SETTINGS)
    assert len(read) == 1, "all are finished"


def test_seeds_under_torchrun_are_refused(picture_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="several seeds"):
        regard.train(picture_folder, model="vit_nano", seeds=2, out=tmp_path / "all", quiet=True)
    assert not (tmp_path / "all").exists()


def test_runs_of_other_settings_are_not_averaged_with_these(picture_folder, tmp_path):
    regard.train(picture_folder, seeds=2, out=tmp_path / "all", **SETTINGS)
    with pytest.raises(RunError, match="other settings: lr"):
        regard.train(picture_folder, seeds=2, out=tmp_path / "all", lr=0.1, **SETTINGS)
    more = regard.train(picture_folder, seeds=3, out=tmp_path / "all", timeout=900, **SETTINGS)
    assert more.read_json("summary.json")["runs"] == 3
    with pytest.raises(ConfigError, match="seeds=0"):
        regard.train(picture_folder, seeds=0, out=tmp_path / "none", **SETTINGS)
    assert not (tmp_path / "none").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        regard.train(picture_folder, seeds=2, out=tmp_path / "full", **SETTINGS)
