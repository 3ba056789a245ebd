"""Pictures whose label has one known cause: a digit pasted at a random place, on noise, among decoys."""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

SIDE, DIGIT = 24, 8
CLASSES = (0, 1, 4)


def planted(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Pictures (N, 24, 24), labels (N,) and masks (N, 24, 24) of the digit.

    Two decoys are digits with their pixels shuffled: as bright, but they say nothing of the label.
    """
    draw = np.random.default_rng(seed)
    data: Any = load_digits()
    chosen = {c: data.images[data.target == c] * 255 / 16 for c in CLASSES}
    pictures = draw.integers(0, 60, (count, SIDE, SIDE)).astype(np.float64)
    labels, masks = draw.integers(0, len(CLASSES), count), torch.zeros(count, SIDE, SIDE, dtype=torch.bool)
    for n in range(count):
        places = draw.permutation((SIDE // DIGIT) ** 2)[:3]
        for kind, place in enumerate(places):
            row, column = (DIGIT * (place // (SIDE // DIGIT)), DIGIT * (place % (SIDE // DIGIT)))
            pool = chosen[CLASSES[labels[n]] if kind == 0 else CLASSES[draw.integers(len(CLASSES))]]
            digit = pool[draw.integers(len(pool))]
            if kind:
                digit = draw.permutation(digit.flatten()).reshape(DIGIT, DIGIT)
            else:
                masks[n, row : row + DIGIT, column : column + DIGIT] = True
            pictures[n, row : row + DIGIT, column : column + DIGIT] = digit
    return pictures.round().astype(np.uint8), labels, masks
