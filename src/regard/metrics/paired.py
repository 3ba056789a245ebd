"""Paired comparisons of two systems on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from regard.metrics.classification import Figure, with_percentiles

RESAMPLES = 2000


class Comparison(NamedTuple):
    """A figure of a second system minus that of a first, with a 95 % interval; and by test, its p value."""

    difference: Figure
    tests: dict[str, float]


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided exact McNemar test of two arrays that say which samples were right.

    >>> mcnemar(np.array([1, 1, 1, 1, 1, 0], bool), np.array([0, 0, 0, 0, 0, 0], bool))
    0.0625
    """
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def paired_bootstrap(
    n: int, measure: Callable[[np.ndarray], np.ndarray | float], resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Figure, float]:
    """The difference that `measure(index)` gives for samples drawn with replacement: its interval, and a two-sided p.

    The p value is twice the share of resamples on the other side of zero.
    """
    draw = np.random.default_rng(seed)
    value = float(measure(np.arange(n)))
    drawn = np.array([float(measure(draw.integers(n, size=n))) for _ in range(resamples)])
    drawn = drawn[np.isfinite(drawn)]
    side = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return with_percentiles(value, drawn, n), min(1.0, 2 * (int(side) + 1) / (len(drawn) + 1))
