"""Logistic regression and a random forest on raw pixels: what a network must beat to be worth its time."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from regard.data import Images, fit
from regard.metrics import Figure, mean_of_independent, wilson

MOST_IMAGES = 10_000
"""Training images up to which the baselines are computed."""
SIDE = {2: 32, 3: 12}
"""Pixels along each axis, by the number of axes."""
TREES = 100


def pixel_baselines(
    images: Images, train: list[int], test: list[int], labels: np.ndarray, balanced: bool = False
) -> dict[str, Figure]:
    """Accuracy of both on the test samples, each fitted once to the training samples; empty for large data.

    `labels` are those of all samples. Nothing is chosen: the regularisation is fixed, and the test labels serve once.
    With `balanced` the classes are weighed as in the network's loss, and the figure is the balanced accuracy.
    """
    if len(train) > MOST_IMAGES:
        return {}
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known, asked = _pixels(images, train), _pixels(images, test)
    weights, true = "balanced" if balanced else None, labels[test]
    linear = LogisticRegression(C=1e-3, max_iter=200, class_weight=weights)
    models: dict[str, Any] = {
        "logistic regression": make_pipeline(StandardScaler(), linear),
        "random forest": RandomForestClassifier(TREES, n_jobs=-1, random_state=0, class_weight=weights),
    }
    baselines: dict[str, Figure] = {}
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 200 iterations are enough for a baseline, converged or not
            model.fit(known, labels[train])
        right, classes = model.predict(asked) == true, np.unique(true)
        recalls = [wilson(int(right[true == c].sum()), int((true == c).sum())) for c in classes]
        baselines[name] = mean_of_independent(recalls) if balanced else wilson(int(right.sum()), len(test))
    return baselines


def _pixels(images: Images, numbers: list[int]) -> np.ndarray:
    """The samples as rows of up to 32 × 32 pixels per channel, as the network sees them."""
    side = SIDE[len(images.size)]
    size = tuple(min(side, n) for n in images.size)
    return np.stack([fit(images[0, n][0].float(), size).flatten().numpy() for n in numbers]).astype(np.float32)
