"""Several labels over folds: figures of each label are those of scikit-learn on the rows where it is known."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

import regard
from regard.console import Progress
from regard.data.splits import assign_folds, fold_splits, split
from regard.errors import ConfigError, DataError
from regard.image_groups import LabelColumnData
from regard.metrics.delong import auc_delong, compare_areas
from regard.metrics.folds import youden
from regard.task import Folds
from regard.tasks.multilabel.data import LabelDataset, read_labels
from regard.tasks.multilabel.folds import describe_rare, permutation, pool
from regard.weights import Run

NANO: dict[str, Any] = {"model": "mlp_nano", "size": (8, 8), "epochs": 3, "explain": 0, "quiet": True}
LABELS = {"mgmt": ["0", "1"], "pten": ["intact", "lost"]}


def write(root: Path, count: int = 72, rare: int = 12, patients: int = 2, seed: int = 0) -> Path:
    """Pictures that are bright where mgmt is 1 (above) and pten is lost (below, `rare` patients); some labels miss."""
    root.mkdir(parents=True)
    draw, rows = np.random.default_rng(seed), list[dict[str, object]]()
    for n in range(count):
        patient = n // patients
        labels = [patient % 2, int(patient < rare)]
        pixels = draw.integers(0, 120, (8, 8)) + 60 * np.repeat(labels, 4)[:, None]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{n:03d}.png")
        row: dict[str, object] = {"path": f"{n:03d}.png", "mgmt": labels[0], "pten": LABELS["pten"][labels[1]]}
        if n % 7 == 0 and patient >= rare:
            row["pten"] = "NA"
        if n >= count - 2:
            row |= {"mgmt": "", "pten": "?"}
        rows.append(row | {"patient": f"p{patient}", "site": "ab"[n % 2]})
    with (root / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return root / "table.csv"


def opened(table: Path) -> LabelDataset:
    return read_labels(table, Progress(quiet=True), LabelColumnData(label_column="mgmt,pten"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    root = tmp_path_factory.mktemp("labels")
    data = write(root / "data")
    return data, regard.train(data, folds=3, label_column="mgmt,pten", out=root / "out", **NANO)


def of_label(rows: list[dict[str, str]], label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores, truth, folds and patients, where the label is known."""
    own, positive = [row for row in rows if row[label]], LABELS[label][1]
    score = np.array([float(row[f"p_{label}={positive}"]) for row in own])
    truth = np.array([row[label] == positive for row in own])
    return score, truth, np.array([int(row["fold"]) for row in own]), np.array([row["patient"] for row in own])


def test_every_label_has_the_figures_of_its_known_rows(made: tuple[Path, Run]) -> None:
    rows, summary = made[1].read_rows("predictions.csv"), made[1].read_json("summary.json")
    assert sorted(row["name"] for row in rows) == [f"{n:03d}.png" for n in range(70)], "without those of no label"
    pooled, by_fold = [], []
    for label in LABELS:
        score, truth, fold, patients = of_label(rows, label)
        figures = {name.removesuffix(f"_{label}"): f for name, f in summary["figures"].items() if name.endswith(label)}
        wanted = auc_delong(score, truth, patients)
        assert figures["auroc"]["n"] == len(truth)
        assert [figures["auroc"][part] for part in ("value", "low", "high")] == pytest.approx(list(wanted[:3]))
        pooled.append(roc_auc_score(truth, score))
        assert figures["auroc_bootstrap"]["value"] == pytest.approx(pooled[-1])
        by_fold.append([roc_auc_score(truth[fold == n], score[fold == n]) for n in (1, 2, 3)])
        held = summary["per_fold"][f"auroc_{label}"]
        assert held["values"] == pytest.approx(by_fold[-1])
        assert held["variance"] == pytest.approx(np.var(by_fold[-1], ddof=1))
        thresholds = []
        for n in (1, 2, 3):
            val = Run(made[1].path / f"fold{n}").read_rows("predictions-val.csv")
            thresholds.append(youden(*of_label([row | {"fold": "0", "patient": ""} for row in val], label)[:2]))
        above = score >= np.array(thresholds)[fold - 1]
        assert figures["sensitivity"]["value"] == pytest.approx(above[truth].mean())
        assert figures["specificity"]["value"] == pytest.approx((~above)[~truth].mean())
        assert 0 < summary["labels"][label]["permutation"]["p"] <= 1
    assert len(of_label(rows, "pten")[0]) < len(of_label(rows, "mgmt")[0]) == 70
    area = summary["figures"]["auroc"]
    assert area["value"] == pytest.approx(np.mean(pooled))
    assert area["low"] <= area["value"] <= area["high"]
    assert summary["per_fold"]["auroc"]["values"] == pytest.approx(np.mean(by_fold, axis=0))


def test_the_report_shows_every_label(made: tuple[Path, Run]) -> None:
    text, summary = (made[1].path / "report.html").read_text(), made[1].read_json("summary.json")
    for words in ("AUC, pooled, mgmt", "Sensitivity, pten", "AUC (DeLong)", "Permutation tests", "without any label"):
        assert words in text
    assert f"{summary['per_fold']['auroc_pten']['variance']:.4f}" in text
    assert "known" in (made[1].path / "model_card.md").read_text()


