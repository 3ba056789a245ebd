"""Cross-entropy of each next word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import Batch, Tensors
from regard.tasks.translation.entropy import cross_entropy


@dataclass(frozen=True)
class NextWord:
    """Cross-entropy of each next word with label smoothing (Vaswani et al., section 5.4), mean over words.

    Inputs are `source` (B, S); targets are `target` (B, T), whole sentences from start to end, padded.
    """

    padding: int
    smoothing: float = 0.0
    divisible = True

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any:
        return model(batch.inputs["source"], batch.targets["target"][:, :-1])

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        wanted = targets["target"][:, 1:].flatten()
        scores = output.logits.flatten(0, 1)
        total = cross_entropy(scores, wanted, ignored=self.padding, smoothing=self.smoothing)
        return total / (wanted != self.padding).sum().clamp_min(1)

    def num_targets(self, targets: Tensors) -> Tensor:
        return (targets["target"][:, 1:] != self.padding).sum()

    def log_likelihoods(self, output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        """Per sentence: the sum over its words, (B,), and their number."""
        wanted = target[:, 1:]
        scores = torch.log_softmax(output.logits.float(), dim=-1).gather(-1, wanted[..., None])[..., 0]
        real = wanted != self.padding
        return (scores * real).sum(1), real.sum(1)
