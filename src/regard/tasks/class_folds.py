"""What out-of-fold predictions of one label add up to, and what a report shows of it; for one label or several.

Of two classes the second is the positive one; of several, each is tested against the rest, and figures are means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.console import interval, shown, with_interval
from regard.data.splits import assign_folds
from regard.drawing import BLUE, GREY, canvas, dress, style, to_svg
from regard.errors import DataError
from regard.metrics.classification import BINS, Figure, summarise, weighted_aurocs, wilson
from regard.metrics.delong import auc_delong
from regard.metrics.folds import (
    bootstrap_figure,
    calibration_line,
    describe_confounders,
    patient_weights,
    permutation_test,
    predict_from,
    spread,
    within_folds,
    youden,
)
from regard.report.page import table

NAMES = {
    "auroc": ("AUC, pooled", "chance that a positive ranks above a negative, over all folds; DeLong’s interval"),
    "auroc_bootstrap": ("AUC, pooled, by bootstrap", "the same with a bootstrap interval over patients"),
    "auroc_within": ("AUC within folds", "pairs of one fold only: scores of different networks need not be comparable"),
    "sensitivity": ("Sensitivity", "share of positives above the threshold that its fold’s validation part chose"),
    "specificity": ("Specificity", "share of negatives below that threshold"),
    "accuracy": ("Accuracy", "share whose likeliest class is the true one"),
    "balanced_accuracy": ("Balanced accuracy", "mean of the classes’ recalls"),
    "calibration_intercept": ("Calibration in the large", "0 is right; above 0, probabilities are too low on average"),
    "calibration_slope": ("Calibration slope", "1 is right; below 1, probabilities are too extreme"),
    "log_loss": ("Log loss", "mean −log p of the true class, in nats; lower is better"),
    "brier": ("Brier score", "mean squared distance to the truth, 0 to 2; lower is better"),
}
MEAN_AUROC = "mean over classes of the chance that one ranks above the rest; bootstrap interval over patients"
LEAK = 0.99
"""An AUC from which on a small set rather leaks than is so easy."""
SMALL = 1000
"""Samples up to which a set is called small."""
FEW_PER_FOLD = 10
"""Samples of a class per fold below which a fold's figure says little."""
MOST_LOOKED_AT = 5000
"""Samples up to which confounders are looked for before training."""
LOOKED_AT_FOLDS = 5


@dataclass(frozen=True)
class Predicted:
    """Out-of-fold probabilities of one label's classes, where the label is known."""

    classes: list[str]
    probs: np.ndarray
    """(N, classes)"""
    labels: np.ndarray
    """(N,)"""
    fold: np.ndarray
    groups: np.ndarray
    validation: list[tuple[np.ndarray, np.ndarray]]
    """By fold: probabilities and labels of the part that chose its weights."""
    covariates: dict[str, np.ndarray]

    @property
    def tested(self) -> list[int]:
        """Of two classes the second, of several each."""
        return [1] if len(self.classes) == 2 else list(range(len(self.classes)))

    def areas(self, weights: np.ndarray) -> np.ndarray:
        """The mean AUC of the tested classes for each row of sample weights."""
        each = [weighted_aurocs(weights, self.probs[:, c], self.labels == c) for c in self.tested]
        return mean_of_known(np.stack(each))


def mean_of_known(values: np.ndarray) -> np.ndarray:
    """Over the first axis, without what is NaN."""
    return np.ma.masked_invalid(values).mean(0).filled(math.nan)


