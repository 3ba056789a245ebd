"""DETR's mask head: a mask per query, from where the query looks and the ResNet's finer feature maps.

Carion et al. (2020), section 4.4 and Figure 8. Letters in shapes as in network.py; H heads.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention import Attention, attention_weights


class AttentionMap(Attention):
    """Attention of queries to cells without values: its weights add up to 1 over all heads and cells together."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.q, self.k):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, queries: Tensor, cells: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, H, Q, N) from queries (B, Q, width) and cells (B, N, width)."""
        q, k = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (self.q(queries), self.k(cells)))
        return attention_weights(q, k, mask=mask, joint=True)


class MaskHead(nn.Module):
    """Five convolutions per query; before each of the last three, a finer feature map of the ResNet is added."""

    def __init__(self, width: int, heads: int, channels: tuple[int, ...]):
        """`channels` of the ResNet's first three stages."""
        super().__init__()
        sizes = mask_channels(width, heads)
        self.attention = AttentionMap(width, heads)
        self.convs = nn.ModuleList(nn.Conv2d(before, after, 3, padding=1) for before, after in pairwise(sizes))
        self.norms = nn.ModuleList(nn.GroupNorm(min(8, size), size) for size in sizes[1:])
        finer = zip(reversed(channels), sizes[2:5], strict=True)
        self.adapters = nn.ModuleList(nn.Conv2d(before, after, 1) for before, after in finer)
        self.out = nn.Conv2d(sizes[-1], 1, 3, padding=1)
        for layer in (*self.convs, *self.adapters, self.out):
            nn.init.kaiming_uniform_(layer.weight, a=1)  # pyright: ignore[reportArgumentType]
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, weights: Tensor, cells: Tensor, maps: list[Tensor]) -> Tensor:
        """Logits (B, Q, rows, columns) on the grid of the finest map, from the attention's weights (B, H, Q, N), the
        projected feature map (B, width, rows, columns) and the maps before it, the finest first."""
        count = weights.shape[2]
        looks = weights.transpose(1, 2).flatten(0, 1).unflatten(-1, cells.shape[2:])  # (B · Q, H, rows, columns)
        x = torch.cat((cells.repeat_interleave(count, dim=0), looks), dim=1)
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            if number > 1:
                added = self.adapters[number - 2](maps[1 - number])
                # Cells that are finer than a map, in modern mode, stay so.
                grid = [max(sides) for sides in zip(added.shape[2:], x.shape[2:], strict=True)]
                added = F.interpolate(added, size=grid).repeat_interleave(count, dim=0)
                x = added + F.interpolate(x, size=grid)
            x = F.relu(norm(conv(x)))
        return self.out(x)[:, 0].unflatten(0, (-1, count))


def mask_channels(width: int, heads: int) -> tuple[int, ...]:
    """Channels before, between and after the five convolutions."""
    return (width + heads, width + heads, *(width // 2**n for n in range(1, 5)))
