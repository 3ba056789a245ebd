"""Classification figures, each with a 95 % interval.

- Proportions have Wilson intervals, which hold near 0 and 1 where a bootstrap of perfect predictions claims certainty.
- Balanced accuracy combines the classes' Wilson intervals; the AUROC of a class has Newcombe's.
- Means are bootstrapped over samples: a figure is a function of sample weights, all ones for the value, and the number
  of times each sample was drawn for a resample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BINS = 15
Z = 1.959964  # of a 95 % interval


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
    """One row per confidence bin: mean confidence, accuracy, samples."""


def wilson(hits: float, n: int) -> Figure:
    """A share with Wilson's score interval, which behaves near 0 and 1 and for small n.

    >>> print(wilson(9, 10))
    0.9000 [0.5958, 0.9821] (n=10)
    """
    if n == 0:
        return Figure(math.nan, 0.0, 1.0, 0)
    p, shrink = hits / n, 1 + Z * Z / n
    middle = (p + Z * Z / (2 * n)) / shrink
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / shrink
    return Figure(p, max(0.0, middle - half), min(1.0, middle + half), n)


def repeated(shares: np.ndarray, n: int) -> Figure:
    """The mean of a share measured several times on the same n samples, each time trained on other images.

    The interval counts both chances, the samples (Wilson) and the repeats (Student), added in squares: too wide
    rather than too narrow. A single repeat says nothing of its own chance.

    >>> print(repeated(np.array([0.5, 0.5]), 100), repeated(np.array([0.5, 0.6]), 100), sep="\\n")
    0.5000 [0.4038, 0.5962] (n=100)
    0.5500 [0.0000, 1.0000] (n=100)
    """
    from scipy.special import stdtrit

    value, low, high, n = wilson(float(shares.mean()) * n, n)
    repeats = len(shares)
    error = stdtrit(repeats - 1, 0.975) * shares.std(ddof=1) / math.sqrt(repeats) if repeats > 1 else 0.0
    below, above = math.hypot(value - low, error), math.hypot(high - value, error)
    return Figure(value, max(0.0, value - below), min(1.0, value + above), n)


def summarise(probs: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], seed: int = 0) -> Summary:
    """Figures of predicted probabilities (N, classes) against true labels (N,)."""
    probs, n = np.asarray(probs, dtype=np.float64), len(labels)
    predicted, top = probs.argmax(1), min(5, len(classes))
    hit = predicted == labels
    in_top = (np.argsort(-probs, axis=1, kind="stable")[:, :top] == labels[:, None]).any(1)
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    # Row 0 counts every sample once and gives the value; the other rows are the resamples.
    resamples = int(np.clip(10_000_000 // n, 200, 1000))
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    weights = np.vstack([np.ones(n), draws])
    log_losses = weights @ -np.log(np.clip(probs[np.arange(n), labels], 1e-12, 1.0)) / n
    briers = weights @ ((probs - np.eye(len(classes))[labels]) ** 2).sum(1) / n
    per_class = {
        name: {
            "recall": wilson(int(confusion[c, c]), int(confusion[c].sum())),
            "precision": wilson(int(confusion[c, c]), int(confusion[:, c].sum())),
            "auroc": auroc(probs[:, c], labels == c),
        }
        for c, name in enumerate(classes)
    }
    reliability = _reliability(probs.max(1), hit)
    figures = {
        "accuracy": wilson(int(hit.sum()), n),
        **({f"top{top}_accuracy": wilson(int(in_top.sum()), n)} if len(classes) > 5 else {}),
        "balanced_accuracy": mean_of_independent([row["recall"] for row in per_class.values()]),
        "auroc": _macro_auroc([row["auroc"] for row in per_class.values()], weights, probs, labels),
        "calibration_error": _calibration_figure(_calibration(weights, probs.max(1), hit), reliability, n),
        "log_loss": with_percentiles(log_losses[0], log_losses[1:], n),
        "brier": with_percentiles(briers[0], briers[1:], n),
    }
    return Summary(figures, per_class, confusion, reliability)


def auroc(score: np.ndarray, positive: np.ndarray) -> Figure:
    """P(score of a positive > score of a negative), ties counting half, with Newcombe's interval (2006, method 5).

    The interval solves |value − θ| = 1.96 √V(θ) for θ, with the variance V of Hanley & McNeil.
    """
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return Figure(math.nan, math.nan, math.nan, len(score))
    value = float(weighted_aurocs(np.ones((1, len(score))), score, positive)[0])
    more = (ups + downs) / 2 - 1

    def distance(t: float) -> float:
        variance = t * (1 - t) / (ups * downs) * (1 + more * ((1 - t) / (2 - t) + t / (1 + t)))
        return abs(value - t) - Z * math.sqrt(variance)

    return Figure(value, _boundary(distance, value, 0.0), _boundary(distance, value, 1.0), len(score))


def _boundary(distance: Callable[[float], float], inside: float, edge: float, steps: int = 60) -> float:
    """Between `inside` the interval and `edge`, where the distance turns positive."""
    if inside == edge or distance(edge) <= 0:
        return edge
    outside = edge
    for _ in range(steps):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if distance(middle) <= 0 else (inside, middle)
    return (inside + outside) / 2


def _macro_auroc(each: list[Figure], weights: np.ndarray, probs: np.ndarray, labels: np.ndarray) -> Figure:
    """The mean over classes that occur (of two classes, the second says it all), bootstrapped where that can be.

    Perfect predictions have no spread to resample, and very many classes take too long: there the interval is
    the mean of the classes' own, which is too wide rather than too narrow.
    """
    present = [c for c, figure in enumerate(each) if not math.isnan(figure.value)][-1 if len(each) == 2 else 0 :]
    if not present:
        return Figure(math.nan, math.nan, math.nan, len(labels))
    if len(present) == 1:
        return each[present[0]]
    value, low, high = (float(np.mean([each[c][part] for c in present])) for part in range(3))
    if low < value < 1 and weights.size * len(present) <= 1_000_000_000:
        resampled = np.stack([weighted_aurocs(weights, probs[:, c], labels == c) for c in present])
        means = np.ma.masked_invalid(resampled).mean(0).filled(np.nan)  # over the classes that were drawn
        return with_percentiles(means[0], means[1:], len(labels))
    return Figure(value, low, high, len(labels))


def mean_of_independent(each: list[Figure]) -> Figure:
    """The mean of independent figures, with limits from theirs (MOVER; Zou & Donner, 2008)."""
    each = [figure for figure in each if figure.n]
    value = sum(figure.value for figure in each) / len(each)
    below = math.sqrt(sum((figure.value - figure.low) ** 2 for figure in each)) / len(each)
    above = math.sqrt(sum((figure.high - figure.value) ** 2 for figure in each)) / len(each)
    return Figure(value, max(0.0, value - below), min(1.0, value + above), sum(figure.n for figure in each))


def with_percentiles(value: float, resampled: np.ndarray, n: int) -> Figure:
    """A value with the percentile interval of its bootstrap resamples; those that are NaN are left out."""
    resampled = resampled[~np.isnan(resampled)]
    low, high = np.quantile(resampled, [0.025, 0.975]) if len(resampled) else (math.nan, math.nan)
    return Figure(float(value), float(low), float(high), n)


def _calibration_figure(values: np.ndarray, reliability: np.ndarray, n: int) -> Figure:
    """As it is, with limits that its bias does not move: binned errors are biased upwards, and resampling adds to that.

    Above: from the limits of the bins' gaps (MOVER), or of the basic bootstrap if that is wider. Below: by simulation.
    """
    value, above = float(values[0]), 0.0
    for confidence, accuracy, count in reliability:
        interval, gap = wilson(round(accuracy * count), int(count)), abs(accuracy - confidence)
        farthest = max(abs(interval.low - confidence), abs(interval.high - confidence))
        above += (count / n * (farthest - gap)) ** 2
    least, most = 2 * value - np.quantile(values[1:], [0.975, 0.025])
    low = min(_lower_calibration(value, reliability), float(least))
    return Figure(value, max(low, 0.0), min(max(value + math.sqrt(above), float(most)), 1.0), n)


def _lower_calibration(value: float, reliability: np.ndarray, simulations: int = 1000) -> float:
    """The smallest error that would give this value in 2.5 % of simulated sets; 0 where perfect calibration would.

    The gaps of all bins are shrunk by one factor, and right answers are drawn by them anew.
    """
    confidence, accuracy, counts = reliability.T
    counts = counts.astype(int)

    def reached(factor: float) -> float:
        chance = np.clip(confidence + factor * (accuracy - confidence), 0, 1)
        hits = np.random.default_rng(0).binomial(counts, chance, (simulations, len(counts)))
        simulated = np.abs(hits - counts * confidence).sum(1) / counts.sum()
        return float((simulated >= value - 1e-12).mean()) - 0.025

    return value * _boundary(reached, 0.0, 1.0, steps=12) if reached(0.0) < 0 else 0.0


def weighted_aurocs(weights: np.ndarray, score: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """AUROC of one class for each row of sample weights (small whole numbers).

    float32 holds their sums exactly up to 2²⁴, which is more than are ever resampled.
    """
    rank = np.argsort(score, kind="stable")
    weights, up_here = weights.astype(np.float32)[:, rank], positive[rank]
    starts = np.flatnonzero(np.r_[True, np.diff(score[rank]) > 0])
    below = np.cumsum(np.where(up_here, 0, weights), axis=1)  # negatives up to and with each sample
    last = np.r_[starts[1:], len(score)] - 1  # of each run of equal scores
    run = np.cumsum(np.isin(np.arange(len(score)), starts))[up_here] - 1
    through = below[:, last[run]]
    before = np.where(starts[run] > 0, below[:, starts[run] - 1], 0)
    up = weights[:, up_here]
    total = up.sum(1, dtype=np.float64)
    pairs = total * (weights.sum(1, dtype=np.float64) - total)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, (up * (before + through) / 2).sum(1, dtype=np.float64) / pairs, np.nan)


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