def pool_classes(predicted: Predicted) -> dict[str, Any]:
    """Figures, their spread over folds, thresholds, permutation test, confounders and warnings of one label."""
    classes, tested, groups = predicted.classes, predicted.tested, predicted.groups
    probs, labels, fold = predicted.probs, predicted.labels, predicted.fold
    weights = patient_weights(groups, 1000)
    clustered = len(set(groups.tolist())) < len(groups)
    per_class, thresholds = {}, {}
    for c in tested:
        thresholds[classes[c]], per_class[classes[c]] = _one_class(predicted, c, weights, clustered)
    usual = summarise(probs, labels, tuple(classes)).figures
    names = ("auroc", "auroc_bootstrap", "sensitivity", "specificity", "calibration_intercept", "calibration_slope")
    made = {name: _mean(per_class, name) for name in names}
    if len(tested) > 1:  # of dependent figures, whose own intervals cannot be averaged
        made["auroc"] = made["auroc_bootstrap"] = bootstrap_figure(predicted.areas(weights), len(labels))
    test = permutation_test(probs, labels, fold, groups)
    within = within_folds(probs, labels, fold)
    folds = range(1, len(predicted.validation) + 1)
    summary = {
        "classes": classes,
        "positive": classes[1] if len(classes) == 2 else None,
        "patients": len(set(groups.tolist())),
        "figures": {name: figure._asdict() for name, figure in made.items()}
        | {name: usual[name]._asdict() for name in ("accuracy", "balanced_accuracy", "log_loss", "brier")},
        "within_folds": float(np.nanmean(within[tested])),
        "per_fold": {name: spread(values)._asdict() for name, values in _by_fold(predicted, thresholds).items()},
        "per_class": {name: {m: f._asdict() for m, f in row.items()} for name, row in per_class.items()},
        "thresholds": thresholds,
        "counts": [np.bincount(labels[fold == n], minlength=len(classes)).tolist() for n in folds],
        "chosen_on": [np.bincount(own, minlength=len(classes)).tolist() for _, own in predicted.validation],
        "permutation": test._asdict(),
        "reliability": _reliability(probs[:, 1], labels == 1) if len(classes) == 2 else None,
        "confounders": confounders(
            predicted.covariates, len(predicted.classes), predicted.labels, predicted.fold, predicted.groups
        ),
    }
    return summary | {"warnings": warnings(summary)}


def _one_class(
    predicted: Predicted, c: int, weights: np.ndarray, clustered: bool
) -> tuple[list[float], dict[str, Figure]]:
    """Of one class against the rest: each fold's threshold, and the figures."""
    fold, score, positive = predicted.fold, predicted.probs[:, c], predicted.labels == c
    thresholds, above = [], np.zeros(len(score), dtype=bool)
    for number, (known, labels) in enumerate(predicted.validation, start=1):
        thresholds.append(youden(known[:, c], labels == c))
        above[fold == number] = score[fold == number] >= thresholds[-1]
    line = calibration_line(score, positive)
    return thresholds, {
        "auroc": auc_delong(score, positive, predicted.groups if clustered else None),
        "auroc_bootstrap": bootstrap_figure(weighted_aurocs(weights, score, positive), len(score)),
        "sensitivity": _share(above, positive, weights, clustered),
        "specificity": _share(~above, ~positive, weights, clustered),
        "calibration_intercept": line.intercept,
        "calibration_slope": line.slope,
    }


