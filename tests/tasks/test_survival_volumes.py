"""Survival of subjects with scans, through the public commands."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.explain import reported
from regard.setting_groups import Transfer
from regard.training.adapt import adapt
from regard.weights.transfer import open_start
from regard.weights.vit import write
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


def test_features_of_a_cnn_join_the_class_token_and_are_trained_saved_and_explained_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, options = write_cohort(tmp_path, 30), {"recipe": "survival_plain", "epochs": 2, "explain": 0}
    options |= {"time": "days", "event": "died", "cnn": "monai_resnet10"}
    run = regard.train(data, clinical="age", out=tmp_path / "run", **options, **NANO)  # pyright: ignore[reportArgumentType]
    model: Any = regard.load(run.path)
    network, x = model.model.eval(), torch.rand(2, 1, 16, 16, 16)
    with torch.no_grad():
        output, beside = network(x), network.cnn(x).logits
    assert output.features.shape == (2, 32 + 512)
    assert torch.equal(output.features[:, 32:], beside), "the class token's features, then the CNN's"
    scales = [m.weight for m in network.cnn.modules() if isinstance(m, torch.nn.BatchNorm3d)]
    assert scales
    assert all((scale != 1).any() for scale in scales), "ones before training, and not decayed"
    assert network.head.weight[:, 32:].any(), "the head reads them"
    rows = {row["name"]: float(row["risk"]) for row in run.read_rows("predictions.csv")}
    assert cli("predict", run.path, data, "--out", tmp_path / "made.csv")[0] == 0
    made = {row["name"]: float(row["risk"]) for row in csv.DictReader((tmp_path / "made.csv").open())}
    assert {name: made[name] for name in rows} == pytest.approx(rows, abs=1e-3)
    assert reported(network) == ("integrated_gradients",), "in the report"
    made = model.explain(tmp_path / "3.nii", steps=16, checks="none")
    assert made.map.shape == (16, 16, 16)
    assert made.completeness_error < 0.2, "the score that the map adds up to is of both"
    with pytest.raises(ConfigError, match="rollout explains the transformer alone, and monai_resnet10 beside it"):
        model.explain(tmp_path / "3.nii", "rollout")


def test_a_cnn_joins_trained_weights_and_what_it_cannot_join_is_refused(tmp_path: Path) -> None:
    regard.save(regard.create("vit3d_nano", size=16, classes=3), tmp_path / "held.safetensors")
    start = open_start(tmp_path / "held.safetensors", 2, {"cnn": "monai_resnet10"}, None)
    again = open_start(tmp_path / "held.safetensors", 2, {"cnn": "monai_resnet10"}, None)
    assert any("monai_resnet10, beside the transformer, are random" in line for line in start.report.lines())
    assert all(torch.equal(t, again.checkpoint.weights[name]) for name, t in start.checkpoint.weights.items())
    network = start.checkpoint.build()
    adapt(network, Transfer(weights="held", freeze="all"))
    moves = {name.split(".")[0] for name, p in network.named_parameters() if p.requires_grad}
    assert moves == {"head", "cnn"}
    with pytest.raises(ConfigError, match="smaller than monai_densenet121 can halve"):
        regard.create("vit3d_nano", size=16, cnn="monai_densenet121")
    with pytest.raises(ConfigError, match="a distillation token is a second one"):
        regard.create("vit_nano", cnn="monai_resnet10", distilled=True)
    picture = regard.create("vit_nano", cnn="monai_resnet10")
    with pytest.raises(ConfigError, match="cnn='monai_resnet10'"):
        write(picture.state_dict(), picture.config, "timm")
    with pytest.raises(ConfigError, match="cnn"):
        regard.create("swin3d_nano", cnn="monai_resnet10")
