"""Masks of the region that is known to cause a label: from a picture, an array or a box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import read_image
from regard.errors import ConfigError, DataError


def read_mask(mask: Any, size: tuple[int, ...]) -> Tensor:
    """True inside, (*size), from a picture file or array of that size, or a box of starts and then stops.

    >>> read_mask((0, 1, 2, 3), (2, 4)).int().tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0]]
    """
    if isinstance(mask, (tuple, list)) and len(mask) == 2 * len(size) and all(isinstance(n, int) for n in mask):
        starts, stops = mask[: len(size)], mask[len(size) :]
        if not all(0 <= a < b <= side for a, b, side in zip(starts, stops, size, strict=True)):
            raise ConfigError(
                f"the box {tuple(mask)} does not lie on a picture of size {size}",
                do="give top, left, bottom, right in pixels: each start below its stop, and inside the picture",
            )
        inside = torch.zeros(size, dtype=torch.bool)
        inside[tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))] = True
        return inside
    where = "the given mask"
    if isinstance(mask, (str, Path)):
        where = str(mask)
        try:
            mask = read_image(Path(mask).expanduser())[0].amax(0)
        except DataError as error:
            raise ConfigError(f"the mask cannot be read: {error.what}", where=where, do=error.do) from None
    if not isinstance(mask, (Tensor, np.ndarray)):
        raise ConfigError(f"a {type(mask).__name__} is no mask", do="give a picture, an array or a box of numbers")
    inside = torch.as_tensor(mask).cpu() != 0
    if tuple(inside.shape) != size:
        raise ConfigError(
            f"the mask of size {tuple(inside.shape)} does not fit the picture of size {size}",
            where=where,
            do="give a mask as large as the picture",
        )
    return inside
