"""The figure of a loss landscape: contours and a surface, or a line along one direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from regard.drawing import BLUE, DPI, ORANGE, canvas, dress, style
from regard.weights import write_aside

STEEP = 20.0
"""Ratio of the largest to the smallest loss from which colours and heights are logarithmic."""
LEVELS = 18


@style()
def draw_landscape(steps: np.ndarray, losses: np.ndarray, title: str, path: Path) -> list[Path]:
    """Write path.png and path.svg; `losses` is (points,) or (points, points), the first direction along columns."""
    from matplotlib.colors import LogNorm, Normalize

    finite = losses[np.isfinite(losses)]
    log = bool(finite.size and finite.min() > 0 and finite.max() / finite.min() > STEEP)
    if losses.ndim == 1:
        figure = canvas(6.4, 4.0, "white")
        ax = figure.subplots()
        dress(ax, "step along the direction", "loss", ink="black")
        ax.plot(steps, losses, color=BLUE, marker="o", markersize=3)
        ax.set_yscale("log" if log else "linear")
        ax.axvline(0, color=ORANGE, linewidth=1, linestyle="--")
        ax.set_title(title, fontsize=10, loc="left")
        return _save(figure, path)
    figure = canvas(11.0, 4.8, "white")
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2, projection="3d")
    low, high = float(finite.min()), float(finite.max())
    low, high = (low, high) if high > low else (low, low + 1e-6)
    scale: Any = LogNorm(low, high) if log else Normalize(low, high)
    levels = np.geomspace(low, high, LEVELS) if log else np.linspace(low, high, LEVELS)
    painted = left.contourf(steps, steps, losses, levels=levels, norm=scale, cmap="viridis")
    left.contour(steps, steps, losses, levels=levels[::2], colors="white", linewidths=0.5)
    left.plot(0, 0, marker="+", color=ORANGE, markersize=12, markeredgewidth=2)
    dress(left, "first direction", "second direction", ink="black")
    left.grid(visible=False)
    left.set_aspect("equal")
    left.set_title(title, fontsize=10, loc="left", pad=10)
    bar = figure.colorbar(painted, ax=left, shrink=0.85)
    bar.set_label("loss, logarithmic" if log else "loss")
    heights = np.log10(losses) if log else losses
    across, along = np.meshgrid(steps, steps)
    right.plot_surface(across, along, heights, cmap="viridis", linewidth=0.15, edgecolor="white", antialiased=True)
    right.set_xlabel("first direction", fontsize=8)
    right.set_ylabel("second direction", fontsize=8)
    right.set_zlabel("log10 of the loss" if log else "loss", fontsize=8)
    right.tick_params(labelsize=7)
    right.view_init(elev=32, azim=-58)
    right.set_box_aspect(None, zoom=0.85)  # room for the names of the axes
    return _save(figure, path)


def _save(figure: Any, path: Path) -> list[Path]:
    made = []
    for kind, options in (("png", {"dpi": DPI}), ("svg", {"metadata": {"Date": None}})):
        file = path.with_suffix(f".{kind}")
        write_aside(file, lambda aside, k=kind, o=options: figure.savefig(aside, format=k, **o))
        made.append(file)
    return made
