"""Survival figures: concordance, Brier score, AUC and calibration, with intervals; Kaplan–Meier and log-rank.

- `time` (N,) is the time to the event, or to the end of observation; `event` (N,) is true where the event was seen.
- Censoring is accounted for by weights 1 / G(t), G the Kaplan–Meier estimate of staying under observation (IPCW).
  It is estimated on the samples themselves; intervals take it as known.
- Conventions are those of lifelines (Kaplan–Meier, log-rank, C-index) and scikit-survival (Brier score, AUC).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from regard.metrics.classification import Figure, Z, with_percentiles

RESAMPLES = 1000
BLOCK = 2**24
"""Pairs held at once."""
LARGEST = 50.0
"""Log-hazards are cut here before exp: the survival of either is 0 or 1."""


class Curve(NamedTuple):
    """A Kaplan–Meier estimate: distinct times; survival after each with its 95 % interval; numbers at risk before."""

    times: np.ndarray
    survival: np.ndarray
    low: np.ndarray
    high: np.ndarray
    at_risk: np.ndarray

    def at(self, when: np.ndarray | float) -> np.ndarray:
        """Survival at any time."""
        return step(self.times, self.survival, when)

    @property
    def median(self) -> float:
        """The first time at which half or fewer survive; NaN if that is not reached."""
        below = self.times[self.survival <= 0.5]
        return float(below[0]) if len(below) else np.nan


class LogRank(NamedTuple):
    """Statistic and p value of the log-rank test."""

    statistic: float
    p: float


def step(times: np.ndarray, values: np.ndarray, when: np.ndarray | float, before: float = 1.0) -> np.ndarray:
    """A function that is `before` up to the first time and jumps to the next of `values` at each of `times`.

    >>> step(np.array([2.0, 5.0]), np.array([0.8, 0.4]), np.array([1.0, 2.0, 4.9, 7.0])).tolist()
    [1.0, 0.8, 0.8, 0.4]
    """
    return np.r_[before, values][np.searchsorted(times, when, side="right")]


def _counts(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct times, and at each: how many were at risk, died, and were censored."""
    times, place = np.unique(time, return_inverse=True)
    died, left = (np.bincount(place, part, len(times)) for part in (event, ~event))
    return times, len(time) - np.r_[0.0, np.cumsum(died + left)[:-1]], died, left


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> Curve:
    """Kaplan & Meier's product over event times; Greenwood's variance on the log(-log) scale.

    >>> kaplan_meier(np.array([1.0, 2.0, 2.0, 3.0]), np.array([True, True, False, True])).survival.tolist()
    [0.75, 0.5, 0.0]
    """
    times, at_risk, died, _ = _counts(time, event)
    survival = np.cumprod(1 - died / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(died / (at_risk * (at_risk - died)))
        half = Z * np.sqrt(variance) / np.log(survival)
        low, high = (survival ** np.exp(sign * half) for sign in (-1, 1))
    certain = (survival == 1) | (survival == 0)
    return Curve(times, survival, np.where(certain, survival, low), np.where(certain, survival, high), at_risk)


def observed_share(time: np.ndarray, event: np.ndarray) -> Curve:
    """G: the share still under observation; of a death and a censoring at one time, the death comes first."""
    times, at_risk, died, left = _counts(time, event)
    share = np.cumprod(1 - left / np.maximum(at_risk - died, 1))
    return Curve(times, share, share, share, at_risk)


def breslow(time: np.ndarray, event: np.ndarray, log_hazard: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Breslow's cumulative baseline hazard: the event times, and the hazard of a log-hazard of 0 up to each.

    >>> breslow(np.array([1.0, 2.0]), np.array([True, True]), np.zeros(2))[1].tolist()
    [0.5, 1.5]
    """
    times, place = np.unique(time, return_inverse=True)
    hazard = np.exp(np.clip(log_hazard, -LARGEST, LARGEST))
    at_risk = np.cumsum(np.bincount(place, hazard, len(times))[::-1])[::-1]
    died = np.bincount(place, event, len(times))
    return times[died > 0], np.cumsum(died / at_risk)[died > 0]


def cox_slope(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, strata: np.ndarray | None = None, steps: int = 50
) -> Figure:
    """The coefficient of a risk in Cox's model (Breslow's ties) with its Wald interval; NaN where there is none.

    With `strata`, risk sets are within each: every stratum has a baseline hazard of its own.
    """
    groups = np.zeros(len(time)) if strata is None else strata
    parts = [(time[own], event[own], risk[own]) for own in (groups == name for name in np.unique(groups))]
    slope = 0.0
    for _ in range(steps):
        gradient, information = np.sum([_cox_moments(*part, slope) for part in parts], axis=0).tolist()
        if not information > 1e-9:
            break
        change = gradient / information
        slope += float(np.clip(change, -2, 2))
        if abs(change) < 1e-9:
            half = Z / np.sqrt(information)
            return Figure(slope, slope - half, slope + half, len(time))
    return Figure(np.nan, np.nan, np.nan, len(time))


def _cox_moments(time: np.ndarray, event: np.ndarray, risk: np.ndarray, slope: float) -> tuple[float, float]:
    """Gradient and information of Cox's log-likelihood in the coefficient of a risk."""
    order = np.argsort(-time, kind="stable")
    time, event, x = time[order], event[order], risk[order] - risk.mean()
    last = np.searchsorted(-time, -time, side="right") - 1  # the risk set of each: all up to and with equal times
    hazard = np.exp(np.clip(slope * x, -LARGEST, LARGEST))
    sums = [np.cumsum(hazard * x**power)[last][event] for power in range(3)]
    mean = sums[1] / sums[0]
    return float((x[event] - mean).sum()), float((sums[2] / sums[0] - mean**2).sum())


def log_rank(time: np.ndarray, event: np.ndarray, group: np.ndarray) -> LogRank:
    """Mantel's test that two groups, those where `group` is true and the others, survive alike."""
    from scipy.stats import chi2

    times = np.unique(time[event])
    risk = (time >= times[:, None]).astype(float)  # (times, N)
    died = ((time == times[:, None]) & event).astype(float)
    n, n_own, d, d_own = risk.sum(1), risk @ group, died.sum(1), died @ group
    share = n_own / n
    variance = (d * share * (1 - share) * (n - d) / np.maximum(n - 1, 1)).sum()
    if not variance > 0:
        return LogRank(np.nan, np.nan)
    statistic = float((d_own - d * share).sum() ** 2 / variance)
    return LogRank(statistic, float(chi2.sf(statistic, 1)))


@dataclass(frozen=True)
class Concordance:
    """Harrell's C: of pairs in which one is known to die first, the share where that one has the higher risk.

    Equal risks count half. Of an event and a censoring at one time the event is first; two events at one time are no
    pair.

    >>> ranked = Concordance(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]))
    >>> ranked.of(np.array([3.0, 2.0, 1.0])), ranked.of(np.array([1.0, 1.0, 1.0]))
    (1.0, 0.5)
    """

    time: np.ndarray
    event: np.ndarray

    def of(self, risk: np.ndarray) -> float:
        return float(self.resampled(risk, np.ones((1, len(risk))))[0])

    def resampled(self, risk: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """C for each row of sample weights (resamples, N)."""
        right, pairs = self.counts(risk, weights)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(pairs > 0, right / pairs, np.nan)

    def counts(self, risk: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs in the right order and all pairs, for each row of sample weights."""
        right, pairs = np.zeros(len(weights)), np.zeros(len(weights))
        for rows in self._blocks():
            later = (self.time[rows, None] < self.time) | ((self.time[rows, None] == self.time) & ~self.event)
            ahead = risk[rows, None] - risk
            score = later * (0.5 + 0.5 * np.sign(ahead))
            own = weights[:, rows]
            right += (own * (weights @ score.T)).sum(1)
            pairs += (own * (weights @ later.T.astype(float))).sum(1)
        return right, pairs

    def _blocks(self) -> Iterator[np.ndarray]:
        dead, each = np.flatnonzero(self.event), max(1, BLOCK // max(1, len(self.time)))
        yield from (dead[at : at + each] for at in range(0, len(dead), each))


def brier_scores(time: np.ndarray, event: np.ndarray, survival: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Graf's squared error of predicted survival (N, T) at each time of the grid, one row per sample: (N, T)."""
    share = observed_share(time, event)
    own, there = (np.where(g > 0, g, np.inf) for g in (share.at(time), share.at(grid)))
    dead = (time[:, None] <= grid) & event[:, None]
    alive = time[:, None] > grid
    return survival**2 * dead / own[:, None] + (1 - survival) ** 2 * alive / there


def integrated(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The mean over time of (…, T), by the trapezoidal rule; of one time, its own value."""
    if len(grid) == 1:
        return values[..., 0]
    return np.trapezoid(values, grid) / (grid[-1] - grid[0])


def auc_resampled(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, when: float, weights: np.ndarray
) -> np.ndarray:
    """Cumulative/dynamic AUC (Uno et al., 2007) at one time, for each row of sample weights.

    P(risk of one who has died by then > risk of one who lives on), the dead weighted by 1 / G(time); ties count half.
    """
    return auc_within(time, event, risk, np.zeros(len(time)), when, weights)


def auc_within(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, fold: np.ndarray, when: float, weights: np.ndarray
) -> np.ndarray:
    """The same from pairs of one fold only; G is estimated on the samples of all folds."""
    died, share = (time <= when) & event, observed_share(time, event).at(time)
    inverse = np.where(share > 0, 1 / np.where(share > 0, share, 1), 0)
    right, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(fold):
        dead, alive = (np.flatnonzero((fold == number) & own) for own in (died, time > when))
        up, down = weights[:, dead] * inverse[dead], weights[:, alive]
        each = max(1, BLOCK // max(1, len(alive)))
        for at in range(0, len(dead), each):
            ahead = risk[dead[at : at + each], None] - risk[alive]
            right += (up[:, at : at + each] * (down @ (0.5 + 0.5 * np.sign(ahead)).T)).sum(1)
        pairs += up.sum(1) * down.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, right / pairs, np.nan)


def auc(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, grid: np.ndarray, fold: np.ndarray | None = None
) -> np.ndarray:
    """Cumulative/dynamic AUC at each time of the grid; with `fold`, from pairs of one fold only."""
    one, fold = np.ones((1, len(time))), np.zeros(len(time)) if fold is None else fold
    return np.array([auc_within(time, event, risk, fold, float(when), one)[0] for when in grid])


def time_grid(time: np.ndarray, event: np.ndarray, most: int = 100) -> np.ndarray:
    """Event times from the tenth to the ninetieth percentile, where some have died and some are still observed."""
    low, high = np.quantile(time, [0.1, 0.9])
    last = time.max()
    times = np.unique(time[event & (time < last)])
    inner = times[(times >= low) & (times <= high)]
    times = inner if len(inner) else times
    return times[np.unique(np.linspace(0, len(times) - 1, most).round().astype(int))] if len(times) else times


class Calibrated(NamedTuple):
    """A group of samples with similar predictions: predicted and observed share dead at the horizon, and its size."""

    predicted: float
    observed: float
    low: float
    high: float
    n: int


def calibration(time: np.ndarray, event: np.ndarray, death: np.ndarray, when: float, groups: int) -> list[Calibrated]:
    """Predicted risks of death by `when` (N,) against Kaplan–Meier, in groups of equal size by prediction."""
    made = []
    for own in np.array_split(np.argsort(death, kind="stable"), groups):
        curve = kaplan_meier(time[own], event[own])
        alive, low, high = (float(step(curve.times, part, when)) for part in (curve.survival, curve.low, curve.high))
        made.append(Calibrated(float(death[own].mean()), 1 - alive, 1 - high, 1 - low, len(own)))
    return made


def dead_share(time: np.ndarray, event: np.ndarray, when: float, weights: np.ndarray) -> np.ndarray:
    """1 - Kaplan–Meier at one time, for each row of sample weights."""
    times = np.unique(time[event & (time <= when)])
    alive = np.ones(len(weights))
    for at in times:
        at_risk = weights @ (time >= at)
        alive *= 1 - (weights @ ((time == at) & event)) / np.maximum(at_risk, 1e-12)
    return 1 - alive


def survival_figures(
    time: np.ndarray,
    event: np.ndarray,
    risk: np.ndarray,
    survival: np.ndarray | None,
    grid: np.ndarray,
    horizon: float,
    seed: int = 0,
) -> dict[str, Figure]:
    """C-index and AUC of risks (N,), Brier score and calibration of predicted survival (N, T + 1) with intervals.

    The columns of `survival` are the times of the grid, then the horizon; without it there are the first two only.
    """
    n = len(time)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    weights = np.vstack([np.ones(n), draws])
    made = {
        "c_index": Concordance(time, event).resampled(risk, weights),
        "auc": auc_resampled(time, event, risk, horizon, weights),
    }
    if survival is not None and len(grid):
        scores = integrated(brier_scores(time, event, survival[:, :-1], grid), grid)
        made["integrated_brier"] = weights @ scores / n
        expected = weights @ (1 - survival[:, -1]) / n
        made["calibration"] = dead_share(time, event, horizon, weights) - expected
    return {name: with_percentiles(values[0], values[1:], n) for name, values in made.items()}
