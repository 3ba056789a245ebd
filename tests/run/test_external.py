"""Another cohort: overlap is named and left out, folds are tested together, calibration and own figures beside."""

import shutil
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import regard
from regard.errors import ConfigError, DataError
from regard.metrics.folds import calibration_line
from regard.metrics.survival import cox_slope
from regard.tasks.survival.clinical import fit_cox
from regard.weights import Run
from tests.run.folded import CASES, outcomes, write_table


@pytest.fixture
def cohort(tmp_path):
    """Other pictures of other patients; but one is of the training data, and one patient has an id that is there."""

    def write(source, **more: Any):
        data = write_table(tmp_path / "cohort", 40, signal=25.0, seed=7, **more)
        shutil.copy(source.parent / "020.png", data.parent / "003.png")
        text = data.read_text().replace(",p5,", ",p11,")
        numbers = [line.split(",") for line in text.splitlines()]
        at = numbers[0].index("patient")
        for line in numbers[1:]:
            line[at] = line[at] if line[at] == "p11" and line[0] == "005.png" else f"other-{line[at]}"
        data.write_text("\n".join(",".join(line) for line in numbers) + "\n")
        return data

    return write


def test_folds_are_tested_together_and_each_alone(folded, cohort, cli, tmp_path):
    own, made = folded
    data = cohort(own)
    result: Any = regard.evaluate(made.path, data, external=True, out=tmp_path / "out", quiet=True)
    assert (result.same_contents, result.same_patients) == (["003.png"], ["005.png"])
    rows = Run(tmp_path / "out").read_rows("predictions.csv")
    assert len(rows) == 38
    assert not {"003.png", "005.png"} & {row["name"] for row in rows}
    each = []
    for fold in (1, 2, 3):
        alone = regard.evaluate(made.path / f"fold{fold}", data, split="all", quiet=True)
        each.append({row["name"]: float(row["p_b"]) for row in alone.predictions()})
    mean = np.array([np.mean([own[row["name"]] for own in each]) for row in rows])
    assert [float(row["p_b"]) for row in rows] == pytest.approx(mean, abs=2e-6)
    positive = np.array([row["label"] == "b" for row in rows])
    assert result.figures["auroc"].value == pytest.approx(roc_auc_score(positive, mean))
    for fold, held in zip(result.folds, each, strict=True):
        alone = np.array([held[row["name"]] for row in rows])
        assert fold["auroc"].value == pytest.approx(roc_auc_score(positive, alone))
    line = calibration_line(mean, positive)
    assert result.figures["calibration_slope"].value == pytest.approx(line.slope.value, rel=1e-3)
    assert result.figures["calibration_intercept"].value == pytest.approx(line.intercept.value, abs=1e-3)
    code, out, _ = cli("eval", made.path, data, "--external")
    assert code == 0
    inside = made.read_json("summary.json")["figures"]["auroc"]["value"]
    for words in ("left out: 1 (003.png)", "left out: 1 (005.png)", f"{inside:.4f}", "each fold alone"):
        assert words in out
    with pytest.raises(ConfigError, match="tested together on another cohort"):
        regard.evaluate(made.path, data, quiet=True)
    with pytest.raises(DataError, match="every sample of this cohort is in the training data"):
        regard.evaluate(made.path, own, external=True, split="train", quiet=True)
    assert len(regard.evaluate(made.path, own, external=True, split="test", quiet=True).predictions()) == 8


@pytest.mark.parametrize("kind", ["numbers", "cox"])
def test_numbers_and_risks_of_folds_have_a_mean(kind, tmp_path):
    settings = CASES[kind]
    data = write_table(tmp_path / "data", 48, **outcomes(48))
    other = write_table(tmp_path / "other", 30, seed=5, **outcomes(30, seed=5))
    other.write_text(other.read_text().replace(",p", ",q"))
    made = regard.train(data, folds=2, out=tmp_path / "out", **settings)
    result: Any = regard.evaluate(made.path, other, external=True, quiet=True)
    column = {"numbers": "predicted_age", "cox": "risk"}[kind]
    each = [
        [float(row[column]) for row in regard.evaluate(made.path / f"fold{n}", other, quiet=True).predictions()]
        for n in (1, 2)
    ]
    assert [float(row[column]) for row in result.predictions()] == pytest.approx(np.mean(each, axis=0), rel=1e-5)
    assert "calibration_slope" in result.figures
    assert len(result.folds) == 2


def test_one_run_is_beside_its_own_figures(folded, cohort):
    own, made = folded
    run = made.path / "fold1"
    result: Any = regard.evaluate(run, cohort(own), external=True, quiet=True)
    assert result.internal == Run(run).read_json("summary.json")["figures"]
    assert result.folds == []
    assert result.describe().count("accuracy") >= 2


def test_the_slope_of_a_risk_is_the_coefficient_of_coxs_model():
    draw = np.random.default_rng(0)
    risk = draw.normal(size=400)
    time = draw.exponential(1 / np.exp(risk))
    event = draw.random(400) < 0.7
    made = cox_slope(time, event, risk)
    fitted = fit_cox(((risk - risk.mean()) / risk.std())[:, None], time, event)
    assert made.value == pytest.approx(float(fitted[0]) / risk.std(), abs=0.01)
    assert made.low < 1 < made.high
    assert cox_slope(time, event, 2 * risk).value == pytest.approx(made.value / 2)
    assert np.isnan(cox_slope(time, np.zeros(400, bool), risk).value)
