"""Random changes of a volume's intensities: contrast curve, bias field, scale, shift and noise, each channel by itself.

Air, where voxels are exactly 0, is left as it is. Intensities are measured from the darkest voxel of a channel, so that
a factor acts as on the scanner's own, which standardised scans no longer are. Random numbers are hashes of (seed,
epoch, sample); noise is a hash of the voxel too, computed on the device.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from regard.data.random import uniforms
from regard.data.send import send
from regard.image_groups import Variation

KNOTS = 1024
"""Straight pieces of the contrast curve: a power would round differently in other batches."""
ORDER = 3
"""Highest degree of the bias field's polynomial, as in MONAI and TorchIO."""


def vary_intensities(
    x: Tensor, config: Variation, seed: int, epoch: int, numbers: Tensor, unit: tuple[float, ...]
) -> Tensor:
    """Volumes (B, C, *size) with other intensities; `unit` is the deviation of each channel in the data."""
    scale, shift, noise = config.intensity_scale or 0.0, config.intensity_shift or 0.0, config.noise or 0.0
    gamma, bias = config.gamma or 0.0, config.bias_field or 0.0
    if not (scale or shift or noise or gamma or bias):
        return x
    channels, inside = x.shape[1], x != 0
    drawn = uniforms(seed, epoch, numbers.numpy(), 4 * channels, use=13).reshape(len(x), channels, 4)
    low = x.amin((2, 3, 4), keepdim=True)
    made = x - low
    if gamma:
        powers = np.exp((2 * drawn[..., 0] - 1) * math.log1p(gamma))
        made = contrast_curve(made, made.amax((2, 3, 4), keepdim=True).clamp_min(1e-6), powers)
    if bias:
        u = uniforms(seed, epoch, numbers.numpy(), channels * (ORDER + 1) ** 3, use=14)
        made = made * bias_field(2 * u.reshape(len(x), channels, *[ORDER + 1] * 3) - 1, bias, x)
    made = made * _sent(1 + scale * (2 * drawn[..., 1] - 1), x) + low
    if shift:
        made = made + _sent(shift * (2 * drawn[..., 2] - 1) * np.array(unit), x)
    if noise:
        made = made + _sent(noise * drawn[..., 3] * np.array(unit), x) * gaussian(seed, epoch, numbers, x)
    return torch.where(inside, made, x)


def _sent(values: np.ndarray, x: Tensor) -> Tensor:
    """A number for each sample and channel, on the device."""
    return send(torch.from_numpy(values).to(x.dtype), x.device)[:, :, None, None, None]


def contrast_curve(x: Tensor, most: Tensor, powers: np.ndarray) -> Tensor:
    """x from 0 to `most` (B, C, 1, 1, 1) to the power (B, C), relative to `most`: in straight pieces."""
    knots = (np.arange(KNOTS + 1) / KNOTS) ** powers[..., None]
    table = send(torch.from_numpy(knots).to(x.dtype), x.device)
    at = x.flatten(2) * (KNOTS / most.flatten(2))
    piece = at.floor().clamp(0, KNOTS - 1)
    below, above = table.gather(2, piece.long()), table.gather(2, piece.long() + 1)
    return (below + (above - below) * (at - piece)).reshape(x.shape) * most


def bias_field(coefficients: np.ndarray, most: float, x: Tensor) -> Tensor:
    """1 plus a polynomial of up to third degree in the place, which runs from -1 to 1: a factor of 1 ± `most`."""
    degrees = sum(np.indices(coefficients.shape[2:]))
    held = np.where((degrees > 0) & (degrees <= ORDER), coefficients, 0)
    held = held * most / np.abs(held).sum((2, 3, 4), keepdims=True)
    field = send(torch.from_numpy(held).to(x.dtype), x.device)
    for axis, side in zip((4, 3, 2), reversed(x.shape[2:]), strict=True):  # Horner's rule, one axis after the other
        at = (torch.arange(side, device=x.device, dtype=x.dtype) * 2 + 1) / side - 1
        at = at.reshape([-1 if axis == other else 1 for other in range(5)])
        parts = field.split(1, dim=axis)
        total = parts[ORDER]
        for part in parts[ORDER - 1 :: -1]:
            total = total * at + part
        field = total
    return 1 + field


@cache
def _quantiles(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Those of the normal distribution at the middles of 65,536 parts of equal chance."""
    from scipy.special import ndtri

    return torch.from_numpy(ndtri((np.arange(2**16) + 0.5) / 2**16)).to(device, dtype)


def gaussian(seed: int, epoch: int, numbers: Tensor, x: Tensor) -> Tensor:
    """Noise of deviation 1 and x's shape: each hash of (sample, place) gives four numbers, by a table of quantiles.

    Whole-number arithmetic is the same in every batch, and the same on a CPU and a GPU.
    """
    keys = (uniforms(seed, epoch, numbers.numpy(), 1, use=15)[:, 0] * 2.0**53).astype(np.int64)
    count = math.prod(x.shape[1:])
    keys_there = send(torch.from_numpy(keys), x.device)[:, None]
    places = torch.arange(1, -(-count // 4) + 1, device=x.device, dtype=torch.int64)
    hashed = _mixed(keys_there ^ _mixed(places * -0x61C8864680B583EB)[None])
    index = hashed.view(torch.int16)[:, :count].long() + 2**15
    return _quantiles(x.device, x.dtype)[index].reshape(x.shape)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on signed numbers: shifts bring in zeros, products wrap."""
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)
