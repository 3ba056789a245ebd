"""Predictions of a classifier over a whole split, and the figures they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.console import columns, with_interval
from regard.data import Loader, Preparation, Source
from regard.evaluation import left_out_words, run_over, whole_json
from regard.evaluation.pixel_baseline import pixel_doubts
from regard.metrics import Figure, Summary, summarise
from regard.metrics.folds import calibration_line
from regard.tasks.classification.loss import probabilities
from regard.tasks.classification.robustness import Robustness

FAR_BELOW = 0.05
"""How far the interval of the test accuracy may lie below the validation accuracy before that is said."""


@dataclass(frozen=True)
class Evaluation:
    """Figures with intervals, and every prediction behind them."""

    summary: Summary
    classes: tuple[str, ...]
    keys: list[str]
    index: np.ndarray
    labels: np.ndarray
    probs: np.ndarray
    whole: Evaluation | None = None
    """With the samples that the model has seen, where these are left out."""
    robustness: Robustness | None = None
    """Accuracy on corrupted images, where that was asked for."""

    def without(self, seen: set[int]) -> Evaluation:
        """The same without these samples of the dataset."""
        kept = np.flatnonzero(~np.isin(self.index, list(seen)))
        labels, probs = self.labels[kept], self.probs[kept]
        keys, summary = [self.keys[n] for n in kept], summarise(probs, labels, self.classes)
        corrupted = self.robustness.of(kept) if self.robustness else None
        return Evaluation(summary, self.classes, keys, self.index[kept], labels, probs, self, corrupted)

    @staticmethod
    def mean_of(each: Sequence[Evaluation]) -> Evaluation:
        """Of the mean of several models' probabilities."""
        first, probs = each[0], np.mean([own.probs for own in each], axis=0)
        return replace(first, summary=summarise(probs, first.labels, first.classes), probs=probs)

    def recalibration(self) -> dict[str, Figure]:
        """Calibration in the large and slope: of two classes of the second, of several of each against the rest."""
        made: dict[str, Figure] = {}
        for c in range(1 if len(self.classes) == 2 else 0, len(self.classes)):
            line, suffix = calibration_line(self.probs[:, c], self.labels == c), f"_{self.classes[c]}"
            suffix = "" if len(self.classes) == 2 else suffix
            made |= {f"calibration_intercept{suffix}": line.intercept, f"calibration_slope{suffix}": line.slope}
        return made

    @property
    def figures(self) -> dict[str, Figure]:
        return self.summary.figures

    def predictions(self) -> list[dict[str, Any]]:
        """One row per sample: name, truth, prediction, and the probability of each class (up to 100 of them)."""
        named = self.classes if len(self.classes) <= 100 else ()
        return [
            {
                "name": key,
                "label": self.classes[label],
                "predicted": self.classes[int(row.argmax())],
                "confidence": f"{row.max():.6f}",
                **{f"p_{name}": f"{p:.6f}" for name, p in zip(named, row[: len(named)], strict=True)},
            }
            for key, label, row in zip(self.keys, self.labels, self.probs, strict=True)
        ]

    def examples(self) -> list[list[int]]:
        """Samples by what they tell, the most telling first: confident mistakes, unsure answers, confident hits.

        Of hits, the first of every class come first.
        """
        confidence, right = self.probs.max(1), self.probs.argmax(1) == self.labels
        ranked = np.argsort(-confidence, kind="stable")
        hits, turns = list[tuple[int, int]](), Counter[int]()
        for n in ranked[right[ranked]].tolist():
            hits.append((turns[int(self.labels[n])], n))
            turns[int(self.labels[n])] += 1
        confident = [n for _, n in sorted(hits, key=lambda hit: hit[0])]
        return [ranked[~right[ranked]].tolist(), ranked[::-1].tolist(), confident]

    def describe(self) -> str:
        """Per class, and the confusion matrix of up to 20 classes."""
        measures = ("recall", "precision", "auroc")
        text = ""
        if self.whole:
            accuracy = with_interval(self.whole.figures["accuracy"]._asdict(), ".4f")
            text = left_out_words(self.whole, len(self.keys), f"accuracy {accuracy}") + "\n\n"
        text += columns(("class", "n", *measures), [
            (name, row["recall"].n, *(with_interval(row[m]._asdict()) for m in measures))
            for name, row in self.summary.per_class.items()
        ])  # fmt: skip
        if len(self.classes) <= 20:
            rows = [(name, *row) for name, row in zip(self.classes, self.summary.confusion, strict=True)]
            text += "\n\nconfusion (rows true, columns predicted)\n" + columns(("", *self.classes), rows)
        if self.robustness:
            text += "\n\n" + self.robustness.describe()
        return text

    def to_json(self) -> dict[str, Any]:
        """The figures, ready for summary.json."""
        per_class = {
            name: {measure: figure._asdict() for measure, figure in row.items()}
            for name, row in self.summary.per_class.items()
        }
        return {
            "figures": {name: figure._asdict() for name, figure in self.figures.items()},
            "per_class": per_class,
            "confusion": self.summary.confusion.tolist(),
            "reliability": self.summary.reliability.tolist(),
            **({"whole": whole_json(self.whole, len(self.keys))} if self.whole else {}),
            **({"corruptions": self.robustness.to_json()} if self.robustness else {}),
        }


