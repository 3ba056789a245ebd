"""What out-of-fold predictions add up to: spread over folds, thresholds, calibration, permutation, confounding.

Samples of one patient are resampled and permuted together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from regard.metrics.classification import Figure, Z, weighted_aurocs, with_percentiles
from regard.metrics.delong import compare_areas
from regard.metrics.paired import Comparison, difference_of

RESAMPLES = 2000
PERMUTATIONS = 2000
TREE_DEPTH = 3
LEAF = 5
CONFOUNDED = 0.01
MATTERS = {"auroc": ("AUC", 0.6), "c_index": ("C-index", 0.6), "correlation": ("correlation", 0.2)}
"""Figures and the least of each that is worth a warning: much data shows any small difference."""


class Spread(NamedTuple):
    """A figure over folds: mean, standard deviation and variance (over n - 1), and each fold's value."""

    mean: float
    std: float
    variance: float
    values: list[float]


def spread(values: list[float]) -> Spread:
    """
    >>> made = spread([0.5, 0.7, float("nan")])
    >>> round(made.mean, 6), round(made.std, 6), round(made.variance, 6)
    (0.6, 0.141421, 0.02)
    """
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return Spread(math.nan, math.nan, math.nan, values)
    variance = float(known.var(ddof=1)) if len(known) > 1 else math.nan
    return Spread(float(known.mean()), math.sqrt(variance), variance, values)


def patient_weights(groups: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Row 0 of ones, then how often each sample counts when patients are drawn with replacement: (1 + resamples, N)."""
    _, owner = np.unique(groups, return_inverse=True)
    count = owner.max() + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    return np.vstack([np.ones(len(owner)), drawn[:, owner]])


def youden(score: np.ndarray, positive: np.ndarray) -> float:
    """The threshold with the largest sensitivity + specificity; of equally good ones, the one nearest to 0.5.

    Candidates lie halfway between neighbouring scores. Without one of the classes it is 0.5.

    >>> youden(np.array([0.1, 0.2, 0.6, 0.9]), np.array([False, False, True, True]))
    0.4
    """
    if positive.all() or not positive.any():
        return 0.5
    known = np.unique(score)
    candidates = np.r_[known[0] - 1e-9, (known[1:] + known[:-1]) / 2, known[-1] + 1e-9]
    above = score >= candidates[:, None]
    gain = above[:, positive].mean(1) - above[:, ~positive].mean(1)
    best = candidates[gain >= gain.max() - 1e-12]
    return float(best[np.argmin(np.abs(best - 0.5))])


class Line(NamedTuple):
    """Logistic calibration: log-odds of the outcome = intercept + slope · log-odds predicted (Cox, 1958).

    `intercept` is of a slope fixed at 1: calibration in the large, above 0 where probabilities are too low.
    """

    intercept: Figure
    slope: Figure


def calibration_line(p: np.ndarray, positive: np.ndarray) -> Line:
    """Calibration in the large and slope with Wald intervals; NaN where classes are separated and there is none."""
    p, y = np.clip(np.asarray(p, dtype=np.float64), 1e-6, 1 - 1e-6), np.asarray(positive, dtype=np.float64)
    logit, n, unknown = np.log(p / (1 - p)), len(y), Figure(math.nan, math.nan, math.nan, len(y))
    if y.min() == y.max():
        return Line(unknown, unknown)
    large = _logistic(np.ones((n, 1)), y, logit)
    slope = _logistic(np.stack([np.ones(n), logit], axis=1), y, np.zeros(n))
    return Line(large[0] if large else unknown, slope[1] if slope else unknown)


def _logistic(x: np.ndarray, y: np.ndarray, offset: np.ndarray, steps: int = 50) -> list[Figure]:
    """Logistic regression by Newton's method: coefficients with Wald intervals; none where it does not converge."""
    beta = np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(x @ beta + offset, -30, 30)))
        curvature = x.T * (p * (1 - p)) @ x
        try:
            step = np.linalg.solve(curvature, x.T @ (y - p))
        except np.linalg.LinAlgError:
            return []
        beta = beta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-9:
            errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
            limits = zip(beta.tolist(), (Z * errors).tolist(), strict=True)
            return [Figure(b, b - half, b + half, len(y)) for b, half in limits]
    return []


