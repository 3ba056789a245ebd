"""Translation: a sentence in, its words in another language out, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.tasks.entropy import cross_entropy


@dataclass(frozen=True)
class NextWord:
    """Cross-entropy of each next word with label smoothing (Vaswani et al., section 5.4), mean over words.

    Inputs are sources (B, S); targets (B, T) are whole sentences, from start to end, and padded.
    """

    padding: int
    smoothing: float = 0.0

    def output(self, model: Callable[..., Any], x: Tensor, targets: Tensor) -> Any:
        return model(x, targets[:, :-1])

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        wanted = targets[:, 1:].flatten()
        scores = output.logits.flatten(0, 1)
        total = cross_entropy(scores, wanted, ignored=self.padding, smoothing=self.smoothing)
        return total / (wanted != self.padding).sum().clamp_min(1)

    def amount(self, targets: Tensor) -> Tensor:
        return (targets[:, 1:] != self.padding).sum()

    def log_likelihoods(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of each sentence: the sum over its words, (B,), and how many these are."""
        wanted = targets[:, 1:]
        scores = torch.log_softmax(output.logits.float(), dim=-1).gather(-1, wanted[..., None])[..., 0]
        real = wanted != self.padding
        return (scores * real).sum(1), real.sum(1)


class Translated(NamedTuple):
    """A sentence's translation, and its score: log-probability over the length penalty."""

    source: str
    text: str
    score: float
    others: tuple[tuple[str, float], ...] = ()
    """The next best ones and their scores, where they were asked for."""