def test_folds_of_several_labels_are_compared_by_label_with_patients_together(
    made: tuple[Path, Run], tmp_path: Path, cli: Any
) -> None:
    data, run = made
    other = regard.train(
        data,
        folds=3,
        label_column="mgmt,pten",
        out=tmp_path / "other",
        split_seed=4,
        **NANO | {"epochs": 1, "lr": 1e-6},
    )
    compared = regard.compare(run.path, other.path)[str(other.path)]
    held = {row["name"]: row for row in other.read_rows("predictions.csv")}
    rows = run.read_rows("predictions.csv")
    for label in LABELS:
        one, truth, _, patients = of_label(rows, label)
        two = of_label([held[row["name"]] for row in rows], label)[0]
        wanted = compare_areas(one, two, truth, patients)
        assert compared[f"auroc_{label}"].difference == pytest.approx(wanted.difference)
        assert compared[f"auroc_{label}"].tests == pytest.approx(wanted.tests)
        assert f"accuracy_{label}" in compared
    out = cli("compare", run.path, other.path)[1]
    for label in LABELS:
        assert f"(variance {run.read_json('summary.json')['per_fold'][f'auroc_{label}']['variance']:.4f})" in out
    external = regard.evaluate(run.path, write(tmp_path / "b", 40, patients=1, seed=5), external=True, quiet=True)
    assert {"auroc_mgmt", "calibration_slope_pten"} <= external.figures.keys()


def test_every_fold_and_every_part_has_both_classes_of_a_rare_label(tmp_path: Path) -> None:
    for seed in range(5):
        dataset = opened(write(tmp_path / str(seed), 60, rare=5, patients=1, seed=seed))
        numbers, note = assign_folds(dataset, 5, seed)
        assert "2 without any label left out" in note
        assert describe_rare(dataset, numbers) == []
        sizes = [numbers.count(fold) for fold in range(1, 6)]
        assert max(sizes) - min(sizes) <= 3
        for fold in range(1, 6):
            names, _ = split(dataset, seed, given=fold_splits(numbers, fold))
            for part in ("train", "val", "test"):
                own = dataset.codes[[name == part for name in names]]
                assert all({0, 1} <= set(own[:, n].tolist()) for n in (0, 1)), (seed, fold, part)


def test_a_label_that_is_too_rare_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    data = write(tmp_path / "some", 60, rare=4, patients=1)
    lines = describe_rare(opened(data), assign_folds(opened(data), 5, 0)[0])
    assert len(lines) == 1
    assert "pten: lost is too rare for 5 folds" in lines[0]
    none = write(tmp_path / "few", 60, rare=2, patients=1)
    with pytest.raises(DataError, match=r"fold [1-5]: pten: no training image of lost"):
        regard.train(none, folds=5, label_column="mgmt,pten", out=tmp_path / "out", **NANO)
    assert not (tmp_path / "out" / "fold1").exists()
    with pytest.raises(ConfigError, match="cannot be called patient"):
        regard.train(data, folds=3, label_column="mgmt,patient", out=tmp_path / "out", **NANO)


def test_the_joint_permutation_exchanges_all_labels_of_a_patient_and_leaves_missing_ones_out() -> None:
    draw, rows = np.random.default_rng(0), []
    for n in range(40):
        row = {"fold": str(1 + n % 2), "patient": ""}
        for label, (zero, one) in LABELS.items():
            code, p = n // 2 % 2, draw.random()
            row |= {label: "" if draw.random() < 0.3 else LABELS[label][code], f"p_{label}={one}": str(p)}
            row[f"p_{label}={zero}"] = str(1 - p)
        rows.append(row)
    folds = Folds(rows, [[], []])
    test = permutation(folds, LABELS, 200)
    areas = []
    for label in LABELS:
        score, truth, fold, _ = of_label(rows, label)
        wins = pairs = 0.0
        for n in (1, 2):
            gaps = score[(fold == n) & truth][:, None] - score[(fold == n) & ~truth]
            wins, pairs = wins + (gaps > 0).sum() + 0.5 * (gaps == 0).sum(), pairs + gaps.size
        areas.append(wins / pairs)
    assert test.value == pytest.approx(np.mean(areas))
    assert test.chance == pytest.approx(0.5, abs=0.03)
    for row in rows:  # a ranking that knows the truth
        for label, (_, one) in LABELS.items():
            row[f"p_{label}={one}"] = str(int(row[label] == one))
    assert permutation(folds, LABELS, 200).p == 1 / 201
    known = pool(folds, {"labels": LABELS})
    assert known["figures"]["auroc"]["value"] == 1


def test_exchanged_outcomes_move_all_labels_of_a_sample(tmp_path: Path) -> None:
    dataset = opened(write(tmp_path / "data", 20, patients=1))
    order = list(reversed(range(20)))
    assert (dataset.exchanged(order).codes == dataset.codes[order]).all()
