"""Whether one classifier is better than another on the same images: McNemar's test and the paired bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from regard.metrics.paired import Comparison, mcnemar, paired_bootstrap

Rows = Sequence[Mapping[str, str]]


def compare_classifiers(first: Rows, second: Rows) -> dict[str, Comparison]:
    """Second minus first: accuracy and, where all probabilities are there, log loss, of which less is better."""
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
    return made
