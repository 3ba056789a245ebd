"""What the report says of several labels."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import interval, with_interval
from regard.report import figures
from regard.report.explanations import explanations, image_warnings
from regard.report.page import table
from regard.task import Page, Section
from regard.tasks.multilabel.evaluation import EACH, doubts
from regard.weights import Run, write_text

NAMES = {
    "auroc": ("AUROC", "chance that an image with the class ranks above one without it"),
    "accuracy": ("Accuracy", "share of images whose likeliest class is the true one"),
    "balanced_accuracy": ("Balanced accuracy", "mean of the classes' recalls"),
}


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    labels, first = data["labels"], summary["figures"]["auroc"]
    curves = figures.curves(run.read_rows("metrics.csv"), summary["best_epoch"], "auroc")
    write_text(run.path / "figures" / "curves.svg", curves)
    on = f"mean of {len(labels)} labels on {first['n']:,} {summary['split']} images"
    return Page(
        title=f"{config.model.model} on {data['name']}: {', '.join(labels)}",
        headline=f'<p class="big">{_value(first["value"])} AUROC <span>{escape(on)}; '
        f"95 % interval {_value(first['low'])} to {_value(first['high'])}</span></p>",
        headline_text=f"{_value(first['value'])} AUROC, {on}",
        figures=[_row(name, figure, labels) for name, figure in summary["figures"].items()],
        chosen_by="auroc",
        warnings=[*image_warnings(data, summary), *(f"{line}." for line in doubts(summary))],
        facts=[
            ("labels", "; ".join(_known(label, data) for label in labels)),
            *(
                (f"{name} on pixels", f"AUROC {with_interval(own['auroc'], '.4f')}")
                for name, own in summary.get("pixel_baselines", {}).items()
            ),
        ],
        sections=[
            Section("Training", f"<figure>{curves}</figure>"),
            Section("Labels", _labels(summary)),
            *(_section(run, n, label, labels[label], summary) for n, label in enumerate(labels, start=1)),
            *explanations(run),
        ],
        limits="The figures hold for images like those it was tested on, and for each label on the images where it is "
        "known: if it is missing for a reason, they may not hold for the others. They say nothing of other cameras, "
        "scanners, hospitals or populations: test there before relying on it.",
    )


def _row(name: str, figure: dict[str, Any], labels: Any) -> tuple[str, str, str, str]:
    label = next((own for own in labels for measure in EACH if name == f"{measure}_{own}"), "")
    title, meaning = NAMES[name.removesuffix(f"_{label}") if label else name]
    shown = f"{title}, {label}" if label else f"{title}, mean of the labels"
    limits = f"{_value(figure['low'])} to {_value(figure['high'])}"
    return shown, _value(figure["value"]), limits, f"{meaning}; n = {figure['n']:,}"


def _known(label: str, data: dict[str, Any]) -> str:
    counts = data["label_counts"][label]
    total = {name: sum(part[name] for part in counts.values()) for name in next(iter(counts.values()))}
    return f"{label}: {', '.join(f'{name} {count:,}' for name, count in total.items())}"


def _labels(summary: dict[str, Any]) -> str:
    rows = []
    for label, held in summary["labels"].items():
        own = held["figures"]
        cells = [f"{_value(own[m]['value'])} ({interval(own[m], '.3f')})" for m in EACH]
        rows.append((label, f"{own['accuracy']['n']:,}", *cells))
    return table(("label", "known", *(NAMES[name][0] for name in EACH)), rows)


def _section(run: Run, number: int, label: str, classes: list[str], summary: dict[str, Any]) -> Section:
    held = summary["labels"].get(label)
    if held is None:
        return Section(label, "<p>Not known of any tested image.</p>")
    drawn = {
        "confusion": figures.confusion(np.array(held["confusion"]), classes),
        "reliability": figures.reliability(np.array(held["reliability"])),
    }
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}-{number}.svg", svg)
    pair = "".join(f"<figure>{svg}</figure>" for svg in drawn.values())
    return Section(label, f'<div class="pair">{pair}</div>')


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
