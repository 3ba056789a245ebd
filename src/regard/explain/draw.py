"""Figures of explanations: a picture, its map on it, and the map (the ViT paper's Figure 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from regard.drawing import BAD, DPI, GOOD, ORANGE, SOFT, canvas, colour_bar, flat, no_ticks, require_ending, show, style
from regard.geometry import Frame
from regard.weights import write_aside

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation

ROWS = 12
WIDTH, PANEL, LINE = 11.0, 3.3, 0.18
"""Inches: of a figure, of one of its panels, and from one line of text to the next."""
LETTERS = 130
"""Letters of a line."""
COVER = 0.6
"""How much of a blended pixel is the map's colour."""


def draw_pages(explanations: Sequence[Explanation], path: Path) -> list[Path]:
    """Draw any number of explanations: one file, or path-2, path-3, … where they fill several pages."""
    pages = [explanations[n : n + ROWS] for n in range(0, len(explanations), ROWS)]
    names = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, len(pages) + 1))]
    return [draw(page, name) for page, name in zip(pages, names, strict=True)]


@style()
def draw(explanations: Sequence[Explanation], path: Path) -> Path:
    """One row per explanation: what it is of and its verdict; the picture, the map blended into it, the map."""
    require_ending(path)
    rows = [(item, _panels(item), _header(item)) for item in explanations]
    heights = [(LINE * len(header) + 0.1, _height(panels) + 0.35) for _, panels, header in rows]
    figure = canvas(WIDTH, sum(map(sum, heights)), background="white")
    parts = np.atleast_1d(figure.subfigures(len(rows), 1, height_ratios=[sum(each) for each in heights]))
    for part, (item, panels, header), ratios in zip(parts, rows, heights, strict=True):
        grid = part.add_gridspec(2, 3, height_ratios=ratios)
        _write(part.add_subplot(grid[0, :]), header)
        _draw_row([part.add_subplot(grid[1, column]) for column in range(3)], item, panels)
    return save(figure, path)


def _height(panels: Panels) -> float:
    """Of a panel: as its picture wants it, within reason."""
    rows, columns = panels.values.shape
    return min(max(PANEL * rows / columns, 0.6), PANEL)


def _write(ax: Any, header: list[tuple[str, str]]) -> None:
    ax.set_axis_off()
    for number, (text, colour) in enumerate(header):
        line = ax.text(0, 1 - number / len(header), text, transform=ax.transAxes, fontsize=9, color=colour, va="top")
        line.set_in_layout(False)


def limits(values: np.ndarray) -> tuple[float, float]:
    """Where the colours of a map begin and end: at 0 and its largest value, or, with little contrast, at its smallest.

    >>> limits(np.array([0.1, 2.0])), limits(np.array([0.8, 1.2])), limits(np.array([1.0, 1.0]))
    ((0.0, 2.0), (0.8, 1.2), (0.0, 1.0))
    """
    least, most = float(values.min()), float(values.max()) or 1.0
    return (least if most / 2 < least < most else 0.0), most


def _draw_row(axes: list[Any], item: Explanation, panels: Panels) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    left, middle, right = axes
    (top, height), (start, width) = panels.seen
    inside = np.zeros(panels.values.shape, dtype=bool)
    inside[round(top) : round(top + height), round(start) : round(start + width)] = True
    least, most = limits(panels.values[inside])
    picture = np.broadcast_to(panels.picture, (*panels.values.shape, 3))
    strength = np.clip((panels.values - least) / (most - least), 0, 1)
    cover = COVER * (0.7 + 0.3 * strength)[..., None]  # more of the picture where the map says little
    colours = (1 - cover) * picture + cover * colormaps["viridis"](strength)[..., :3]
    blended = np.where(inside[..., None], colours, 1 - (1 - COVER) * (1 - picture))
    show(left, panels.picture)
    show(middle, blended)
    painted = right.imshow(np.where(inside, panels.values, np.nan), cmap="viridis", vmin=least, vmax=most)
    no_ticks(right)
    spread = f"map, {panels.values[inside].min():.2f} to {panels.values[inside].max():.2f} times the average"
    for ax, name in zip(axes, ("picture" + panels.part, "map on the picture", spread), strict=True):
        ax.set_xlabel(name, fontsize=8)
        if not inside.all():
            for colour, line, dashes in (("black", 2.0, "-"), ("white", 1.2, "--")):  # seen on dark and on light
                corner, form = (start - 0.5, top - 0.5), {"edgecolor": colour, "linewidth": line, "linestyle": dashes}
                ax.add_patch(Rectangle(corner, width, height, fill=False, **form))
        if panels.mask is not None:
            _outline(ax, panels.mask)
    shown = min(PANEL, _height(panels) * panels.values.shape[1] / panels.values.shape[0])
    colour_bar(right, painted, "times the average", width=0.12 / shown)


def save(figure: Any, path: Path) -> Path:
    """Write a PNG, SVG or PDF."""
    kind = path.suffix[1:].lower()
    options: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
    write_aside(path, lambda aside: figure.savefig(aside, dpi=DPI, format=kind, **options))
    return path


