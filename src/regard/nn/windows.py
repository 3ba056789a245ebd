"""Attention inside windows of a grid (Liu et al., "Swin Transformer", 2021, section 3.2), in any number of dimensions.

Letters in shapes: B batch, W windows, M tokens of a window, H heads, C channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention import attend_windows, fuses_windows
from regard.nn.blocks import BlockConfig, EncoderBlock
from regard.nn.multihead import MultiHeadAttention


def pad_to_multiple(x: Tensor, window: tuple[int, ...]) -> Tensor:
    """(B, *grid, C) with zeros at the end of each axis, up to a multiple of the window."""
    short = [-side % each for side, each in zip(x.shape[1:-1], window, strict=True)]
    return F.pad(x, [0, 0, *(n for after in reversed(short) for n in (0, after))]) if any(short) else x


def to_windows(x: Tensor, window: tuple[int, ...], shift: tuple[int, ...]) -> Tensor:
    """(B, *grid, C) as windows (B · W, M, C): padded with zeros to whole windows, then rolled back by the shift.

    >>> to_windows(torch.arange(1, 7).reshape(1, 6, 1), (4,), (2,)).tolist()
    [[[3], [4], [5], [6]], [[0], [0], [1], [2]]]
    """
    dims = len(window)
    x = pad_to_multiple(x, window)
    if any(shift):
        x = x.roll([-n for n in shift], dims=tuple(range(1, 1 + dims)))
    parts = [n for side, each in zip(x.shape[1:-1], window, strict=True) for n in (side // each, each)]
    x = x.reshape(x.shape[0], *parts, x.shape[-1])  # (B, w₁, m₁, w₂, m₂, …, C)
    order = [0, *range(1, 1 + 2 * dims, 2), *range(2, 2 + 2 * dims, 2), 1 + 2 * dims]
    return x.permute(order).reshape(-1, math.prod(window), x.shape[-1])


def from_windows(x: Tensor, grid: tuple[int, ...], window: tuple[int, ...], shift: tuple[int, ...]) -> Tensor:
    """The inverse of `to_windows`: (B, *grid, C), without the padding."""
    dims = len(window)
    counts = [-(-side // each) for side, each in zip(grid, window, strict=True)]
    x = x.reshape(-1, *counts, *window, x.shape[-1])  # (B, w₁, w₂, …, m₁, m₂, …, C)
    order = [0, *(n for axis in range(dims) for n in (1 + axis, 1 + dims + axis)), 1 + 2 * dims]
    padded = [count * each for count, each in zip(counts, window, strict=True)]
    x = x.permute(order).reshape(-1, *padded, x.shape[-1])
    if any(shift):
        x = x.roll(shift, dims=tuple(range(1, 1 + dims)))
    return x[(slice(None), *(slice(side) for side in grid))]


def relative_rows(window: tuple[int, ...], table: tuple[int, ...], device: torch.device | None = None) -> Tensor:
    """Row of the bias table for each query and key of a window: (M, M).

    The table has a row for each offset in windows of `table` tokens, which may be longer than `window`.

    >>> relative_rows((2,), (2,)), relative_rows((2,), (3,))
    (tensor([[1, 0],
            [2, 1]]), tensor([[2, 1],
            [3, 2]]))
    """
    rows = torch.zeros((), dtype=torch.long, device=device)
    places = torch.meshgrid(*(torch.arange(n, device=device) for n in window), indexing="ij")
    for place, side in zip(places, table, strict=True):
        flat = place.flatten()
        rows = rows * (2 * side - 1) + flat[:, None] - flat[None, :] + side - 1
    return rows


def shift_mask(
    grid: tuple[int, ...], window: tuple[int, ...], shift: tuple[int, ...], device: torch.device | None = None
) -> Tensor | None:
    """True where a query may attend to a key of its shifted window: (W, 1, M, M). None without a shift.

    The roll brings tokens from the other end of the grid into the last windows. They are no neighbours.
    """
    if not any(shift):
        return None
    region = torch.zeros((), dtype=torch.long, device=device)
    for side, each, by in zip(grid, window, shift, strict=True):
        padded = -(-side // each) * each
        moved = torch.arange(padded, device=device) >= padded - by
        region = 2 * region[..., None] + moved
    region = to_windows(region[None, ..., None], window, (0,) * len(grid))[..., 0]
    return (region[:, :, None] == region[:, None, :])[:, None]


class Windows(NamedTuple):
    """How attention cuts a grid into windows."""

    window: tuple[int, ...]
    shift: tuple[int, ...]
    rows: Tensor
    """See `relative_rows`."""
    mask: Tensor | None
    """See `shift_mask`."""


class RelativePositions(nn.Module):
    """The bias B of equation 4: one number per head and offset between query and key."""

    def __init__(self, window: tuple[int, ...], heads: int):
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.empty(math.prod(2 * side - 1 for side in window), heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, rows: Tensor) -> Tensor:
        """(1, H, M, M)"""
        return self.table[rows.flatten()].unflatten(0, rows.shape).permute(2, 0, 1)[None]


class WindowAttention(MultiHeadAttention):
    """Multi-head attention inside windows, with a bias for the relative position (equation 4)."""

    def __init__(self, width: int, heads: int, window: tuple[int, ...]):
        super().__init__(width, heads)
        self.positions = RelativePositions(window, heads)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokens on their grid (B, *grid, C) in and out. Padding is zero before the projections, and attended to."""
        grid, window, shift = tuple(x.shape[1:-1]), windows.window, windows.shift
        bias = self.positions(windows.rows)
        if fuses_windows(x, window, self.parts[0] // self.heads):
            qkv = self.qkv(pad_to_multiple(x, window))
            mixed = attend_windows(qkv, bias[0], self.heads, window, shift)
            return self.out(mixed[(slice(None), *(slice(side) for side in grid))])
        mixed = self.attend_projected(*self.project(to_windows(x, window, shift)), mask=windows.mask, bias=bias)
        return from_windows(mixed, grid, window, shift)


@dataclass(frozen=True)
class WindowBlockConfig(BlockConfig):
    """The shape that all blocks of a stage share."""

    window: tuple[int, ...] = (7, 7)

    def attention(self) -> WindowAttention:
        return WindowAttention(self.width, self.heads, self.window)


class WindowBlock(EncoderBlock):
    """Attention inside windows and MLP, each on a residual branch (equation 3)."""

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokens on their grid (B, *grid, C) in and out."""
        x = x + self._branch(self.scale1, self.attention(self.norm1(x), windows))
        return x + self._branch(self.scale2, self.mlp(self.norm2(x)))


def merge_neighbours(x: Tensor) -> Tensor:
    """(B, *grid, C) with 2 neighbours of each axis side by side: (B, *half the grid, 2^axes · C), padded with zeros.

    The first axis varies fastest, as in the authors' code: (0, 0), (1, 0), (0, 1), (1, 1).
    """
    dims = x.ndim - 2
    x = pad_to_multiple(x, (2,) * dims)
    x = x.reshape(x.shape[0], *(n for side in x.shape[1:-1] for n in (side // 2, 2)), x.shape[-1])
    order = [0, *range(1, 1 + 2 * dims, 2), *reversed(range(2, 2 + 2 * dims, 2)), 1 + 2 * dims]
    return x.permute(order).flatten(-1 - dims)


class PatchMerging(nn.Module):
    """Neighbouring tokens concatenated, normalised and projected to twice the channels."""

    def __init__(self, width: int, axes: int, eps: float):
        super().__init__()
        self.norm = nn.LayerNorm(2**axes * width, eps=eps)
        self.project = nn.Linear(2**axes * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.norm(merge_neighbours(x)))
