"""Where tokens live on the input, how they flow through a network, and where the input lies in its file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from regard.errors import ConfigError

if TYPE_CHECKING:
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

    def merged(self) -> TokenMap:
        """The map after a merge of two tokens along each axis; where a last one has no partner, it is alone.

        >>> TokenMap(grid=(14, 7), cell=(4, 4), size=(56, 28)).merged()
        TokenMap(grid=(7, 4), cell=(8, 8), size=(56, 28), prefix=())
        """
        grid, cell = tuple(-(-n // 2) for n in self.grid), tuple(2 * side for side in self.cell)
        return TokenMap(grid, cell, self.size, self.prefix)

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


@dataclass(frozen=True)
class AttentionStep:
    """A layer of attention in a network's token flow: which tokens ask, and which are read.

    Streams are token sequences of their own, such as source and target of a translation. In a window, tokens attend to
    the tokens of that window only.
    """

    layer: str
    """Its name on a tape, such as "blocks.3.attention"."""
    stream: str = "tokens"
    """The stream that asks."""
    reads: str | None = None
    """The stream that is read, in cross-attention; None: itself."""
    windows: Tensor | None = None
    """(windows, slots): the token in each slot, in the order in which attention sees them (shifts included), -1 for
    padding. Tokens count in raster order of the stage's grid, without its padding. None: one window, all tokens."""


@dataclass(frozen=True)
class MergeStep:
    """A merge in a network's token flow: several tokens become one."""

    children: Tensor
    """(tokens after, 2 ** axes): the tokens before that become each token after, -1 for padding."""
    stream: str = "tokens"


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
    """Where a network's input came from in its file: a window of it, scaled, perhaps mirrored.

    `window` is (start, length) on each axis, in the file's pixels: pixel 0 is from 0 to 1. `region` is the part of the
    input that it fills, likewise: all of it if None; the rest is padding, or other pictures.

    >>> frame = Frame.fitted((480, 640), (224, 224))
    >>> frame.window, frame.scaled((120, 160)).window
    (((0, 480), (80, 480)), ((0.0, 120.0), (20.0, 120.0)))
    >>> Frame.placed((480, 640), (128, 128)).region
    ((0, 96), (0, 128))
    """

    file_size: tuple[int, ...]
    input_size: tuple[int, ...]
    window: tuple[tuple[float, float], ...]
    region: tuple[tuple[float, float], ...] | None = None
    mirrored: bool = False
    """Whether the last axis runs the other way."""

    @classmethod
    def fitted(cls, size: tuple[int, ...], new: tuple[int, ...]) -> Frame:
        """That of `data.fit`: the centred part with the proportions of `new`, scaled to it."""
        return cls(tuple(size), tuple(new), fitting_window(size, new))

    @classmethod
    def placed(cls, size: tuple[int, ...], new: tuple[int, ...]) -> Frame:
        """That of `data.objects.place`: the whole file, scaled to fit inside `new`, at the top left."""
        scale = min(side / was for side, was in zip(new, size, strict=True))
        lengths = [min(side, max(1, round(was * scale))) for side, was in zip(new, size, strict=True)]
        return cls(tuple(size), tuple(new), tuple((0, was) for was in size), tuple((0, length) for length in lengths))

    @property
    def filled(self) -> tuple[tuple[float, float], ...]:
        """(start, length) on each axis of the part of the input that shows the file."""
        return self.region or tuple((0, side) for side in self.input_size)

    @property
    def cuts(self) -> bool:
        """Whether the network sees a part only."""
        return any(length < side for side, (_, length) in zip(self.file_size, self.window, strict=True))

    def scaled(self, size: tuple[int, ...]) -> Frame:
        """The same on a file that was resized to `size`."""
        return replace(self, file_size=tuple(size), window=_rescaled(self.window, self.file_size, size))

    def resized(self, size: tuple[int, ...]) -> Frame:
        """The same for an input that was resized to `size`, such as a grid of cells."""
        return replace(self, input_size=tuple(size), region=_rescaled(self.filled, self.input_size, size))

    def plane(self) -> Frame:
        """Without the first axis: of a volume, that of its slices."""
        region = self.region and self.region[1:]
        return replace(
            self, file_size=self.file_size[1:], input_size=self.input_size[1:], window=self.window[1:], region=region
        )

    def slice_of(self, index: int) -> int:
        """The slice of the file in which the middle of a slice of the input lies."""
        (start, length), (first, count) = self.window[0], self.filled[0]
        return min(int(start + (index + 0.5 - first) * length / count), self.file_size[0] - 1)

    def boxes_to_input(self, boxes: Tensor) -> Tensor:
        """Boxes (..., 4) by corners, from the file's pixels to the input's. What sticks out is not clipped."""
        moved = boxes.clone()
        for column, axis in enumerate((1, 0, 1, 0)):
            (start, length), (first, count) = self.window[axis], self.filled[axis]
            from_edge = (boxes[..., column] - start) * (count / length)
            moved[..., column] = first + count - from_edge if self.mirrored and axis == 1 else first + from_edge
        return moved[..., [2, 1, 0, 3]] if self.mirrored else moved

    def mask_to_input(self, mask: Tensor) -> Tensor:
        """Of each input pixel, the share that a mask of the file's size covers; none where there is padding."""
        return _resampled(mask, self.file_size, self.window, self.input_size, self.filled, self.mirrored)

    def nearest(self, field: Tensor) -> Tensor:
        """Of a field of the file's size (..., *file_size), what lies at the middle of each input pixel; zero in the
        padding."""
        import torch

        first = field.ndim - len(self.file_size)
        for axis, ((start, length), (begin, count)) in enumerate(zip(self.window, self.filled, strict=True)):
            at = torch.arange(self.input_size[axis], dtype=torch.float64) + 0.5 - begin
            inside = (at > 0) & (at < count)
            if self.mirrored and axis == len(self.file_size) - 1:
                at = count - at
            index = (start + at * (length / count)).floor().long().clamp(0, self.file_size[axis] - 1)
            shape = [-1 if a == first + axis else 1 for a in range(field.ndim)]
            field = field.index_select(first + axis, index.to(field.device))
            field = field * inside.to(field.device).reshape(shape)
        return field

    def map_to_file(self, field: Tensor) -> Tensor:
        """A map of the input (*input_size) on the file's pixels, zero where the network saw nothing."""
        return _resampled(field, self.input_size, self.filled, self.file_size, self.window, self.mirrored)


