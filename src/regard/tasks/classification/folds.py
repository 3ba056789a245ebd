"""What a classifier's out-of-fold predictions add up to, and the report of it."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import interval, sentence, shown
from regard.report import figures
from regard.task import Folds, Page, Section
from regard.tasks.class_folds import (
    Predicted,
    calibration_html,
    class_table,
    confounder_table,
    figure_rows,
    fold_figure,
    permutation_html,
    pool_classes,
)
from regard.weights import Run, write_text


def read(rows: list[dict[str, str]], classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, classes) and labels (N,) from rows of predictions.csv."""
    probs = np.array([[float(row[f"p_{name}"]) for name in classes] for row in rows]).reshape(-1, len(classes))
    return probs, np.array([classes.index(row["label"]) for row in rows], dtype=int)


def pool(folds: Folds, data: dict[str, Any]) -> dict[str, Any]:
    classes = list(data["classes"])
    validation = [read(rows, classes) for rows in folds.validation]
    probs, labels = read(folds.rows, classes)
    predicted = Predicted(classes, probs, labels, folds.fold, folds.groups, validation, folds.covariates)
    return pool_classes(predicted) | {"headline": ["auroc"]}


def page(run: Run, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    area, per_fold, test = summary["figures"]["auroc"], summary["per_fold"]["auroc"], summary["permutation"]
    drawn = {"folds": fold_figure(per_fold["values"], area, summary["within_folds"])}
    if summary["reliability"]:
        rows = np.array(summary["reliability"])
        drawn["reliability"] = figures.reliability(
            rows, f"mean probability of {summary['positive']}", f"share that is {summary['positive']}"
        )
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}.svg", svg)
    what = f"of {summary['positive']}" if summary["positive"] else "(mean of each class against the rest)"
    on = f"{what}, {area['n']:,} samples of {summary['patients']:,} patients or single samples"
    return Page(
        title=f"{summary['folds']} folds on {data['name']}",
        headline=f'<p class="big">AUC {area["value"]:.3f} <span>{escape(on)}; '
        f"95 % interval {interval(area, '.3f')}</span></p>",
        headline_text=f"AUC {area['value']:.3f} {on}",
        figures=figure_rows(summary),
        chosen_by=summary.get("chosen_by") or "accuracy",
        warnings=[sentence(line) for line in summary["warnings"]],
        facts=[
            ("mean ± deviation over folds", f"{shown(per_fold['mean'])} ± {shown(per_fold['std'])}"),
            ("variance over folds", shown(per_fold["variance"])),
            ("permutation test", f"p {test['p']:.4f} ({test['permutations']} permutations)"),
        ],
        sections=[
            Section("AUC per fold", f"<figure>{drawn['folds']}</figure>"),
            Section("Calibration", calibration_html(drawn, summary)),
            Section("Permutation test", permutation_html(test)),
            Section("What else predicts the label", confounder_table(summary)),
            Section("Classes", class_table(summary) if len(summary["per_class"]) > 1 else ""),
        ],
        medical=True,
        limits="The figures are of networks that were trained on other samples of the same data. They say nothing of "
        "other scanners, hospitals or populations: `regard eval FOLDS OTHER --external` tests them there.",
    )
