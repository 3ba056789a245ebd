"""Why scores are divided by √d_k: unscaled, the softmax saturates and its gradient vanishes.

Vaswani et al., section 3.2.1 and its footnote: where the elements of q and k are independent, with mean 0 and variance
1, their dot product has mean 0 and variance d_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.nn import attention_weights

SATURATED = 0.99
"""A weight above this counts as saturated: it leaves almost nothing to the other keys."""


class Softness(NamedTuple):
    """Statistics of scores and weights for one key size; means over queries."""

    d_k: int
    scaled: bool
    variance: float
    """Of the scores."""
    largest: float
    """Of each query's weights."""
    saturated: float
    """Share of queries that give one key more than 0.99."""
    jacobian: float
    """Frobenius norm of the derivatives of weights by scores, a factor of every gradient."""
    median: float
    """The same, as the median over queries."""


@dataclass(frozen=True)
class Gradients:
    """The results of this part."""

    keys: int
    queries: int
    measured: list[Softness]

    def rows(self) -> list[dict[str, Any]]:
        return [row._asdict() for row in self.measured]

    def summary(self) -> list[str]:
        plain, scaled = ([row for row in self.measured if row.scaled == wanted] for wanted in (False, True))
        first, last, steepest = plain[0], plain[-1], max(plain, key=lambda row: row.jacobian)
        return [
            f"Unscaled, the scores' variance is {first.variance:.2f} at d_k = {first.d_k} and {last.variance:.1f} at "
            f"{last.d_k}: d_k, as the paper's footnote says. Divided by √d_k it stays at "
            f"{min(row.variance for row in scaled):.2f} to {max(row.variance for row in scaled):.2f}.",
            f"At d_k = {last.d_k} the unscaled softmax gives its favourite of {self.keys} keys a weight of "
            f"{last.largest:.2f} on average ({last.saturated:.0%} of queries more than {SATURATED}), the scaled one "
            f"{scaled[-1].largest:.2f}.",
            f"From d_k = {first.d_k} to {last.d_k} the unscaled softmax's Jacobian goes from {first.jacobian:.3f} to "
            f"{last.jacobian:.3f}, after a maximum of {steepest.jacobian:.3f} at d_k = {steepest.d_k} (half of the "
            f"queries are below {last.median:.1g} at the end); the scaled one's from {scaled[0].jacobian:.3f} to "
            f"{scaled[-1].jacobian:.3f}.",
        ]

    def table(self) -> str:
        lines = [
            "| d_k | scores | variance | largest weight | saturated | ‖Jacobian‖, mean | median |",
            "|---" * 7 + "|",
        ]
        lines += [
            f"| {row.d_k} | {'q·k/√d_k' if row.scaled else 'q·k'} | {row.variance:.2f} | {row.largest:.3f} | "
            f"{row.saturated:.1%} | {row.jacobian:.4f} | {row.median:.2g} |"
            for row in self.measured
        ]
        return "\n".join(
            [*lines, "", f"{self.queries:,} random queries, each over {self.keys} random keys of its own."]
        )


def softmax_gradients(
    sizes: Sequence[int] = (1, 4, 16, 64, 256, 1024), *, keys: int = 32, queries: int = 4000, seed: int = 0
) -> Gradients:
    """Scores, weights and gradients of random queries and keys of unit variance, with and without 1/√d_k.

    >>> [row.scaled for row in softmax_gradients((4,), queries=10).measured]
    [False, True]
    """
    if min(sizes, default=0) < 1 or keys < 2 or queries < 2:
        raise ConfigError("there is nothing to measure", do="give sizes of 1 or more, and at least 2 keys and queries")
    generator, measured = torch.Generator().manual_seed(seed), list[Softness]()
    for size in sizes:
        # In double precision: the gradients depend on 1 - weight, which is tiny for weights near 1.
        q = torch.randn(queries, 1, size, generator=generator).double()
        k = torch.randn(queries, keys, size, generator=generator).double()
        for scaled in (False, True):
            scale = size**-0.5 if scaled else 1.0
            scores, weights = (q @ k.transpose(1, 2) * scale)[:, 0], attention_weights(q, k, scale=scale)[:, 0]
            largest = weights.max(dim=1).values
            norms = jacobian_norm(weights)
            saturated = float((largest > SATURATED).double().mean())
            jacobian = float(norms.mean()), float(norms.median())
            measured.append(Softness(size, scaled, float(scores.var()), float(largest.mean()), saturated, *jacobian))
    return Gradients(keys, queries, measured)


def jacobian_norm(weights: Tensor) -> Tensor:
    """‖diag(p) - p pᵀ‖, the norm of ∂softmax/∂scores, from weights p (…, K) alone.

    >>> jacobian_norm(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.5000, 0.0000])
    """
    squares = weights.square()
    # Σ pᵢ²(1 - pᵢ)² on the diagonal, and off it (Σ pᵢ²)² - Σ pᵢ⁴.
    off = (squares.sum(-1).square() - squares.square().sum(-1)).clamp(min=0)
    return ((squares * (1 - weights).square()).sum(-1) + off).sqrt()
