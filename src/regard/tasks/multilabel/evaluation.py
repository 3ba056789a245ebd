"""Predicted labels of a whole split, and their figures: of each label where it is known, and the means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.console import columns, with_interval
from regard.errors import ConfigError
from regard.evaluation import left_out_words, whole_json
from regard.evaluation.pixel_baseline import pixel_doubts
from regard.metrics import Comparison, Figure, Summary, paired_bootstrap, summarise
from regard.metrics.classification import weighted_aurocs, with_percentiles
from regard.metrics.folds import calibration_line, compare_class_areas
from regard.metrics.paired import mcnemar
from regard.tasks.multilabel.data import LABELS

RESAMPLES = 1000
EACH = ("auroc", "accuracy", "balanced_accuracy")
"""Figures that are given by label."""


@dataclass(frozen=True)
class LabelsEvaluation:
    """Figures with intervals, and every prediction behind them."""

    labels: LABELS
    keys: list[str]
    index: np.ndarray
    codes: np.ndarray
    """(N, labels): numbers of the true classes, -1 where a label is missing."""
    probs: list[np.ndarray]
    """Of each label (N, classes)."""
    summaries: dict[str, Summary]
    figures: dict[str, Figure]
    whole: LabelsEvaluation | None = None
    """With the samples that the model has seen, where these are left out."""

    @staticmethod
    def of(
        labels: LABELS, keys: list[str], index: np.ndarray, codes: np.ndarray, probs: list[np.ndarray]
    ) -> LabelsEvaluation:
        summaries = {
            label: summarise(own[codes[:, n] >= 0], codes[codes[:, n] >= 0, n], classes)
            for n, ((label, classes), own) in enumerate(zip(labels, probs, strict=True))
            if (codes[:, n] >= 0).any()
        }
        if not summaries:
            raise ConfigError("no label of these images is known", do="choose other data to test on")
        figures = {"auroc": mean_auroc(codes, probs, summaries), "accuracy": mean_accuracy(codes, probs, summaries)}
        for name in EACH:
            figures |= {f"{name}_{label}": own.figures[name] for label, own in summaries.items()}
        return LabelsEvaluation(labels, keys, index, codes, probs, summaries, figures)

    @staticmethod
    def mean_of(each: Sequence[LabelsEvaluation]) -> LabelsEvaluation:
        """Of the mean of several models' probabilities."""
        first = each[0]
        probs = [np.mean(own, axis=0) for own in zip(*(result.probs for result in each), strict=True)]
        return LabelsEvaluation.of(first.labels, first.keys, first.index, first.codes, probs)

    def recalibration(self) -> dict[str, Figure]:
        """By label, where it is known: calibration in the large and slope; of several classes, of each."""
        made: dict[str, Figure] = {}
        for n, ((label, classes), own) in enumerate(zip(self.labels, self.probs, strict=True)):
            known = self.codes[:, n] >= 0
            for c in (1,) if len(classes) == 2 else range(len(classes)):
                if known.any():
                    line = calibration_line(own[known, c], self.codes[known, n] == c)
                    name = label if len(classes) == 2 else f"{label}={classes[c]}"
                    made |= {f"calibration_intercept_{name}": line.intercept, f"calibration_slope_{name}": line.slope}
        return made

    def without(self, seen: set[int]) -> LabelsEvaluation:
        """The same without these samples of the dataset."""
        kept = np.flatnonzero(~np.isin(self.index, list(seen)))
        probs = [own[kept] for own in self.probs]
        made = LabelsEvaluation.of(self.labels, [self.keys[n] for n in kept], self.index[kept], self.codes[kept], probs)
        return replace(made, whole=self)

    def predictions(self) -> list[dict[str, Any]]:
        """One row per sample: of each label the truth (empty where missing), the prediction and probabilities."""
        rows = []
        for n, key in enumerate(self.keys):
            row: dict[str, Any] = {"name": key}
            for (label, classes), code, own in zip(self.labels, self.codes[n], self.probs, strict=True):
                row |= {label: "" if code < 0 else classes[code], f"predicted_{label}": classes[int(own[n].argmax())]}
                row |= {f"p_{label}={name}": f"{p:.6f}" for name, p in zip(classes, own[n], strict=True)}
            rows.append(row)
        return rows

    def examples(self) -> list[list[int]]:
        """By label, samples whose label is known: confident mistakes first, then confident hits."""
        made = []
        for n, own in enumerate(self.probs):
            right = own.argmax(1) == self.codes[:, n]
            ranked = [i for i in np.argsort(-own.max(1), kind="stable").tolist() if self.codes[i, n] >= 0]
            made.append(sorted(ranked, key=lambda i, right=right: bool(right[i])))
        return made

    def describe(self) -> str:
        """By label."""
        text = ""
        if self.whole:
            area = with_interval(self.whole.figures["auroc"]._asdict(), ".4f")
            text = left_out_words(self.whole, len(self.keys), f"mean AUROC {area}") + "\n\n"
        rows = [
            (label, own.figures["accuracy"].n, *(with_interval(own.figures[name]._asdict()) for name in EACH))
            for label, own in self.summaries.items()
        ]
        return text + columns(("label", "known", *EACH), rows)

    def to_json(self) -> dict[str, Any]:
        by_label = {
            label: {
                "figures": {name: figure._asdict() for name, figure in own.figures.items()},
                "confusion": own.confusion.tolist(),
                "reliability": own.reliability.tolist(),
            }
            for label, own in self.summaries.items()
        }
        figures = {name: figure._asdict() for name, figure in self.figures.items()}
        held = {"figures": figures, "labels": by_label}
        return held | ({"whole": whole_json(self.whole, len(self.keys))} if self.whole else {})


