"""Panoptic maps drawn beside their images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from regard.data import to_float
from regard.drawing import DPI, canvas, flat, no_ticks, shorten, show, style
from regard.weights.checkpoint import write_aside

SMALLEST = 0.004
"""Share of the picture below which a segment is not labelled."""


class Labelled(NamedTuple):
    """A map (H, W) of segments' numbers, 0 for none, and the class of each number."""

    title: str
    ids: np.ndarray
    labels: dict[int, int]


@style()
def draw_maps(path: Path, pixels: Tensor, maps: Sequence[Labelled], classes: Sequence[str]) -> Path:
    """A picture (channels, height, width) and its maps side by side: a colour per class, segments divided by lines."""
    height, width = pixels.shape[1:]
    side = 3.2
    figure = canvas(side * (1 + len(maps)) * min(1.0, width / height), side * min(1.0, height / width) + 0.4, "white")
    picture = flat(to_float(pixels).numpy())[0]
    first, *others = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
    show(first, picture)
    first.set_title("image", fontsize=8)
    grey = picture.mean(-1, keepdims=True)
    for ax, (title, ids, labels) in zip(others, maps, strict=True):
        ax.imshow(0.35 * grey + 0.65 * _colours(ids, labels, len(classes)))
        no_ticks(ax)
        ax.set_title(title, fontsize=8)
        for number, label in labels.items():
            rows, columns = np.nonzero(ids == number)
            if len(rows) < SMALLEST * ids.size:
                continue
            # The pixel of the segment nearest to its middle: the middle itself may be another segment's.
            at = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
            ax.text(
                columns[at], rows[at], shorten(classes[label], 16), fontsize=6, ha="center", va="center", color="white",
                bbox={"facecolor": "black", "edgecolor": "none", "pad": 0.6, "alpha": 0.5}, clip_on=True,
            )  # fmt: skip
    write_aside(path, lambda aside: figure.savefig(aside, format="png", dpi=DPI))
    return path


def _colours(ids: np.ndarray, labels: dict[int, int], classes: int) -> np.ndarray:
    """(H, W, 3): a colour per class, black without one, and a dark line between segments."""
    from matplotlib import colormaps

    palette = colormaps["turbo"]
    made = np.zeros((*ids.shape, 3))
    for number, label in labels.items():
        # Neighbouring classes get colours far apart: steps of the golden section.
        made[ids == number] = palette((label * 0.618 + 0.1) % 1.0)[:3]
    edge = np.zeros(ids.shape, dtype=bool)
    edge[1:] |= ids[1:] != ids[:-1]
    edge[:, 1:] |= ids[:, 1:] != ids[:, :-1]
    made[edge] *= 0.3
    return made
