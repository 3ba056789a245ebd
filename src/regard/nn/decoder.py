"""The decoder block: over the words so far, over the source, each by itself; and one word at a time.

Vaswani et al., "Attention Is All You Need", section 3.1. Letters in shapes: B sentences, K beams of each, T words so
far, L words there is room for, S words of the source, H heads, D dimensions of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from regard.nn.blocks import MLP, BlockConfig


class Past(NamedTuple):
    """What one block remembers while words come one by one. No shape changes from step to step."""

    keys: Tensor
    """(B, L, K, H, D): of the words so far, and room for those to come."""
    values: Tensor
    """(B, L, K, H, E)"""
    source_keys: Tensor
    """(B, H, S, D): of the source, once for all beams of a sentence."""
    source_values: Tensor
    """(B, H, S, E)"""


class DecoderBlock(nn.Module):
    """Causal self-attention, attention over the source, and MLP, each on a residual branch.

    Padding at the end of a target needs no mask: no word before it looks ahead.
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.norm1 = config.layer_norm()
        self.attention = config.attention()
        self.norm2 = config.layer_norm()
        self.cross = config.attention()
        self.norm3 = config.layer_norm()
        self.mlp = MLP(config.width, config.mlp, activation=config.activation, dropout=config.mlp_dropout)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Words (B, T, width) in and out; memory (B, S, width); mask, true where that may be looked at."""
        x = self._branch(self.norm1, x, lambda words: self.attention(words, causal=True))
        x = self._branch(self.norm2, x, lambda words: self.cross(words, memory, mask=mask))
        return self._branch(self.norm3, x, self.mlp)

    def step(self, x: Tensor, past: Past, at: Tensor, own: Tensor, mask: Tensor | None = None) -> Tensor:
        """The next word of each beam, (B, K, width) in and out: word number `at`, a tensor of one number.

        `own` (B, 1, K, T · K) says which of all beams' first T words, this one with them, are a beam's own past: beams
        that continue the same one share it, and nothing has to be moved. `mask` as in `forward`. Keys and values of
        this word are written into the past, in place.
        """
        x = self._branch(self.norm1, x, lambda words: self._look_back(words, past, at, own))
        x = self._branch(
            self.norm2, x, lambda words: self.cross.recall(words, past.source_keys, past.source_values, mask)
        )
        return self._branch(self.norm3, x, self.mlp)

    def _look_back(self, words: Tensor, past: Past, at: Tensor, own: Tensor) -> Tensor:
        q, *new = self.attention.project(words)
        seen = []
        for room, fresh in zip(past[:2], new, strict=True):
            room.index_copy_(1, at.view(1), fresh.transpose(1, 2)[:, None])
            seen.append(room[:, : own.shape[-1] // room.shape[2]].flatten(1, 2).transpose(1, 2))
        return self.attention.mix(q, *seen, mask=own)

    def _branch(self, norm: nn.Module, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.drop(branch(norm(x)))
        return norm(x + self.drop(branch(x)))
