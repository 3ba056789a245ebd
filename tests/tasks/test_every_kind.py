"""Every task on images with an answer each works on pictures and on volumes, from training to one prediction."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import regard
from tests.data.volumes.scans import phantom, save

NANO: dict[str, Any] = {
    "depth": 1, "width": 16, "heads": 2, "mlp": 16, "size": 16, "device": "cpu", "quiet": True, "epochs": 1,
    "explain": 0,
}  # fmt: skip
ASKED: dict[str, dict[str, Any]] = {
    "classification": {"label_column": "odd", "pixel_baseline": False},
    "multilabel": {"label_column": "odd,late"},
    "regression": {"column": "age"},
    "survival": {"time": "age", "event": "odd"},
}
FIGURE = {"classification": "accuracy", "multilabel": "auroc_late", "regression": "mae", "survival": "c_index"}
MODELS = {"pictures": {"model": "vit_nano", "patch": 4}, "scans": {"model": "vit3d_nano", "patch": 8}}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same 40 subjects as pictures and as scans; of every fifth, the label late is missing."""
    folder, draw = tmp_path_factory.mktemp("kinds"), np.random.default_rng(0)
    rows: dict[str, list[list[object]]] = {kind: [["path", "odd", "late", "age"]] for kind in MODELS}
    for n in range(40):
        picture = draw.integers(0, 255, (16, 16), dtype=np.uint8)
        Image.fromarray(picture).save(folder / f"{n}.png")
        save(folder / f"{n}.nii", phantom((16, 16, 16), n))
        for kind, ending in (("pictures", "png"), ("scans", "nii")):
            late = "" if n % 5 == 0 else n // 2 % 2
            rows[kind].append([f"{n}.{ending}", n % 2, late, n + 1])
    for kind, own in rows.items():
        with (folder / f"{kind}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("task", ASKED)
def test_a_task_on_a_kind_of_data(task: str, kind: str, tables: Path, tmp_path: Path) -> None:
    table = tables / f"{kind}.csv"
    settings: dict[str, Any] = NANO | MODELS[kind] | ASKED[task]
    run = regard.train(table, out=tmp_path / "run", **settings)
    assert run.read_json("config.json")["task"] == task
    figure = regard.evaluate(run.path, table, split="test", quiet=True).figures[FIGURE[task]]
    assert figure.n > 0
    model: Any = regard.load(run.path, quiet=True)
    file = tables / ("3.png" if kind == "pictures" else "3.nii")
    assert model.predict(file).name == str(file)
    made = model.explain(file, "rollout", checks="none")
    assert made.map.ndim == (2 if kind == "pictures" else 3)


def test_volumes_of_an_archive(tmp_path: Path) -> None:
    """As MedMNIST3D: three splits of grey volumes with a class each."""
    draw, parts = np.random.default_rng(0), {}
    for part, count in (("train", 16), ("val", 6), ("test", 6)):
        parts[f"{part}_images"] = draw.integers(0, 255, (count, 16, 16, 16), dtype=np.uint8)
        parts[f"{part}_labels"] = (np.arange(count) % 2)[:, None].astype(np.uint8)
    np.savez(tmp_path / "shapes.npz", **parts)
    settings: dict[str, Any] = NANO | MODELS["scans"] | {"pixel_baseline": False}
    run = regard.train(tmp_path / "shapes.npz", out=tmp_path / "run", **settings)
    assert run.read_json("summary.json")["figures"]["accuracy"]["n"] == 6