def within_folds(scores: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """AUC of each class (one against the rest) from pairs of one fold only: (classes,), for scores (N, classes).

    `labels` may be (P, N): then (P, classes), for each row of labels.
    """
    from scipy.stats import rankdata

    labels = np.atleast_2d(labels)
    wins, pairs = (np.zeros((len(labels), scores.shape[1])) for _ in range(2))
    for fold in np.unique(folds):
        own = np.flatnonzero(folds == fold)
        for c in range(scores.shape[1]):
            up, ranks = (labels[:, own] == c).astype(np.float64), rankdata(scores[own, c])
            count = up.sum(1)
            wins[:, c] += up @ ranks - count * (count + 1) / 2
            pairs[:, c] += count * (len(own) - count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.squeeze(np.where(pairs > 0, wins / pairs, np.nan), axis=0 if len(labels) == 1 else ())


class Permuted(NamedTuple):
    """A figure, its mean under exchanged outcomes, the one-sided p value and the number of permutations."""

    value: float
    chance: float
    p: float
    permutations: int

    @staticmethod
    def of(values: list[float]) -> Permuted:
        """The first value is of the outcomes as they are.

        >>> Permuted.of([0.7, 0.5, 0.6, 0.4])
        Permuted(value=0.7, chance=0.5, p=0.25, permutations=3)
        """
        others = np.array(values[1:])
        reached = int((others >= values[0] - 1e-12).sum())
        return Permuted(values[0], float(others.mean()), (1 + reached) / len(values), len(others))


def permutation_test(
    scores: np.ndarray, labels: np.ndarray, folds: np.ndarray, groups: np.ndarray,
    permutations: int = PERMUTATIONS, seed: int = 0,
) -> Permuted:  # fmt: skip
    """Whether scores (N, classes) rank labels better than labels permuted within folds: one-sided, mean over classes.

    Patients exchange their labels. Of two classes, the second counts. The networks are not trained again: it tests the
    predictions made, not the way to them.
    """
    drawn = np.stack([labels, *(labels[order] for order in permute(folds, groups, permutations, seed)[1:])])
    areas = within_folds(scores, drawn, folds)
    chosen = areas[:, -1:] if scores.shape[1] == 2 else areas
    return Permuted.of(np.nanmean(chosen, axis=1).tolist())


def permuted_numbers(
    guess: np.ndarray, truth: np.ndarray, folds: np.ndarray, groups: np.ndarray, permutations: int = PERMUTATIONS
) -> Permuted:
    """The same of numbers: the correlation of predictions with the truth, after each fold's means are taken off."""

    def centred(values: np.ndarray) -> np.ndarray:
        _, place = np.unique(folds, return_inverse=True)
        return values - (np.bincount(place, values) / np.bincount(place))[place]

    guess, truth = centred(guess), centred(truth)
    size = math.sqrt(float((guess**2).sum() * (truth**2).sum())) or 1.0
    return Permuted.of([float(guess @ truth[order]) / size for order in permute(folds, groups, permutations)])


def permute(folds: np.ndarray, groups: np.ndarray, count: int, seed: int = 0) -> list[np.ndarray]:
    """Orders of the samples: the first as they are, then `count` in which patients of one fold exchange outcomes.

    Only patients with as many samples exchange theirs, sample by sample.
    """
    draw, made = np.random.default_rng(seed), [np.arange(len(folds)) for _ in range(count + 1)]
    for fold in np.unique(folds):
        own = np.flatnonzero(folds == fold)
        _patients, owner, sizes = np.unique(groups[own], return_inverse=True, return_counts=True)
        for size in np.unique(sizes):
            like = np.stack([own[owner == n] for n in np.flatnonzero(sizes == size)])  # (patients, size)
            for order in made[1:]:
                order[like] = like[draw.permutation(len(like))]
    return made


def predict_from(features: np.ndarray, target: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Out-of-fold predictions of a target (N, outputs) from features (N, F) alone, by a small regression tree.

    For one-hot targets these are probabilities. It answers whether a site or a voxel size gives the outcome away.
    """
    from sklearn.tree import DecisionTreeRegressor

    made = np.zeros(target.shape)
    for fold in np.unique(folds):
        own, rest = folds == fold, folds != fold
        tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, min_samples_leaf=LEAF, random_state=0)
        made[own] = tree.fit(features[rest], target[rest]).predict(features[own]).reshape(own.sum(), -1)
    return made


def describe_confounders(rows: list[dict[str, Any]], figure: str, outcome: str = "the label") -> list[str]:
    """Those of what is known beside the picture that predict the outcome by more than a little, in sentences.

    >>> describe_confounders([{"name": "image size", "auroc": 0.54, "p": 0.001}], "auroc")
    []
    """
    named, least = MATTERS[figure]
    return [
        f"{row['name']} alone predicts {row.get('column', outcome)}: {named} {row[figure]:.3f}, p {row['p']:.3f}. What "
        "the network has learnt may be that; compare within sites, or balance them"
        for row in rows
        if row["p"] < CONFOUNDED and row[figure] >= least
    ]


def bootstrap_figure(values: np.ndarray, n: int) -> Figure:
    """From a figure for each row of `patient_weights`."""
    return with_percentiles(float(values[0]), values[1:], n)


def compare_class_areas(
    first: np.ndarray, second: np.ndarray, labels: np.ndarray, groups: np.ndarray
) -> Comparison | None:
    """Second minus first AUC of scores (N, classes): DeLong's paired test, patients together; None without two classes.

    Of two classes the second is tested; of several the mean over those that occur, by the paired bootstrap.
    """
    classes = first.shape[1]
    tested = [c for c in range(1 if classes == 2 else 0, classes) if 0 < (labels == c).sum() < len(labels)]
    if not tested:
        return None
    if len(tested) == 1:
        c = tested[0]
        return compare_areas(first[:, c], second[:, c], labels == c, groups)
    weights = patient_weights(groups, 500)
    means = [
        np.mean([weighted_aurocs(weights, own[:, c], labels == c) for c in tested], axis=0) for own in (first, second)
    ]
    gain = means[1] - means[0]
    difference, p = difference_of(float(gain[0]), gain[1:], len(labels))
    return Comparison(difference, {"paired bootstrap": p})