def _outline(ax: Any, mask: np.ndarray, fine: int = 8) -> None:
    """A line around a mask along its pixels' edges: drawn finer than they are, so that corners stay corners."""
    field = np.pad(mask, 1).repeat(fine, 0).repeat(fine, 1)
    rows, columns = ((np.arange(n) + 0.5) / fine - 1.5 for n in field.shape)
    limits = ax.get_xlim(), ax.get_ylim()
    ax.contour(columns, rows, field, levels=[0.5], colors=ORANGE, linewidths=1.5)
    ax.set(xlim=limits[0], ylim=limits[1])


def _header(item: Explanation) -> list[tuple[str, str]]:
    """Lines of text, each with its colour."""
    truth = "" if item.label is None else f", true: {item.label}"
    where = ""
    if item.frame is not None:
        seen = ", the framed part" if item.frame.cuts else ""
        where = f" · {_size(item.frame.file_size)}{seen} seen as {_size(item.frame.input_size)}"
    if item.scan is not None:
        where = f" · {_size(item.scan.file_size)} voxels seen as {_size(item.scan.frame.input_size)}"
    options = "".join(f" {name}={value}" for name, value in item.options.items())
    texts = [
        (f"{_short(item.prediction.name)} · predicted {item.prediction}{truth}{where}", SOFT),
        (f"{item.method}{options} for {item.target!r}: {item.verdict}", GOOD if item.trusted else BAD),
        (_scores(item), SOFT),
    ]
    return [(line, colour) for text, colour in texts for line in wrap(text, LETTERS)]


def _size(size: tuple[int, ...]) -> str:
    """As everywhere: height before width, as `--size` takes it."""
    return "×".join(map(str, size))


def _scores(item: Explanation) -> str:
    scores, parts = item.scores, []
    if scores is not None:
        parts += [f"insertion {scores.insertion:.2f}", f"deletion {scores.deletion:.2f}", f"random {scores.random:.2f}"]
    if item.random_correlation is not None:
        parts += [f"like random weights {item.random_correlation:+.2f}"]
    if item.completeness_error is not None:
        parts += [f"completeness error {item.completeness_error:.1%}"]
    if item.location is not None:
        peak = "peak inside" if item.location.pointing else "peak outside"
        parts += [f"{item.location.share:.0%} of the map on {item.location.area:.0%} of the picture, {peak}"]
    return " · ".join(parts)


def _short(name: str) -> str:
    return name if len(name) <= 60 else "…" + name[-59:]


class Panels(NamedTuple):
    """What is drawn of an explanation; of a volume, the slice where the map peaks."""

    picture: np.ndarray
    """(H, W, 1 or 3) in 0..1: the file's own."""
    values: np.ndarray
    """(H, W): the map there, 1 being its average over what the network saw."""
    seen: tuple[tuple[float, float], ...]
    """(start, length) on both axes of what the network saw."""
    mask: np.ndarray | None
    part: str
    """Which slice of a volume."""


def _panels(item: Explanation) -> Panels:
    area = item.map.numel() if item.frame is None else math.prod(length for _, length in item.frame.filled)
    picture, values, mask = item.picture.float().cpu(), item.map.float().cpu() * area, item.mask
    frame = Frame.fitted(tuple(values.shape), tuple(values.shape))
    if values.ndim == 1:  # a signal is drawn one pixel high
        return Panels(flat(picture.numpy())[0], values[None].numpy(), ((0, 1), *frame.window), None, "")
    if item.scan is not None:
        picture, values = axial(picture).mean(0, keepdim=True), axial(values)  # scans are no colours
        mask = None if mask is None else axial(mask)
        frame = Frame.fitted(tuple(values.shape), tuple(values.shape))
    depth, photo = None, picture
    if item.photo is not None and item.frame is not None:
        photo = item.photo
        frame = item.frame.scaled(tuple(photo.shape[1:]))
    if values.ndim == 3:
        peak = _peak(values, picture)
        values, mask = values[peak], None if mask is None else mask[peak]
        depth, frame = frame.slice_of(peak), frame.plane()
    shown, part = flat(photo.float().cpu().numpy(), depth)
    inside = None if mask is None else (frame.map_to_file(mask.float()) > 0.5).float().numpy()
    return Panels(shown, frame.map_to_file(values).numpy(), frame.window, inside, part)


def axial(field: Tensor) -> Tensor:
    """A scan (..., right, anterior, superior) as radiologists see it: axial slices, front up, right on the left."""
    return field.movedim((-1, -2, -3), (-3, -2, -1)).flip(-2, -1)


def _peak(values: Tensor, picture: Tensor) -> int:
    """The slice of a volume where its map peaks; of several that do, the one that shows most."""
    weight, content = values.sum((1, 2)), picture.flatten(2).std(2).sum(0)
    return int(content.masked_fill(weight < 0.999 * weight.max(), -1.0).argmax())