def doubts(summary: dict[str, Any]) -> list[str]:
    """Whether a run's accuracy is below what needs no learning, or far below what validation promised.

    The balanced accuracy takes its place in a run whose weights were chosen by it.
    """
    name = next((name for name in summary["figures"] if f"val_{name}" in summary), "accuracy")
    accuracy, lines = summary["figures"][name], []
    counts, split = np.array(summary["confusion"]).sum(1), summary["split"]
    on, share = f" on {split}" if split else "", counts.max() / counts.sum()
    commonest = float(share if name == "accuracy" else 1 / (counts > 0).sum())
    said = f"{name.replace('_', ' ')}{on} is {accuracy['value']:.1%}"
    if accuracy["value"] < commonest:
        lines.append(f"{said}, less than always giving the commonest class: {commonest:.1%}")
    validated = summary.get(f"val_{name}")
    if split != "val" and validated is not None and accuracy["high"] < validated - FAR_BELOW:
        lines.append(
            f"{said}, far below the {validated:.1%} on val: these images are of another kind than those of val, or val "
            "holds images like those of training"
        )
    return lines + pixel_doubts(summary, name, ".1%")


def predict_loader(
    model: nn.Module,
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[[int, str], None] = lambda done, note="": None,
    mirror: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities (N, classes), labels (N,) and sample numbers (N,), in the loader's order.

    With `mirror`, the mean of what an image and its mirror image give.
    """

    def answer(x: Tensor, _: Tensor) -> Tensor:
        views = (x, x.flip(2 if x.ndim == 5 else 3)) if mirror else (x,)  # left and right, of volumes their first axis
        return torch.stack([probabilities(model(view, class_token_only=True)) for view in views]).mean(0)

    return run_over(model, answer, loader, preparation, device, tick)


def quick_figures(
    model: nn.Module,
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[..., None] = lambda *_: None,
    sums: Callable[[list[float]], list[float]] = lambda numbers: numbers,
) -> dict[str, float]:
    """What the training loop needs to choose by: accuracy, balanced accuracy and log loss, without intervals.

    `sums` adds numbers up over the processes that share the loader's batches.
    """
    probs, labels, _ = predict_loader(model, loader, preparation, device, tick)
    own = np.clip(probs[np.arange(len(labels)), labels], 1e-12, 1)
    right, classes = labels[probs.argmax(1) == labels], probs.shape[1]
    parts = (np.bincount(right, minlength=classes), np.bincount(labels, minlength=classes), [-np.log(own).sum()])
    hits, counts, lost = np.split(np.array(sums(np.concatenate(parts).tolist())), [classes, 2 * classes])
    recalls = hits[counts > 0] / counts[counts > 0]
    return {
        "accuracy": float(hits.sum() / counts.sum()),
        "balanced_accuracy": float(recalls.mean()),
        "loss": float(lost[0] / counts.sum()),
    }


def evaluate(
    model: nn.Module,
    loader: Loader,
    preparation: Preparation,
    source: Source,
    classes: tuple[str, ...],
    device: torch.device,
    tick: Callable[[int, str], None] = lambda done, note="": None,
    mirror: bool = False,
) -> Evaluation:
    """Figures with intervals over everything the loader gives. The source's classes are matched by name."""
    probs, labels, index = predict_loader(model, loader, preparation, device, tick, mirror)
    labels = np.array([classes.index(source.classes[label]) for label in labels])
    keys = [source.samples[i].key for i in index]
    return Evaluation(summarise(probs, labels, classes), classes, keys, index, labels, probs)
