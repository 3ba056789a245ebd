"""A trained estimator: images in, numbers out."""

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
from regard.weights import Checkpoint, to_csv, to_json, write_text


@dataclass(frozen=True)
class Estimate:
    """One image's numbers, by column."""

    name: str
    values: dict[str, float]

    @property
    def value(self) -> float:
        """The number, where there is one column."""
        if len(self.values) > 1:
            raise ConfigError(f"there are {len(self.values)} numbers: {', '.join(self.values)}", do="use values")
        return next(iter(self.values.values()))

    def named(self, name: str) -> Estimate:
        return replace(self, name=name)

    def is_right(self, label: str) -> None:
        """A number is near or far, not right or wrong."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())


class Estimator(ImagePredictor):
    """What `regard.load` gives for a run of regression; `classes` are the columns."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        super().__init__(checkpoint, device)
        try:
            scale = [[float(n) for n in checkpoint.details[name]] for name in ("mean", "std")]
            if {len(numbers) for numbers in scale} != {len(self.classes)}:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise RunError("the checkpoint is damaged: it does not say how its numbers are scaled") from None
        self.mean, self.std = (torch.tensor(numbers) for numbers in scale)

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        return super().data_settings(data) | {"column": ",".join(self.classes)}

    def answers(self, output: Any) -> Tensor:
        """In the units of the columns."""
        logits = output.logits.float()
        return logits * self.std.to(logits.device) + self.mean.to(logits.device)

    def watched(self, output: Any) -> Tensor:
        """In standard deviations, whatever the units."""
        return output.logits.float()

    def prediction(self, name: str, answer: Tensor) -> Estimate:
        return Estimate(name, dict(zip(self.classes, answer.tolist(), strict=True)))

    def target_number(self, target: str | None, answer: Tensor) -> int:
        """The first column, if none is said."""
        if target is not None and target not in self.classes:
            raise ConfigError(f"there is no column called {target!r}", do=did_you_mean(target, self.classes))
        return 0 if target is None else self.classes.index(target)

    def show(self, predictions: Iterable[Estimate]) -> None:
        rows = [(p.name, *(f"{value:.6g}" for value in p.values.values())) for p in predictions]
        if rows:
            print(columns(("image", *self.classes), rows))

    def save(self, predictions: Iterable[Estimate], path: Path) -> Path:
        rows = [{"name": p.name, **p.values} for p in predictions]
        write_text(path, to_json(rows) if path.suffix == ".json" else to_csv(rows))
        return path
