"""Sinusoidal positions: the table, and dot products that depend on distance alone.

Vaswani et al., section 3.5: PE(pos + k) is a linear function of PE(pos), for each pair of sine and cosine a rotation.
So PE(pos) · PE(pos + k) = Σᵢ cos(k / 10000^(2i/d)), wherever pos is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.nn.patches import sinusoid


@dataclass(frozen=True)
class Sinusoids:
    """The table (length, width), and dot products (places, 2 · reach + 1) of some rows with their neighbours."""

    table_: Tensor
    places: tuple[int, ...]
    reach: int
    products: Tensor

    @property
    def distances(self) -> list[int]:
        return list(range(-self.reach, self.reach + 1))

    @property
    def shift(self) -> float:
        """The largest difference between places of products at the same distance: only rounding."""
        return float((self.products.amax(0) - self.products.amin(0)).max())

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"distance": distance}
            | {f"from_{place}": float(self.products[n, at]) for n, place in enumerate(self.places)}
            for at, distance in enumerate(self.distances)
        ]

    def summary(self) -> list[str]:
        width, mean = self.table_.shape[1], self.products.mean(0)
        near, far = (float(mean[self.reach + distance]) for distance in (1, self.reach))
        return [
            f"The dot product of two positions depends on their distance alone: from {len(self.places)} places "
            f"({', '.join(map(str, self.places))}) the same to {self.shift:.0e}.",
            f"With itself it is {width // 2}, half of the width; {near:.1f} one word away, {far:.1f} at {self.reach} "
            "words. It is the same forwards and backwards: by itself it does not tell before from after.",
        ]

    def table(self) -> str:
        wanted = [n for n in (0, 1, 2, 4, 8, 16, 32, 64) if n <= self.reach]
        cells = " | ".join(f"{float(self.products.mean(0)[self.reach + n]):.2f}" for n in wanted)
        return (
            f"| distance | {' | '.join(map(str, wanted))} |\n{'|---' * (1 + len(wanted))}|\n| dot product | {cells} |"
        )


def sinusoids(
    length: int = 100, width: int = 128, *, places: Sequence[int] = (32, 50, 67), reach: int = 32
) -> Sinusoids:
    """The paper's table for `length` words, and the dot products of each place with all words up to `reach` away.

    >>> sinusoids(9, 4, places=(4,), reach=1).products
    tensor([[1.5403, 2.0000, 1.5403]])
    """
    if not places or min(places) < reach or max(places) + reach >= length:
        raise ConfigError(
            f"some of {reach} words around places {tuple(places)} lie outside 0 to {length - 1}",
            do="give a larger length, places in its middle, or a smaller reach",
        )
    table = sinusoid(torch.arange(length), width)
    around = torch.stack([table[place - reach : place + reach + 1] for place in places])
    return Sinusoids(table, tuple(places), reach, (around @ table[list(places)][:, :, None])[:, :, 0])
