"""Cross-validation: every sample predicted once by a network that has not seen it, and what reviewers ask."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from sklearn.metrics import r2_score, roc_auc_score

import regard
from regard import api, tasks
from regard.console import Progress
from regard.errors import ConfigError, RunError
from regard.metrics import kaplan_meier
from regard.metrics.delong import compare_areas, holm
from regard.metrics.folds import youden
from regard.metrics.survival import brier_scores, cox_slope, integrated, observed_share, time_grid
from regard.run import folds as folding
from regard.run.folds import Plan, cross_validate
from regard.task import Folds
from regard.tasks.class_folds import figure_rows, warnings
from regard.tasks.survival.curves import Curves, make_edges
from regard.tasks.survival.evaluation import SurvivalEvaluation, compare_risks
from regard.tasks.survival.folds import pool
from regard.weights import Run, open_weights
from tests.run.folded import CASES, FAST, outcomes, write_table


def test_every_sample_is_predicted_once_by_a_network_that_has_not_seen_its_patient(folded):
    _, made = folded
    rows = made.read_rows("predictions.csv")
    assert sorted(row["name"] for row in rows) == [f"{n:03d}.png" for n in range(8, 60)], "the test split stays out"
    assert {row["patient"]: row["fold"] for row in rows} == {row["patient"]: row["fold"] for row in reversed(rows)}
    for fold in range(1, 4):
        splits = {row["name"]: row for row in Run(made.path / f"fold{fold}").split_rows()}
        own = {row["name"] for row in rows if row["fold"] == str(fold)}
        assert {name for name, row in splits.items() if row["split"] == "test"} == own
        patients = [
            {r["group"] for r in splits.values() if r["split"] == s} for s in ("train", "val", "test", "unused")
        ]
        assert all(len(part) for part in patients)
        assert len(set.union(*patients)) == sum(map(len, patients)) == 30, "no patient is in two splits"


def test_the_command_to_reproduce_a_fold_makes_all_folds(folded):
    _, made = folded
    texts = [(made.path / name / "report.html").read_text(encoding="utf-8") for name in ("", "fold2")]
    commands = [text.split("To reproduce</h2><pre>")[1].split("</pre>")[0] for text in texts]
    assert commands[1] == f"{commands[0]}  # this run is fold 2"
    assert commands[0].endswith(" --folds 3")


def test_figures_are_those_of_scikit_learn(folded):
    _, made = folded
    rows, summary = made.read_rows("predictions.csv"), made.read_json("summary.json")
    score, positive = np.array([float(r["p_b"]) for r in rows]), np.array([r["label"] == "b" for r in rows])
    fold = np.array([int(r["fold"]) for r in rows])
    each = [roc_auc_score(positive[fold == n], score[fold == n]) for n in (1, 2, 3)]
    assert summary["per_fold"]["auroc"]["values"] == pytest.approx(each)
    assert summary["per_fold"]["auroc"]["variance"] == pytest.approx(np.var(each, ddof=1))
    for name in ("auroc", "auroc_bootstrap"):
        figure = summary["figures"][name]
        assert figure["value"] == pytest.approx(roc_auc_score(positive, score))
        assert figure["low"] < figure["value"] < figure["high"]
    thresholds = np.array(summary["thresholds"]["b"])[fold - 1]
    assert summary["figures"]["sensitivity"]["value"] == pytest.approx((score >= thresholds)[positive].mean())
    assert summary["figures"]["specificity"]["value"] == pytest.approx((score < thresholds)[~positive].mean())
    for n in (1, 2, 3):  # chosen on the fold's validation part, nowhere else
        held = Run(made.path / f"fold{n}").read_rows("predictions-val.csv")
        known = {r["name"] for r in Run(made.path / f"fold{n}").split_rows() if r["split"] == "val"}
        assert {row["name"] for row in held} == known
        scores, signs = np.array([float(r["p_b"]) for r in held]), np.array([r["label"] == "b" for r in held])
        assert summary["thresholds"]["b"][n - 1] == youden(scores, signs)
    assert summary["patients"] == 26


def test_the_report_says_what_the_summary_says(folded):
    _, made = folded
    text, summary = (made.path / "report.html").read_text(), made.read_json("summary.json")
    for words in ("stays out of the folds", "not trained again", "fold 3", "Calibration slope", "--folds 3"):
        assert words in text
    assert f"{summary['per_fold']['auroc']['variance']:.4f}" in text
    (made.path / "report.html").unlink()
    api.report(made)
    assert (made.path / "report.html").read_text() == text, "it is made from the folder's files"
    with pytest.raises(RunError, match="3 runs of different folds"):
        regard.load(made.path)


def test_finished_folds_are_kept_and_give_the_same(folded, monkeypatch):
    data, made = folded
    before = made.read_json("summary.json")
    weights = {n: (made.path / f"fold{n}/checkpoints/best.safetensors").stat().st_mtime_ns for n in (1, 2, 3)}
    for name in ("report.html", "summary.json", "predictions-val.csv", "checkpoints/state.safetensors"):
        (made.path / "fold2" / name).unlink()  # as if it had been stopped
    opened, load = [], tasks.find("classification").load()
    original = load.open
    monkeypatch.setattr(load, "open", lambda *given: opened.append(given) or original(*given))
    regard.train(data, folds=3, out=made.path, **FAST)
    assert len(opened) == 1, "the data is read once"
    now = {n: (made.path / f"fold{n}/checkpoints/best.safetensors").stat().st_mtime_ns for n in (1, 2, 3)}
    assert {n for n in now if now[n] != weights[n]} == {2}
    after = made.read_json("summary.json")
    for summary in (before, after):  # how long it took differs
        del summary["seconds"], summary["compute"]["device_hours"]
    assert after == before
    with pytest.raises(RunError, match="other settings: lr"):
        regard.train(data, folds=3, out=made.path, lr=0.5, **FAST)


@pytest.mark.parametrize("kind", CASES)
def test_nothing_of_the_held_out_subjects_reaches_the_training(tmp_path, kind):
    """Pixels, labels, ages and times of one fold are changed: its network stays as it was, to the bit.

    Times keep their order, by which the splits are stratified: that needs all outcomes.
    """
    count, settings = 48, {k: v for k, v in CASES[kind].items() if k != "quiet"}
    data = write_table(tmp_path / "data", count, **outcomes(count))
    numbers = [1 + n % 3 for n in range(count)]
    networks = []
    for attempt in ("before", "after"):
        entry, _ = tasks.choose(data, settings)
        dataset = entry.load().open(data, entry.config.of(settings), Progress(quiet=True))
        plan = Plan(str(data), settings, numbers, tmp_path / attempt, True, None)
        folding._train_fold(plan, dataset, 1)
        run = plan.run(1)
        held = open_weights(run.path)[0]
        about = held.preparation, held.details
        networks.append((load_file(run.checkpoint()), (run.path / "predictions-val.csv").read_text(), about))
        tested = (run.path / "predictions.csv").read_text()
        rows = list(csv.DictReader(data.open()))
        fresh = outcomes(count, seed=9)
        for n, row in enumerate(rows):
            if numbers[n] == 1:
                Image.fromarray(np.full((8, 8), 255 - n, np.uint8)).save(data.parent / row["path"])
                later = f"{float(row['days']) + 0.03:.2f}"
                row |= {"age": str(fresh["age"][n]), "days": later, "label": "ba"["ab".index(row["label"])]}
        with data.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    (before, chosen, about), (after, chosen_after, about_after) = networks
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)
    assert (chosen, about) == (chosen_after, about_after)
    assert tested != (tmp_path / "before/fold1/predictions.csv").read_text(), "what is tested has changed"


def test_random_labels_hold_one_half_and_a_planted_leak_is_found(tmp_path, cli):
    chance = regard.train(write_table(tmp_path / "chance", 80, signal=0.0), folds=3, out=tmp_path / "a", **FAST)
    area = chance.read_json("summary.json")["figures"]["auroc"]
    assert area["low"] <= 0.5 <= area["high"]
    told = chance.read_json("summary.json")["warnings"]
    assert any("holds 0.5" in line for line in told)
    assert not any("alone predicts" in line for line in told)
    data = write_table(tmp_path / "leak", 80, signal=130.0, site="label")
    leak = regard.train(data, folds=3, out=tmp_path / "b", **FAST).read_json("summary.json")
    assert any("site alone predicts the label: AUC 1.000" in line for line in leak["warnings"])
    assert any("too good to be true" in line for line in leak["warnings"])
    assert "Site alone predicts the label" in (tmp_path / "b" / "report.html").read_text()
    told = f"warning: site alone predicts the label: AUC 1.000, p {1 / 200:.3f}"
    assert told in cli("check", data)[1]
    assert "alone predicts" not in cli("check", data.parents[1] / "chance" / "table.csv")[1]
    run = regard.train(data, out=tmp_path / "single", **FAST)
    assert "Site alone predicts the label" in (run.path / "report.html").read_text()
    assert run.read_json("data.json")["confounded"]


def test_networks_trained_on_exchanged_outcomes_show_the_chance_level(tmp_path, monkeypatch):
    data, settings = write_table(tmp_path / "data", 60, signal=60.0, per_patient=2), dict[str, Any](FAST, epochs=1)
    made = regard.train(data, folds=2, retrain=3, out=tmp_path / "out", **settings)
    summary = made.read_json("summary.json")
    assert summary["figures"]["auroc"]["value"] > 0.9
    assert np.mean(summary["retrained"]["values"]) < 0.8
    assert summary["retrained"]["p"] == 1 / 4
    labels = {row["name"]: (row["patient"], row["label"], row["fold"]) for row in made.read_rows("predictions.csv")}
    rows = Run(tmp_path / "out/exchanged/1").read_rows("predictions.csv")
    assert {row["name"]: row["fold"] for row in rows} == {name: fold for name, (_, _, fold) in labels.items()}
    changed = {row["patient"] for row in rows if row["label"] != labels[row["name"]][1]}
    assert len(changed) > 5, "patients have others' labels"
    assert len({(row["patient"], row["label"]) for row in rows}) == 30, "all samples of a patient have one label"
    assert "trained anew on exchanged outcomes" in (made.path / "report.html").read_text()
    monkeypatch.setattr(folding, "_train_fold", pytest.fail)
    regard.train(data, folds=2, retrain=3, out=tmp_path / "out", **settings)  # all are kept
    assert made.read_json("summary.json")["retrained"] == summary["retrained"]


def test_a_fold_without_a_class_is_named():
    summary = {
        "figures": {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9, "n": 20}, "accuracy": {"value": 0.96}},
        "classes": ["a", "b"], "counts": [[10, 0], [9, 1]], "chosen_on": [[30, 10], [25, 12]], "confounders": [],
    }  # fmt: skip
    assert warnings(summary) == ["fold 1 has no b: give fewer --folds, or more data"]
    assert "only 1 samples of a class" in warnings(summary | {"counts": [[9, 1]]})[0]
    assert "chose its epoch and thresholds on 3 samples" in warnings(summary | {"chosen_on": [[30, 10], [25, 3]]})[1]
    summary["figures"]["accuracy"]["value"] = 0.95
    assert "commonest class, 95.0%" in warnings(summary)[1]


def test_the_figures_of_several_classes_name_one_interval_of_the_auc():
    names = ("auroc", "auroc_bootstrap", "sensitivity")
    summary = {
        "classes": ["a", "b"], "figures": {name: {"value": 0.8, "low": 0.7, "high": 0.9, "n": 20} for name in names},
        "within_folds": 0.75,
    }  # fmt: skip
    rows = figure_rows(summary)
    assert [row[0] for row in rows] == ["AUC, pooled", "AUC, pooled, by bootstrap", "AUC within folds", "Sensitivity"]
    assert "DeLong" in rows[0][3]
    rows = figure_rows(summary | {"classes": ["a", "b", "c"]})
    assert [row[0] for row in rows] == ["AUC, pooled", "AUC within folds", "Sensitivity"]
    assert "DeLong" not in rows[0][3]
    assert "bootstrap" in rows[0][3]


def test_numbers_and_survival_are_pooled(tmp_path):
    data = write_table(tmp_path / "data", 60, per_patient=2, **outcomes(60))
    numbers = regard.train(data, folds=3, out=tmp_path / "numbers", **CASES["numbers"])
    rows, summary = numbers.read_rows("predictions.csv"), numbers.read_json("summary.json")
    truth, guess = (np.array([float(row[name]) for row in rows]) for name in ("age", "predicted_age"))
    assert summary["figures"]["mae"]["value"] == pytest.approx(np.abs(truth - guess).mean())
    assert summary["figures"]["rmse"]["value"] == pytest.approx(np.sqrt(((truth - guess) ** 2).mean()))
    assert summary["figures"]["r2"]["value"] == pytest.approx(r2_score(truth, guess))
    assert any("may be no better than always giving the mean" in line for line in summary["warnings"])
    survival = regard.train(data, folds=3, out=tmp_path / "survival", **CASES["cox"])
    rows, summary = survival.read_rows("predictions.csv"), survival.read_json("summary.json")
    right = pairs = 0.0
    for one in rows:
        for other in rows:
            if one["fold"] == other["fold"] and one["event"] == "1" and float(one["time"]) < float(other["time"]):
                gap = float(one["risk"]) - float(other["risk"])
                right, pairs = right + (gap > 0) + (gap == 0) / 2, pairs + 1
    assert summary["figures"]["c_index"]["value"] == pytest.approx(right / pairs)
    assert "are not comparable" in (survival.path / "report.html").read_text()
    time, event, risk, alive = (
        np.array([float(row[name]) for row in rows]) for name in ("time", "event", "risk", "survival")
    )
    horizon = float(np.median(time[event > 0]))
    assert {float(row["horizon"]) for row in rows} == {summary["horizon"]}, "one for all"
    assert summary["horizon"] == pytest.approx(horizon)
    observed = 1 - kaplan_meier(time, event > 0).at(horizon)
    assert summary["figures"]["calibration"]["value"] == pytest.approx(float(observed - (1 - alive).mean()))
    assert sum(group["n"] for group in summary["calibration_groups"]) == 60
    fold = np.array([row["fold"] for row in rows])
    assert summary["figures"]["calibration_slope"]["value"] == cox_slope(time, event > 0, risk, fold).value
    assert "Predicted and observed" in (survival.path / "report.html").read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"folds": 0}, "folds=0 is too small"),
        ({"folds": 3, "jobs": 0}, "jobs=0"),
        ({"jobs": 2}, "jobs is for several folds"),
        ({"retrain": 2}, "retrain is for several folds"),
        ({"folds": 3, "retrain": -1}, "retrain=-1"),
        ({"folds": 3, "seeds": 2}, "folds and seeds"),
        ({"folds": 3, "images": 20}, "images is for one run"),
    ],
)
def test_what_does_not_go_with_folds_is_refused_by_name(folded, tmp_path, given, words):
    with pytest.raises(ConfigError, match=words):
        regard.train(folded[0], out=tmp_path / "none", **FAST, **given)
    assert not (tmp_path / "none").exists()


def test_tasks_whose_predictions_are_not_added_up_are_refused_by_name(pairs_folder):
    with pytest.raises(ConfigError, match="--folds is not for translation"):
        cross_validate(pairs_folder, {}, 3, quiet=True)


def test_the_command_prints_every_fold_and_the_pooled_figure(folded, cli, tmp_path):
    flags = [
        word
        for name, value in FAST.items()
        if name not in ("quiet", "size", "pixel_baseline")
        for word in (f"--{name}", value)
    ]
    command = ("train", folded[0], "--folds", 2, "--out", tmp_path / "out", "--size", 8, "--no-pixel-baseline", *flags)
    code, out, err = cli(*command)
    assert code == 0
    assert out.splitlines()[0].split()[:5] == ["figure", "mean", "±", "deviation", "variance"]
    assert "auroc" in out
    assert "in 2 folds of" in err
    assert str(tmp_path / "out" / "report.html") in out
    assert "does not go with --jobs" in cli(*command, "--ray", 2, "--jobs", 2)[2]
    code, out, _ = cli("train", folded[0], "--folds", 2, "--dry-run", "--size", 8, *flags)
    assert code == 0
    assert "time per step" in out


@pytest.mark.parametrize("loss", ["cox", "discrete"])
def test_brier_score_and_auc_over_time_are_of_each_subject_by_the_network_of_its_fold(tmp_path, loss):
    data = write_table(tmp_path / "data", 60, per_patient=2, **outcomes(60))
    made = regard.train(data, folds=3, out=tmp_path / "out", **CASES[loss])
    rows, summary = made.read_rows("predictions.csv"), made.read_json("summary.json")
    time, died, risk = (np.array([float(row[name]) for row in rows]) for name in ("time", "event", "risk"))
    event, fold = died > 0, np.array([int(row["fold"]) for row in rows])
    grid = np.array(summary["over_time"]["times"])
    assert grid.tolist() == time_grid(time, event).tolist()
    survival = np.empty((60, len(grid)))
    for number in (1, 2, 3):
        predictor = regard.load(made.path / f"fold{number}")
        for n in np.flatnonzero(fold == number):
            survival[n] = predictor.predict(
                data.parent / rows[n]["name"], clinical=ages(data)[rows[n]["name"]]
            ).survival(grid)
    scores = brier_scores(time, event, survival, grid)
    assert summary["over_time"]["brier"] == pytest.approx(scores.mean(0), abs=1e-4)
    figure = summary["figures"]["integrated_brier"]
    assert figure["value"] == pytest.approx(integrated(scores, grid).mean(), abs=1e-4)
    assert figure["low"] < figure["value"] < figure["high"]
    horizon, share = summary["horizon"], observed_share(time, event)
    right = pairs = 0.0
    for one in np.flatnonzero(event & (time <= horizon)):
        for other in np.flatnonzero((time > horizon) & (fold == fold[one])):
            weight = 1 / float(share.at(time[one]))
            right, pairs = right + weight * float(np.sign(risk[one] - risk[other]) + 1) / 2, pairs + weight
    assert summary["figures"]["auc"]["value"] == pytest.approx(right / pairs)
    page = (made.path / "report.html").read_text()
    assert all(words in page for words in ("Integrated Brier score", "Over time", "Brier score without images"))


def ages(data: Path) -> dict[str, dict[str, str]]:
    with data.open() as file:
        return {row["path"]: {"age": row["age"]} for row in csv.DictReader(file)}


def test_of_one_fold_figures_over_time_are_those_of_a_single_run():
    draw, horizon = np.random.default_rng(0), 80.0
    time, event = draw.exponential(100, 80).round(1), draw.random(80) < 0.7  # as a table has them
    for curves, logits in (
        (Curves("cox", horizon), draw.normal(size=(80, 1))),
        (Curves("discrete", horizon, make_edges(time, event, 4)), draw.normal(size=(80, 4))),
    ):
        curves = curves.fit(draw.normal(size=(40, logits.shape[1])), time[:40], event[:40])
        single = SurvivalEvaluation.of(curves, [str(n) for n in range(80)], np.arange(80), time, event, logits)
        rows = [{name: str(value) for name, value in row.items()} for row in single.predictions()]
        folds = Folds([row | {"fold": "1", "patient": ""} for row in rows], [[]], {}, [{"curves": curves.to_json()}])
        pooled = pool(folds, {"columns": ["time", "event"]})
        for name in ("c_index", "auc", "integrated_brier", "calibration"):
            assert pooled["figures"][name]["value"] == pytest.approx(single.figures[name].value), name
        assert pooled["reference_brier"] == pytest.approx(single.details["reference_brier"])
        for name, values in single.details["over_time"].items():
            assert pooled["over_time"][name] == pytest.approx(values), name


@pytest.mark.long
def test_folds_in_parallel_are_the_same_folds(folded, tmp_path):
    made = regard.train(folded[0], folds=3, jobs=3, out=tmp_path / "out", **FAST)
    assert (made.path / "predictions.csv").read_text() == (folded[1].path / "predictions.csv").read_text()


@pytest.fixture(scope="module")
def others(folded, tmp_path_factory) -> list[Path]:
    """The same samples in other folds, by another seed, and after less training."""
    root, data = tmp_path_factory.mktemp("others"), folded[0]
    return [
        regard.train(data, folds=3, out=root / "seed", **FAST, seed=1, split_seed=5).path,
        regard.train(data, folds=3, out=root / "short", **FAST | {"epochs": 1, "lr": 1e-6}).path,
    ]


def test_folds_are_compared_by_delong_on_the_same_subjects_and_corrected_by_holm(folded, others, cli):
    first = folded[1].path
    made = regard.compare(first, *others)
    held = {row["name"]: row for row in Run(first).read_rows("predictions.csv")}
    plain = []
    for other in others:
        rows = {row["name"]: row for row in Run(other).read_rows("predictions.csv")}
        names = list(held)
        scores = [np.array([float(own[name]["p_b"]) for name in names]) for own in (held, rows)]
        positive = np.array([held[name]["label"] == "b" for name in names])
        wanted = compare_areas(scores[0], scores[1], positive, np.array([held[name]["patient"] for name in names]))
        found = made[str(other)]["auroc"]
        assert found.difference == pytest.approx(wanted.difference)
        assert found.tests["DeLong"] == pytest.approx(wanted.tests["DeLong"])
        plain.append(wanted.tests["DeLong"])
    assert [made[str(other)]["auroc"].tests["DeLong, Holm"] for other in others] == pytest.approx(holm(plain))
    assert "McNemar" in made[str(others[0])]["accuracy"].tests
    assert "DeLong, Holm" not in regard.compare(first, others[0])[str(others[0])]["auroc"].tests
    code, out, _ = cli("compare", first, *others)
    assert code == 0
    summary = folded[1].read_json("summary.json")
    assert f"(variance {summary['per_fold']['auroc']['variance']:.4f})" in out
    assert out.count("mlp_nano") == 3
    assert "DeLong, Holm" in out


def test_survival_by_folds_is_compared_within_the_folds_of_each():
    draw = np.random.default_rng(0)
    rows = [
        {"time": f"{t:.3f}", "event": str(e), "risk": "0", "fold": "1"}
        for t, e in zip(draw.exponential(size=40), draw.integers(0, 2, 40), strict=True)
    ]
    by_time = [row | {"risk": str(-float(row["time"])), "fold": str(n % 3)} for n, row in enumerate(rows)]
    shifted = [row | {"risk": str(float(row["risk"]) + 100 * int(row["fold"]))} for row in by_time]
    assert compare_risks(by_time, shifted)["c_index"].difference.value == 0, "another baseline in each fold"
    assert compare_risks(rows, by_time)["c_index"].difference.value == 0.5
