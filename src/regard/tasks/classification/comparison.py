"""Whether one classifier is better than another on the same images: DeLong's test, McNemar's, the paired bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from regard.metrics.folds import compare_class_areas
from regard.metrics.paired import Comparison, mcnemar, paired_bootstrap

Rows = Sequence[Mapping[str, str]]


def compare_classifiers(first: Rows, second: Rows) -> dict[str, Comparison]:
    """Second minus first: accuracy and, where all probabilities are there, AUC and log loss (less is better)."""
    right = [np.array([row["label"] == row["predicted"] for row in rows]) for rows in (first, second)]
    gain = right[1].astype(float) - right[0].astype(float)
    difference, p = paired_bootstrap(len(gain), lambda index: gain[index].mean())
    made = {"accuracy": Comparison(difference, {"McNemar": mcnemar(*right), "paired bootstrap": p})}
    if all(f"p_{row['label']}" in row for rows in (first, second) for row in rows):
        losses = [
            -np.log(np.clip([float(row[f"p_{row['label']}"]) for row in rows], 1e-6, 1)) for rows in (first, second)
        ]
        more = losses[1] - losses[0]
        difference, p = paired_bootstrap(len(more), lambda index: more[index].mean())
        made["log_loss"] = Comparison(difference, {"paired bootstrap": p}, less_is_better=True)
        if areas := _areas(first, second):
            made = {"auroc": areas} | made
    return made


def _areas(first: Rows, second: Rows) -> Comparison | None:
    """AUC by DeLong's paired test, patients together; of several classes their mean, by the paired bootstrap."""
    labels = np.array([row["label"] for row in first])
    classes = [name[2:] for name in first[0] if name.startswith("p_") and name in second[0]]
    scores = [np.array([[float(row[f"p_{name}"]) for name in classes] for row in rows]) for rows in (first, second)]
    groups = np.array([row.get("patient") or f"sample {n}" for n, row in enumerate(first)])
    codes = np.array([classes.index(label) for label in labels])
    return compare_class_areas(scores[0], scores[1], codes, groups)
