"""Figures of explanations: the input beside its map (the ViT paper's Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.drawing import BAD, DPI, GOOD, ORANGE, canvas, colour_bar, flat, no_ticks, show, style
from regard.errors import ConfigError
from regard.weights import write_aside

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation

ROWS = 12
ENDINGS = (".png", ".svg", ".pdf")


def check_ending(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"pictures are not written as {path.suffix or 'nothing'}", do=f"end in {', '.join(ENDINGS)}")


def draw_pages(explanations: Sequence[Explanation], path: Path) -> list[Path]:
    """Draw any number of explanations: one file, or path-2, path-3, … where they fill several pages."""
    pages = [explanations[n : n + ROWS] for n in range(0, len(explanations), ROWS)]
    names = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, len(pages) + 1))]
    return [draw(page, name) for page, name in zip(pages, names, strict=True)]


@style()
def draw(explanations: Sequence[Explanation], path: Path) -> Path:
    """One row per explanation: input, input dimmed where the map is low (as in the paper), map; the verdict above."""
    check_ending(path)
    rows = len(explanations)
    figure = canvas(8.2, 0.3 + 3.05 * rows, background="white")
    axes = figure.subplots(rows, 3, squeeze=False)
    for row, item in zip(axes, explanations, strict=True):
        left, middle, right = row
        picture, values, mask, part = _slice(item)
        light = values / max(values.max(), 1e-12)
        show(left, picture)
        show(middle, picture * (0.12 + 0.88 * light[..., None]))
        painted = right.imshow(values * item.map.numel(), cmap="viridis", vmin=0)
        no_ticks(right)
        colour_bar(right, painted, "times the average", shrink=0.85, format="%4.1f")
        truth = "" if item.label is None else f" (true: {item.label})"
        left.set_xlabel(f"{_short(item.prediction.name)}{truth}{part}", fontsize=8)
        middle.set_xlabel(f"predicted {item.prediction}", fontsize=8)
        right.set_xlabel(_scores(item), fontsize=8)
        left.set_title(" \n ", fontsize=9)  # room for the two lines that follow, which are wider than this panel
        for points, text, colour in ((18, _title(item), "black"), (5, item.verdict, GOOD if item.trusted else BAD)):
            line = left.annotate(text, (0, 1), (0, points), "axes fraction", "offset points", fontsize=9, color=colour)
            line.set_in_layout(False)
        if mask is not None:
            for ax in row:
                _outline(ax, mask)
    return save(figure, path)


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


def _title(item: Explanation) -> str:
    options = " ".join(f"{name}={value}" for name, value in item.options.items())
    return f"{item.method} {options}".strip() + f" for {item.target!r}"


def _scores(item: Explanation) -> str:
    scores, lines = item.scores, []
    if scores is not None:
        lines += [f"insertion {scores.insertion:.2f} · deletion {scores.deletion:.2f} · random {scores.random:.2f}"]
    if item.completeness_error is not None:
        lines += [f"completeness error {item.completeness_error:.1%}"]
    if item.location is not None:
        peak = "peak inside" if item.location.pointing else "peak outside"
        lines += [f"{item.location.share:.0%} of the map on {item.location.area:.0%} of the picture, {peak}"]
    return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= 34 else "…" + name[-33:]


def _slice(item: Explanation) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, str]:
    """Picture (H, W, 1 or 3), map and mask (H, W); of a volume, the slice where the map peaks, and which that is."""
    picture, values, mask, depth = item.picture.float().cpu(), item.map.float().cpu(), item.mask, None
    if values.ndim == 3:
        weight, content = values.sum((1, 2)), picture.flatten(2).std(2).sum(0)
        depth = int(content.masked_fill(weight < 0.999 * weight.max(), -1.0).argmax())  # the fullest that peaks
        values, mask = values[depth], None if mask is None else mask[depth]
    if values.ndim == 1:
        values, mask = values[None], None
    shown, part = flat(picture.numpy(), depth)
    return shown, values.numpy(), None if mask is None else mask.float().numpy(), part
