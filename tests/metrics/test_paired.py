"""Paired tests against arithmetic by hand and simulation."""

from math import comb

import numpy as np
import pytest
from scipy.stats import binomtest

from regard.metrics.paired import mcnemar, paired_bootstrap


def right(only_first: int, only_second: int, both: int = 3, neither: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Which samples two systems get right."""
    first = [True] * only_first + [False] * only_second + [True] * both + [False] * neither
    second = [False] * only_first + [True] * only_second + [True] * both + [False] * neither
    return np.array(first), np.array(second)


def test_mcnemar_of_ten_discordant_samples_by_hand():
    """Eight against two: 0, 1, 2, 8, 9 or 10 heads of ten coins, (1 + 10 + 45) · 2 of 1024 cases."""
    assert mcnemar(*right(8, 2)) == pytest.approx(112 / 1024)


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 1), (3, 3), (1, 7), (12, 30), (60, 41)])
def test_mcnemar_is_the_binomial_test_of_discordant_samples(only_first, only_second):
    p = mcnemar(*right(only_first, only_second))
    n, less = only_first + only_second, min(only_first, only_second)
    tail = sum(comb(n, k) for k in range(less + 1)) / 2**n
    assert p == pytest.approx(min(1.0, 2 * tail))
    assert p == pytest.approx(binomtest(only_second, n).pvalue)
    assert p == mcnemar(*right(only_second, only_first))
    assert p == mcnemar(*right(only_first, only_second, both=500, neither=100)), "samples that agree do not count"


def test_equal_systems_have_p_one():
    first, _ = right(4, 6)
    assert mcnemar(first, first) == 1
    figure, p = paired_bootstrap(30, lambda index: float(np.zeros(30)[index].mean()))
    assert (figure.value, figure.low, figure.high, figure.n, p) == (0, 0, 0, 30, 1)


def test_the_bootstrap_interval_covers_the_true_difference():
    draw, true = np.random.default_rng(0), 0.3
    covered, rejected, runs = 0, 0, 300
    for seed in range(runs):
        gains = draw.normal(true, 1.0, 60)
        figure, _ = paired_bootstrap(60, lambda index, own=gains: own[index].mean(), resamples=300, seed=seed)
        covered += figure.low <= true <= figure.high
        rejected += paired_bootstrap(60, lambda index, own=gains - true: own[index].mean(), 300, seed)[1] < 0.05
    assert 0.90 < covered / runs < 0.98
    assert 0.02 < rejected / runs < 0.10, "of no difference, about one in twenty is called one"


def test_the_bootstrap_draws_whole_samples_by_seed():
    gains = np.array([0.5, -0.25, 1.0, 0.75, 0.25])
    drawn: list[np.ndarray] = []

    def measure(index: np.ndarray) -> float:
        drawn.append(index)
        return float(gains[index].mean())

    figure, p = paired_bootstrap(5, measure, resamples=50, seed=3)
    assert np.array_equal(drawn[0], np.arange(5))
    assert figure.value == pytest.approx(0.45)
    means = np.array([gains[index].mean() for index in drawn[1:]])
    assert (figure.low, figure.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert p == pytest.approx(2 * ((means <= 0).sum() + 1) / 51)
    assert paired_bootstrap(5, measure, resamples=50, seed=3) == (figure, p)
    assert paired_bootstrap(5, measure, resamples=50, seed=4)[0] != figure
