"""What the report says of predicted numbers."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import sentence, with_interval
from regard.drawing import BLUE, GREY, canvas, dress, style, to_svg
from regard.evaluation.pixel_baseline import pixel_doubts
from regard.report import figures
from regard.report.explanations import explanations, image_warnings
from regard.task import Page, Section
from regard.weights import Run, write_text

NAMES = {
    "mae": ("Mean absolute error", "mean distance to the true number; lower is better"),
    "rmse": ("Root mean squared error", "the same, large errors counting more; lower is better"),
    "r2": ("R²", "share of the variance that is explained; 0 is what the mean would score, 1 is perfect"),
}


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    columns, rows = data["columns"], run.read_rows("predictions.csv")
    curves = figures.losses(
        run.read_rows("metrics.csv"), summary["best_epoch"], f"{config.task.loss} loss, standardised"
    )
    plots = {name: scatter(name, rows) for name in columns}
    write_text(run.path / "figures" / "curves.svg", curves)
    for number, svg in enumerate(plots.values(), start=1):
        write_text(run.path / "figures" / f"scatter-{number}.svg", svg)
    many = len(columns) > 1
    first = summary["figures"][f"mae_{columns[0]}" if many else "mae"]
    on = f"of {columns[0]} on {first['n']:,} {summary['split']} images"
    return Page(
        title=f"{config.model.model} on {data['name']}: {', '.join(columns)}",
        headline=f'<p class="big">{first["value"]:.4g} mean absolute error <span>{escape(on)}; '
        f"95 % interval {first['low']:.4g} to {first['high']:.4g}</span></p>",
        headline_text=f"{first['value']:.4g} mean absolute error {on}",
        figures=[figure_row(name, figure, many) for name, figure in summary["figures"].items()],
        chosen_by="loss",
        warnings=warnings(data, summary),
        facts=[
            *((f"always the mean {name}", f"error {error:.4g}") for name, error in summary["mean_error"].items()),
            *(
                (f"{name} on pixels", f"{figure_row(key, f, many)[0].lower()} {with_interval(f, '.4g')}")
                for name, own in summary.get("pixel_baselines", {}).items()
                for key, f in own.items()
                if key.startswith("mae")
            ),
        ],
        sections=[
            Section("Training", f"<figure>{curves}</figure>"),
            Section(
                "Predicted and true",
                "<p>Each dot is a tested image; on the line the prediction is right.</p>"
                + "".join(f"<figure>{svg}</figure>" for svg in plots.values()),
            ),
            *explanations(run),
        ],
        medical=True,
        limits="The figures hold for images like those it was tested on, and for numbers in the range it was trained "
        "on. They say nothing of other cameras, scanners, hospitals or populations: test there before relying on it.",
    )


def figure_row(name: str, figure: dict[str, Any], many: bool) -> tuple[str, str, str, str]:
    measure, _, column = name.partition("_")
    label = f"{NAMES[measure][0]}, {column}" if many else NAMES[measure][0]
    value, low, high = ("–" if figure[key] is None else f"{figure[key]:.4g}" for key in ("value", "low", "high"))
    return label, value, f"{low} to {high}", NAMES[measure][1]


def doubts(summary: dict[str, Any]) -> list[str]:
    """Which numbers are predicted no better than by their mean, or by a simple model of raw pixels."""
    lines = []
    for name, figure in summary["figures"].items():
        measure, _, column = name.partition("_")
        of = f" of {column}" if column else ""
        if measure == "r2" and figure["value"] is not None and figure["value"] <= 0:
            lines.append(f"it is no better than always giving the mean{of}: nothing is learnt yet")
        if measure == "mae":
            lines += pixel_doubts(summary, name, ".4g", less_is_better=True)
    return lines


def warnings(data: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    lines = [sentence(line) for line in doubts(summary)] + image_warnings(data, summary)
    if data["conflicting_labels"]:
        lines.append(f"{len(data['conflicting_labels'])} images occur with different numbers. data.json lists them.")
    return lines


@style()
def scatter(name: str, rows: list[dict[str, str]]) -> str:
    """Predicted against true numbers of one column."""
    true, guess = (np.array([float(row[key]) for row in rows]) for key in (name, f"predicted_{name}"))
    figure = canvas(4.6, 4.4)
    ax = figure.subplots()
    ends = [float(min(true.min(), guess.min())), float(max(true.max(), guess.max()))]
    ax.plot(ends, ends, color=GREY, linewidth=1)
    ax.plot(true, guess, "o", color=BLUE, markersize=4, alpha=0.6, markeredgewidth=0)
    dress(ax, f"true {name}", f"predicted {name}")
    ax.set_aspect("equal", adjustable="datalim")
    return to_svg(figure)
