"""Accuracy of a classifier on corrupted images: by kind and severity, their mean, and relative to clean images."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.console import columns
from regard.data import Loader, Preparation, Source
from regard.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from regard.errors import ConfigError
from regard.evaluation import run_over
from regard.metrics import Figure
from regard.networks.base import Network
from regard.tasks.classification.loss import probabilities


@dataclass(frozen=True)
class Robustness:
    """Which samples are right under each corruption; `index` is their order."""

    clean: np.ndarray
    """(samples,) true where the clean image is right."""
    right: dict[tuple[str, int], np.ndarray]
    """The same by corruption and severity."""

    def of(self, kept: np.ndarray) -> Robustness:
        return Robustness(self.clean[kept], {case: own[kept] for case, own in self.right.items()})

    @property
    def mean(self) -> Figure:
        """Accuracy over all corruptions and severities, with a 95 % interval over images."""
        each = np.mean(list(self.right.values()), axis=0)
        value, n = float(each.mean()), len(each)
        half = 1.96 * float(each.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
        return Figure(value, max(0.0, value - half), min(1.0, value + half), n)

    @property
    def relative(self) -> float:
        """The mean as a share of the accuracy on clean images."""
        clean = float(self.clean.mean())
        return self.mean.value / clean if clean else float("nan")

    def accuracy(self, kind: str) -> list[float]:
        """By severity."""
        return [float(self.right[kind, severity].mean()) for severity in SEVERITIES]

    def describe(self) -> str:
        clean, rows = float(self.clean.mean()), list[tuple[str, ...]]()
        for kind in CORRUPTIONS:
            own = self.accuracy(kind)
            mean = statistics.fmean(own)
            share = f"{mean / clean:.0%}" if clean else "–"
            rows.append((kind, *(f"{value:.3f}" for value in own), f"{mean:.3f}", share))
        f = self.mean
        head = ("corruption", *(f"severity {n}" for n in SEVERITIES), "mean", "of clean")
        told = (
            f"corrupted, mean: {f.value:.4f} ({f.low:.4f} to {f.high:.4f}), {self.relative:.0%} of clean, {clean:.4f}"
        )
        return columns(head, rows) + "\n" + told

    def to_json(self) -> dict[str, Any]:
        return {
            "clean": float(self.clean.mean()), "mean": self.mean._asdict(), "relative": self.relative,
            "accuracy": {kind: self.accuracy(kind) for kind in CORRUPTIONS},
        }  # fmt: skip


def robustness(
    model: Network, loader: Callable[[], Loader], preparation: Preparation, source: Source, labels: np.ndarray,
    clean: np.ndarray, device: torch.device, tick: Callable[..., None],
) -> Robustness:  # fmt: skip
    """Predictions on every corruption of what the loader gives; `labels` are in the model's classes."""
    if len(preparation.size) != 2:
        raise ConfigError("corruptions are of pictures, not of volumes", do="leave --corruptions out")
    right = dict[tuple[str, int], np.ndarray]()
    for kind in CORRUPTIONS:
        for severity in SEVERITIES:

            def answer(x: Tensor, numbers: Tensor, kind: str = kind, severity: int = severity) -> Tensor:
                keys = [source.samples[n].key for n in numbers.tolist()]
                pictures = corrupt(preparation.shown(x), kind, severity, keys)
                return probabilities(model(preparation.normalised(pictures), class_token_only=True))

            probs, _, _ = run_over(model, answer, loader(), preparation, device, lambda *_: None)
            right[kind, severity] = probs.argmax(1) == labels
            tick(len(right), f"{kind} {severity}")
    return Robustness(clean, right)
