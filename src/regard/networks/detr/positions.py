"""Sine positions of cells and of boxes. Letters in shapes as in network.py."""

import math

import torch
from torch import Tensor

TEMPERATURE = 10_000


def sine_positions(mask: Tensor, width: int) -> Tensor:
    """Positions (B, N, width) of cells, given where (B, rows, columns) there is an image: y in the first half, then x.

    >>> sine_positions(torch.ones(1, 2, 3, dtype=torch.bool), 8).shape
    torch.Size([1, 6, 8])
    """
    halves = []
    for axis in (1, 2):
        at = mask.cumsum(axis, dtype=torch.float32)
        halves.append(_sines(at / (at.narrow(axis, -1, 1) + 1e-6), width))
    return torch.cat(halves, dim=-1).flatten(1, 2)


def box_positions(boxes: Tensor, width: int) -> Tensor:
    """Positions (…, 2 · width) of centred boxes (…, 4): y and x of the centre as for cells, then height and width.

    Liu et al., "DAB-DETR" (2022), equation 3.

    >>> box_positions(torch.rand(2, 5, 4), 8).shape
    torch.Size([2, 5, 16])
    """
    return torch.cat([_sines(boxes[..., part].float(), width) for part in (1, 0, 3, 2)], dim=-1)


def _sines(at: Tensor, width: int) -> Tensor:
    """(…, width / 2) of coordinates that are shares of the image."""
    numbers = torch.arange(width // 4, device=at.device, dtype=torch.float32)
    angles = (at * (2 * math.pi))[..., None] / TEMPERATURE ** (4 * numbers / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
