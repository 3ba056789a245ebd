"""Classification figures, each with a 95 % interval.

Shares (accuracy, recall, precision) have Wilson's interval; the rest are bootstrapped over samples. Every
bootstrapped figure is one function of sample weights: all ones for the value, the number of times each
sample was drawn for a resample.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BINS = 15


class Figure(NamedTuple):
    """A value, its 95 % interval, and the number of samples behind it."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] (n={self.n:,})"


@dataclass(frozen=True)
class Summary:
    """All figures of one evaluation."""

    figures: dict[str, Figure]
    per_class: dict[str, dict[str, Figure]]
    confusion: np.ndarray
    """Counts: rows are the true classes, columns the predicted ones."""
    reliability: np.ndarray
    """One row a confidence bin: mean confidence, accuracy, samples."""


def wilson(hits: int, n: int, z: float = 1.959964) -> Figure:
    """A share with Wilson's score interval, which behaves near 0 and 1 and for small n.

    >>> print(wilson(9, 10))
    0.9000 [0.5958, 0.9821] (n=10)
    """
    if n == 0:
        return Figure(math.nan, 0.0, 1.0, 0)
    p, shrink = hits / n, 1 + z * z / n
    middle = (p + z * z / (2 * n)) / shrink
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / shrink
    return Figure(p, max(0.0, middle - half), min(1.0, middle + half), n)


def summarise(probs: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], seed: int = 0) -> Summary:
    """Figures of predicted probabilities (N, classes) against true labels (N,)."""
    probs, n = np.asarray(probs, dtype=np.float64), len(labels)
    predicted, top = probs.argmax(1), min(5, len(classes))
    hit = predicted == labels
    in_top = (np.argsort(-probs, axis=1, kind="stable")[:, :top] == labels[:, None]).any(1)
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    # Row 0 counts every sample once and gives the value; the other rows are the resamples.
    resamples = int(np.clip(20_000_000 // n, 200, 1000))
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    weights = np.vstack([np.ones(n), draws])
    own = np.clip(probs[np.arange(n), labels], 1e-12, 1.0)
    brier = ((probs - np.eye(len(classes))[labels]) ** 2).sum(1)
    aurocs = np.stack([_one_against_rest(weights, probs[:, c], labels == c) for c in range(len(classes))])
    figures = {
        "accuracy": wilson(int(hit.sum()), n),
        **({f"top{top}_accuracy": wilson(int(in_top.sum()), n)} if len(classes) > 5 else {}),
        "balanced_accuracy": _bootstrapped(_balanced(weights, hit, labels, len(classes)), n),
        "auroc": _bootstrapped(_mean_of_present(aurocs if len(classes) > 2 else aurocs[1:]), n),
        "calibration_error": _bootstrapped(_calibration(weights, probs.max(1), hit), n),
        "log_loss": _bootstrapped(weights @ -np.log(own) / n, n),
        "brier": _bootstrapped(weights @ brier / n, n),
    }
    per_class = {
        name: {
            "recall": wilson(int(confusion[c, c]), int(confusion[c].sum())),
            "precision": wilson(int(confusion[c, c]), int(confusion[:, c].sum())),
            "auroc": _bootstrapped(aurocs[c], n),
        }
        for c, name in enumerate(classes)
    }
    return Summary(figures, per_class, confusion, _reliability(probs.max(1), hit))


def _bootstrapped(values: np.ndarray, n: int) -> Figure:
    """The first value with the percentile interval of the others."""
    value, resampled = float(values[0]), values[1:][~np.isnan(values[1:])]
    if math.isnan(value) or not len(resampled):
        return Figure(value, math.nan, math.nan, n)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Figure(value, float(low), float(high), n)


def _balanced(weights: np.ndarray, hit: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The mean of the classes' recalls, over classes that occur."""
    member = np.eye(classes)[labels]
    total, right = weights @ member, weights @ (member * hit[:, None])
    with np.errstate(invalid="ignore"):
        return _mean_of_present(np.where(total > 0, right / total, np.nan).T)


def _mean_of_present(each: np.ndarray) -> np.ndarray:
    """The mean over rows, leaving out classes that did not occur."""
    present = ~np.isnan(each)
    return np.where(present.any(0), np.where(present, each, 0).sum(0) / np.maximum(present.sum(0), 1), np.nan)


def _one_against_rest(weights: np.ndarray, score: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """P(score of a positive > score of a negative), ties counting half."""
    rank = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[rank]) > 0])
    up = np.add.reduceat((weights * positive)[:, rank], starts, axis=1)
    down = np.add.reduceat((weights * ~positive)[:, rank], starts, axis=1)
    below = np.cumsum(down, axis=1) - down
    pairs = up.sum(1) * down.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, (up * (below + down / 2)).sum(1) / pairs, np.nan)


def _calibration(weights: np.ndarray, confidence: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """Expected calibration error: |accuracy − confidence| averaged over bins of equal width."""
    member = np.eye(BINS)[_bin(confidence)]
    gap = np.abs(weights @ (member * (hit - confidence)[:, None]))
    return gap.sum(1) / weights.sum(1)


def _reliability(confidence: np.ndarray, hit: np.ndarray) -> np.ndarray:
    rows, bins = [], _bin(confidence)
    for number in range(BINS):
        inside = bins == number
        if inside.any():
            rows.append((confidence[inside].mean(), hit[inside].mean(), inside.sum()))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _bin(confidence: np.ndarray) -> np.ndarray:
    return np.clip((confidence * BINS).astype(int), 0, BINS - 1)
