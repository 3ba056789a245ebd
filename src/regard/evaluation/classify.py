"""Predictions over a whole split, and the figures they add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Loader, Preparation, Source, to_float
from regard.metrics import Figure, Summary, summarise
from regard.tasks import Task


@dataclass(frozen=True)
class Evaluation:
    """Figures with intervals, and every prediction behind them."""

    summary: Summary
    classes: tuple[str, ...]
    keys: list[str]
    index: np.ndarray
    labels: np.ndarray
    probs: np.ndarray

    @property
    def figures(self) -> dict[str, Figure]:
        return self.summary.figures

    def predictions(self) -> list[dict[str, Any]]:
        """One row a sample: name, truth, prediction, and the probability of each class (up to 100 of them)."""
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

    def examples(self, count: int) -> list[int]:
        """Up to `count` telling samples: half of them the most confident mistakes, then one right of each class."""
        confidence, right = self.probs.max(1), self.probs.argmax(1) == self.labels
        wrong = sorted(np.flatnonzero(~right).tolist(), key=lambda n: -confidence[n])
        firsts = [np.flatnonzero(right & (self.labels == c))[:1].tolist() for c in range(len(self.classes))]
        chosen = wrong[: count // 2] + [n for first in firsts for n in first]
        rest = [*np.flatnonzero(right).tolist(), *wrong[count // 2 :]]
        return list(dict.fromkeys(chosen + rest))[:count]

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
        }


def predict_loader(
    model: nn.Module,
    task: Task,
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
        views = (x, x.flip(-1)) if mirror else (x,)
        return torch.stack([task.probabilities(model(view, class_token_only=True)) for view in views]).mean(0)

    return run_over(model, answer, loader, preparation, device, tick)


def features_of(
    model: nn.Module,
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[[int, str], None] = lambda done, note="": None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the head sees (N, width), labels (N,) and sample numbers (N,), in the loader's order."""
    return run_over(
        model, lambda x, _: model(x, class_token_only=True).features.float(), loader, preparation, device, tick
    )


@torch.inference_mode()
def run_over(
    model: nn.Module,
    answer: Callable[[Tensor, Tensor], Tensor],
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[[int, str], None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `answer` gives for prepared images and their sample numbers; labels; and those numbers again."""
    training = model.training
    model.eval()
    parts: list[tuple[np.ndarray, ...]] = []
    try:
        for number, batch in enumerate(loader.epoch(0), start=1):
            x = preparation.normalised(to_float(batch.images.to(device)))
            answers = answer(x, batch.numbers).cpu()
            # Of a batch shared by several processes, one may hold a sample that counts elsewhere.
            own = slice(None if batch.steps[0][1] else 0)
            parts.append((answers.numpy()[own], batch.labels.numpy()[own], batch.numbers.numpy()[own]))
            tick(number, "")
    finally:
        model.train(training)
    answers, labels, index = (np.concatenate(column) for column in zip(*parts, strict=True))
    return answers, labels, index


def quick_figures(
    model: nn.Module,
    task: Task,
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[..., None] = lambda *_: None,
    sums: Callable[[list[float]], list[float]] = lambda numbers: numbers,
) -> dict[str, float]:
    """What the training loop needs to choose by: accuracy and log loss, without intervals.

    `sums` adds numbers up over the processes that share the loader's batches.
    """
    probs, labels, _ = predict_loader(model, task, loader, preparation, device, tick)
    own = np.clip(probs[np.arange(len(labels)), labels], 1e-12, 1)
    hits, lost, count = sums([float((probs.argmax(1) == labels).sum()), float(-np.log(own).sum()), len(labels)])
    return {"accuracy": hits / count, "loss": lost / count}


def evaluate(
    model: nn.Module,
    task: Task,
    loader: Loader,
    preparation: Preparation,
    source: Source,
    classes: tuple[str, ...],
    device: torch.device,
    tick: Callable[[int, str], None] = lambda done, note="": None,
    mirror: bool = False,
) -> Evaluation:
    """Figures with intervals over everything the loader gives. The source's classes are matched by name."""
    probs, labels, index = predict_loader(model, task, loader, preparation, device, tick, mirror)
    labels = np.array([classes.index(source.classes[label]) for label in labels])
    keys = [source.samples[i].key for i in index]
    return Evaluation(summarise(probs, labels, classes), classes, keys, index, labels, probs)
