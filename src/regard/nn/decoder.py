"""The decoder block of the Transformer, for complete targets and for one word at a time.

Vaswani et al., "Attention Is All You Need", section 3.1. Letters in shapes: B sentences, K beams per sentence, T words
so far, L maximal number of words, S words of the source, H heads, D dimensions of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from regard.nn.blocks import MLP, BlockConfig


class KeyValueCache(NamedTuple):
    """Cached keys and values of one block, for decoding word by word. Shapes are the same at every step."""

    keys: Tensor
    """(B, L, K, H, D): of the words so far, and space for later words."""
    values: Tensor
    """(B, L, K, H, E)"""
    source_keys: Tensor
    """(B, H, S, D): of the source, shared by all beams of a sentence."""
    source_values: Tensor
    """(B, H, S, E)"""


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the source, and MLP, each on a residual branch.

    Padding at the end of a target needs no mask, because attention is causal.
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
        """Words (B, T, width) in and out; memory (B, S, width); mask, true where memory may be attended to."""
        x = self._branch(self.norm1, x, lambda words: self.attention(words, causal=True))
        x = self._branch(self.norm2, x, lambda words: self.cross(words, memory, mask=mask))
        return self._branch(self.norm3, x, self.mlp)

    def step(
        self, x: Tensor, cache: KeyValueCache, at: Tensor, beam_mask: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """The next word of each beam, (B, K, width) in and out; `at` is its position, a tensor of one number.

        `beam_mask` (B, 1, K, T · K) is true for the cached words, of all beams, that belong to a beam's own sentence,
        the newest included. Beams with the same beginning share cached words, so the cache is never reordered.
        `mask` as in `forward`. Keys and values of this word are written into the cache, in place.
        """
        x = self._branch(self.norm1, x, lambda words: self._attend_to_cache(words, cache, at, beam_mask))
        x = self._branch(
            self.norm2, x, lambda words: self.cross.attend_to(words, cache.source_keys, cache.source_values, mask)
        )
        return self._branch(self.norm3, x, self.mlp)

    def _attend_to_cache(self, words: Tensor, cache: KeyValueCache, at: Tensor, beam_mask: Tensor) -> Tensor:
        q, *new = self.attention.project(words)
        parts = []
        for cached, fresh in zip(cache[:2], new, strict=True):
            cached.index_copy_(1, at.view(1), fresh.transpose(1, 2)[:, None])
            parts.append(cached[:, : beam_mask.shape[-1] // cached.shape[2]].flatten(1, 2).transpose(1, 2))
        return self.attention.attend_projected(q, *parts, mask=beam_mask)

    def _branch(self, norm: nn.Module, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.drop(branch(norm(x)))
        return norm(x + self.drop(branch(x)))
