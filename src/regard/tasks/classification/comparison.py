"""Whether one classifier is better than another on the same images: DeLong's test, McNemar's, the paired bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from regard.metrics.classification import weighted_aurocs
from regard.metrics.delong import compare_areas
from regard.metrics.folds import patient_weights
from regard.metrics.paired import Comparison, difference_of, mcnemar, paired_bootstrap

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
    tested = [name for name in classes[-1 if len(classes) == 2 else 0 :] if 0 < (labels == name).sum() < len(labels)]
    if not tested:
        return None
    scores = [np.array([[float(row[f"p_{name}"]) for name in tested] for row in rows]) for rows in (first, second)]
    groups = np.array([row.get("patient") or f"sample {n}" for n, row in enumerate(first)])
    if len(tested) == 1:
        return compare_areas(scores[0][:, 0], scores[1][:, 0], labels == tested[0], groups)
    weights = patient_weights(groups, 500)
    means = [
        np.mean([weighted_aurocs(weights, own[:, c], labels == name) for c, name in enumerate(tested)], axis=0)
        for own in scores
    ]
    gain = means[1] - means[0]
    difference, p = difference_of(float(gain[0]), gain[1:], len(labels))
    return Comparison(difference, {"paired bootstrap": p})
