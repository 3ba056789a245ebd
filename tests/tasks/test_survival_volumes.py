"""Survival of subjects with scans, through the public commands."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from tests.data.volumes.scans import affine_of, phantom, save

NANO: dict[str, Any] = {
    "model": "vit3d_nano", "depth": 1, "width": 32, "heads": 2, "mlp": 64, "size": 16, "device": "cpu", "quiet": True,
}  # fmt: skip


def write_cohort(folder: Path, count: int = 80) -> Path:
    """The brightness of a block decides the hazard."""
    draw = np.random.default_rng(0)
    rows: list[list[object]] = [["subject", "t1", "days", "died", "age"]]
    for n in range(count):
        bright, t1 = draw.uniform(0, 600), phantom((16, 16, 16), n)
        t1[5:11, 5:11, 5:11] += bright
        death, end = draw.exponential(100 * np.exp(3 - bright / 100)), draw.uniform(20, 2000)
        save(folder / f"{n}.nii", t1, affine_of((1.0, 1.0, 1.0)), "RAS")
        rows.append([f"s{n}", f"{n}.nii", f"{min(death, end):.1f}", int(death <= end), f"{draw.normal(60, 10):.0f}"])
    with (folder / "cohort.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "cohort.csv"


def test_scans_with_clinical_columns_are_trained_tested_predicted_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, options = write_cohort(tmp_path), {"recipe": "survival_plain", "epochs": 10, "lr": 3e-3, "explain": 1}
    run = regard.train(data, time="days", event="died", clinical="age", out=tmp_path / "run", **options, **NANO)  # pyright: ignore[reportArgumentType]
    figure = run.read_json("summary.json")["figures"]["c_index"]
    assert figure["value"] > 0.6
    assert regard.evaluate(run.path, data, quiet=True).figures["c_index"].value == pytest.approx(figure["value"])
    code, _, err = cli("predict", run.path, data, "--out", tmp_path / "made.csv")
    assert code == 0, err
    made = {row["name"]: row for row in csv.DictReader((tmp_path / "made.csv").open())}
    for row in csv.DictReader((run.path / "predictions.csv").open()):
        assert float(made[row["name"]]["risk"]) == pytest.approx(float(row["risk"]), abs=1e-3)
    code, _, err = cli("explain", run.path, tmp_path / "3.nii", "--checks", "none", "--out", tmp_path / "map.nii.gz")
    assert code == 0, err
    assert (tmp_path / "map.nii.gz").is_file()