def label_auroc(probs: np.ndarray, codes: np.ndarray) -> float:
    """Of one label, where it is known: mean over the classes that occur, one against the rest; of two, the second's."""
    known = codes >= 0
    values = _aurocs(np.ones((1, int(known.sum()))), probs[known], codes[known])
    return float(values[0])


def _aurocs(weights: np.ndarray, probs: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """One per row of sample weights."""
    classes = [1] if probs.shape[1] == 2 else [c for c in range(probs.shape[1]) if 0 < (codes == c).sum() < len(codes)]
    if not classes or not 0 < (codes == classes[0]).sum() < len(codes):
        return np.full(len(weights), math.nan)
    each = np.stack([weighted_aurocs(weights, probs[:, c], codes == c) for c in classes])
    return np.ma.masked_invalid(each).mean(0).filled(math.nan)


def mean_auroc(codes: np.ndarray, probs: list[np.ndarray], summaries: Mapping[str, Summary]) -> Figure:
    """The labels' AUROCs, averaged; images are resampled with all of their labels, which go together."""
    weights = _weights(len(codes))
    known = codes >= 0
    each = [
        _aurocs(weights[:, known[:, n]], own[known[:, n]], codes[known[:, n], n])
        for n, own in enumerate(probs)
        if known[:, n].any()
    ]
    return _mean(each, [own.figures["auroc"] for own in summaries.values()], int(known.any(1).sum()))


def mean_accuracy(codes: np.ndarray, probs: list[np.ndarray], summaries: Mapping[str, Summary]) -> Figure:
    """The labels' accuracies, averaged, likewise."""
    weights = _weights(len(codes))
    known = codes >= 0
    with np.errstate(invalid="ignore", divide="ignore"):
        each = [
            weights @ (known[:, n] & (own.argmax(1) == codes[:, n])) / (weights @ known[:, n])
            for n, own in enumerate(probs)
            if known[:, n].any()
        ]
    return _mean(each, [own.figures["accuracy"] for own in summaries.values()], int(known.any(1).sum()))


def _weights(n: int) -> np.ndarray:
    """Row 0 counts every sample once; the other rows are the resamples."""
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return np.vstack([np.ones(n), draws])


def _mean(each: Sequence[np.ndarray], own: Sequence[Figure], n: int) -> Figure:
    """Over labels; where resamples do not vary, the limits are the means of the labels' own."""
    means = np.ma.masked_invalid(np.stack(each)).mean(0).filled(math.nan)
    made = with_percentiles(means[0], means[1:], n)
    if made.low < made.value < made.high:
        return made
    there = [figure for figure in own if not math.isnan(figure.value)]
    if not there:
        return Figure(math.nan, math.nan, math.nan, n)
    low, high = (float(np.mean([figure[part] for figure in there])) for part in (1, 2))
    return Figure(made.value, low, high, n)


def doubts(summary: dict[str, Any]) -> list[str]:
    """Which labels are not told apart better than by chance, or worse than the commonest class."""
    lines = []
    for label, held in summary["labels"].items():
        area, accuracy = held["figures"]["auroc"], held["figures"]["accuracy"]
        if area["value"] is not None and area["low"] <= 0.5 <= area["high"]:
            said = f"AUROC {area['value']:.2f}, 95 % interval {area['low']:.2f} to {area['high']:.2f}"
            lines.append(f"{label} may not be told apart at all: {said}")
        counts = np.array(held["confusion"]).sum(1)
        commonest = float(counts.max() / counts.sum())
        if accuracy["value"] < commonest:
            lines.append(
                f"{label}: accuracy {accuracy['value']:.1%}, less than always the commonest class: {commonest:.1%}"
            )
    return lines + pixel_doubts(summary, "auroc", ".3f")


def compare_labels(
    first: Sequence[Mapping[str, str]], second: Sequence[Mapping[str, str]], labels: Mapping[str, Sequence[str]]
) -> dict[str, Comparison]:
    """By label, second minus first where it is known: AUROCs, then accuracies."""
    made: dict[str, Comparison] = {}
    common = [label for label in labels if second and f"predicted_{label}" in second[0]]
    if not common:
        what = f"the second run does not predict {', '.join(labels)}"
        raise ConfigError(what, do="compare runs of the same --label-column")
    groups = np.array([row.get("patient") or f"sample {n}" for n, row in enumerate(first)])
    for label in common:
        known = np.array([bool(row[label]) for row in first])
        if known.any():
            pairs = [(a, b) for a, b in zip(first, second, strict=True) if a[label]]
            made |= _compare_label(label, list(labels[label]), pairs, groups[known])
    return dict(sorted(made.items(), key=lambda item: not item[0].startswith("auroc")))


def _compare_label(
    label: str, classes: list[str], pairs: list[tuple[Mapping[str, str], Mapping[str, str]]], groups: np.ndarray
) -> dict[str, Comparison]:
    """AUROC by DeLong's test, patients together (of several classes their mean, by bootstrap), and accuracy."""
    made: dict[str, Comparison] = {}
    right = [np.array([pair[n][label] == pair[n][f"predicted_{label}"] for pair in pairs]) for n in (0, 1)]
    gain = right[1].astype(float) - right[0].astype(float)
    difference, p = paired_bootstrap(len(gain), lambda index: gain[index].mean())
    made[f"accuracy_{label}"] = Comparison(difference, {"McNemar": mcnemar(*right), "paired bootstrap": p})
    names = [f"p_{label}={name}" for name in classes]
    if all(name in pairs[0][1] for name in names):
        scores = [np.array([[float(pair[n][name]) for name in names] for pair in pairs]) for n in (0, 1)]
        codes = np.array([classes.index(pair[0][label]) for pair in pairs])
        if areas := compare_class_areas(scores[0], scores[1], codes, groups):
            made[f"auroc_{label}"] = areas
    return made
