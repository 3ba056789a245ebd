"""From a network's outputs to risks and survival curves; what that needs is kept with the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from regard.config import make
from regard.errors import ConfigError, DataError, RunError
from regard.metrics import breslow, kaplan_meier, step

LARGEST = 50.0
"""Risks are cut here before exp."""


@dataclass(frozen=True)
class Curves:
    """Risks and survival from logits (N, outputs): the log-hazard of Cox, or one per interval of time.

    A risk is a log-hazard relative to the median of the training set; of discrete hazards, the log of the cumulative
    hazard at the end.
    """

    loss: str
    horizon: float
    edges: tuple[float, ...] = ()
    """discrete: the end of each interval; an event at that time is inside."""
    centre: float = 0.0
    """The median of the training set's risks before it is subtracted."""
    times: tuple[float, ...] = ()
    """The event times of the training set; none before training is finished."""
    hazard: tuple[float, ...] = ()
    """cox: the cumulative hazard up to each, of a risk of 0 (Breslow)."""
    reference: tuple[float, ...] = ()
    """The survival of the whole training set after each (Kaplan–Meier)."""

    @property
    def fitted(self) -> bool:
        return bool(self.times)

    def fit(self, logits: np.ndarray, time: np.ndarray, event: np.ndarray) -> Curves:
        """The same with the baseline of a training set."""
        plain = replace(self, centre=0.0)
        made = replace(self, centre=float(np.median(plain.risk(logits))))
        times, hazard = breslow(time, event, made.risk(logits))
        known = kaplan_meier(time, event).at(times)
        values = {"times": times, "reference": known} | ({"hazard": hazard} if self.loss == "cox" else {})
        return replace(made, **{name: tuple(map(float, own)) for name, own in values.items()})

    def risk(self, logits: np.ndarray) -> np.ndarray:
        """(N,): above 0 is more than the median of the training set."""
        if self.loss == "cox":
            return logits[:, 0] - self.centre
        return np.log(np.logaddexp(0, logits).sum(1)) - self.centre

    def to_row(self, logits: np.ndarray) -> dict[str, str]:
        """One row of logits as columns of a table: the risk, from which Cox's logit follows, or every logit."""
        row = {"risk": f"{self.risk(logits[None])[0]:.10g}"}
        own = () if self.loss == "cox" else enumerate(logits.tolist(), start=1)
        return row | {f"logit_{number}": f"{logit:.10g}" for number, logit in own}

    def from_rows(self, rows: Sequence[Mapping[str, str]]) -> np.ndarray:
        """The logits (N, outputs) of such columns."""
        if self.loss == "cox":
            return np.array([[float(row["risk"]) + self.centre] for row in rows])
        return np.array([[float(row[f"logit_{n}"]) for n in range(1, len(self.edges) + 1)] for row in rows])

    def survival(self, logits: np.ndarray, when: np.ndarray) -> np.ndarray:
        """The probability of no event up to each time, (N, T)."""
        if not self.fitted:
            what = "survival over time is not known: the baseline is estimated at the end of training"
            raise RunError(what, do="finish the run (`regard resume`); risks are known already")
        if self.loss == "cox":
            hazard = step(np.array(self.times), np.array(self.hazard), when, before=0.0)
            return np.exp(-hazard * np.exp(np.clip(self.risk(logits), -LARGEST, LARGEST))[:, None])
        ends, total = self._cumulative(logits)
        return np.exp(-np.stack([np.interp(when, ends, own) for own in total]))

    def median(self, logits: np.ndarray) -> float | None:
        """The time by which half are expected to have had the event, of one row of logits; None if not reached."""
        if self.loss == "cox":
            times = np.array(self.times)
            below = times[self.survival(logits, times)[0] <= 0.5]
            return float(below[0]) if len(below) else None
        ends, total = self._cumulative(logits)
        return float(np.interp(np.log(2), total[0], ends)) if total[0, -1] >= np.log(2) else None

    def _cumulative(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ends of intervals from 0 on, and the cumulative hazard at each: constant hazard within an interval."""
        total = np.cumsum(np.logaddexp(0, logits), axis=1)
        return np.r_[0.0, self.edges], np.c_[np.zeros(len(total)), total]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(stored: Any, outputs: int) -> Curves:
        try:
            made = make(Curves, dict(stored))
            wanted = len(made.times) if made.loss == "cox" else 0
            if len(made.hazard) != wanted or len(made.reference) != len(made.times):
                raise ValueError
            if outputs != (1 if made.loss == "cox" else len(made.edges)):
                raise ValueError
            return made
        except (ConfigError, TypeError, ValueError):
            raise RunError("the checkpoint is damaged: it does not say what its risks mean") from None


def make_edges(time: np.ndarray, event: np.ndarray, bins: int) -> tuple[float, ...]:
    """Ends of intervals with about as many events in each; they differ also where many events are at one time.

    >>> make_edges(np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([True, True, True, True, False]), 2)
    (2.0, 4.0)
    >>> make_edges(np.array([1.0, 1.0, 1.0, 1.0, 2.0]), np.ones(5, bool), 2)
    (1.0, 2.0)
    """
    times, counts = np.unique(time[event], return_counts=True)
    if len(times) < bins:
        what = f"{bins} intervals need as many different times of events to train on, and there are {len(times)}"
        raise DataError(what, do=f"give --bins {len(times)}" if len(times) > 1 else "use --loss cox")
    wanted = np.searchsorted(np.cumsum(counts), counts.sum() * np.arange(1, bins + 1) / bins)
    chosen, last = list[int](), -1
    for number, place in enumerate(wanted.tolist(), start=1):
        last = min(max(place, last + 1), len(times) - bins + number - 1)
        chosen.append(last)
    return tuple(times[chosen].tolist())


def discrete_targets(time: np.ndarray, event: np.ndarray, edges: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(N, bins) each: whether a subject entered and was followed through an interval, and whether it died there.

    >>> at_risk, died = discrete_targets(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), (2.0, 4.0))
    >>> at_risk.tolist(), died.tolist()
    ([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    """
    ends, number = np.array(edges), np.arange(len(edges))
    where = np.minimum(np.searchsorted(ends, time), len(edges) - 1)  # of an event: the first end that is not earlier
    passed = np.searchsorted(ends, time, side="right")  # of a censoring: intervals that ended before or then
    last = np.where(event, where + 1, passed)
    died = (number == where[:, None]) & event[:, None]
    return (number < last[:, None]).astype(np.float32), died.astype(np.float32)
