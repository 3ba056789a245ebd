"""Faithfulness of a map: deletion and insertion (Petsiuk et al., 2018), compared with random maps.

- Deletion removes the most important places first: the probability of the target should fall soon.
- Insertion adds them first to an empty input: it should rise soon.
- Each score is the area under the curve. A faithful map has low deletion and high insertion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from regard.explain.methods import at_once
from regard.geometry import TokenMap

MIN_GAIN = 0.01
"""A gain that is no hundredth is none, however many random maps have less."""
MAPS = 16
"""Random maps to compare with. With 8, every fourth verdict on planted causes changes with the seed, with 16
every tenth."""
CONSTANT = 1e-6
"""An answer that moves by less than this does not move."""


@dataclass(frozen=True)
class Faithfulness:
    """Scores of one map. `random` is the mean score of random maps, the same for both measures."""

    deletion: float
    insertion: float
    random: float
    random_spread: float
    """Standard deviation of the gain over random maps."""
    beaten: float
    """Share of random maps with a smaller gain: about half for an uninformative map."""
    maps: int
    """Number of random maps."""
    deletion_curve: tuple[float, ...]
    insertion_curve: tuple[float, ...]

    @property
    def gain(self) -> float:
        """insertion − deletion: zero on average for an uninformative map, positive for a faithful one."""
        return self.insertion - self.deletion

    @property
    def trusted(self) -> bool:
        """Whether the gain exceeds that of random maps by two deviations, and is a hundredth at least."""
        return self.gain >= max(2 * self.random_spread, MIN_GAIN)

    @property
    def verdict(self) -> str:
        """One sentence: whether to trust the map."""
        answers = self.insertion_curve + self.deletion_curve
        if max(answers) - min(answers) < 1e-4:
            return "cannot be tested: the answer never moves, as of a head that is not trained"
        return against_random(round(self.beaten * self.maps), self.maps, "maps", self.gain, self.trusted)

    def to_json(self) -> dict[str, Any]:
        """Everything but the curves."""
        scores = {name: value for name, value in asdict(self).items() if not name.endswith("_curve")}
        return scores | {"gain": self.gain}


def against_random(beaten: int, count: int, what: str, gain: float, trusted: bool) -> str:
    """In words, how a score compares with random ones.

    >>> against_random(8, 8, "maps", gain=0.2, trusted=True)
    'better than 8 of 8 random maps'
    >>> against_random(8, 8, "maps", gain=0.2, trusted=False)
    'uncertain: better than 8 of 8 random maps, but by less than two of their deviations'
    >>> against_random(8, 8, "maps", gain=0.002, trusted=False)
    'do not rely on it: the gain is below 0.01'
    >>> against_random(5, 8, "maps", gain=0.2, trusted=False)
    'do not rely on it: better than 5 of 8 random maps only'
    """
    better = f"better than {beaten} of {count} random {what}"
    if trusted:
        return better
    if beaten < count:
        return f"do not rely on it: {better} only"
    if gain < MIN_GAIN:
        return f"do not rely on it: the gain is below {MIN_GAIN}"
    return f"uncertain: {better}, but by less than two of their deviations"


def curve_steps(places: int) -> int:
    """Equal parts in which a map is deleted: 16, or 8 where there are many places."""
    return min(places, 16 if places <= 64 else 8)


def check_passes(places: int) -> int:
    """Forward passes of `faithfulness`."""
    return 4 + 2 * (1 + MAPS) * (curve_steps(places) - 1)


@torch.inference_mode()
def faithfulness(
    probability: Callable[[Tensor], Tensor],
    x: Tensor,
    values: Tensor,
    where: TokenMap,
    *,
    steps: int | None = None,
    maps: int = MAPS,
    seed: int = 0,
    batch: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Faithfulness:
    """Scores of `values` (places,) as a map of the normalised input x (1, C, *size).

    `probability` gives the target's probability (B,) for inputs (B, C, *size). What is taken away becomes
    zero, which is the mean of the training data. In `steps` equal parts: see `curve_steps`.
    Where four probes show that the answer never moves, nothing more is tried. `say` is told how far it has come.
    """
    steps = curve_steps(where.places) if steps is None else min(where.places, steps)
    batch = batch or at_once(x, 64)
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(where.places, generator=draw)  # ties in random order
    ranked = mixed[torch.argsort(values.cpu()[mixed], descending=True, stable=True)]
    orders = [ranked, *(torch.randperm(where.places, generator=draw) for _ in range(maps))]
    ranks = torch.stack([both.argsort() for order in orders for both in (order, order.flip(0))])
    points = torch.linspace(0, where.places, steps + 1).round().long()
    keep = (ranks[:, None] < points[1:-1, None]).float()  # (orders, steps - 1, places)
    ends = torch.stack([torch.zeros(where.places), torch.ones(where.places)])  # the same for every order

    def answers(kept: Tensor, label: str) -> Tensor:
        results = []
        for part in kept.split(batch):
            say(f"{label} {batch * len(results)} of {len(kept)}")
            results.append(probability(x * where.paint(part)[:, None].to(x.device, x.dtype)).float().cpu())
        return torch.cat(results)

    first = answers(torch.cat([ends, keep[:2, (steps - 1) // 2]]), "first check") if steps > 1 else answers(ends, "")
    if first.max() - first.min() < CONSTANT:
        still = float(first[0])
        return Faithfulness(still, still, still, 0.0, 0.0, maps, (still,), (still,))
    (empty, full), between = first[:2, None], answers(keep.flatten(0, 1), "check")
    edge = len(ranks), 1
    curves = torch.cat([empty.expand(edge), between.reshape(len(ranks), steps - 1), full.expand(edge)], dim=1)
    areas = torch.trapezoid(curves, points.float() / where.places)
    # Deleting the best first is inserting the worst first in reverse: the areas are the same.
    insertion, deletion = areas[0::2], areas[1::2]
    gain = insertion - deletion
    return Faithfulness(
        deletion=float(deletion[0]),
        insertion=float(insertion[0]),
        random=float(areas[2:].mean()),
        random_spread=float(gain[1:].std()),
        beaten=float((gain[1:] < gain[0]).float().mean()),
        maps=maps,
        deletion_curve=tuple(curves[1].flip(0).tolist()),
        insertion_curve=tuple(curves[0].tolist()),
    )
