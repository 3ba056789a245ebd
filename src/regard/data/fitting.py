"""Fitting pixels to a network's input: channels, centre crop and resize, random crops for training."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.augment import to_float
from regard.errors import DataError
from regard.geometry import fitting_window

LUMINANCE = (0.299, 0.587, 0.114)
EDGE = 4  # pixels mirrored around a picture by the simple crop


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Convert the number of channels: grey to colour by repetition, colour to grey by luminance; others must match."""
    if len(pixels) == channels:
        return pixels
    if len(pixels) == 1:
        return pixels.expand(channels, *pixels.shape[1:])
    if len(pixels) == 3 and channels == 1:
        grey = (to_float(pixels) * torch.tensor(LUMINANCE).reshape(3, *[1] * (pixels.ndim - 1))).sum(0)
        return _as(grey[None], pixels.dtype)
    raise DataError(f"an image has {len(pixels)} channels where {channels} are expected")


def fit(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """The largest centred crop with the aspect ratio of `size`, resized to it."""
    old = tuple(pixels.shape[1:])
    if len(old) != len(size):
        raise DataError(f"an input of size {old} does not fit a network for {len(size)} axes")
    for axis, (start, length) in enumerate(fitting_window(old, size), start=1):
        pixels = pixels.narrow(axis, start, length)
    return resize(pixels, size)


def fitted_share(old: tuple[int, ...], size: tuple[int, ...]) -> float:
    """The share of an image that `fit` leaves; what other proportions have more of is cut off.

    >>> round(fitted_share((600, 9000), (128, 128)), 3), fitted_share((64, 96), (32, 48))
    (0.067, 1.0)
    """
    scales = [new / was for new, was in zip(size, old, strict=True)]
    return math.prod(scale / max(scales) for scale in scales)


def random_crop(pixels: Tensor, size: tuple[int, ...], u: np.ndarray) -> Tensor:
    """Inception crop: 25 to 100 % of the area, 3/4 to 4/3 of the aspect ratio of `size`, resized to `size`.

    A volume is cropped by the same share on every axis.
    """
    old = tuple(pixels.shape[1:])
    area, ratio = 0.25 + 0.75 * u[0], math.exp((2 * u[1] - 1) * math.log(4 / 3))
    if len(size) == 2:
        ratio *= size[0] / size[1]
        total = area * old[0] * old[1]
        lengths = [math.sqrt(total * ratio), math.sqrt(total / ratio)]
    else:
        lengths = [side * area ** (1 / len(size)) for side in old]
    for axis, (side, wanted) in enumerate(zip(old, lengths, strict=True)):
        length = min(side, max(1, round(wanted)))
        pixels = pixels.narrow(1 + axis, int(u[2 + axis] * (side - length + 1)), length)
    return resize_quickly(pixels, size)


def simple_crop(pixels: Tensor, size: tuple[int, ...], u: np.ndarray) -> Tensor:
    """DeiT III's simple random crop: resize the shorter side, reflect four pixels at the edges, crop to `size`.

    Nearly all of the picture stays, with its aspect ratio and scale.
    """
    old = tuple(pixels.shape[1:])
    scale = max(new / was for new, was in zip(size, old, strict=True))
    pixels = resize_quickly(pixels, tuple(max(new, round(was * scale)) for new, was in zip(size, old, strict=True)))
    for axis, (new, at) in enumerate(zip(size, u[2 : 2 + len(size)], strict=True), start=1):
        side = pixels.shape[axis]
        start = int(at * (side + 2 * EDGE - new + 1)) - EDGE
        index = torch.arange(start, start + new).abs()
        index = torch.where(index < side, index, 2 * (side - 1) - index).clamp(0, side - 1)
        pixels = pixels.index_select(axis, index)
    return pixels


CROPS = {"resized": random_crop, "simple": simple_crop}
"""Crops applied when an image is read, at its full size; other crops are part of the augmentation."""


def resize(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    if tuple(pixels.shape[1:]) == size:
        return pixels
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]
    resized = F.interpolate(to_float(pixels)[None], size=size, mode=mode, antialias=len(size) == 2)
    return _as(resized[0], pixels.dtype)


def resize_quickly(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize of training crops, on uint8 in channels-last layout: takes a tenth of the time.

    Each axis is rounded separately, so a value may be one level off. Prediction and evaluation use `resize`.
    """
    if tuple(pixels.shape[1:]) == size or len(size) != 2 or pixels.dtype != torch.uint8:
        return resize(pixels, size)
    near = pixels[None].contiguous(memory_format=torch.channels_last)
    return F.interpolate(near, size=size, mode="bilinear", antialias=True)[0]


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x * 255).round().clamp(0, 255).to(torch.uint8) if dtype == torch.uint8 else x
