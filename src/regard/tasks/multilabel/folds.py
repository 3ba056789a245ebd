"""What out-of-fold predictions of several labels add up to, and the report of it.

Each label has its own figures, from the samples where it is known. The mean over labels is of dependent figures: its
interval is from resampled patients, and its test from patients who exchange all of their labels together.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import interval, shown, with_interval
from regard.metrics.folds import PERMUTATIONS, Permuted, bootstrap_figure, patient_weights, permute, spread
from regard.report import figures
from regard.report.page import table
from regard.task import Folds, Page, Section
from regard.tasks.class_folds import (
    Predicted,
    calibration_html,
    class_table,
    figure_rows,
    fold_figure,
    mean_of_known,
    pool_classes,
)
from regard.tasks.multilabel.data import LabelDataset
from regard.weights import Run, write_text

MEAN = ("AUC, mean of the labels", "pooled over all folds; bootstrap interval over patients with all of their labels")
PERMUTED = (
    "<p>Patients of one fold exchange the label, where it is known; of the mean over labels, all of their labels "
    "together. p is how often that gives as large an AUC, from pairs within folds. The networks were not trained again."
    "</p>"
)
SHOWN = ("auroc", "auroc_bootstrap", "sensitivity", "specificity")


def read(rows: list[dict[str, str]], label: str, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of one label, from rows of predictions.csv: probabilities (N, classes), and true classes, -1 where unknown."""
    probs = np.array([[float(row[f"p_{label}={name}"]) for name in classes] for row in rows]).reshape(-1, len(classes))
    return probs, np.array([classes.index(row[label]) if row[label] else -1 for row in rows], dtype=int)


