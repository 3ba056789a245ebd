"""What out-of-fold risks add up to, and the report of it.

Risks of different folds are of different networks, each with a baseline hazard of its own: only pairs of subjects of
one fold are compared. Whether a risk is high or low, by the median of its fold's training set, can be pooled; so can
predicted survival at one time, which is a probability whatever the baseline.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from regard.console import sentence
from regard.errors import RunError
from regard.metrics import Concordance, breslow, step
from regard.metrics.folds import (
    Permuted,
    bootstrap_figure,
    describe_confounders,
    patient_weights,
    permute,
    predict_from,
    spread,
)
from regard.metrics.survival import (
    auc,
    auc_within,
    brier_scores,
    calibration,
    cox_slope,
    dead_share,
    integrated,
    time_grid,
)  # fmt: skip
from regard.report.page import table
from regard.task import Folds, Page, Section
from regard.tasks.survival.curves import Curves
from regard.tasks.survival.data import FEW_EVENTS
from regard.tasks.survival.evaluation import CALIBRATION_GROUPS, PER_GROUP, concordance_within, risk_groups
from regard.tasks.survival.page import (
    calibration_figure,
    figure_row,
    kaplan_meier_figure,
    over_time_section,
    reference_fact,
)
from regard.tasks.survival.page import over_time as over_time_figure
from regard.weights import Run, write_text

RESAMPLES = 1000
PERMUTATIONS = 500
FEW_PER_FOLD = 10


def pool(folds: Folds, data: dict[str, Any]) -> dict[str, Any]:
    time, event, risk = folds.numbers("time"), folds.numbers("event") > 0, folds.numbers("risk")
    fold, groups = folds.fold, folds.groups
    weights = patient_weights(groups, RESAMPLES)
    values = concordance_within(time, event, risk, fold, weights)
    each = [Concordance(time[fold == n], event[fold == n]).of(risk[fold == n]) for n in range(1, fold.max() + 1)]
    summary = {
        "columns": data["columns"], "patients": len(set(groups.tolist())), "events": int(event.sum()),
        "figures": {"c_index": bootstrap_figure(values, len(time))._asdict()},
        "per_fold": {"c_index": spread(each)._asdict()},
        "counts": [int(event[fold == n].sum()) for n in range(1, fold.max() + 1)],
        "permutation": permutation(time, event, risk, fold, groups, PERMUTATIONS)._asdict(),
        "confounders": confounders(folds, time, event),
        "headline": ["c_index"],
        **risk_groups(time, event, risk > 0),
    }  # fmt: skip
    for more in (calibrate(folds, time, event, risk, weights), over_time(folds, time, event, risk, weights)):
        summary["figures"] |= more.pop("figures", {})
        summary |= more
    return summary | {"warnings": warnings(summary)}


def calibrate(
    folds: Folds, time: np.ndarray, event: np.ndarray, risk: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """Predicted against observed events by the horizon, pooled; nothing if the folds have different horizons."""
    horizons = {row.get("horizon") for row in folds.rows}
    if len(horizons) > 1 or None in horizons:
        return {}
    horizon, death = folds.numbers("horizon")[0], 1 - folds.numbers("survival")
    gap = dead_share(time, event, horizon, weights) - weights @ death / weights.sum(1)
    groups = int(np.clip(event.sum() // PER_GROUP, 1, CALIBRATION_GROUPS))
    figures = {
        "auc": bootstrap_figure(auc_within(time, event, risk, folds.fold, horizon, weights), len(time)),
        "calibration": bootstrap_figure(gap, len(time)),
        "calibration_slope": cox_slope(time, event, risk, folds.fold),
    }
    return {
        "figures": {name: figure._asdict() for name, figure in figures.items()},
        "horizon": float(horizon),
        "calibration_groups": [group._asdict() for group in calibration(time, event, death, horizon, groups)],
    }


def over_time(
    folds: Folds, time: np.ndarray, event: np.ndarray, risk: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """Brier score and AUC at the event times of all subjects, each subject's survival by the network of its fold.

    The reference is the survival of the fold's training set. Nothing if curves were not kept, as in older runs.
    """
    grid = time_grid(time, event)
    survival, reference = np.empty((2, len(time), len(grid)))
    try:
        for number, details in enumerate(folds.details, start=1):
            own = np.flatnonzero(folds.fold == number)
            rows = [folds.rows[n] for n in own]
            curves = Curves.of(details["curves"], len(details["curves"]["edges"]) or 1)
            survival[own] = curves.survival(curves.from_rows(rows), grid)
            reference[own] = step(np.array(curves.times), np.array(curves.reference), grid)
    except (KeyError, RunError):
        return {}
    if not len(grid) or not folds.details:
        return {}
    scores, known = (brier_scores(time, event, own, grid) for own in (survival, reference))
    resampled = weights @ integrated(scores, grid) / weights.sum(1)
    return {
        "figures": {"integrated_brier": bootstrap_figure(resampled, len(time))._asdict()},
        "reference_brier": float(integrated(known, grid).mean()),
        "over_time": {
            "times": grid.tolist(), "brier": scores.mean(0).tolist(), "reference": known.mean(0).tolist(),
            "auc": auc(time, event, risk, grid, folds.fold).tolist(),
        },
    }  # fmt: skip


def permutation(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, fold: np.ndarray, groups: np.ndarray, count: int
) -> Permuted:
    """C with outcomes exchanged between patients of one fold."""
    one = np.ones((1, len(time)))
    values = [
        float(concordance_within(time[order], event[order], risk, fold, one)[0])
        for order in permute(fold, groups, count)
    ]
    return Permuted.of(values)


def confounders(folds: Folds, time: np.ndarray, event: np.ndarray) -> list[dict[str, Any]]:
    """For what is known beside the picture: the C-index with which it alone ranks the subjects, out of fold.

    The tree is fitted to martingale residuals: events seen minus those expected of everyone alike by that time.
    """
    times, hazard = breslow(time, event, np.zeros(len(time)))
    residual = event - step(times, hazard, time, before=0.0)
    made = []
    for name, features in folds.covariates.items():
        predicted = predict_from(features, residual[:, None], folds.fold)[:, 0]
        test = permutation(time, event, predicted, folds.fold, folds.groups, 299)
        made.append({"name": name, "c_index": test.value, "p": test.p})
    return made


def warnings(summary: dict[str, Any]) -> list[str]:
    figure, lines = summary["figures"]["c_index"], []
    shown = f"{figure['low']:.3f} to {figure['high']:.3f}"
    if figure["low"] <= 0.5 <= figure["high"]:
        lines.append(f"the interval of the C-index, {shown}, holds 0.5: it may rank subjects no better than chance")
    elif figure["high"] < 0.5:
        lines.append(f"the C-index is below chance ({shown}): risks are the wrong way round")
    if summary["events"] < FEW_EVENTS:
        lines.append(f"there are only {summary['events']} events: figures are uncertain below {FEW_EVENTS}")
    least = min(summary["counts"])
    if least < FEW_PER_FOLD:
        lines.append(f"a fold has only {least} events: the C-index of single folds, and its spread, say little")
    return lines + describe_confounders(summary["confounders"], "c_index", "survival")


def page(run: Run, data: dict[str, Any], summary: dict[str, Any]) -> Page:
    time, event = summary["columns"][:2]
    figure, test = summary["figures"]["c_index"], summary["permutation"]
    curves = kaplan_meier_figure(summary, time, event)
    write_text(run.path / "figures" / "kaplan-meier.svg", curves)
    on = f"{figure['n']:,} subjects with {summary['events']} events"
    interval = f"{figure['low']:.3f} to {figure['high']:.3f}"
    p = summary["log_rank"]["p"]
    tested = "cannot be tested: all are in one group" if p is None else f"differ with p {p:.3g} (log-rank test)"
    per_fold = summary["per_fold"]["c_index"]
    rows = [(row["name"], f"{row['c_index']:.3f}", f"{row['p']:.3f}") for row in summary["confounders"]]
    return Page(
        title=f"{summary['folds']} folds on {data['name']}: {event} by {time}",
        headline=f'<p class="big">C-index {figure["value"]:.3f} <span>{escape(on)}; 95 % interval {interval}</span>'
        "</p>",
        headline_text=f"C-index {figure['value']:.3f}, {on}",
        figures=[
            ("C-index within folds", f"{figure['value']:.4f}", f"{figure['low']:.4f} to {figure['high']:.4f}",
             "of two subjects of one fold, how often the one at higher risk has the event first; 0.5 is chance"),
            *(figure_row(name, summary["figures"][name], f"{time} {summary['horizon']:g}")
              for name in ("auc", "integrated_brier", "calibration", "calibration_slope")
              if name in summary["figures"]),
        ],
        chosen_by="loss",
        warnings=[sentence(line) for line in summary["warnings"]],
        facts=[
            ("mean ± deviation over folds", f"{per_fold['mean']:.4f} ± {per_fold['std']:.4f}"),
            ("permutation test", f"p {test['p']:.4f} ({test['permutations']} permutations)"),
            *reference_fact(summary),
        ],
        sections=[
            Section(
                "Survival by risk",
                "<p>Kaplan–Meier curves of subjects whose risk is below and above the median of their fold’s training "
                f"set, with 95 % intervals. They {tested}.</p><figure>{curves}</figure>",
            ),
            *_calibration_section(run, summary, time, event),
            *_over_time_section(run, summary, time),
            Section(
                "Pooling",
                "<p>Risks of different folds come from different networks, each with a baseline hazard of its own, and "
                "are not comparable: C-index and AUC count pairs of subjects of one fold only, and the calibration "
                "slope is of Cox’s model with a baseline per fold. Predicted survival at one time is a probability: "
                "that is pooled, for calibration and the Brier score. Censoring is weighted for by its Kaplan–Meier "
                "estimate on the subjects of all folds.</p>",
            ),
            Section(
                "What else predicts survival",
                table(("known beside the picture", "C-index", "p"), rows) if rows else "",
            ),
        ],
        medical=True,
        limits="The figures are of networks that were trained on other subjects of the same data, followed as long and "
        "treated alike. They say nothing of other hospitals or populations: `regard eval FOLDS OTHER --external`. It "
        "is no medical device.",
    )  # fmt: skip


def _calibration_section(run: Run, summary: dict[str, Any], time: str, event: str) -> list[Section]:
    if "calibration_groups" not in summary:
        return []
    drawn = calibration_figure(summary, event)
    write_text(run.path / "figures" / "calibration.svg", drawn)
    return [
        Section(
            "Predicted and observed",
            f"<p>Subjects of all folds in groups by predicted probability of {escape(event)} by {escape(time)} "
            f"{summary['horizon']:g}; observed by Kaplan–Meier, with 95 % intervals. On the line it is right.</p>"
            f"<figure>{drawn}</figure>",
        )
    ]


def _over_time_section(run: Run, summary: dict[str, Any], time: str) -> list[Section]:
    if "over_time" not in summary:
        return []
    drawn = over_time_figure(summary["over_time"], time)
    write_text(run.path / "figures" / "over-time.svg", drawn)
    return [over_time_section(drawn)]
