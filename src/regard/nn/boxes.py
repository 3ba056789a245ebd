"""Boxes of objects in pictures: conversions, intersection over union, and its generalised form.

- `corners`: left, top, right, bottom. `centred`: centre x, centre y, width, height. The last axis holds the four.
- Coordinates are pixels, pixel 0 being from 0 to 1, or shares of the picture.
"""

import torch
from torch import Tensor


def to_corners(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom of centred boxes.

    >>> to_corners(torch.tensor([0.5, 0.5, 1.0, 0.5]))
    tensor([0.0000, 0.2500, 1.0000, 0.7500])
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def to_centred(boxes: Tensor) -> Tensor:
    """Centre, width and height of boxes given by corners.

    >>> to_centred(torch.tensor([0.0, 0.25, 1.0, 0.75]))
    tensor([0.5000, 0.5000, 1.0000, 0.5000])
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((low + high) / 2, high - low), dim=-1)


def area(boxes: Tensor) -> Tensor:
    """Of boxes given by corners; zero where the right or lower edge comes first."""
    return _product(boxes[..., 2:] - boxes[..., :2])


def _product(sides: Tensor) -> Tensor:
    """Width times height, none below zero. The backward pass of `prod` would wait for the GPU."""
    width, height = sides.clamp_min(0).unbind(-1)
    return width * height


def overlaps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union and its generalised form (Rezatofighi et al., 2019), elementwise; boxes by corners.

    Both are 0 where both boxes are empty. Give `first[:, None]` and `second[None]` for all pairs.

    >>> overlaps(torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 3.0, 2.0]))
    (tensor(0.3333), tensor(0.3333))
    """
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = _product(high - low)
    union = area(first) + area(second) - shared
    iou = shared / union.clamp_min(1e-9)
    hull = torch.cat(
        (torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])), -1
    )
    around = area(hull)
    return iou, iou - (around - union) / around.clamp_min(1e-9)
