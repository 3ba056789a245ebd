"""A number per image: figures, errors in tables, resuming, explanations and comparison."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from sklearn import metrics as sk

import regard
from regard.config import to_dict
from regard.data.batch import Batch
from regard.errors import ConfigError, DataError
from regard.tasks.image_predictor import ImagePredictor
from regard.tasks.regression.evaluation import compare_numbers, number_figures
from regard.tasks.regression.loss import NumberError
from regard.tasks.regression.page import warnings
from regard.weights import Run
from tests.conftest import whole_runs

SETTINGS: dict[str, Any] = {
    "depth": 1,
    "width": 32,
    "heads": 2,
    "mlp": 64,
    "crop": "none",
    "explain": 0,
    "quiet": True,
    "device": "cpu",
}
LOUD = {name: value for name, value in SETTINGS.items() if name != "quiet"}


@pytest.fixture(scope="session")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 pictures of discs with their radius and brightness, two per patient."""
    folder, draw = tmp_path_factory.mktemp("discs"), np.random.default_rng(0)
    rows = [["path", "patient", "radius", "bright", "note"]]
    for n in range(120):
        radius, bright = draw.uniform(2, 7), draw.uniform(80, 250)
        y, x = np.mgrid[:16, :16]
        pixels = ((x - 8) ** 2 + (y - 8) ** 2 < radius**2) * bright
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n:03d}.png")
        rows.append([f"{n:03d}.png", f"p{n // 2}", f"{radius:.4f}", f"{bright:.2f}", "seen"])
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "table.csv"


