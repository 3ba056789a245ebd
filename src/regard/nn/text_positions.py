"""Position embeddings of the words of a sentence."""

from typing import Literal

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.patches import sinusoid

WordOrder = Literal["sinusoidal", "halves", "learned"]


def word_table(kind: WordOrder, length: int, width: int) -> Tensor:
    """Sinusoids (length, width), interleaved as in the paper's section 3.5, or all sines before all cosines.

    >>> word_table("halves", 2, 4)
    tensor([[0.0000, 0.0000, 1.0000, 1.0000],
            [0.8415, 0.0100, 0.5403, 0.9999]])
    """
    table = sinusoid(torch.arange(length), width)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1) if kind == "halves" else table


class WordPositions(nn.Module):
    """Adds a position embedding to each word: "sinusoidal", "halves" (see `word_table`), or a "learned" table.

    `length` is the longest sentence expected. Sinusoids work for longer ones; a learned table does not.
    """

    kind: WordOrder
    fixed: Tensor

    def __init__(self, kind: WordOrder, length: int, width: int):
        super().__init__()
        self.kind, self.length, self.width = kind, length, width
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(length, width))
            self.reset_parameters()
        else:
            if width % 2:
                raise ConfigError(f"sinusoids come in pairs: a width of {width} is odd", do="give an even width")
            self.register_buffer("fixed", word_table(kind, length, width), persistent=False)

    def reset_parameters(self) -> None:
        # Embeddings are scaled to unit size; positions get the size of sinusoids.
        if self.kind == "learned":
            nn.init.normal_(self.table, std=0.5)

    def forward(self, words: Tensor) -> Tensor:
        """words (B, T, width), with positions 0 to T - 1 added."""
        return words + self.rows(words.shape[1]).to(words.dtype)

    def rows(self, length: int) -> Tensor:
        """(length, width)"""
        if length > self.length:
            if self.kind == "learned":
                what = f"a sentence of {length} words is longer than the {self.length} that positions were learned for"
                raise ConfigError(what, do="cut it, or give a larger length=, or positions='sinusoidal'")
            return word_table(self.kind, length, self.width).to(self.fixed.device)
        return (self.table if self.kind == "learned" else self.fixed)[:length]