def _rescaled(
    parts: tuple[tuple[float, float], ...], old: tuple[int, ...], new: tuple[int, ...]
) -> tuple[tuple[float, float], ...]:
    scales = [side / was for side, was in zip(new, old, strict=True)]
    return tuple((start * by, length * by) for (start, length), by in zip(parts, scales, strict=True))


def _resampled(
    field: Tensor,
    size: tuple[int, ...],
    part: tuple[tuple[float, float], ...],
    new_size: tuple[int, ...],
    new_part: tuple[tuple[float, float], ...],
    mirrored: bool = False,
) -> Tensor:
    """`field` (*size), of which `part` becomes `new_part` of a field of `new_size`: means over the new pixels.

    Outside of both parts is zero.
    """
    import torch

    field = field.double()
    for axis, ((start, length), (first, count)) in enumerate(zip(part, new_part, strict=True)):
        at = torch.arange(new_size[axis] + 1, dtype=torch.float64) - first
        if mirrored and axis == len(size) - 1:
            at = count - at
        ends = (start + at * (length / count)).mul(1e9).round().div(1e9).clamp(start, start + length)
        low, high = torch.minimum(ends[:-1], ends[1:])[:, None], torch.maximum(ends[:-1], ends[1:])[:, None]
        pixels = torch.arange(size[axis])
        covered = (torch.minimum(high, pixels + 1) - torch.maximum(low, pixels)).clamp_min(0) * (count / length)
        field = field.movedim(0, -1) @ covered.T  # once for each axis: their order is as before
    return field.float()
