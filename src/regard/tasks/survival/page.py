"""What the report says of survival: concordance, curves by risk group, calibration, scores over time."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import interval, sentence, shown, with_interval
from regard.drawing import BLUE, GREY, ORANGE, canvas, dress, style, to_svg
from regard.evaluation.pixel_baseline import pixel_doubts
from regard.report import figures
from regard.report.explanations import explanations, image_warnings
from regard.report.figures import name_curves
from regard.task import Page, Section
from regard.tasks.survival.data import FEW_EVENTS
from regard.weights import Run, write_text

NAMES = {
    "c_index": (
        "C-index",
        "of two subjects, how often the one at higher risk has the event first; 0.5 is chance",
    ),
    "auc": ("AUC at {when}", "of one with the event by then and one without, how often the first has the higher risk"),
    "integrated_brier": (
        "Integrated Brier score",
        "squared error of predicted survival, mean over time; lower is better",
    ),
    "calibration_slope": (
        "Calibration slope",
        "coefficient of the risk in Cox’s model: 1 is right, below 1 risks are too extreme",
    ),
    "calibration": ("Observed minus predicted events at {when}", "0 is perfect; above 0, risks are underestimated"),
}
COLOURS = {"low": BLUE, "high": ORANGE}


def page(run: Run, config: Any, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    time, event = data["columns"][:2]
    loss = {"cox": "Cox loss (per event)", "discrete": "negative log-likelihood (per subject)"}[config.task.loss]
    drawn = {"curves": figures.losses(run.read_rows("metrics.csv"), summary["best_epoch"], loss)}
    drawn |= {"kaplan-meier": kaplan_meier_figure(summary, time, event)}
    if "over_time" in summary:
        drawn |= {"over-time": over_time(summary["over_time"], time), "calibration": calibration_figure(summary, event)}
    for name, svg in drawn.items():
        write_text(run.path / "figures" / f"{name}.svg", svg)
    first, when = summary["figures"]["c_index"], f"{time} {summary['horizon']:g}"
    on = f"on {first['n']:,} {summary['split']} images with {summary['events']} events"
    value, span = shown(first["value"], ".3f"), interval(first, ".3f")
    return Page(
        title=f"{config.model.model} on {data['name']}: {event} by {time}",
        headline=f'<p class="big">C-index {value} <span>{escape(on)}; 95 % interval {span}</span></p>',
        headline_text=f"C-index {value} {on}",
        figures=[figure_row(name, figure, when) for name, figure in summary["figures"].items()],
        chosen_by="loss",
        warnings=warnings(data, summary),
        facts=_facts(summary),
        sections=[
            Section("Training", f"<figure>{drawn['curves']}</figure>"),
            Section("Survival by risk", _groups_html(summary, drawn["kaplan-meier"])),
            *_calibration_sections(summary, drawn, event, when),
            *explanations(run),
        ],
        medical=True,
        limits="The figures hold for subjects like those it was tested on, followed as long and treated alike. They "
        "say nothing of other scanners, hospitals or populations: `regard eval RUN OTHER` tests it there. It ranks "
        "groups of subjects and is no forecast for one of them; it is no medical device.",
    )


def figure_row(name: str, figure: dict[str, Any], when: str) -> tuple[str, str, str, str]:
    label, meaning = NAMES[name]
    return label.format(when=when), shown(figure["value"]), interval(figure), meaning


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    facts = reference_fact(summary)
    for name, own in summary.get("pixel_baselines", {}).items():
        facts.append((f"{name} of the pixels", f"C-index {with_interval(own['c_index'], '.4f')}"))
    if "clinical_only" in summary:
        alone, adds = summary["clinical_only"]["c_index"], summary["image_adds"]
        facts += [
            ("clinical columns alone", f"C-index {with_interval(alone, '.4f')}, Cox’s model"),
            ("what the image adds to them", f"{with_interval(adds, '.4f')}, p {shown(adds['p'], '.3f')}"),
        ]
    return facts


def reference_fact(summary: dict[str, Any]) -> list[tuple[str, str]]:
    if "reference_brier" not in summary:
        return []
    return [("Brier score without images", f"{shown(summary['reference_brier'])} (Kaplan–Meier)")]


def doubts(summary: dict[str, Any]) -> list[str]:
    """What speaks against the model."""
    figure, lines = summary["figures"]["c_index"], []
    if figure["low"] is None or np.isnan(figure["low"]):
        lines.append("The C-index has no interval: there are too few events to compare.")
    elif figure["low"] <= 0.5:
        lines.append(
            f"The interval of the C-index, {interval(figure)}, holds 0.5: it may rank subjects no better than chance."
            if figure["high"] >= 0.5
            else f"The C-index is below chance ({interval(figure)}): risks are the wrong way round."
        )
    if summary["events"] < FEW_EVENTS:
        lines.append(f"There are only {summary['events']} events: figures are uncertain below {FEW_EVENTS}.")
    adds = summary.get("image_adds")
    if adds and adds["low"] <= 0:
        lines.append("It is not shown that the image adds to the clinical columns: the interval of the gain holds 0.")
    return lines + [sentence(line) for line in pixel_doubts(summary, "c_index", ".3f")]


def warnings(data: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    lines = [*doubts(summary), *image_warnings(data, summary)]
    if data["conflicting_labels"]:
        lines.append(f"{len(data['conflicting_labels'])} images occur with different times or events, see data.json.")
    return lines


def _groups_html(summary: dict[str, Any], svg: str) -> str:
    p = summary["log_rank"]["p"]
    tested = "cannot be tested: all are in one group" if p is None else f"differ with p {p:.3g} (log-rank test)"
    return (
        "<p>Kaplan–Meier curves of the tested subjects with a risk below and above the median of the "
        f"<em>training</em> set, with 95 % intervals. They {tested}.</p><figure>{svg}</figure>"
    )


def _calibration_sections(summary: dict[str, Any], drawn: dict[str, str], event: str, when: str) -> list[Section]:
    if "over_time" not in summary:
        return []
    return [
        Section(
            "Predicted and observed",
            f"<p>Subjects in groups by predicted probability of {escape(event)} by {escape(when)}; observed by "
            f"Kaplan–Meier, with 95 % intervals. On the line it is right.</p><figure>{drawn['calibration']}</figure>",
        ),
        over_time_section(drawn["over-time"]),
    ]


def over_time_section(svg: str) -> Section:
    return Section(
        "Over time",
        "<p>Left: the Brier score, against always giving the survival of the training set. Right: the AUC of those "
        f"with the event by each time against those without. Censoring is weighted for.</p><figure>{svg}</figure>",
    )


@style()
def kaplan_meier_figure(summary: dict[str, Any], time: str, event: str) -> str:
    """Survival of both groups, with the numbers at risk below."""
    figure = canvas(6.4, 4.4)
    ax, below = figure.subplots(2, 1, height_ratios=[5, 1], sharex=True)
    named = []
    for row, (name, group) in enumerate(summary["groups"].items()):
        times = np.r_[0.0, group["times"]]
        alive, low, high = (np.r_[1.0, group[key]] for key in ("survival", "low", "high"))
        ax.step(times, alive, where="post", color=COLOURS[name])
        ax.fill_between(times, low, high, step="post", color=COLOURS[name], alpha=0.15, linewidth=0)
        left = np.array(group["censored"])
        ax.plot(left, alive[np.searchsorted(times, left, side="right") - 1], "|", color=COLOURS[name], markersize=5)
        named.append((f"{name} risk: {group['n']} subjects, {group['events']} events", COLOURS[name]))
        for at, count in zip(summary["at_risk_times"], group["at_risk"], strict=True):
            below.text(at, -row, str(count), color=COLOURS[name], ha="center", va="center", fontsize=8)
    dress(ax, "", f"share without {event}")
    ax.set_ylim(0, 1.03)
    name_curves(ax, *named)
    dress(below, time, "at risk")
    below.set_ylim(-1.7, 0.7)
    below.set_yticks([])
    below.grid(False)
    return to_svg(figure)


@style()
def over_time(scores: dict[str, Any], time: str) -> str:
    """Brier score and AUC against time."""
    figure = canvas(8.4, 3.2)
    left, right = figure.subplots(1, 2)
    mark = "o-" if len(scores["times"]) == 1 else "-"
    left.plot(scores["times"], scores["brier"], mark, color=BLUE)
    left.plot(scores["times"], scores["reference"], "--", color=GREY)
    dress(left, time, "Brier score (low is good)")
    name_curves(left, ("this model", BLUE), ("without images", GREY))
    areas = [np.nan if value is None else value for value in scores["auc"]]
    right.plot(scores["times"], areas, mark, color=BLUE)
    right.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    dress(right, time, "AUC (0.5 is chance)")
    return to_svg(figure)


@style()
def calibration_figure(summary: dict[str, Any], event: str) -> str:
    """Observed against predicted events at the horizon."""
    figure = canvas(4.2, 4.0)
    ax, groups = figure.subplots(), summary["calibration_groups"]
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
    for group in groups:
        ax.plot([group["predicted"]] * 2, [group["low"], group["high"]], color=BLUE, alpha=0.5, linewidth=2)
        ax.plot([group["predicted"]], [group["observed"]], "o", color=BLUE, markersize=5)
    ax.set_xlim(0, 1.03)
    ax.set_ylim(0, 1.03)
    dress(ax, f"predicted share with {event} by {summary['horizon']:g}", "observed share")
    return to_svg(figure)
