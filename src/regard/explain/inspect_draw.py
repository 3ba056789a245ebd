"""The figure of `regard inspect`: the ViT paper's Figure 7, token norms and feature visualisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.drawing import BLUE, GREY, ORANGE, canvas, colour_bar, dress, flat, no_ticks, require_ending, show, style
from regard.explain.draw import save

if TYPE_CHECKING:
    from regard.explain.inspect import Filters, TokenNorms
    from regard.explain.inspection import Inspection
    from regard.explain.visualise import Visualisation

TILES = 9
"""Most tiles on a side of the picture of position similarities."""
COLUMNS = 7
"""Filters in a row, as in the paper; and excited pictures."""
WIDTH, HEIGHT = 12.0, 3.7


@style()
def draw_inspection(inspection: Inspection, path: Path) -> Path:
    """Figure 7 in the first row; norms, norms with registers and excited pictures below, where there are any."""
    require_ending(path)
    heights = [HEIGHT] * (1 + (inspection.norms is not None) + (inspection.registered is not None))
    heights += [_excited_height(inspection.excited)] if inspection.excited else []
    figure = canvas(WIDTH, sum(heights), background="white")
    rows = iter(np.atleast_1d(figure.subfigures(len(heights), 1, height_ratios=heights)))
    _figure_7(next(rows), inspection)
    if inspection.norms is not None and inspection.pictures is not None:
        before, after = inspection.norms, inspection.registered
        # The picture with the largest norm shows most; it stays the same after the registers.
        image = int(before.placed[-1].amax(1).argmax())
        top = max(float(placed.max()) for placed in before.placed)
        _norms(next(rows), before, inspection.pictures[image], image, top, "")
        if after is not None:
            added = after.where.tokens - before.where.tokens
            title = f" with {added} test-time register{'s' * (added != 1)} ({len(inspection.neurons)} neurons moved)"
            _norms(next(rows), after, inspection.pictures[image], image, top, title)
    if inspection.excited:
        _excited(next(rows), inspection.excited)
    return save(figure, path)


@style()
def draw_excited(excited: Sequence[Visualisation], path: Path) -> Path:
    """Feature visualisations alone."""
    require_ending(path)
    figure = canvas(0.6 + 2.5 * min(len(excited), COLUMNS), _excited_height(excited), background="white")
    _excited(figure, excited)
    return save(figure, path)


def _figure_7(figure: Any, inspection: Inspection) -> None:
    """A panel for each of filters, positions and attention distance that the network has."""
    filters, similarity, distance = inspection.filters, inspection.similarity, inspection.distance
    panels: list[tuple[float, Callable[[Any], None]]] = []
    if filters is not None:
        panels.append((1.25, lambda ax: _filters(ax, filters)))
    if inspection.biases:
        panels.append((1, lambda ax: _biases(ax, inspection.biases)))
    elif similarity is not None:
        panels.append((1, lambda ax: _similarity(ax, similarity)))
    if distance is not None:
        panels.append((1, lambda ax: _distance(ax, distance, inspection.uniform)))
    elif inspection.attends:
        panels.append((1, lambda ax: _note(ax, "attention distance", "needs images")))
    panels = panels or [(1, lambda ax: _note(ax, "", "this network has no filters, positions or attention"))]
    widths, draws = zip(*panels, strict=True)
    for ax, draw in zip(figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0], draws, strict=True):
        draw(ax)


def _note(ax: Any, title: str, text: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=ax.transAxes)
    ax.set_axis_off()


def _filters(ax: Any, filters: Filters) -> None:
    pictures = [flat(picture)[0] for picture in filters.pictures.float().cpu().numpy()]
    fine = -(-24 // max(pictures[0].shape))  # each pixel drawn as several, so that the gaps are thin beside it
    pictures = [picture.repeat(fine, 0).repeat(fine, 1) for picture in pictures]
    mosaic = tiles([pictures[n : n + COLUMNS] for n in range(0, len(pictures), COLUMNS)], blank=0.8, gap=3)
    show(ax, mosaic)
    part = "middle slices; " if filters.pictures.ndim == 5 else ""
    ax.set_title(f"{filters.source}: {len(pictures)} principal components", fontsize=10)
    ax.set_xlabel(
        f"{part}{filters.shares.sum():.0%} of the variance; the first has {filters.shares[0]:.0%}", fontsize=9
    )


def _similarity(ax: Any, similarity: Tensor) -> None:
    values, part = similarity.numpy(), ""
    if values.ndim == 6:
        middle = values.shape[0] // 2
        values, part = values[middle, :, :, middle], f", plane {middle} of {values.shape[0]}"
    if values.ndim == 2:
        painted = ax.imshow(values, cmap="viridis", vmin=min(0.0, values.min()), vmax=1)
    else:
        rows, columns = (np.linspace(0, n - 1, min(n, TILES)).round().astype(int) for n in values.shape[:2])
        picture = tiles([[values[r, c][..., None] for c in columns] for r in rows], blank=np.nan)[..., 0]
        painted = ax.imshow(picture, cmap="viridis", vmin=np.nanmin(picture), vmax=1)
        if len(rows) < values.shape[0] or len(columns) < values.shape[1]:
            part = f" ({len(rows)} × {len(columns)} of {values.shape[0]} × {values.shape[1]} patches)"
        for axis, chosen, side in ((ax.yaxis, rows, values.shape[2] + 1), (ax.xaxis, columns, values.shape[3] + 1)):
            axis.set_ticks([n * side + (side - 2) / 2 for n in range(len(chosen))], [str(n) for n in chosen])
    ax.set_title(f"position similarity{part}", fontsize=10)
    ax.set_xlabel("patch column", fontsize=9)
    ax.set_ylabel("patch row", fontsize=9)
    ax.tick_params(labelsize=8, length=0)
    ax.spines[:].set_visible(False)
    colour_bar(ax, painted, "cosine similarity", shrink=0.8)


def _biases(ax: Any, tables: Sequence[Tensor]) -> None:
    """A tile per layer and head: the bias by the offset of query to key, none in the middle."""
    planes = [table if table.ndim < 4 else table[:, table.shape[1] // 2] for table in tables]  # of volumes, one plane
    planes = [plane if plane.ndim == 3 else plane[:, None] for plane in planes]
    side, heads = planes[0].shape[1:], range(min(TILES, max(map(len, planes))))
    layers = np.linspace(0, len(planes) - 1, min(len(planes), TILES)).round().astype(int)
    empty = np.full((*side, 1), np.nan)
    rows = [[planes[n][h].numpy()[..., None] if h < len(planes[n]) else empty for h in heads] for n in layers]
    picture = tiles(rows, blank=np.nan)[..., 0]
    top = float(np.nanmax(np.abs(picture))) or 1.0
    painted = ax.imshow(picture, cmap="RdBu_r", vmin=-top, vmax=top)
    for axis, chosen, length in ((ax.yaxis, layers, side[0] + 1), (ax.xaxis, heads, side[1] + 1)):
        axis.set_ticks([n * length + (length - 2) / 2 for n in range(len(chosen))], [str(n) for n in chosen])
    part = "" if tables[0].ndim < 4 else ", in one plane"
    ax.set_title(f"relative position bias{part}", fontsize=10)
    ax.set_xlabel("head; query minus key in each tile", fontsize=9)
    ax.set_ylabel("layer", fontsize=9)
    ax.tick_params(labelsize=8, length=0)
    ax.spines[:].set_visible(False)
    colour_bar(ax, painted, "added to the score", shrink=0.8)


def _distance(ax: Any, distance: Sequence[Tensor], uniform: Sequence[float]) -> None:
    for layer, heads in enumerate(distance):
        ax.plot([layer] * len(heads), heads.tolist(), "o", color=BLUE, alpha=0.7, markersize=5, markeredgewidth=0)
    edges = [n - 0.5 for n in range(len(uniform) + 1)]
    ax.stairs(uniform, edges, baseline=None, color=ORANGE, linestyle="--", linewidth=1, label="uniform attention")
    ax.set_ylim(0, 1.15 * max(*uniform, *(float(heads.max()) for heads in distance)))
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    ax.set_xlim(-0.5, len(distance) - 0.5)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_title("attention distance, one dot per head", fontsize=10)
    dress(ax, "layer", "mean attention distance (pixels)", ink="black", fontsize=9)


def _norms(figure: Any, norms: TokenNorms, picture: Tensor, image: int, top: float, title: str) -> None:
    """Input with outliers marked, norms on it, their histogram, and their way through the layers."""
    from matplotlib.patches import Rectangle

    figure.suptitle(f"token norms{title}", fontsize=10)
    left, middle, histogram, layers = figure.subplots(1, 4, width_ratios=(0.8, 0.95, 1, 1))
    values, marked = norms.placed[-1][image], norms.outliers[image]
    plane = int(values.argmax()) // max(1, norms.where.places // norms.where.grid[0]) if picture.ndim == 4 else None
    shown, part = flat(picture.float().cpu().numpy(), None if plane is None else plane * norms.where.cell[0])
    show(left, shown)
    field = norms.where.paint(values)
    field = field if plane is None else field[min(plane * norms.where.cell[0], len(field) - 1)]
    painted = middle.imshow(np.atleast_2d(field.numpy()), cmap="viridis", vmin=0, vmax=top)
    colour_bar(middle, painted, "norm", shrink=0.8)
    for token in marked.nonzero().flatten().tolist():
        box = norms.where.box(len(norms.where.prefix) + token)
        if plane is not None and box[0][0] != plane * norms.where.cell[0]:
            continue
        (y0, y1), (x0, x1) = [(0, 1), *box][-2:]  # a signal is drawn one pixel high
        for ax in (left, middle):
            ax.add_patch(Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, fill=False, edgecolor=ORANGE, linewidth=1.8))
    outliers = f"{int(marked.sum())} outlier{'s' * (int(marked.sum()) != 1)}"
    for ax, name in ((left, f"image {image + 1} of {len(norms.outliers)}{part}"), (middle, f"norm, {outliers} framed")):
        ax.set_title(name, fontsize=9)
    no_ticks(middle)
    _histogram(histogram, norms, top)
    _through_layers(layers, norms)


def _histogram(ax: Any, norms: TokenNorms, top: float) -> None:
    ax.hist(norms.placed[-1].flatten().numpy(), bins=np.linspace(0, 1.05 * top, 60), color=BLUE)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.axvline(norms.threshold, color=ORANGE, linestyle="--", linewidth=1)
    count, total = int(norms.outliers.sum()), norms.outliers.numel()
    ax.set_title(f"last block: {count} of {total:,} tokens are outliers", fontsize=9)
    ax.text(norms.threshold, 0.97, f" outlier from {norms.threshold:.0f} ", transform=ax.get_xaxis_transform(),
            color=ORANGE, fontsize=8, va="top", ha="left" if norms.threshold < 0.6 * top else "right")  # fmt: skip
    dress(ax, "norm", "tokens of all images", ink="black", fontsize=9)


def _through_layers(ax: Any, norms: TokenNorms) -> None:
    depth, prefix = range(len(norms.norms)), norms.where.prefix
    lines = [("largest patch", [float(placed.max()) for placed in norms.placed], ORANGE, "o-"),
             ("median patch", [float(placed.median()) for placed in norms.placed], BLUE, "o-")]  # fmt: skip
    registers = [name for name in prefix if name != "class"]
    for token, name in enumerate(prefix):
        shade = (
            f"{0.35 + 0.4 * registers.index(name) / max(1, len(registers) - 1):.2f}" if name in registers else "black"
        )
        lines.append((name, [float(layer[:, token].mean()) for layer in norms.norms], shade, "s:"))
    for name, values, colour, kind in lines:
        ax.plot(depth, values, kind, color=colour, markersize=4, linewidth=1.2, label=name)
    ax.xaxis.get_major_locator().set_params(integer=True)
    names = -(-len(lines) // 2)  # in two columns, above the highest curve
    ax.set_ylim(0, ax.get_ylim()[1] * (1.05 + 0.075 * names))
    ax.legend(fontsize=7, frameon=False, ncols=2, loc="upper left")
    ax.set_title("after each block", fontsize=9)
    dress(ax, "layer", "norm", ink="black", fontsize=9)


def _excited_height(excited: Sequence[Visualisation]) -> float:
    side = min(2.9, (WIDTH - 0.4) / min(len(excited), COLUMNS))
    return 0.5 + (side + 0.8) * -(-len(excited) // COLUMNS)


def _excited(figure: Any, excited: Sequence[Visualisation]) -> None:
    rows = -(-len(excited) // COLUMNS)
    axes = figure.subplots(rows, min(len(excited), COLUMNS), squeeze=False).flatten()
    figure.suptitle("what excites it most", fontsize=10)
    for ax, item in zip(axes[: len(excited)], excited, strict=True):
        shown, part = flat(item.picture.detach().float().cpu().numpy())
        show(ax, shown)
        ax.set_title(f"{item.target}{part}", fontsize=9)
        ax.set_xlabel(f"excitement {item.after:.3g}\n(natural noise {item.noise:.3g})", fontsize=8)
    for ax in axes[len(excited) :]:
        ax.set_axis_off()


def tiles(rows: list[list[np.ndarray]], blank: float, gap: int = 1) -> np.ndarray:
    """Equal pictures (H, W, C) as one, a gap of `blank` between them; a short last row is filled with it.

    >>> tiles([[np.zeros((2, 2, 1)), np.ones((2, 2, 1))], [np.ones((2, 2, 1))]], blank=9.0)[..., 0]
    array([[0., 0., 9., 1., 1.],
           [0., 0., 9., 1., 1.],
           [9., 9., 9., 9., 9.],
           [1., 1., 9., 9., 9.],
           [1., 1., 9., 9., 9.]])
    """
    height, width, channels = rows[0][0].shape
    shape = (len(rows) * (height + gap) - gap, len(rows[0]) * (width + gap) - gap, channels)
    field = np.full(shape, blank)
    for r, row in enumerate(rows):
        for c, picture in enumerate(row):
            top, left = r * (height + gap), c * (width + gap)
            field[top : top + height, left : left + width] = picture
    return field
