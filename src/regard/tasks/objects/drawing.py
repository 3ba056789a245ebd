"""Boxes drawn on their images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from regard.data import to_float
from regard.drawing import BLUE, DPI, ORANGE, canvas, flat, shorten, show, style
from regard.weights.checkpoint import write_aside


@style()
def draw_boxes(path: Path, pixels: Tensor, truth: Any = None, detections: Any = None, title: str = "") -> Path:
    """A picture (channels, height, width) with predicted boxes in orange and true ones in blue, dashed."""
    height, width = pixels.shape[1:]
    scale = 6.0 / max(height, width)
    figure = canvas(max(2.0, width * scale), max(2.0, height * scale) + (0.3 if title else 0.0), "white")
    ax = figure.add_subplot()
    show(ax, flat(to_float(pixels).numpy())[0])
    # Pixel 0 is from 0 to 1 in boxes, and centred on 0 in the picture.
    for drawn, colour, line in ((truth, BLUE, "--"), (detections, ORANGE, "-")):
        if drawn is None:
            continue
        boxes, labels, scores = drawn
        shown = [""] * len(labels) if scores is None else [f" {score:.2f}" for score in scores.tolist()]
        for (left, top, right, bottom), label, score in zip(boxes.tolist(), labels, shown, strict=True):
            from matplotlib.patches import Rectangle

            ax.add_patch(
                Rectangle(
                    (left - 0.5, top - 0.5), right - left, bottom - top, fill=False, edgecolor=colour, linestyle=line
                )
            )
            outside, room = drawn is detections, 0.05 * height  # labels lie inside where no room is beside their box
            above = top >= room if outside else bottom > height - room
            at = (top if outside else bottom) - 0.5
            below = "bottom" if above else "top"
            ax.text(
                left - 0.5, at, shorten(label, 24) + score, color="white", fontsize=6, va=below,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8, "alpha": 0.8}, clip_on=True,
            )  # fmt: skip
    if title:
        ax.set_title(shorten(title, 80), fontsize=8)
    write_aside(path, lambda aside: figure.savefig(aside, format="png", dpi=DPI))
    return path
