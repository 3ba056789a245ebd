"""A trained network of several labels: images in, a class with its probability for each label out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.console import columns
from regard.errors import ConfigError, RunError, did_you_mean
from regard.tasks.image_predictor import ImagePredictor
from regard.tasks.multilabel.data import LABELS
from regard.tasks.multilabel.loss import log_probabilities
from regard.weights import Checkpoint, to_csv, to_json, write_text


@dataclass(frozen=True)
class Labels:
    """One image's answers: the likeliest class of each label, and the probability of every one."""

    name: str
    labels: dict[str, str]
    probs: dict[str, dict[str, float]]

    def named(self, name: str) -> Labels:
        return replace(self, name=name)

    def is_right(self, label: str) -> bool | None:
        """Whether all of "mgmt=1, pten=0" are predicted."""
        return all(part in {f"{name}={own}" for name, own in self.labels.items()} for part in label.split(", "))

    def __str__(self) -> str:
        return ", ".join(f"{name}={own} {self.probs[name][own]:.1%}" for name, own in self.labels.items())


def output_names(labels: LABELS) -> tuple[str, ...]:
    """The network's outputs: every label with every class of it.

    >>> output_names((("mgmt", ("0", "1")), ("grade", ("G2", "G3"))))
    ('mgmt=0', 'mgmt=1', 'grade=G2', 'grade=G3')
    """
    return tuple(f"{label}={name}" for label, classes in labels for name in classes)


class LabelsPredictor(ImagePredictor):
    """What `regard.load` gives for a run with several labels; `classes` are the outputs, such as mgmt=1."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        super().__init__(checkpoint, device)
        try:
            held = checkpoint.details["labels"]
            self.labels: LABELS = tuple((str(label), tuple(map(str, classes))) for label, classes in held)
        except (KeyError, TypeError, ValueError):
            raise RunError("the checkpoint is damaged: it does not say which labels it predicts") from None
        if output_names(self.labels) != tuple(self.classes):
            raise RunError("the checkpoint is damaged: its labels are not its outputs")
        self.sizes = tuple(len(classes) for _, classes in self.labels)

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        return super().data_settings(data) | {"label_column": ",".join(label for label, _ in self.labels)}

    def answers(self, output: Any) -> Tensor:
        """Probabilities (B, outputs): those of each label add up to 1."""
        return log_probabilities(output, self.sizes).exp()

    def prediction(self, name: str, answer: Tensor) -> Labels:
        parts = zip(self.labels, answer.split(self.sizes), strict=True)
        probs = {label: dict(zip(classes, part.tolist(), strict=True)) for (label, classes), part in parts}
        return Labels(name, {label: max(own, key=own.__getitem__) for label, own in probs.items()}, probs)

    def target_number(self, target: str | None, answer: Tensor) -> int:
        """label=class; or a label alone, whose predicted class is meant; if none is said, the first label."""
        names = [label for label, _ in self.labels]
        if target is not None and target in self.classes:
            return self.classes.index(target)
        if target is not None and target not in names:
            do = did_you_mean(target, [*self.classes, *names])
            raise ConfigError(f"there is no label or class called {target!r}", do=do)
        number = 0 if target is None else names.index(target)
        start = sum(self.sizes[:number])
        return start + int(answer[start : start + self.sizes[number]].argmax())

    def show(self, predictions: Iterable[Labels]) -> None:
        rows = [(p.name, *(f"{own} {p.probs[name][own]:.1%}" for name, own in p.labels.items())) for p in predictions]
        if rows:
            print(columns(("image", *(label for label, _ in self.labels)), rows))

    def save(self, predictions: Iterable[Labels], path: Path) -> Path:
        rows: list[dict[str, Any]] = [
            {"name": p.name, **p.labels}
            | {f"p_{label}={name}": value for label, own in p.probs.items() for name, value in own.items()}
            for p in predictions
        ]
        write_text(path, to_json(rows) if path.suffix == ".json" else to_csv(rows))
        return path
