"""Simple models of raw pixels stand beside a network of every task on images, on what it is tested on."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, roc_auc_score
from sklearn.preprocessing import StandardScaler

import regard
from regard.evaluation.pixel_baseline import pixel_doubts

TINY: dict[str, Any] = {
    "model": "vit_nano", "size": 8, "patch": 4, "width": 16, "depth": 1, "heads": 2, "mlp": 16, "epochs": 1,
    "explain": 0, "device": "cpu", "crop": "none", "flip": False, "lr": 1e-6,
}  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey squares with noise: the brighter, the larger the number, the surer the labels and the sooner the event."""
    folder, draw = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "split", "age", "kind", "late", "days", "died"))
        for n in range(150):
            light, split = draw.uniform(40, 215), ("train", "train", "train", "val", "test")[n % 5]
            noise = draw.normal(light, 20, (8, 8))
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{n}.png")
            late = "" if n % 7 == 0 else "yes" if draw.normal(128, 30) < light else "no"
            days = draw.exponential(2000 / light)
            kind = "ab"[int(light > 128)]
            writer.writerow((f"{n}.png", split, f"{light:.3f}", kind, late, f"{days:.3f}", int(n % 3 > 0)))
    return folder / "table.csv"


TASKS: dict[str, tuple[dict[str, Any], str, str, float]] = {
    "classification": ({"label_column": "kind", "recipe": "plain"}, "accuracy", "random forest on pixels", 0.9),
    "regression": ({"column": "age", "recipe": "regression_plain"}, "r2", "ridge regression on pixels", 0.9),
    "multilabel": (
        {"label_column": "kind,late", "recipe": "multilabel_plain"}, "auroc", "random forest on pixels", 0.8,
    ),
    "survival": (
        {"time": "days", "event": "died", "recipe": "survival_plain"}, "c_index",
        "Cox’s model of 10 principal components of the pixels", 0.6,
    ),
}  # fmt: skip


@pytest.mark.whole_runs
@pytest.mark.parametrize("task", TASKS)
def test_they_stand_beside_every_network(table, tmp_path, capsys, task):
    settings, figure, row, least = TASKS[task]
    run = regard.train(table, out=tmp_path / "run", **(TINY | settings))
    summary, page, told = run.read_json("summary.json"), (run.path / "report.html").read_text(), capsys.readouterr().err
    made = summary["pixel_baselines"]
    assert all(own[figure]["value"] > least and own[figure]["n"] == 30 for own in made.values()), made
    assert row in page
    better = summary["figures"][figure]["value"] > max(own[figure]["value"] for own in made.values())
    assert better == (task == "classification"), "random weights happen to tell light from dark, and nothing else"
    assert ["simple model of raw pixels has" in text for text in (told, page)] == [not better] * 2
    without = regard.train(table, out=tmp_path / "none", **(TINY | settings), pixel_baseline=False)
    assert "pixel_baselines" not in without.read_json("summary.json")


def read(table: Path) -> tuple[np.ndarray, list[dict[str, str]]]:
    rows = list(csv.DictReader(table.open()))
    pixels = np.stack([np.array(Image.open(table.parent / row["path"])) for row in rows]).reshape(len(rows), -1)
    return pixels.astype(np.float32), rows


@pytest.mark.whole_runs
def test_figures_are_those_of_scikit_learn_by_hand(table, tmp_path):
    pixels, rows = read(table)
    train, test = (np.array([row["split"] == part for row in rows]) for part in ("train", "test"))
    scaler = StandardScaler().fit(pixels[train])
    age = np.array([float(row["age"]) for row in rows])
    guess = Ridge(1000).fit(scaler.transform(pixels[train]), age[train]).predict(scaler.transform(pixels[test]))
    run = regard.train(table, out=tmp_path / "ages", **(TINY | TASKS["regression"][0]), channels=1)
    made = run.read_json("summary.json")["pixel_baselines"]["ridge regression"]
    assert made["mae"]["value"] == pytest.approx(mean_absolute_error(age[test], guess), rel=1e-3)

    run = regard.train(table, out=tmp_path / "labels", **(TINY | TASKS["multilabel"][0]), channels=1)
    forest = run.read_json("summary.json")["pixel_baselines"]["random forest"]
    late = np.array([row["late"] for row in rows])
    own, asked = train & (late != ""), test & (late != "")
    trees = RandomForestClassifier(100, random_state=0).fit(pixels[own], late[own] == "yes")
    area = roc_auc_score(late[asked] == "yes", trees.predict_proba(pixels[asked])[:, 1])
    assert forest["auroc_late"]["value"] == pytest.approx(area, abs=1e-6)
    assert forest["auroc_late"]["n"] == asked.sum()


@pytest.mark.parametrize(("less", "reached", "said"), [(True, 3.0, True), (True, 1.0, False), (False, 3.0, False)])
def test_it_is_said_where_the_network_is_not_better(less, reached, said):
    made = {"one": {"mae": {"value": 2.0}}, "other": {"mae": {"value": 2.5}}}
    summary = {"figures": {"mae": {"value": reached}}, "pixel_baselines": made}
    assert pixel_doubts(summary, "mae", ".1f", less) == (
        ["a simple model of raw pixels has mae 2.0: the network adds nothing here yet"] if said else []
    )
