"""Survival figures against arithmetic done by hand; `tests/oracles` compares them with others' libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from regard.metrics.survival import (
    Concordance,
    auc,
    breslow,
    brier_scores,
    calibration,
    cox_slope,
    integrated,
    kaplan_meier,
    log_rank,
    observed_share,
    survival_figures,
    time_grid,
)

TIME = np.array([1.0, 2.0, 2.0, 3.0, 4.0, 5.0])
EVENT = np.array([True, True, False, True, False, True])


def test_kaplan_meier_by_hand() -> None:
    curve = kaplan_meier(TIME, EVENT)
    assert curve.times.tolist() == [1, 2, 3, 4, 5]
    assert curve.at_risk.tolist() == [6, 5, 3, 2, 1]
    alive = 5 / 6, 5 / 6 * 4 / 5, 5 / 6 * 4 / 5 * 2 / 3, 5 / 6 * 4 / 5 * 2 / 3, 0
    assert curve.survival.tolist() == pytest.approx(alive)
    assert curve.at(np.array([0.5, 2.0, 3.9])).tolist() == pytest.approx([1, alive[1], alive[2]])
    assert curve.median == 3
    # Greenwood at 1: variance of log S is 1 / (6 * 5); on the log(-log) scale divided by log S squared.
    half = 1.959964 * np.sqrt(1 / 30) / -np.log(5 / 6)
    assert curve.low[0] == pytest.approx((5 / 6) ** np.exp(half))
    assert curve.high[0] == pytest.approx((5 / 6) ** np.exp(-half))


def test_the_share_under_observation_counts_deaths_first() -> None:
    # At 2 one dies and one is censored: 5 are at risk, of the 4 who live on one leaves.
    assert observed_share(TIME, EVENT).survival.tolist() == pytest.approx([1, 3 / 4, 3 / 4, 3 / 8, 3 / 8])


def test_the_baseline_hazard_by_hand() -> None:
    times, hazard = breslow(TIME, EVENT, np.log([1.0, 2.0, 1.0, 2.0, 1.0, 1.0]))
    assert times.tolist() == [1, 2, 3, 5]
    assert hazard.tolist() == pytest.approx(np.cumsum([1 / 8, 1 / 7, 1 / 4, 1]))


def test_the_log_rank_test_by_hand() -> None:
    time, event = np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4, dtype=bool)
    made = log_rank(time, event, np.array([True, True, False, False]))
    # Of the group: observed 2, expected 2/4 + 1/3; variance 1/2 * 1/2 + 1/3 * 2/3.
    assert made.statistic == pytest.approx((2 - 5 / 6) ** 2 / (1 / 4 + 2 / 9))
    assert made.p == pytest.approx(math.erfc(math.sqrt(made.statistic / 2)))
    assert np.isnan(log_rank(time, event, np.ones(4, dtype=bool)).p)
    # Tied: at 1 two of four die, both of the group: expected 1, variance 2 * 1/4 * 2/3.
    tied = log_rank(np.array([1.0, 1.0, 2.0, 2.0]), event, np.array([True, True, False, False]))
    assert tied.statistic == pytest.approx(3)


def test_concordance_by_hand() -> None:
    risk = np.array([5.0, 1.0, 4.0, 4.0, 4.0, 0.0])
    # 1 with all others: 5 right. 2 (dead) with 2 (censored), 3, 4: wrong, with 5: right. 3 with 4: tie, with 5: right.
    assert Concordance(TIME, EVENT).of(risk) == pytest.approx((5 + 1 + 0.5 + 1) / (5 + 4 + 2))
    assert np.isnan(Concordance(TIME, np.zeros(6, dtype=bool)).of(risk))


def test_concordance_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    time, event, risk = draw.integers(1, 20, 50).astype(float), draw.random(50) < 0.5, draw.normal(size=50)
    weights = draw.multinomial(50, np.full(50, 0.02), size=7).astype(float)
    whole = Concordance(time, event).resampled(risk, weights), auc(time, event, risk, np.array([5.0, 9.0]))
    monkeypatch.setattr("regard.metrics.survival.BLOCK", 100)
    again = Concordance(time, event).resampled(risk, weights), auc(time, event, risk, np.array([5.0, 9.0]))
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_allclose(one, other)


def test_brier_score_and_auc_by_hand() -> None:
    survival, grid = np.array([0.1, 0.4, 0.6, 0.5, 0.7, 0.9])[:, None], np.array([3.0])
    # By 3 three have died, with shares under observation of 1, 3/4 and 3/4; two live on, at 3/4; one is lost at 2.
    wanted = [0.01 / 1, 0.16 / 0.75, 0, 0.25 / 0.75, 0.09 / 0.75, 0.01 / 0.75]
    scores = brier_scores(TIME, EVENT, survival, grid)
    assert scores[:, 0].tolist() == pytest.approx(wanted)
    risk = np.array([2.0, 1.0, 9.0, 3.0, 2.0, 0.0])
    # Each dead against the two alive (2 and 0): 1.5 of 2, 1 of 2, 2 of 2; weighted by 1, 4/3, 4/3.
    weighted = (1.5 + 1 * 4 / 3 + 2 * 4 / 3) / (2 * (1 + 4 / 3 + 4 / 3))
    assert auc(TIME, EVENT, risk, grid).tolist() == pytest.approx([weighted])
    assert integrated(np.array([[1.0, 3.0, 3.0]]), np.array([0.0, 1.0, 3.0])).tolist() == pytest.approx([8 / 3])


def test_calibration_is_kaplan_meier_by_group() -> None:
    death = np.array([0.9, 0.8, 0.7, 0.3, 0.2, 0.1])
    low, high = calibration(TIME, EVENT, death, 2.0, groups=2)
    assert (low.predicted, low.observed, low.n) == (pytest.approx(0.2), 0, 3)
    assert (high.predicted, high.observed) == (pytest.approx(0.8), pytest.approx(2 / 3))
    assert high.low < high.observed < high.high


def test_figures_hold_their_values_and_random_risks_hold_chance() -> None:
    draw = np.random.default_rng(1)
    risk = draw.normal(size=200)
    death, end = draw.exponential(np.exp(-risk)), draw.uniform(0.2, 3, 200)
    time, event = np.minimum(death, end), death <= end
    grid = time_grid(time, event)
    survival = np.exp(-np.exp(risk)[:, None] * np.r_[grid, 1.0])
    made = survival_figures(time, event, risk, survival, grid, 1.0)
    assert all(f.low < f.value < f.high and f.n == 200 for f in made.values())
    assert made["c_index"].low > 0.6
    assert made["calibration"].low < 0 < made["calibration"].high
    worse = survival_figures(time, event, risk, survival**3, grid, 1.0)
    assert worse["calibration"].high < 0, "it expects more deaths than there are"
    assert worse["integrated_brier"].value > made["integrated_brier"].value
    chance = survival_figures(time, event, draw.normal(size=200), None, grid, 1.0)
    assert chance.keys() == {"c_index", "auc"}
    assert chance["c_index"].low < 0.5 < chance["c_index"].high


def test_a_slope_by_strata_is_that_of_the_sum_of_their_likelihoods():
    draw = np.random.default_rng(0)
    strata, risk = np.repeat([0, 1], 150), draw.normal(size=300)
    risk += 5 * strata  # a constant of a stratum is part of its baseline, and counts nowhere
    time, event = draw.exponential(np.exp(-0.5 * risk)), draw.random(300) < 0.8
    time = np.where(strata == 1, 40 * time, time)
    made = cox_slope(time, event, risk, strata)

    def likelihood(slope: float) -> float:
        total = 0.0
        for n in np.flatnonzero(event):
            at_risk = (strata == strata[n]) & (time >= time[n])
            total += slope * risk[n] - np.log(np.exp(slope * risk[at_risk]).sum())
        return total

    assert likelihood(made.value) > max(likelihood(made.value + step) for step in (-1e-3, 1e-3))
    assert made.low < 0.5 < made.high
    assert cox_slope(time, event, risk).value != pytest.approx(made.value, abs=0.05)
