"""Cross-entropy over many words, without the copies of all scores that torch's own makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_ONCE = {"cpu": 2**18, "cuda": 2**28}
"""Scores looked at at a time: on a CPU, as many as stay in its cache."""


def cross_entropy(scores: Tensor, wanted: Tensor, *, ignored: int, smoothing: float = 0.0) -> Tensor:
    """What `F.cross_entropy(scores, wanted, ignore_index=…, label_smoothing=…, reduction="sum")` gives, in fp32.

    Scores (N, words) of any precision, wanted words (N,), of which one is ignored. Scores that something else has
    computed are spent: going backward, their gradient is written in their place, since new memory of that size costs a
    CPU more time than the arithmetic.

    >>> scores = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 9.0]])
    >>> cross_entropy(scores, torch.tensor([0, 1]), ignored=1, smoothing=0.1)
    tensor(0.5076)
    >>> torch.nn.functional.cross_entropy(scores[:1], torch.tensor([0]), label_smoothing=0.1)
    tensor(0.5076)
    """
    own = scores.is_leaf and scores.requires_grad
    return _CrossEntropy.apply(scores.clone() if own else scores, wanted, ignored, smoothing)


class _CrossEntropy(torch.autograd.Function):
    """The loss of a row of scores s is log Σ exp s − (1 − ε) s[wanted] − ε mean(s)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, wanted: Tensor, ignored: int, smoothing: float) -> Tensor:
        sums = torch.empty(len(scores), dtype=_precise(scores), device=scores.device)
        losses = torch.empty_like(sums)
        for part in _parts(scores):
            some = scores[part].to(sums.dtype)
            sums[part] = some.logsumexp(1)
            right = some.gather(1, wanted[part, None])[:, 0]
            losses[part] = sums[part] - (1 - smoothing) * right
            if smoothing:  # without, a score may be −∞
                losses[part] -= smoothing * some.mean(1)
        ctx.save_for_backward(scores, wanted, sums)
        ctx.ignored, ctx.smoothing = ignored, smoothing
        return losses.masked_fill(wanted == ignored, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scores, wanted, sums = ctx.saved_tensors
        by_row = (gradient * (wanted != ctx.ignored))[:, None]
        gradients = scores.detach()
        for part in _parts(scores):
            own, at = gradients[part].to(sums.dtype), wanted[part, None]
            own.sub_(sums[part, None]).exp_().sub_(ctx.smoothing / scores.shape[1])
            own.scatter_add_(1, at, own.new_full(at.shape, ctx.smoothing - 1))
            own.mul_(by_row[part])
            if own.dtype != gradients.dtype:
                gradients[part] = own
        return gradients, None, None, None


def _precise(scores: Tensor) -> torch.dtype:
    return torch.promote_types(scores.dtype, torch.float32)


def _parts(scores: Tensor) -> Iterator[slice]:
    rows = max(1, AT_ONCE.get(scores.device.type, AT_ONCE["cuda"]) // scores.shape[1])
    return (slice(start, start + rows) for start in range(0, len(scores), rows))
