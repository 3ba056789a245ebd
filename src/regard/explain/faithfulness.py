"""Faithfulness of a map: deletion and insertion (Petsiuk et al., 2018), compared with random maps.

- Deletion removes the most important places first: the probability of the target should fall soon.
- Insertion adds them first to an empty input: it should rise soon.
- Each score is the area under the curve. A faithful map has low deletion and high insertion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.geometry import TokenMap


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
        """Whether the gain exceeds that of random maps by two deviations."""
        return self.gain > max(2 * self.random_spread, 1e-4)

    @property
    def verdict(self) -> str:
        """One sentence: whether to trust the map."""
        answers = self.insertion_curve + self.deletion_curve
        if max(answers) - min(answers) < 1e-4:
            return "cannot be tested: the answer never moves, as of a head that is not trained"
        return against_random(round(self.beaten * self.maps), self.maps, "maps", self.trusted)


def against_random(beaten: int, count: int, what: str, trusted: bool) -> str:
    """One sentence: how a score compares with random ones.

    >>> against_random(8, 8, "maps", trusted=False)
    'better than 8 of 8 random maps, but by less than two of their deviations: uncertain'
    """
    better = f"better than {beaten} of {count} random {what}"
    if trusted:
        return better
    if beaten == count:
        return f"{better}, but by less than two of their deviations: uncertain"
    return f"{better} only: do not rely on it"


@torch.inference_mode()
def faithfulness(
    probability: Callable[[Tensor], Tensor],
    x: Tensor,
    values: Tensor,
    where: TokenMap,
    *,
    steps: int | None = None,
    maps: int = 8,
    seed: int = 0,
    batch: int = 64,
) -> Faithfulness:
    """Scores of `values` (places,) as a map of the normalised input x (1, C, *size).

    `probability` gives the target's probability (B,) for inputs (B, C, *size). Removed places become zero,
    which is the mean of the training data. Default of `steps`: 16, or 8 for more than 64 places.
    """
    steps = min(where.places, (16 if where.places <= 64 else 8) if steps is None else steps)
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(where.places, generator=draw)  # ties in random order
    ranked = mixed[torch.argsort(values.cpu()[mixed], descending=True, stable=True)]
    orders = [ranked, *(torch.randperm(where.places, generator=draw) for _ in range(maps))]
    ranks = torch.stack([both.argsort() for order in orders for both in (order, order.flip(0))])
    points = torch.linspace(0, where.places, steps + 1).round().long()
    keep = (ranks[:, None] < points[1:-1, None]).float()  # (orders, steps - 1, places)
    ends = torch.stack([torch.zeros(where.places), torch.ones(where.places)])  # the same for every order
    results = []
    for part in torch.cat([ends, keep.flatten(0, 1)]).split(batch):
        mask = where.paint(part)[:, None].to(x.device, x.dtype)
        results.append(probability(x * mask).float().cpu())
    empty, full, between = torch.cat(results).split([1, 1, keep.shape[:2].numel()])
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
