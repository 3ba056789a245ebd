"""Cross-entropy of several labels, of which any may be missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch, Tensors


@dataclass(frozen=True)
class LabelsEntropy:
    """The sum over known labels, over the number that a batch of this size has on average.

    Targets are `probabilities` (B, outputs): those of each label add up to 1, or to 0 where it is missing. A sum over
    samples and a fixed divisor are the same in pieces of a batch and on several processes; a division by the number
    that happens to be known is not.
    """

    sizes: tuple[int, ...]
    """Classes of each label."""
    known: float = 1.0
    """Share of labels that are known in the training set."""
    smoothing: float = 0.0
    weights: Tensor | None = None
    """A factor per output, on the device."""
    divisible = True

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any:
        return model(batch.inputs["image"], class_token_only=True)

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        wanted = targets["probabilities"]
        summed = -(self._smoothed(wanted) * log_probabilities(output, self.sizes)).sum()
        return summed / (len(wanted) * len(self.sizes) * self.known)

    def _smoothed(self, wanted: Tensor) -> Tensor:
        parts = [
            part * (1 - self.smoothing) + part.sum(-1, keepdim=True) * (self.smoothing / part.shape[-1])
            for part in wanted.split(self.sizes, dim=-1)
        ]
        smoothed = torch.cat(parts, dim=-1)
        return smoothed if self.weights is None else smoothed * self.weights

    def num_targets(self, targets: Tensors) -> int:
        return len(targets["probabilities"])


def log_probabilities(output: Any, sizes: tuple[int, ...]) -> Tensor:
    """Of each label's classes, (B, outputs)."""
    parts = output.logits.float().split(sizes, dim=-1)
    return torch.cat([F.log_softmax(part, dim=-1) for part in parts], dim=-1)
