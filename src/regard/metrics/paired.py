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
    less_is_better: bool = False

    def verdict(self, decimals: int = 4) -> str:
        """Whether the second is better: where the interval and the first test (at 0.05) both say so.

        >>> Comparison(Figure(1.2, 0.3, 2.1, 90), {}).verdict(1)
        'better by 1.2, 95 % interval 0.3 to 2.1'
        >>> Comparison(Figure(1.2, 0.3, 2.1, 90), {}, less_is_better=True).verdict(1)
        'worse by 1.2, 95 % interval 0.3 to 2.1'
        >>> Comparison(Figure(0.2, -0.3, 0.7, 90), {"randomisation": 0.4}).verdict(1)
        'no clear difference: +0.2, 95 % interval -0.3 to +0.7, randomisation p 0.400'
        """
        value, low, high, _ = self.difference
        test, p = next(iter(self.tests.items()), ("", 0.0))
        if not (low > 0 or high < 0) or p > 0.05:
            form, chance = f"+.{decimals}f", f", {test} p {p:.3f}" if test else ""
            return f"no clear difference: {value:{form}}, 95 % interval {low:{form}} to {high:{form}}{chance}"
        near, far = sorted((abs(low), abs(high)))
        word = "better" if (value > 0) != self.less_is_better else "worse"
        return f"{word} by {abs(value):.{decimals}f}, 95 % interval {near:.{decimals}f} to {far:.{decimals}f}"


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
    return difference_of(value, np.array([float(measure(draw.integers(n, size=n))) for _ in range(resamples)]), n)


def difference_of(value: float, drawn: np.ndarray, n: int) -> tuple[Figure, float]:
    """A difference with the interval and the two-sided p value of its bootstrap resamples."""
    drawn = drawn[np.isfinite(drawn)]
    side = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return with_percentiles(value, drawn, n), min(1.0, 2 * (int(side) + 1) / (len(drawn) + 1))
