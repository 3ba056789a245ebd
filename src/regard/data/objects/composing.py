"""Where images and their boxes go on a network's input, plainly or varied at random.

- Every image on an input has one `Frame`, and only that moves its pixels, its boxes and its masks.
- What is drawn depends on (seed, epoch, sample) only.
- The picture lies at the top left. What it does not fill is padding: zeros, at the right and at the bottom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.data.fitting import resize
from regard.data.random import uniforms
from regard.geometry import Frame
from regard.image_groups import ObjectAugment

VISIBLE = 0.3
"""Share of a box that must be left after a crop, or its object is no target."""
SMALLEST = 1.0
"""Side in pixels of the input below which a varied image's object is no target."""
CROP = 0.5
"""Share of a side that a random crop leaves at least."""
CENTRE = 0.3
"""Share of a side within which the four images of a mosaic never meet, at either end."""
Resize = Callable[[Tensor, tuple[int, ...]], Tensor]
_DRAWN = 15  # random numbers of a sample
_PER_TILE = 4


def place(pixels: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Frame]:
    """A picture (channels, *file) with its proportions kept, scaled to fit inside `size`, at the top left of zeros.

    >>> image, frame = place(torch.ones(3, 10, 20), (8, 8))
    >>> image.shape, frame.region, int(image.sum())
    (torch.Size([3, 8, 8]), ((0, 4), (0, 8)), 96)
    """
    frame = Frame.placed(tuple(pixels.shape[1:]), size)
    image = pixels.new_zeros(len(pixels), *size)
    draw(image, pixels, frame, resize)
    return image, frame


def draw(image: Tensor, pixels: Tensor, frame: Frame, resized: Resize) -> None:
    """Put the frame's window of a picture into its region of `image`, in place. Both are of whole pixels."""
    (top, height), (left, width) = frame.window
    part = pixels[:, int(top) : int(top + height), int(left) : int(left + width)]
    (top, height), (left, width) = frame.filled
    part = resized(part, (int(height), int(width)))
    part = part.flip(-1) if frame.mirrored else part
    image[:, int(top) : int(top + height), int(left) : int(left + width)] = part


@dataclass(frozen=True)
class Composition:
    """The samples on one input with their frames, and the part (height, width) of the input that they fill.

    Where there is a `blended` one, it is mixed with the others.
    """

    size: tuple[int, int]
    filled: tuple[int, int]
    parts: tuple[tuple[int, Frame], ...]
    blended: tuple[int, Frame] | None = None

    @property
    def all(self) -> tuple[tuple[int, Frame], ...]:
        return (*self.parts, self.blended) if self.blended else self.parts

    def image(self, read: Callable[[int], Tensor], resized: Resize) -> Tensor:
        """The pixels (channels, *size)."""
        pixels = {number: read(number) for number, _ in self.all}
        image = next(iter(pixels.values())).new_zeros(len(pixels[self.parts[0][0]]), *self.size)
        for number, frame in self.parts:
            draw(image, pixels[number], frame, resized)
        if self.blended:
            other = torch.zeros_like(image)
            draw(other, pixels[self.blended[0]], self.blended[1], resized)
            mixed = (image.float() + other.float()) / 2
            image = mixed.round().to(image.dtype) if image.dtype == torch.uint8 else mixed
        return image


def plain(number: int, shape: tuple[int, ...], size: tuple[int, int]) -> Composition:
    """One sample as it is: all of it."""
    frame = Frame.placed(shape, size)
    (_, height), (_, width) = frame.filled
    return Composition(size, (int(height), int(width)), ((number, frame),))


