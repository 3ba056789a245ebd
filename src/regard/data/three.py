"""3-Augment (Touvron et al., "DeiT III", 2022, section 3): greyscale, solarise or blur, then colour jitter.

Each sample by itself, on batches (B, C, H, W) in 0..1. Departure: the blur is a true Gaussian; the authors use Pillow's
approximation by repeated box blurs.
"""

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.send import send

JITTER = 0.3
BLUR = (0.1, 2.0)  # the Gaussian's deviation in pixels
_REACH = 6  # pixels: three deviations


def three_augment(x: Tensor, u: Tensor) -> Tensor:
    """`u` holds six numbers in [0, 1) per sample: which operation, how much blur, three colour factors, their order."""
    kind, out, u = (u[:, 0] * 3).long(), x.clone(), u.to(x.dtype)
    for number, operation in enumerate((_grey, _solarise, _blur)):
        at = (kind == number).nonzero()[:, 0]
        if len(at):
            deviation = send(BLUR[0] + (BLUR[1] - BLUR[0]) * u[at, 1], x.device)
            at = send(at, x.device)
            out[at] = operation(x[at], deviation)
    return jitter(out, 1 - JITTER + 2 * JITTER * u[:, 2:5], (u[:, 5] * 6).long())


def jitter(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast and saturation times `factors` (B, 3), in one of their six orders for each sample.

    Factors and orders stay on the CPU, so that selecting samples needs no synchronisation with the GPU.
    """
    orders = torch.tensor(list(itertools.permutations(range(3))))[order]  # (B, 3)
    for position in range(3):
        out = x.clone()
        for number, towards in enumerate((torch.zeros_like, _mean_grey, _grey)):
            at = (orders[:, position] == number).nonzero()[:, 0]
            if len(at):
                factor = send(factors[at, number], x.device).reshape(-1, 1, 1, 1)
                at = send(at, x.device)
                out[at] = (factor * x[at] + (1 - factor) * towards(x[at])).clamp(0, 1)
        x = out
    return x


def _grey(x: Tensor, _: Tensor | None = None) -> Tensor:
    if x.shape[1] != 3:
        return x
    return (0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]).expand_as(x)


def _mean_grey(x: Tensor) -> Tensor:
    return _grey(x)[:, :1].mean((2, 3), keepdim=True)


def _solarise(x: Tensor, _: Tensor) -> Tensor:
    return torch.where(x < 128 / 255, x, 1 - x)


def _blur(x: Tensor, deviation: Tensor) -> Tensor:
    """Sums of shifted pictures: a convolution would round differently in different batches."""
    away = torch.arange(-_REACH, _REACH + 1, device=x.device, dtype=x.dtype)
    weights = torch.exp(-0.5 * (away / deviation[:, None]) ** 2)  # (B, 2 · reach + 1)
    weights = weights / weights.sum(1, keepdim=True)
    for axis in (2, 3):
        side, edge = x.shape[axis], [0, 0, 0, 0]
        edge[2 * (3 - axis) : 2 * (3 - axis) + 2] = [_REACH, _REACH]
        wide = F.pad(x, edge, mode="replicate")
        x = sum(
            (wide.narrow(axis, n, side) * weights[:, n].reshape(-1, 1, 1, 1) for n in range(2 * _REACH + 1)),
            torch.zeros_like(x),
        )
    return x
