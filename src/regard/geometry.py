"""Where tokens live on the input, and where the input lies in its file."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """Where a network's input came from in its file.

    `affine` is a homogeneous matrix from input index to file index. Like a NIfTI affine it speaks of the centres of
    pixels: index 0 is the centre of the first. Boxes are edges, starts and then stops: pixel 0 is from 0 to 1.

    >>> frame = Frame.fitted((480, 640), (224, 224))
    >>> frame.boxes_to_file((0, 0, 224, 224)).round(3).tolist()
    [0.0, 80.0, 480.0, 560.0]
    """

    file_size: tuple[int, ...]
    input_size: tuple[int, ...]
    affine: tuple[tuple[float, ...], ...]

    @classmethod
    def window(cls, size: tuple[int, ...], window: tuple[tuple[float, float], ...], new: tuple[int, ...]) -> Frame:
        """A window, (start, length) on each axis, scaled to the size `new`; a negative start is padding."""
        scales = [length / side for (_, length), side in zip(window, new, strict=True)]
        rows = []
        for axis, ((start, _), scale) in enumerate(zip(window, scales, strict=True)):
            row = [0.0] * (len(size) + 1)
            row[axis], row[-1] = scale, start + (scale - 1) / 2
            rows.append(tuple(row))
        return cls(tuple(size), tuple(new), (*rows, (*[0.0] * len(size), 1.0)))

    @classmethod
    def fitted(cls, size: tuple[int, ...], new: tuple[int, ...]) -> Frame:
        """That of `data.fit`: the centred part with the proportions of `new`, scaled to it."""
        return cls.window(size, fitting_window(size, new), new)

    def then(self, later: Frame) -> Frame:
        """This frame and one made from its input."""
        if later.file_size != self.input_size:
            raise ConfigError(f"a frame of {later.file_size} does not follow one that ends in {self.input_size}")
        import numpy as np

        affine = np.array(self.affine) @ np.array(later.affine)
        return Frame(self.file_size, later.input_size, tuple(tuple(row) for row in affine.tolist()))

    def to_file(self, points: Any) -> np.ndarray:
        """Points (..., axes) of the input, as indices of the file."""
        return _moved(points, self.affine)

    def to_input(self, points: Any) -> np.ndarray:
        """Points (..., axes) of the file, as indices of the input."""
        return _moved(points, self._inverse())

    def boxes_to_file(self, boxes: Any) -> np.ndarray:
        """Boxes (..., 2 axes) of the input on the file, clipped to it."""
        return _boxes(boxes, self.affine, self.file_size)

    def box_to_input(self, box: Any) -> np.ndarray:
        """The same from file to input; a box in what was cut off has a stop that is not above its start."""
        return _boxes(box, self._inverse(), self.input_size)

    def mask_to_input(self, mask: Tensor) -> Tensor:
        """Of each input pixel, the share that a mask of the file's size covers."""
        return _resampled(mask, self.affine, self.input_size)

    def map_to_file(self, field: Tensor) -> Tensor:
        """A map of the input (*input_size) on the file's pixels, zero where the network saw nothing."""
        return _resampled(field, self._inverse(), self.file_size)

    def _inverse(self) -> Any:
        import numpy as np

        return np.linalg.inv(np.array(self.affine))


def _moved(points: Any, affine: Any) -> np.ndarray:
    import numpy as np

    matrix = np.asarray(affine)
    return np.asarray(points, float) @ matrix[:-1, :-1].T + matrix[:-1, -1]


def _boxes(boxes: Any, affine: Any, size: tuple[int, ...]) -> np.ndarray:
    """What surrounds the moved corners: a rotation or a flip leaves a box."""
    import numpy as np

    edges = np.asarray(boxes, float).reshape(*np.shape(boxes)[:-1], 2, len(size))
    corners = [
        np.stack([edges[..., side, axis] for axis, side in enumerate(sides)], -1)
        for sides in itertools.product((0, 1), repeat=len(size))
    ]
    moved = _moved(np.stack(corners) - 0.5, affine) + 0.5
    return np.concatenate([np.clip(moved.min(0), 0, size), np.clip(moved.max(0), 0, size)], -1)


def _resampled(field: Tensor, affine: Any, size: tuple[int, ...]) -> Tensor:
    """The mean of `field` over what each pixel of the new grid covers; outside of it is zero."""
    import numpy as np
    import torch

    matrix = np.asarray(affine)
    if np.count_nonzero(matrix[:-1, :-1] - np.diag(np.diag(matrix)[:-1])):
        raise ConfigError("masks and maps are not resampled through a rotation yet")
    field = field.double()
    for axis, side in enumerate(size):
        scale, offset = matrix[axis, axis], matrix[axis, -1]
        ends = np.round(scale * (np.arange(side)[:, None] + np.array([-0.5, 0.5])) + offset + 0.5, 9)
        low, high = ends.min(1, keepdims=True), ends.max(1, keepdims=True)
        pixels = np.arange(field.shape[0])
        covered = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None) / (high - low)
        field = field.movedim(0, -1) @ torch.from_numpy(covered.T)  # once for each axis: their order is as before
    return field.float()
