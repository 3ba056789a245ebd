"""A study's figure: its figures against training images or pairs, or one row per arm where there is one size only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.drawing import COLOURS, GREY, canvas, dress, style, to_svg
from regard.weights import write_aside, write_text

if TYPE_CHECKING:
    from regard.study.design import Measure
    from regard.study.result import Point, Result


@style()
def draw(result: Result) -> None:
    """Write study.svg and study.png."""
    measures, study = result.study.measures, result.study
    figure = canvas(6.4 if len(measures) == 1 else 10.4, 4.0)
    sizes = sorted({point.images for point in result.points})
    for ax, measure in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        if len(sizes) > 1:
            points, label = result.points_by(measure), f"training {study.samples} (log scale)"
            curves(ax, points, list(study.arms), label, measure.axis, measure.scale)
        else:
            _rows(ax, result, measure)
    save(figure, result.study.out / "study")


def save(figure: Any, path: Path) -> None:
    """Save as .svg, with the text colour of the page around it, and as .png, on white."""
    write_text(path.with_suffix(".svg"), to_svg(figure))
    png = path.with_suffix(".png")
    write_aside(png, lambda aside: figure.savefig(aside, format="png", dpi=160, facecolor="white"))


def curves(ax: Any, every: list[Point], arms: list[str], x_label: str, y_label: str, scale: float = 100.0) -> None:
    """One line per arm over a log axis, with a band of one deviation over seeds."""
    sizes = sorted({point.images for point in every})
    ends: list[tuple[float, str, str]] = []
    for number, arm in enumerate(arms):
        points, colour = [p for p in every if p.arm == arm], COLOURS[number % len(COLOURS)]
        if not points:
            continue
        x, y = [p.images for p in points], [scale * p.mean for p in points]
        spread = [scale * (p.deviation or 0.0) for p in points]
        ax.plot(x, y, "o-", color=colour, markersize=4)
        low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
        ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        ends.append((y[-1], arm, colour))
    ax.set_xscale("log")
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    dress(ax, x_label, y_label)
    low, high = ax.get_ylim()
    at = low - 1.0
    for y, arm, colour in sorted(ends):  # names beside the ends of their lines, without overlap
        at = max(y, at + 0.055 * (high - low))
        ax.annotate(arm, (sizes[-1], at), (7, 0), textcoords="offset points", color=colour, va="center")
    if any(point.deviation is not None for point in every):
        ax.set_title("band: one deviation over seeds", fontsize=8, color=GREY, loc="left")


def _rows(ax: Any, result: Result, measure: Measure) -> None:
    """A small dot per seed; mean and standard deviation beside them."""
    points, scale = {point.arm: point for point in result.points_by(measure)}, measure.scale
    for number, (arm, point) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        seeds = [scale * row[measure.key] for row in result.rows if row["arm"] == arm]
        ax.plot(seeds, [number] * len(seeds), "o", color=colour, alpha=0.4, markersize=4)
        ax.errorbar(scale * point.mean, number + 0.18, xerr=scale * (point.deviation or 0.0), fmt="o", color=colour)
    ax.set_yticks(range(len(points)), list(points))
    ax.invert_yaxis()
    dress(ax, f"{measure.axis}; large: mean and one deviation, small: each seed", result.study.kind)