def _share(hits: np.ndarray, among: np.ndarray, weights: np.ndarray, clustered: bool) -> Figure:
    """A share with Wilson's interval; of patients with several samples, with the bootstrap over patients."""
    if not clustered:
        return wilson(int((hits & among).sum()), int(among.sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        return bootstrap_figure(weights @ (hits & among) / (weights @ among), int(among.sum()))


def _mean(per_class: dict[str, dict[str, Figure]], name: str) -> Figure:
    """Of several classes the mean, without an interval: the classes are not independent."""
    each = [row[name] for row in per_class.values()]
    if len(each) == 1:
        return each[0]
    return Figure(float(np.nanmean([figure.value for figure in each])), math.nan, math.nan, each[0].n)


def _by_fold(predicted: Predicted, thresholds: dict[str, list[float]]) -> dict[str, list[float]]:
    made: dict[str, list[float]] = {"auroc": [], "sensitivity": [], "specificity": [], "accuracy": []}
    for number in range(1, len(predicted.validation) + 1):
        own = predicted.fold == number
        probs, labels = predicted.probs[own], predicted.labels[own]
        made["auroc"].append(_known_mean(within_folds(probs, labels, predicted.fold[own])[predicted.tested]))
        shares = {"sensitivity": list[float](), "specificity": list[float]()}
        for c in predicted.tested:
            above, positive = probs[:, c] >= thresholds[predicted.classes[c]][number - 1], labels == c
            shares["sensitivity"].append(_known_mean(above[positive]))
            shares["specificity"].append(_known_mean(~above[~positive]))
        for name, values in shares.items():
            made[name].append(_known_mean(values))
        made["accuracy"].append(_known_mean(probs.argmax(1) == labels))
    return made


def _known_mean(values: Any) -> float:
    """Without what is NaN; NaN where nothing is left."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else math.nan


def _reliability(score: np.ndarray, positive: np.ndarray) -> list[list[float]]:
    """By tenths of the predicted probability: its mean, the share of positives, and samples."""
    bins = np.clip((score * min(BINS, 10)).astype(int), 0, 9)
    return [
        [float(score[bins == n].mean()), float(positive[bins == n].mean()), int((bins == n).sum())]
        for n in range(10)
        if (bins == n).any()
    ]


def confounders(
    covariates: dict[str, np.ndarray], classes: int, labels: np.ndarray, fold: np.ndarray, groups: np.ndarray,
    permutations: int = 999,
) -> list[dict[str, Any]]:  # fmt: skip
    """For what is known beside the picture: the AUC with which it alone predicts the label, out of fold."""
    made, truth = [], np.eye(classes)[labels]
    for name, features in covariates.items():
        test = permutation_test(predict_from(features, truth, fold), labels, fold, groups, permutations)
        made.append({"name": name, "auroc": test.value, "p": test.p})
    return made


def confounded(dataset: Any) -> list[str]:
    """The same before anything is trained, in folds made for it; nothing of much data, where it would take long."""
    labels, features = np.array(dataset.strata()), dataset.covariates()
    if not features or len(labels) > MOST_LOOKED_AT or len(set(labels.tolist())) < 2:
        return []
    try:
        folds = np.array(assign_folds(dataset, LOOKED_AT_FOLDS, 0)[0])
    except DataError:  # too few to say
        return []
    own = folds > 0
    names = [row["group"] for row in dataset.split_rows(["train"] * len(dataset))]
    groups = np.array([name or f"sample {number}" for number, name in enumerate(names)])
    known = {name: values[own] for name, values in features.items()}
    rows = confounders(known, len(dataset.source.classes), labels[own], folds[own], groups[own], 199)
    return describe_confounders(rows, "auroc")


def warnings(summary: dict[str, Any]) -> list[str]:
    """What a reviewer would ask about."""
    area, lines, classes = summary["figures"]["auroc"], [], summary["classes"]
    shown = f"{area['low']:.3f} to {area['high']:.3f}"
    low, high = (area[end] for end in ("low", "high"))
    if low <= 0.5 <= high:
        lines.append(f"the interval of the AUC, {shown}, holds 0.5: the labels may not be in the images")
    elif high < 0.5:
        lines.append(f"the AUC is below chance ({shown}): look for labels that are swapped, or folds that differ")
    if area["value"] >= LEAK and area["n"] <= SMALL:
        lines.append(
            f"an AUC of {area['value']:.3f} on {area['n']} samples is too good to be true: look for a leak, such "
            "as a mark, a border or a file format that goes with the label"
        )
    empty = [
        f"fold {n} has no {classes[c]}"
        for n, row in enumerate(summary["counts"], 1)
        for c in range(len(row))
        if not row[c]
    ]
    if empty:
        lines.append(f"{', '.join(empty)}: give fewer --folds, or more data")
    least = min(min(row) for row in summary["counts"])
    if not empty and least < FEW_PER_FOLD:
        lines.append(
            f"a fold has only {least} samples of a class, fewer than {FEW_PER_FOLD}: figures of single folds, and "
            "their spread, say little"
        )
    least = min(min(row) for row in summary["chosen_on"])
    if least < FEW_PER_FOLD:
        lines.append(
            f"a fold’s validation part has only {least} samples of a class, fewer than {FEW_PER_FOLD}: the thresholds "
            "and the epoch that it chooses say little; a larger --holdout gives more"
        )
    commonest = max(map(sum, zip(*summary["counts"], strict=True))) / area["n"]
    if summary["figures"]["accuracy"]["value"] <= commonest:
        lines.append(f"the accuracy is no better than always giving the commonest class, {commonest:.1%}")
    return lines + describe_confounders(summary["confounders"], "auroc")


def figure_rows(summary: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    several = len(summary["classes"]) > 2  # their AUC has one interval, by bootstrap
    figures = {name: own for name, own in summary["figures"].items() if not (several and name == "auroc_bootstrap")}
    meanings = {name: meaning for name, (_, meaning) in NAMES.items()} | ({"auroc": MEAN_AUROC} if several else {})
    rows = [(NAMES[name][0], shown(own["value"]), interval(own), meanings[name]) for name, own in figures.items()]
    within = (NAMES["auroc_within"][0], shown(summary["within_folds"]), "–", NAMES["auroc_within"][1])
    after = 1 if several else 2
    return [*rows[:after], within, *rows[after:]]


def calibration_html(drawn: dict[str, str], summary: dict[str, Any]) -> str:
    if "reliability" not in drawn:
        return "<p>Of each class against the rest: see the table of classes.</p>"
    chosen = ", ".join(f"{own:.3f}" for own in next(iter(summary["thresholds"].values())))
    return (
        f'<div class="pair"><figure>{drawn["reliability"]}</figure><p>On the line, probabilities mean what they say. '
        f"Thresholds for sensitivity and specificity, chosen in each fold by Youden’s index: {chosen}.</p></div>"
    )


def permutation_html(test: dict[str, Any]) -> str:
    return (
        f"<p>Labels were exchanged between patients of the same fold {test['permutations']:,} times. By pairs within "
        f"folds the AUC is {test['value']:.4f}; exchanged labels give {test['chance']:.4f} on average, and as much or "
        f"more with p {test['p']:.4f}. This asks whether these predictions go with the labels better than by chance. "
        "The networks were not trained again on exchanged labels: it does not test the way to the predictions, such as "
        "a choice of settings by these figures.</p>"
    )


def confounder_table(summary: dict[str, Any]) -> str:
    if not summary["confounders"]:
        return (
            "<p>The data has no column of sites or scanners, and all files have one size: nothing could be tested.</p>"
        )
    rows = [(row["name"], shown(row["auroc"]), shown(row["p"], ".3f")) for row in summary["confounders"]]
    return (
        "<p>A small decision tree sees only this of each sample, never the picture, and predicts the label of the "
        "folds it was not fitted on. The AUC is by pairs within folds, p from permuted labels.</p>"
        + table(("known beside the picture", "AUC", "p"), rows)
    )


def class_table(summary: dict[str, Any]) -> str:
    names = ("auroc", "sensitivity", "specificity", "calibration_intercept", "calibration_slope")
    rows = [(name, *(with_interval(row[m]) for m in names)) for name, row in summary["per_class"].items()]
    return table(("class against the rest", *(NAMES[m][0] for m in names)), rows)


@style()
def fold_figure(values: list[float | None], area: dict[str, Any], within: float) -> str:
    """The AUC of each fold, and the pooled one with its interval."""
    figure = canvas(5.6, 2.6)
    ax = figure.subplots()
    known = [(n, value) for n, value in enumerate(values, start=1) if value is not None]
    ax.axhspan(area["low"], area["high"], color=BLUE, alpha=0.15, linewidth=0)
    ax.axhline(area["value"], color=BLUE, linewidth=1)
    ax.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    ax.plot([n for n, _ in known], [value for _, value in known], "o", color=BLUE)
    ax.set_xticks(range(1, len(values) + 1))
    ax.set_ylim(min(0.4, *(value for _, value in known)) - 0.02, 1.02)
    dress(ax, "fold (dots); band: pooled, 95 % interval", "AUC")
    return to_svg(figure)
