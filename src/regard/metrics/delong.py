"""AUC with DeLong's variance, paired tests of several AUCs on the same samples, and Holm's correction.

DeLong, DeLong & Clarke-Pearson (1988), in O(N log N) by midranks (Sun & Xu, 2014). Where samples belong to patients,
the variance is Obuchowski's (1997) for clustered data, of which DeLong's is the case of one sample per patient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.metrics.classification import Figure, Z, auroc
from regard.metrics.paired import Comparison


class Areas(NamedTuple):
    """AUCs (K,) of K scores of the same samples, and their covariance (K, K)."""

    values: np.ndarray
    covariance: np.ndarray


def placements(score: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each positive the share of negatives below it, of each negative the share of positives above; ties are half.

    >>> placements(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    (array([0.75, 1.  ]), array([1.  , 0.75]))
    """
    from scipy.stats import rankdata

    ranks, up, down = rankdata(score), score[positive], score[~positive]
    below = (ranks[positive] - rankdata(up)) / len(down)
    above = 1 - (ranks[~positive] - rankdata(down)) / len(up)
    return below, above


def delong(scores: np.ndarray, positive: np.ndarray, groups: np.ndarray | None = None) -> Areas:
    """AUCs of scores (K, N) or (N,) and their covariance; `groups` (N,) says which samples are of one patient."""
    scores, positive = np.atleast_2d(np.asarray(scores, dtype=np.float64)), np.asarray(positive, dtype=bool)
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        unknown = np.full(len(scores), np.nan)
        return Areas(unknown, np.full((len(scores), len(scores)), np.nan))
    pairs = [placements(score, positive) for score in scores]
    values = np.array([below.mean() for below, _ in pairs])
    _, owner = np.unique(np.arange(len(positive)) if groups is None else groups, return_inverse=True)
    sides = []
    for own, parts in ((positive, [below for below, _ in pairs]), (~positive, [above for _, above in pairs])):
        # By patient: the sum of how far its placements are from the area.
        sums = [
            np.bincount(owner[own], part - value, owner.max() + 1) for part, value in zip(parts, values, strict=True)
        ]
        sides.append((np.array(sums), len(np.unique(owner[own])), int(own.sum())))
    total = np.zeros((len(scores), len(scores)))
    for sums, patients, count in sides:
        total += sums @ sums.T * (patients / max(patients - 1, 1)) / count**2
    (up, *_), (down, *_), patients = *sides, owner.max() + 1
    cross = up @ down.T * (patients / max(patients - 1, 1)) / (ups * downs)
    return Areas(values, total + cross + cross.T)


def auc_delong(score: np.ndarray, positive: np.ndarray, groups: np.ndarray | None = None) -> Figure:
    """An AUC with DeLong's 95 % interval, cut at 0 and 1.

    Where all placements are equal, as of a perfect ranking, the variance is 0 and would claim certainty: the interval
    is Newcombe's then.
    """
    area, variance = delong(score, positive, groups)
    value, half = float(area[0]), Z * math.sqrt(max(float(variance[0, 0]), 0.0))
    if not half:
        return auroc(np.asarray(score), np.asarray(positive, dtype=bool))
    return Figure(value, max(0.0, value - half), min(1.0, value + half), len(score))


def compare_areas(
    first: np.ndarray, second: np.ndarray, positive: np.ndarray, groups: np.ndarray | None = None
) -> Comparison:
    """AUC of the second score minus that of the first on the same samples: DeLong's interval and two-sided p value."""
    areas = delong(np.stack([first, second]), positive, groups)
    return compared(areas, np.array([-1.0, 1.0]), len(positive))


def compared(areas: Areas, contrast: np.ndarray, n: int) -> Comparison:
    """A contrast of AUCs, such as (-1, 1), with its interval and p value."""
    value, variance = float(contrast @ areas.values), float(contrast @ areas.covariance @ contrast)
    error = math.sqrt(max(variance, 0.0))
    p = math.erfc(abs(value) / error / math.sqrt(2)) if error > 1e-12 else float(abs(value) < 1e-12)
    return Comparison(Figure(value, value - Z * error, value + Z * error, n), {"DeLong": p})


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) p values, corrected for the number of tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, corrected, highest = np.argsort(p_values, kind="stable"), [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected
