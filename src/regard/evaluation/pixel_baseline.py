"""Simple models of raw pixels: what a network must beat to be worth its time.

Nothing is chosen: each is fitted once to the training samples, with fixed regularisation, and predicts the tested ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.data import Images, fit
from regard.metrics import Figure, mean_of_independent, wilson

MOST_IMAGES = 10_000
"""Training images up to which there are baselines."""
SIDE = {2: 32, 3: 12}
"""Pixels along each axis, by the number of axes."""
TREES = 100
STRENGTH = 1e-3
"""Of linear models: one over the penalty."""
COMPONENTS = 10
"""Principal components of the pixels that Cox's model has."""


def pixel_baselines(
    images: Images, train: list[int], test: list[int], labels: np.ndarray, balanced: bool = False
) -> dict[str, dict[str, Figure]]:
    """Accuracy of two classifiers; empty for large data. `labels` are those of all samples.

    With `balanced` the classes are weighed as in the network's loss, and the figure is the balanced accuracy.
    """
    if not affordable(len(train)):
        return {}
    known, asked, true = _pixels(images, train), _pixels(images, test), labels[test]
    baselines: dict[str, dict[str, Figure]] = {}
    for name, model in _classifiers("balanced" if balanced else None).items():
        right, classes = _fitted(model, known, labels[train]).predict(asked) == true, np.unique(true)
        recalls = [wilson(int(right[true == c].sum()), int((true == c).sum())) for c in classes]
        if balanced:
            baselines[name] = {"balanced_accuracy": mean_of_independent(recalls)}
        else:
            baselines[name] = {"accuracy": wilson(int(right.sum()), len(test))}
    return baselines


def pixel_labels(
    images: Images, train: list[int], test: list[int], codes: np.ndarray, sizes: Sequence[int]
) -> dict[str, list[np.ndarray]]:
    """Probabilities (N, classes) of each label by two classifiers, fitted where it is known; empty for large data."""
    if not affordable(len(train)):
        return {}
    known, asked, given = _pixels(images, train), _pixels(images, test), codes[train]
    made: dict[str, list[np.ndarray]] = {name: [] for name in _classifiers(None)}
    for label, size in enumerate(sizes):
        there = given[:, label] >= 0
        for name, model in _classifiers(None).items():
            probs, own = np.zeros((len(test), size)), given[there, label]
            if len(classes := np.unique(own)) > 1:
                probs[:, classes] = _fitted(model, known[there], own).predict_proba(asked)
            else:
                probs[:, classes] = 1.0
            made[name].append(probs)
    return made


def pixel_numbers(images: Images, train: list[int], test: list[int], values: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers (N, columns) by ridge regression and a random forest; empty for large data."""
    if not affordable(len(train)):
        return {}
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    mean, std = values[train].mean(0), values[train].std(0)
    known, asked, wanted = _pixels(images, train), _pixels(images, test), (values[train] - mean) / std
    wanted = wanted[:, 0] if wanted.shape[1] == 1 else wanted
    forest: Any = RandomForestRegressor
    models: dict[str, Any] = {
        "ridge regression": make_pipeline(StandardScaler(), Ridge(1 / STRENGTH)),
        "random forest": forest(TREES, max_features="sqrt", n_jobs=-1, random_state=0),
    }
    guesses = {name: model.fit(known, wanted).predict(asked) for name, model in models.items()}
    return {name: guess.reshape(len(test), -1) * std + mean for name, guess in guesses.items()}


def pixel_components(images: Images, train: list[int], test: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
    """The first principal components of the training pixels, standardised, of both; None for large data."""
    if not affordable(len(train)):
        return None
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known, asked = _pixels(images, train), _pixels(images, test)
    few = min(COMPONENTS, len(train) - 1, known.shape[1])
    model = make_pipeline(StandardScaler(), PCA(few, random_state=0), StandardScaler()).fit(known)
    return model.transform(known).astype(np.float64), model.transform(asked).astype(np.float64)


def as_json(baselines: Mapping[str, Mapping[str, Figure]]) -> dict[str, Any]:
    return {name: {figure: own._asdict() for figure, own in made.items()} for name, made in baselines.items()}


def pixel_doubts(summary: dict[str, Any], figure: str, form: str, less_is_better: bool = False) -> list[str]:
    """Whether one of the baselines is as good as the network, in a sentence."""
    made = summary.get("pixel_baselines", {}).values()
    values = [own[figure]["value"] for own in made if figure in own and own[figure]["value"] is not None]
    reached = summary["figures"][figure]["value"]
    if not values or reached is None:
        return []
    best, sign = (min(values), -1) if less_is_better else (max(values), 1)
    if sign * best < sign * reached:
        return []
    named = figure.replace("_", " ")
    return [f"a simple model of raw pixels has {named} {best:{form}}: the network adds nothing here yet"]


def affordable(count: int) -> bool:
    return 1 < count <= MOST_IMAGES


def _classifiers(weights: str | None) -> dict[str, Any]:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = LogisticRegression(C=STRENGTH, max_iter=200, class_weight=weights)
    return {
        "logistic regression": make_pipeline(StandardScaler(), linear),
        "random forest": RandomForestClassifier(TREES, n_jobs=-1, random_state=0, class_weight=weights),
    }


def _fitted(model: Any, known: np.ndarray, labels: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 200 iterations are enough for a baseline, converged or not
        return model.fit(known, labels)


def _pixels(images: Images, numbers: list[int]) -> np.ndarray:
    """The samples as rows of up to 32 × 32 pixels per channel, as the network sees them."""
    side = SIDE[len(images.size)]
    size = tuple(min(side, n) for n in images.size)
    return np.stack([fit(images[0, n][0].float(), size).flatten().numpy() for n in numbers]).astype(np.float32)
