"""A trained classifier: images in, labels with probabilities out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.console import columns
from regard.errors import ConfigError, did_you_mean
from regard.tasks.classification.loss import probabilities
from regard.tasks.image_predictor import ImagePredictor
from regard.weights import write_text


@dataclass(frozen=True)
class Prediction:
    """One image's answer: the likeliest label, and the probability of every class, likeliest first."""

    name: str
    label: str
    probs: dict[str, float]

    def named(self, name: str) -> Prediction:
        return replace(self, name=name)

    def is_right(self, label: str) -> bool:
        return self.label == label

    def __str__(self) -> str:
        return f"{self.label} {self.confidence:.1%}"

    @property
    def confidence(self) -> float:
        return self.probs[self.label]

    @staticmethod
    def of(name: str, probabilities: Tensor, classes: tuple[str, ...]) -> Prediction:
        ranked = torch.argsort(probabilities, descending=True, stable=True).tolist()
        return Prediction(name, classes[ranked[0]], {classes[c]: float(probabilities[c]) for c in ranked})


class Classifier(ImagePredictor):
    """What `regard.load` gives for a classifier."""

    def require_answers(self) -> None:
        """Refuse to answer without a trained head or with one class only."""
        if self.headless:
            raise ConfigError(
                "the weights have no trained head: every class would be equally likely",
                do="measure its features by `regard probe`, or fine-tune it by `regard train DATA --from`",
            )
        if len(self.classes) < 2:
            raise ConfigError(
                "the network tells no classes apart: there is nothing to predict",
                do="one that was pre-trained without labels has features only: fine-tune it, or use `regard probe`",
            )

    def answers(self, output: Any) -> Tensor:
        return probabilities(output)

    def prediction(self, name: str, answer: Tensor) -> Prediction:
        return Prediction.of(name, answer, self.classes)

    def target_number(self, target: str | None, answer: Tensor) -> int:
        if target is not None and target not in self.classes:
            raise ConfigError(f"there is no class called {target!r}", do=did_you_mean(target, self.classes))
        return int(answer.argmax()) if target is None else self.classes.index(target)

    def show(self, predictions: Iterable[Prediction], top: int = 3) -> None:
        """A line per image: its `top` likeliest classes."""
        predictions = list(predictions)
        if predictions:
            top = min(top, len(predictions[0].probs))
            rows = [(a.name, *(f"{c} {p:.1%}" for c, p in list(a.probs.items())[:top])) for a in predictions]
            print(columns(("image", *(f"#{n + 1}" for n in range(top))), rows))

    def save(self, predictions: Iterable[Prediction], path: Path) -> Path:
        return save_predictions(list(predictions), path)


def save_predictions(predictions: Sequence[Prediction], path: Path) -> Path:
    """Write predictions to a .csv or .json file, one row per image, a column or key per class."""
    if path.suffix == ".json":
        text = json.dumps([asdict(p) | {"confidence": p.confidence} for p in predictions], indent=2) + "\n"
    else:
        classes = sorted(predictions[0].probs) if predictions else []
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["name", "label", "confidence", *(f"p_{c}" for c in classes)])
        for p in predictions:
            writer.writerow([p.name, p.label, f"{p.confidence:.6f}", *(f"{p.probs[c]:.6f}" for c in classes)])
        text = lines.getvalue()
    write_text(path, text)
    return path
