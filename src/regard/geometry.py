"""Where tokens live on the input, and where the input lies in its file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def three_quarters(size: tuple[int, ...], patch: tuple[int, ...]) -> tuple[int, ...]:
    """Of each side, in whole patches, and at least two of them or all there is.

    >>> three_quarters((32, 224, 16), (2, 16, 8))
    (24, 160, 16)
    """
    return tuple(min(side, max(2 * each, side * 3 // 4 // each * each)) for side, each in zip(size, patch, strict=True))


def per_axis(value: int | tuple[int, ...], dims: int, name: str) -> tuple[int, ...]:
    """One number per axis from an int (the same on every axis) or a tuple of exactly `dims` numbers."""
    axes = (value,) * dims if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(axes) != dims or any(not isinstance(n, int) or n < 1 for n in axes):
        raise ConfigError(f"{name}={value} does not fit: {dims} positive numbers are needed, or one for all axes")
    return axes


def grid_of(size: tuple[int, ...], patch: tuple[int, ...]) -> tuple[int, ...]:
    """Patches along each axis; a last patch that sticks out counts (its rest is padding).

    >>> grid_of((224, 224), (16, 16)), grid_of((30, 17), (16, 16))
    ((14, 14), (2, 2))
    """
    return tuple(-(-s // p) for s, p in zip(size, patch, strict=True))


@dataclass(frozen=True)
class TokenMap:
    """Where the tokens of one stage live on the input: which are prefixes, and the box of each other one.

    `grid` counts tokens along each axis in raster order, `cell` is what one token covers in input units
    (words, pixels or voxels), `size` is the input itself. Every explanation is painted through such a map.

    >>> where = TokenMap(grid=(14, 14), cell=(16, 16), size=(224, 224), prefix=("class",))
    >>> where.tokens, where.box(1), where.box(16)
    (197, ((0, 16), (0, 16)), ((16, 32), (16, 32)))
    """

    grid: tuple[int, ...]
    cell: tuple[int, ...]
    size: tuple[int, ...]
    prefix: tuple[str, ...] = ()

    @property
    def places(self) -> int:
        """Tokens that have a place on the input."""
        return math.prod(self.grid)

    @property
    def tokens(self) -> int:
        return len(self.prefix) + self.places

    def box(self, token: int) -> tuple[tuple[int, int], ...]:
        """(start, stop) on each axis of the input, clipped to it. A prefix token has no box."""
        if not len(self.prefix) <= token < self.tokens:
            raise ConfigError(f"token {token} has no place on the input: prefixes are 0 to {len(self.prefix) - 1}")
        rest, index = token - len(self.prefix), []
        for n in reversed(self.grid):
            rest, at = divmod(rest, n)
            index.insert(0, at)
        return tuple((i * c, min((i + 1) * c, s)) for i, c, s in zip(index, self.cell, self.size, strict=True))

    def paint(self, values: Tensor) -> Tensor:
        """Values of the placed tokens (..., places) as a map of the input's size (..., *size), each in its box."""
        field = values.reshape(*values.shape[:-1], *self.grid)
        for axis, (cell, side) in enumerate(zip(self.cell, self.size, strict=True), start=values.ndim - 1):
            field = field.repeat_interleave(cell, dim=axis).narrow(axis, 0, side)
        return field

    def collect(self, field: Tensor) -> Tensor:
        """The other way: a map of the input's size (..., *size) summed over each token's box, (..., places)."""
        from torch.nn import functional as F

        batch = field.shape[: field.ndim - len(self.size)]
        field = field.reshape(-1, *self.size)
        short = [g * c - s for g, c, s in zip(self.grid, self.cell, self.size, strict=True)]
        field = F.pad(field, [n for after in reversed(short) for n in (0, after)])
        field = field.reshape(-1, *(n for pair in zip(self.grid, self.cell, strict=True) for n in pair))
        return field.sum(tuple(range(2, field.ndim, 2))).reshape(*batch, self.places)


def fitting_window(old: tuple[int, ...], size: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(start, length) on each axis of the largest centred part of `old` with the proportions of `size`.

    >>> fitting_window((480, 640), (224, 224))
    ((0, 480), (80, 480))
    """
    scale = max(new / was for new, was in zip(size, old, strict=True))
    lengths = [min(was, max(1, round(new / scale))) for new, was in zip(size, old, strict=True)]
    return tuple(((was - length) // 2, length) for was, length in zip(old, lengths, strict=True))


@dataclass(frozen=True)
class Frame:
    """The position of a network's input on its file: a `window`, (start, length) per axis, resized to `input_size`.

    >>> Frame.fitted((480, 640), (224, 224)).window
    ((0, 480), (80, 480))
    """

    file_size: tuple[int, ...]
    input_size: tuple[int, ...]
    window: tuple[tuple[int, int], ...]

    @classmethod
    def fitted(cls, size: tuple[int, ...], new: tuple[int, ...]) -> Frame:
        """The frame of `data.fit`: the centred part with the proportions of `new`, resized to `new`."""
        return cls(tuple(size), tuple(new), fitting_window(size, new))

    def mask_to_input(self, mask: Tensor) -> Tensor:
        """The share of each input pixel that a mask of the file's size covers."""
        import numpy as np

        sides = zip(self.window, self.input_size, strict=True)
        return _resampled(mask, [start + np.arange(side + 1) * length / side for (start, length), side in sides])

    def map_to_file(self, field: Tensor) -> Tensor:
        """A map of the input (*input_size) on the file's pixels, zero outside of the window."""
        import numpy as np

        sides = zip(self.window, self.input_size, self.file_size, strict=True)
        return _resampled(field, [(np.arange(n + 1) - start) * side / length for (start, length), side, n in sides])


def _resampled(field: Tensor, edges: list[np.ndarray]) -> Tensor:
    """The mean of `field` over each pixel of a new grid, whose `edges` are given per axis; zero outside of `field`."""
    import numpy as np
    import torch

    field = field.double()
    for ends in edges:
        ends = np.round(ends, 9)[:, None]
        low, high = ends[:-1], ends[1:]
        pixels = np.arange(field.shape[0])
        covered = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None) / (high - low)
        field = field.movedim(0, -1) @ torch.from_numpy(covered.T)  # once for each axis: their order is as before
    return field.float()