@pytest.fixture(scope="session")
@whole_runs()
def run(discs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "radius"
    return regard.train(discs, column="radius", epochs=12, out=out, **{**SETTINGS, "explain": 2}).path


def test_figures_are_scikit_learns() -> None:
    draw = np.random.default_rng(1)
    truth = draw.normal(50, 12, 200)
    predicted = truth + draw.normal(1, 6, 200)
    figures = number_figures(truth, predicted)
    assert figures["mae"].value == pytest.approx(sk.mean_absolute_error(truth, predicted))
    assert figures["rmse"].value == pytest.approx(sk.root_mean_squared_error(truth, predicted))
    assert figures["r2"].value == pytest.approx(sk.r2_score(truth, predicted))
    assert all(f.low < f.value < f.high and f.n == 200 for f in figures.values())


def test_the_interval_of_the_error_is_that_of_the_bootstrap() -> None:
    draw = np.random.default_rng(2)
    truth, predicted = draw.normal(size=80), draw.normal(size=80)
    mine = number_figures(truth, predicted)["mae"]
    data = (np.abs(truth - predicted),)
    theirs = stats.bootstrap(data, np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(3))
    assert (mine.low, mine.high) == pytest.approx(tuple(theirs.confidence_interval), rel=0.03)


def test_of_equal_numbers_there_is_no_r2() -> None:
    assert np.isnan(number_figures(np.full(9, 3.0), np.arange(9.0))["r2"].value)


@pytest.mark.parametrize("kind", ["huber", "squared"])
def test_the_loss_is_torchs_and_the_mean_over_pieces(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    predicted, wanted = torch.randn(6, 2, generator=draw) * 3, torch.randn(6, 2, generator=draw)
    reference = torch.nn.HuberLoss(delta=0.7) if kind == "huber" else torch.nn.MSELoss()
    objective = NumberError(kind, 0.7)  # pyright: ignore[reportArgumentType]
    assert torch.equal(objective.error(predicted, wanted), reference(predicted, wanted))
    whole = Batch({"image": predicted}, {"values": wanted})
    parts = [objective.error(p.inputs["image"], p.targets["values"]) for p in whole.chunk(3)]
    counts = [objective.num_targets(p.targets) for p in whole.chunk(3)]
    mean = sum(loss * n for loss, n in zip(parts, counts, strict=True)) / sum(counts)
    assert torch.allclose(torch.as_tensor(mean), reference(predicted, wanted))


def test_it_learns_the_radius_and_writes_a_whole_run(run: Path, discs: Path) -> None:
    folder = regard.load(run)
    summary = Run(run).read_json("summary.json")
    assert summary["task"] == "regression"
    assert summary["figures"]["r2"]["value"] > 0.5
    assert summary["figures"]["mae"]["value"] < summary["mean_error"]["radius"] / 2
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Predicted and true" in page
    assert "true radius" in page
    assert "Why it decided so" in page
    rows = list(csv.DictReader((run / "predictions.csv").open()))
    errors = [abs(float(row["radius"]) - float(row["predicted_radius"])) for row in rows]
    assert np.mean(errors) == pytest.approx(summary["figures"]["mae"]["value"], rel=1e-6)
    estimate = folder.predict(discs.parent / rows[0]["name"])
    assert estimate.value == pytest.approx(float(rows[0]["predicted_radius"]), rel=1e-4)
    assert str(estimate).startswith("radius ")


def test_no_patient_is_in_two_splits(run: Path) -> None:
    splits: dict[str, set[str]] = {}
    for row in csv.DictReader((run / "splits.csv").open()):
        splits.setdefault(row["group"], set()).add(row["split"])
    assert {name for names in splits.values() for name in names} == {"train", "val", "test"}
    assert all(len(names) == 1 for names in splits.values())


def test_evaluation_leaves_out_what_was_seen_and_agrees_with_the_run(run: Path, discs: Path) -> None:
    result = regard.evaluate(run, discs, quiet=True)
    stored = Run(run).read_json("summary.json")["figures"]
    assert result.figures["mae"].n == stored["mae"]["n"]
    assert result.figures["mae"].value == pytest.approx(stored["mae"]["value"], rel=1e-5)


def test_an_explanation_is_of_the_number_and_scored(run: Path, discs: Path) -> None:
    predictor = regard.load(run)
    made = predictor.explain(discs.parent / "003.png", method="occlusion", target="radius")
    assert made.target == "radius"
    assert made.scores.maps == 16
    assert made.to_json()["correct"] is None
    with pytest.raises(ConfigError, match="no column called 'age'"):
        predictor.explain(discs.parent / "003.png", target="age")


def test_several_columns_are_learnt_together_and_compared(discs: Path, run: Path, tmp_path: Path) -> None:
    both = regard.train(discs, column="radius,bright", epochs=2, out=tmp_path / "both", **SETTINGS)
    figures = both.read_json("summary.json")["figures"]
    assert set(figures) == {f"{m}_{c}" for m in ("mae", "rmse", "r2") for c in ("radius", "bright")}
    assert set(regard.load(both.path).predict(discs.parent / "000.png").values) == {"radius", "bright"}
    worse = regard.train(discs, column="radius", epochs=1, out=tmp_path / "worse", **SETTINGS)
    found = regard.compare(run, worse.path)[str(worse.path)]["mae"]
    assert found.difference.value > 0
    assert found.tests["paired bootstrap"] < 0.05


def test_runs_of_other_columns_are_not_compared() -> None:
    first, second = [{"age": "1", "predicted_age": "2"}], [{"age": "1", "weight": "1", "predicted_weight": "2"}]
    with pytest.raises(ConfigError, match="the second run does not predict age"):
        compare_numbers(first, second, ["age"])
    both = [{"age": "1", "predicted_age": "2", "weight": "1", "predicted_weight": "2"}]
    assert set(compare_numbers(first, both, ["age"])) == {"mae_age", "rmse_age"}


def test_the_column_that_is_predicted_is_not_called_unused(discs: Path) -> None:
    assert regard.check(discs, column="radius", quiet=True).why.endswith("columns not used: bright, note")


def test_a_column_that_is_not_learnt_is_named(run: Path) -> None:
    data = {"columns": ["radius", "x"], "leaks": [], "groups_across_splits": [], "conflicting_labels": []}
    summary = {"split": "test", "figures": {"r2_radius": {"value": 0.9}, "r2_x": {"value": -0.1}}}
    assert warnings(data, summary) == ["It is no better than always giving the mean of x: nothing is learnt yet."]


def test_equal_predictions_do_not_differ() -> None:
    rows = [{"age": str(n), "predicted_age": str(n + n % 3)} for n in range(20)]
    made = compare_numbers(rows, rows, ["age"])["mae"]
    assert (made.difference.value, made.tests["paired bootstrap"]) == (0.0, 1.0)


def test_a_stopped_run_resumes_to_the_same_weights(
    discs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.run import writer

    settings = SETTINGS | {"column": "radius", "epochs": 2, "save_every": 0.0, "mixup": 0.4}
    whole = regard.train(discs, out=tmp_path / "whole", **settings)
    real, count = writer.save_state, 0

    def killed(*arguments: object) -> None:
        nonlocal count
        real(*arguments)  # pyright: ignore[reportArgumentType]
        count += 1
        if count == 5:
            raise RuntimeError("killed")

    monkeypatch.setattr(writer, "save_state", killed)
    with pytest.raises(RuntimeError, match="killed"):
        regard.train(discs, out=tmp_path / "stopped", **settings)
    monkeypatch.undo()
    again = regard.resume(tmp_path / "stopped", quiet=True)
    first, second = (regard.load(r.path).model.state_dict() for r in (whole, again))  # pyright: ignore
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("column", "error", "match"),
    [
        ("age", DataError, "no column 'age'"),
        ("note", DataError, "120 values are no numbers: row 2 .000.png.: note is 'seen'"),
        ("radius,radius", ConfigError, "names nothing, or one column twice"),
    ],
)
def test_what_is_no_number_is_refused_by_name(discs: Path, column: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        regard.train(discs, column=column, epochs=1, **SETTINGS)


def test_rows_without_a_number_are_left_out_and_named(discs: Path, tmp_path: Path, capsys: Any) -> None:
    lines = discs.read_text().splitlines()
    for n, text in ((3, ""), (4, "NA"), (8, "nan")):
        fields = lines[n].split(",")
        lines[n] = ",".join((*fields[:2], text, *fields[3:]))
    table = discs.with_name("gaps.csv")
    table.write_text("\n".join(lines))
    try:
        run = regard.train(table, column="radius", epochs=1, out=tmp_path / "run", **LOUD)
        assert "left out: 3 rows without radius: 002.png, 003.png, 007.png" in capsys.readouterr().err
        assert len(run.split_rows()) == 117
        assert run.read_json("data.json")["left_out"]
        assert len(regard.check(table, column="bright", quiet=True)) == 120
    finally:
        table.unlink()


def test_a_table_without_labels_says_how_its_numbers_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,radius\na.png,1\n")
    for data in (tmp_path / "t.csv", write_scan_table(tmp_path / "volumes")):
        with pytest.raises(DataError, match="no column for the label") as caught:
            regard.check(data, quiet=True)
        assert "for another target, numbers: --column; survival: --time and --event" in str(caught.value)


def write_scan_table(folder: Path) -> Path:
    folder.mkdir()
    (folder / "t.csv").write_text("t1,age\na.nii.gz,1\n")
    return folder / "t.csv"


def test_images_without_a_table_have_no_numbers() -> None:
    with pytest.raises(DataError, match="read from a table"):
        regard.train("digits", column="age", quiet=True)


def test_settings_of_other_tasks_are_refused(discs: Path) -> None:
    for name, value in {"label_smoothing": 0.1, "beam_size": 4, "mask": 0.5}.items():
        with pytest.raises(ConfigError, match=f"regression has no setting '{name}'"):
            regard.train(discs, column="radius", quiet=True, **{name: value})


def test_it_starts_from_the_weights_of_a_classifier(discs: Path, tmp_path: Path) -> None:
    weights = regard.save(regard.create("vit_nano", classes=5, size=16, channels=1), tmp_path / "w.safetensors")
    made = regard.train(
        discs, column="radius", weights=weights, epochs=1, out=tmp_path / "tuned", quiet=True, explain=0
    )
    predictor = regard.load(made.path)
    assert isinstance(predictor, ImagePredictor)
    config = predictor.model.config
    assert to_dict(config)["classes"] == 1
    assert (made.path / "transfer.json").is_file()