def read_known(rows: list[dict[str, str]], label: str, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    probs, codes = read(rows, label, classes)
    return probs[codes >= 0], codes[codes >= 0]


def pool(folds: Folds, data: dict[str, Any]) -> dict[str, Any]:
    weights, held, areas = patient_weights(folds.groups, 1000), dict[str, dict[str, Any]](), list[np.ndarray]()
    for label, classes in data["labels"].items():
        probs, codes = read(folds.rows, label, classes)
        known = codes >= 0
        beside = {name: values[known] for name, values in folds.covariates.items()}
        beside = {name: values for name, values in beside.items() if (values != values[0]).any()}
        validation = [read_known(rows, label, classes) for rows in folds.validation]
        own = Predicted(classes, probs[known], codes[known], folds.fold[known], folds.groups[known], validation, beside)
        held[label] = pool_classes(own)
        areas.append(own.areas(weights[:, known]))
    each = np.array([own["per_fold"]["auroc"]["values"] for own in held.values()])
    made = {"auroc": bootstrap_figure(mean_of_known(np.stack(areas)), len(folds.rows))._asdict()}
    per_fold = {"auroc": spread(mean_of_known(each).tolist())._asdict()}
    for label, own in held.items():
        made |= {f"{name}_{label}": figure for name, figure in own["figures"].items()}
        per_fold |= {f"{name}_{label}": figure for name, figure in own["per_fold"].items()}
    return {
        "patients": len(set(folds.groups.tolist())),
        "figures": made,
        "per_fold": per_fold,
        "permutation": permutation(folds, data["labels"])._asdict(),
        "labels": held,
        "headline": ["auroc", *(f"auroc_{label}" for label in held)],
        "warnings": [f"{label}: {line}" for label, own in held.items() for line in own["warnings"]],
    }


def permutation(folds: Folds, labels: dict[str, list[str]], count: int = PERMUTATIONS) -> Permuted:
    """The labels' mean AUC within folds, when patients of one fold exchange all of their labels, missing ones too."""
    orders, means = permute(folds.fold, folds.groups, count), []
    for label, classes in labels.items():
        probs, codes = read(folds.rows, label, classes)
        drawn = np.stack([codes[order] for order in orders])
        tested = [1] if len(classes) == 2 else range(len(classes))
        means.append(mean_of_known(np.stack([_within(probs[:, c], drawn, c, folds.fold) for c in tested])))
    return Permuted.of(mean_of_known(np.stack(means)).tolist())


def _within(score: np.ndarray, drawn: np.ndarray, c: int, fold: np.ndarray) -> np.ndarray:
    """The AUC of class `c` from pairs of one fold, for each row of labels (P, N), in which -1 is in no pair."""
    wins, pairs = np.zeros(len(drawn)), np.zeros(len(drawn))
    for n in np.unique(fold):
        own = score[fold == n]
        above = (own[:, None] > own) + 0.5 * (own[:, None] == own)
        up, down = (drawn[:, fold == n] == c).astype(float), (drawn[:, fold == n] >= 0).astype(float)
        down -= up
        wins += ((up @ above) * down).sum(1)
        pairs += up.sum(1) * down.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return wins / pairs


def describe_rare(dataset: LabelDataset, numbers: list[int]) -> list[str]:
    """Classes that some fold has no sample of, which cannot be helped: they are too rare."""
    lines, fold = [], np.array(numbers)
    for n, (label, classes) in enumerate(dataset.labels):
        for c, name in enumerate(classes):
            lacking = [f for f in range(1, fold.max() + 1) if not (dataset.codes[fold == f, n] == c).any()]
            if lacking:
                lines.append(
                    f"{label}: {name} is too rare for {fold.max()} folds, and {_folds(lacking)} no sample of it to "
                    "test: figures of these folds leave it out. Fewer --folds may help"
                )
    return lines


def _folds(numbers: list[int]) -> str:
    return f"fold {numbers[0]} has" if len(numbers) == 1 else f"folds {', '.join(map(str, numbers))} have"


def page(run: Run, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    area, per_fold, test = summary["figures"]["auroc"], summary["per_fold"]["auroc"], summary["permutation"]
    labels = summary["labels"]
    on = f"mean of {len(labels)} labels, {area['n']:,} samples of {summary['patients']:,} patients or single samples"
    value = shown(area["value"], ".3f")
    rows = [(MEAN[0], shown(area["value"]), interval(area), MEAN[1])]
    for label, own in labels.items():
        rows += [(f"{title}, {label}", value, limits, why) for title, value, limits, why in figure_rows(own)]
    return Page(
        title=f"{summary['folds']} folds on {data['name']}: {', '.join(labels)}",
        headline=f'<p class="big">AUC {value} <span>{escape(on)}; 95 % interval {interval(area, ".3f")}</span></p>',
        headline_text=f"AUC {value}, {on}",
        figures=rows,
        chosen_by="auroc",
        warnings=[f"{line}." for line in summary["warnings"]],
        facts=[
            ("mean ± deviation over folds", f"{shown(per_fold['mean'])} ± {shown(per_fold['std'])}"),
            ("variance over folds", shown(per_fold["variance"])),
            ("permutation test of the mean", f"p {test['p']:.4f} ({test['permutations']} permutations)"),
        ],
        sections=[
            Section("Labels", _label_table(labels)),
            *(_section(run, n, label, own) for n, (label, own) in enumerate(labels.items(), start=1)),
            Section("Permutation tests", PERMUTED),
            Section("What else predicts the labels", _confounder_table(labels)),
        ],
        medical=True,
        limits="The figures are of networks that were trained on other samples of the same data, and of each label on "
        "the samples where it is known: if it is missing for a reason, they may not hold for the others. They say "
        "nothing of other scanners, hospitals or populations: `regard eval FOLDS OTHER --external` tests them there.",
    )


def _label_table(labels: dict[str, Any]) -> str:
    """A row per label: how many are known, the main figures with intervals, spread and p."""
    rows = []
    for label, own in labels.items():
        cells = [with_interval(own["figures"][name]) for name in SHOWN]
        over = own["per_fold"]["auroc"]
        spread_text = f"{shown(over['mean'])} ± {shown(over['std'])} ({shown(over['variance'])})"
        classes = ", ".join(
            f"{name} {count}"
            for name, count in zip(own["classes"], map(sum, zip(*own["counts"], strict=True)), strict=True)
        )
        known = f"{own['figures']['auroc']['n']:,} ({classes})"
        rows.append((label, known, *cells, spread_text, f"{own['permutation']['p']:.4f}"))
    header = (
        "label", "known", "AUC (DeLong)", "AUC (bootstrap)", "sensitivity", "specificity",
        "AUC over folds: mean ± deviation (variance)", "p (permuted)",
    )  # fmt: skip
    return table(header, rows)


def _section(run: Run, place: int, label: str, own: dict[str, Any]) -> Section:
    drawn = {"folds": fold_figure(own["per_fold"]["auroc"]["values"], own["figures"]["auroc"], own["within_folds"])}
    if own["reliability"]:
        rows = np.array(own["reliability"])
        drawn["reliability"] = figures.reliability(
            rows, f"mean probability of {own['positive']}", f"share that is {own['positive']}"
        )
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}-{place}.svg", svg)
    classes = class_table(own) if len(own["per_class"]) > 1 else ""
    return Section(label, f"<figure>{drawn['folds']}</figure>{calibration_html(drawn, own)}{classes}")


def _confounder_table(labels: dict[str, Any]) -> str:
    rows = [
        (row["name"], label, shown(row["auroc"]), shown(row["p"], ".3f"))
        for label, own in labels.items()
        for row in own["confounders"]
    ]
    return table(("known beside the picture", "label", "AUC", "p"), rows) if rows else ""
