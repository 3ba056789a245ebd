"""Whether the maps of many subjects lie in their masks: share inside and pointing game, against chance.

Two kinds of chance. A map that knows nothing but where the patient is has the mask's share of the foreground inside
(and its peak, as often). A map that knows where such regions usually lie does as well with another subject's mask:
permuting the masks over the subjects tests for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.console import interval
from regard.explain.explanation import Explanation
from regard.metrics import Figure, wilson

DRAWS = 2000
"""Bootstrap resamples of the subjects, and permutations of their masks."""
FEWEST = 5
"""Subjects from which masks are permuted: fewer have too few permutations."""


class Row(NamedTuple):
    """One subject and method."""

    name: str
    method: str
    share: float
    """Of the map inside the mask."""
    hit: bool
    """Whether the map's peak is inside."""
    chance: float
    """The mask's share of the foreground."""


@dataclass(frozen=True)
class MaskScore:
    """One method over all subjects that have a mask."""

    method: str
    share: Figure
    """Mean share of the maps inside the masks, with a bootstrap interval over subjects."""
    hits: Figure
    """Share of the subjects whose map has its peak inside, with Wilson's interval."""
    chance: float
    """Mean share of the foreground that the masks cover: what an uninformative map scores on both."""
    hits_p: float
    """Probability of so many hits by chance: the sum of one coin per subject, each with its own chance."""
    others_share: float | None
    """Mean share of the maps inside other subjects' masks."""
    others_p: float | None
    """Share of the permutations of masks over subjects with as much of the maps inside."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share._asdict(), "hits": self.hits._asdict()}


def mask_rows(explained: Sequence[Explanation]) -> list[Row]:
    """The rows of those that have a mask."""
    return [
        Row(e.prediction.name, e.method, e.location.share, e.location.pointing, e.location.area)
        for e in explained
        if e.location is not None
    ]


def score_masks(explained: Sequence[Explanation], seed: int = 0) -> list[MaskScore]:
    """Each method's score over its explanations that have a mask; nothing where none has."""
    marked = [e for e in explained if e.location is not None]
    methods = list(dict.fromkeys(e.method for e in marked))
    return [_score(method, [e for e in marked if e.method == method], seed) for method in methods]


def score_rows(method: str, rows: Sequence[Row], seed: int = 0, crossed: np.ndarray | None = None) -> MaskScore:
    """The score of one method's rows; `crossed` (n, n) is the share of each subject's map in each subject's mask."""
    draw, n = np.random.default_rng(seed), len(rows)
    shares, chance = np.array([row.share for row in rows]), np.array([row.chance for row in rows])
    resampled = shares[draw.integers(0, n, (DRAWS, n))].mean(1)
    low, high = (float(v) for v in np.percentile(resampled, (2.5, 97.5))) if n > 1 else (float("nan"),) * 2
    hits = sum(row.hit for row in rows)
    others = others_p = None
    if crossed is not None and n >= FEWEST:
        permuted = np.array([crossed[np.arange(n), draw.permutation(n)].mean() for _ in range(DRAWS)])
        others = float((crossed.sum() - crossed.trace()) / (n * (n - 1)))
        others_p = float((1 + (permuted >= crossed.trace() / n - 1e-12).sum()) / (1 + DRAWS))
    return MaskScore(
        method, Figure(float(shares.mean()), low, high, n), wilson(hits, n), float(chance.mean()),
        at_least(chance, hits), others, others_p,
    )  # fmt: skip


def at_least(chances: Sequence[float] | np.ndarray, hits: int) -> float:
    """The probability of `hits` or more of independent events with these probabilities.

    >>> at_least([0.5, 0.5], 2), round(at_least([0.1, 0.2], 1), 10)
    (0.25, 0.28)
    """
    counts = np.ones(1)
    for chance in chances:
        counts = np.convolve(counts, [1 - chance, chance])
    return float(min(1.0, counts[hits:].sum()))


def _score(method: str, explained: list[Explanation], seed: int) -> MaskScore:
    rows = mask_rows(explained)
    same = len({tuple(e.map.shape) for e in explained}) == 1
    return score_rows(method, rows, seed, _crossed(explained) if same and len(rows) >= FEWEST else None)


def _crossed(explained: Sequence[Explanation]) -> np.ndarray:
    """(n, n): the share of each map inside each mask. Values and masks are summed by token first, which is exact."""
    where = explained[0].where
    maps = torch.stack([where.collect(e.map.float().cpu()) for e in explained])
    counts = where.collect(torch.ones(where.size))
    inside = torch.stack([where.collect(e.mask.float().cpu()) for e in explained if e.mask is not None]) / counts
    return (maps @ inside.T).double().numpy()


def score_table(scores: Sequence[MaskScore]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows, for the screen and the report."""
    header = (
        "method", "subjects", "map inside the mask", "95 % interval", "peak inside", "95 % interval", "chance",
        "p of the peaks", "inside others' masks", "p (permuted)",
    )  # fmt: skip
    return header, [
        (
            s.method, str(s.share.n), f"{s.share.value:.1%}", interval(s.share._asdict(), ".1%"),
            f"{s.hits.value:.0%}", interval(s.hits._asdict(), ".0%"), f"{s.chance:.1%}", f"{s.hits_p:.2g}",
            "–" if s.others_share is None else f"{s.others_share:.1%}",
            "–" if s.others_p is None else f"{s.others_p:.2g}",
        )
        for s in scores
    ]  # fmt: skip
