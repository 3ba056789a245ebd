"""Classification: one label an image, as probabilities over classes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError, RunError


class Learning(Protocol):
    """What the training loop needs to know of a task, and all it knows."""

    def output(self, model: Callable[..., Any], x: Tensor, targets: Tensor) -> Any: ...

    def loss(self, output: Any, targets: Tensor) -> Tensor: ...

    def amount(self, targets: Tensor) -> Tensor | int:
        """Over how many equal things `loss` takes the mean."""
        ...


class Task(Learning, Protocol):
    """What the evaluators and the explanations need beside that: a task with classes."""

    def probabilities(self, output: Any) -> Tensor: ...

    def scores(self, output: Any) -> Tensor: ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy against soft targets, with label smoothing.

    "bce" asks of each class by itself whether it is there (Wightman et al., "ResNet strikes back", 2021), mean over
    classes; probabilities are the softmax all the same, since an image has one label.
    """

    smoothing: float = 0.0
    kind: Literal["softmax", "bce"] = "softmax"

    def output(self, model: Callable[..., Any], x: Tensor, targets: Tensor) -> Any:
        return model(x, class_token_only=True)

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        logits = output.logits.float()
        if self.kind == "softmax":
            return F.cross_entropy(logits, targets, label_smoothing=self.smoothing)
        targets = targets * (1 - self.smoothing) + self.smoothing / targets.shape[-1]
        return F.binary_cross_entropy_with_logits(logits, targets)

    def amount(self, targets: Tensor) -> int:
        return len(targets)

    def probabilities(self, output: Any) -> Tensor:
        return output.logits.float().softmax(-1)

    def scores(self, output: Any) -> Tensor:
        """What explanations explain: the logits, which do not saturate."""
        return output.logits.float()


@dataclass(frozen=True)
class Prediction:
    """One image's answer: the likeliest label, and the probability of every class, likeliest first."""

    name: str
    label: str
    probs: dict[str, float]

    @property
    def confidence(self) -> float:
        return self.probs[self.label]

    @staticmethod
    def of(name: str, probabilities: Tensor, classes: tuple[str, ...]) -> Prediction:
        ranked = torch.argsort(probabilities, descending=True, stable=True).tolist()
        return Prediction(name, classes[ranked[0]], {classes[c]: float(probabilities[c]) for c in ranked})


def check_ending(path: Path) -> None:
    if path.suffix not in (".csv", ".json"):
        raise ConfigError(f"predictions are not written as {path.suffix or 'nothing'}", do="end --out in .csv or .json")


def save_predictions(predictions: Sequence[Prediction], path: Path) -> Path:
    """Write predictions to a .csv or .json file, one row an image, a column or key a class."""
    check_ending(path)
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"the predictions could not be written: {error}", where=path) from None
    return path
