"""A small suite of image corruptions, to measure robustness: eight kinds at five severities.

After Hendrycks & Dietterich, "Benchmarking neural network robustness to common corruptions" (2019). Departures: they
are applied to the network's input, in 0..1, after crop and resize; lengths are shares of its side, so that 32 and 224
pixels are treated alike; occlusion and shifts are ours. What is random (noise, places, directions) is a hash of the
sample's key: it does not depend on batch, order or the other samples.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from regard.data.random import uniforms

SEVERITIES = (1, 2, 3, 4, 5)


def seeds_of(keys: Sequence[str]) -> np.ndarray:
    """A number per sample key, for what is random in its corruptions."""
    return np.array([int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") for key in keys], dtype=np.uint64)


def corrupt(x: Tensor, kind: str, severity: int, keys: Sequence[str]) -> Tensor:
    """Pictures (B, C, height, width) in 0..1 with one corruption; the same key and picture give the same result.

    >>> corrupt(torch.full((1, 3, 4, 4), 0.25), "brightness", 2, ["a.png"]).unique()
    tensor([0.4500])
    """
    strength, function = CORRUPTIONS[kind]
    return function(x, strength[severity - 1], seeds_of(keys)).clamp(0, 1)


def _draw(seeds: np.ndarray, slots: int, use: int) -> Tensor:
    return torch.from_numpy(uniforms(0, 0, seeds, slots, use=use))


def _noise(x: Tensor, sigma: float, seeds: np.ndarray) -> Tensor:
    """Gaussian, by Box and Muller's transformation of two uniform numbers per value."""
    count = x[0].numel()
    u = _draw(seeds, 2 * count, use=11)
    normal = (-2 * (1 - u[:, :count]).log()).sqrt() * (2 * math.pi * u[:, count:]).cos()
    return x + sigma * normal.reshape(x.shape).to(x)


def _blur(x: Tensor, share: float, seeds: np.ndarray) -> Tensor:
    """Gaussian, with a deviation that is a share of the shorter side; edges are repeated."""
    sigma = share * min(x.shape[2:])
    radius = max(1, math.ceil(3 * sigma))
    weights = torch.exp(-((torch.arange(-radius, radius + 1).double() / sigma) ** 2) / 2)
    weights = (weights / weights.sum()).to(x).reshape(1, 1, 1, -1)
    flat = x.flatten(0, 1)[:, None]
    flat = F.conv2d(F.pad(flat, (radius, radius, 0, 0), mode="replicate"), weights)
    flat = F.conv2d(F.pad(flat, (0, 0, radius, radius), mode="replicate"), weights.transpose(2, 3))
    return flat.reshape(x.shape)


def _occlusion(x: Tensor, share: float, seeds: np.ndarray) -> Tensor:
    """A grey rectangle over this share of the area, with the picture's proportions, anywhere inside."""
    sides = [max(1, round(side * math.sqrt(share))) for side in x.shape[2:]]
    u, x = _draw(seeds, 2, use=12), x.clone()
    for picture, place in zip(x, u.tolist(), strict=True):
        top, left = (int(p * (side - own + 1)) for p, side, own in zip(place, x.shape[2:], sides, strict=True))
        picture[:, top : top + sides[0], left : left + sides[1]] = 0.5
    return x


def _shift(x: Tensor, share: float, seeds: np.ndarray) -> Tensor:
    """Up, down, left or right by a share of the side, in whole pixels; what comes in repeats the edge."""
    moved = []
    for picture, u in zip(x, _draw(seeds, 1, use=13)[:, 0].tolist(), strict=True):
        axis, sign = 1 + int(4 * u) // 2, 1 if int(4 * u) % 2 else -1
        side = picture.shape[axis]
        index = (torch.arange(side, device=x.device) + sign * max(1, round(share * side))).clamp(0, side - 1)
        moved.append(picture.index_select(axis, index))
    return torch.stack(moved)


def _contrast(x: Tensor, factor: float, seeds: np.ndarray) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + factor * (x - mean)


def _pixelate(x: Tensor, share: float, seeds: np.ndarray) -> Tensor:
    """The mean of areas, at this share of the resolution."""
    size = tuple(max(1, round(share * side)) for side in x.shape[2:])
    return F.interpolate(F.interpolate(x, size=size, mode="area"), size=x.shape[2:], mode="nearest")


def _jpeg(x: Tensor, quality: float, seeds: np.ndarray) -> Tensor:
    pictures = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    read = []
    for pixels in pictures:
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "JPEG", quality=int(quality))
        again = np.array(Image.open(file)).reshape(pixels.shape)
        read.append(torch.from_numpy(again).permute(2, 0, 1))
    return torch.stack(read).to(x) / 255


CORRUPTIONS: dict[str, tuple[tuple[float, ...], Callable[[Tensor, float, np.ndarray], Tensor]]] = {
    "noise": ((0.04, 0.08, 0.12, 0.18, 0.26), _noise),
    "blur": ((0.015, 0.02, 0.03, 0.045, 0.06), _blur),
    "occlusion": ((0.05, 0.1, 0.2, 0.3, 0.4), _occlusion),
    "shift": ((0.05, 0.1, 0.15, 0.2, 0.25), _shift),
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), _contrast),
    "brightness": ((0.1, 0.2, 0.3, 0.4, 0.5), lambda x, more, _: x + more),
    "pixelate": ((0.6, 0.5, 0.4, 0.3, 0.25), _pixelate),
    "jpeg": ((25, 18, 15, 10, 7), _jpeg),
}
"""By name: the strength at each severity, and the function."""