class Composer:
    """Varies samples. Crops are made around one of a sample's `boxes`, by corners in the file's pixels.

    `pool` are the samples that mosaics and mixup draw from. After the epoch `mixed` there are neither.
    """

    def __init__(
        self,
        config: ObjectAugment,
        seed: int,
        shapes: Sequence[tuple[int, ...] | None],
        boxes: Sequence[Tensor],
        pool: Sequence[int],
        mixed: float = math.inf,
    ):
        self.config, self.seed, self.shapes, self.boxes = config, seed, shapes, boxes
        self.pool, self.mixed = list(pool), mixed

    def __call__(self, epoch: int, number: int, size: tuple[int, int]) -> Composition:
        config, mixing = self.config, epoch <= self.mixed
        at = np.array([number])
        u = uniforms(self.seed, epoch, at, _DRAWN, use=8)[0]
        tiles = uniforms(self.seed, epoch, at, 5 * _PER_TILE, use=9).reshape(5, _PER_TILE)
        # Mirrored in every other epoch, as other images are.
        mirrored = config.flip and (uniforms(self.seed, 0, at, 1, use=8)[0, 0] + epoch / 2) % 1 < 0.5
        if mixing and u[0] < config.mosaic:
            parts, filled = self._mosaic(number, size, u, tiles), size
        else:
            frame = self._varied(number, size, u, bool(mirrored))
            (_, height), (_, width) = frame.filled
            parts, filled = ((number, frame),), (int(height), int(width))
        blended = None
        if mixing and u[1] < config.mixup:
            other = self._other(u[14])
            blended = other, self._tile(other, size, ((0, filled[0]), (0, filled[1])), tiles[4])
        return Composition(size, filled, parts, blended)

    def _other(self, u: float) -> int:
        return self.pool[int(u * len(self.pool))]

    def _shape(self, number: int) -> tuple[int, ...]:
        shape = self.shapes[number]
        assert shape is not None
        return shape

    def _varied(self, number: int, size: tuple[int, int], u: np.ndarray, mirrored: bool) -> Frame:
        """A window of one image around one of its objects, at a random scale."""
        shape, low, high = self._shape(number), math.log(self.config.scale_low), math.log(self.config.scale_high)
        cropped = u[2] < self.config.crop_share
        sides = [side * (CROP + (1 - CROP) * x if cropped else 1.0) for side, x in zip(shape, u[6:8], strict=True)]
        scale = min(new / side for new, side in zip(size, sides, strict=True)) * math.exp(low + (high - low) * u[3])
        boxes = self.boxes[number]
        centre = None
        if len(boxes):
            left, top, right, bottom = boxes[int(u[8] * len(boxes))].tolist()
            centre = (top + bottom) / 2, (left + right) / 2
        window, region = [], []
        for axis, (side, wanted, new) in enumerate(zip(shape, sides, size, strict=True)):
            length = min(side, max(1, round(min(wanted, new / scale))))
            first, last = 0, side - length
            if centre:
                first, last = max(first, math.ceil(centre[axis] - length)), min(last, math.floor(centre[axis]))
            window.append((first + int(u[4 + axis] * (max(first, last) - first + 1)), length))
            region.append((0, min(new, max(1, round(length * scale)))))
        return Frame(shape, size, tuple(window), tuple(region), mirrored)

    def _mosaic(
        self, number: int, size: tuple[int, int], u: np.ndarray, tiles: np.ndarray
    ) -> tuple[tuple[int, Frame], ...]:
        """Four images that meet at a point (Bochkovskiy et al., "YOLOv4", 2020); the first is the sample itself."""
        cuts = [round(side * (CENTRE + (1 - 2 * CENTRE) * x)) for side, x in zip(size, u[9:11], strict=True)]
        members = [number, *(self._other(x) for x in u[11:14])]
        rows, columns = (((0, cut), (cut, side - cut)) for cut, side in zip(cuts, size, strict=True))
        regions = [(row, column) for row in rows for column in columns]
        return tuple(
            (own, self._tile(own, size, region, x)) for own, region, x in zip(members, regions, tiles[:4], strict=True)
        )

    def _tile(self, number: int, size: tuple[int, int], region: tuple[tuple[int, int], ...], u: np.ndarray) -> Frame:
        """The part of an image, at a random scale and place, that fills a region of the input."""
        shape, high = self._shape(number), math.log(self.config.scale_high)
        fill = max(new / side for (_, new), side in zip(region, shape, strict=True))
        scale = fill * math.exp(high * u[0])
        lengths = [min(side, max(1, round(new / scale))) for (_, new), side in zip(region, shape, strict=True)]
        window = tuple(
            (int(x * (side - length + 1)), length) for x, side, length in zip(u[1:3], shape, lengths, strict=True)
        )
        return Frame(shape, size, window, region, bool(self.config.flip and u[3] < 0.5))
