"""A trained survival model: images in, risks and survival curves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.console import columns
from regard.data.tables import read_table
from regard.data.volumes import Subject
from regard.data.volumes.inputs import TABLES
from regard.errors import ConfigError, DataError, did_you_mean
from regard.image_groups import ImageData
from regard.tasks.image_predictor import Image, ImagePredictor
from regard.tasks.survival.clinical import Clinical
from regard.tasks.survival.curves import Curves
from regard.weights import Checkpoint, to_csv, to_json, write_text

RISK = "risk"


@dataclass(frozen=True)
class Prognosis:
    """One subject's risk over time."""

    name: str
    logits: np.ndarray = field(repr=False)
    """(1, outputs)"""
    curves: Curves = field(repr=False)

    @property
    def risk(self) -> float:
        """Log-hazard relative to the median of the training set: 0.69 doubles the hazard."""
        return float(self.curves.risk(self.logits)[0])

    def survival(self, time: float | Sequence[float]) -> Any:
        """The probability of no event up to a time; an array for several."""
        made = self.curves.survival(self.logits, np.atleast_1d(np.asarray(time, dtype=float)))[0]
        return float(made[0]) if np.ndim(time) == 0 else made

    @property
    def median(self) -> float | None:
        """The time by which half of such subjects have the event; None if that is later than what was observed."""
        return self.curves.median(self.logits) if self.curves.fitted else None

    def named(self, name: str) -> Prognosis:
        return replace(self, name=name)

    def is_right(self, label: str) -> None:
        """A risk is neither right nor wrong of one subject."""

    def __str__(self) -> str:
        known, when = self.curves.fitted, self.curves.horizon
        return f"risk {self.risk:+.2f}" + (f", survival {self.survival(when):.0%} at {when:g}" if known else "")


class SurvivalPredictor(ImagePredictor):
    """What `regard.load` gives for a run of survival; `classes` are the risk and, of discrete hazards, intervals."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        super().__init__(checkpoint, device)
        details, outputs = checkpoint.details, len(checkpoint.classes)
        self.curves = Curves.of(details.get("curves"), outputs)
        held = details.get("clinical")
        self.clinical = None if held is None else Clinical.of(held, outputs)
        self.column_names = tuple(map(str, details.get("columns") or ("time", "event")))
        self.classes = (RISK,) if outputs == 1 else (RISK, *checkpoint.classes)
        self.known: dict[str, Mapping[str, str]] = {}
        """Clinical values by the name of an image, from tables that were given."""

    def data_settings(self, data: str | Path) -> dict[str, Any]:
        time, event, *clinical = self.column_names
        own = super().data_settings(data) | {"time": time, "event": event}
        return own | ({"clinical": ",".join(clinical)} if clinical else {})

    def answers(self, output: Any) -> Tensor:
        """The image's part of the logits: clinical columns add to it."""
        return output.logits.float()

    def scores(self, output: Any) -> Tensor:
        """The risk; then each interval's logit, where there are several."""
        logits = output.logits.float()
        if logits.shape[1] == 1:
            return logits
        return torch.cat([F.softplus(logits).sum(1, keepdim=True).log(), logits], dim=1)

    def watched(self, output: Any) -> Tensor:
        return self.scores(output)

    def beside(self, name: str) -> np.ndarray | float:
        """What the clinical columns of an image add to its logits; those that are not known count as missing."""
        if self.clinical is None:
            return 0.0
        given = self.known.get(name, {})
        return self.clinical.effect({column.name: [given.get(column.name, "")] for column in self.clinical.columns})

    def prediction(self, name: str, answer: Tensor) -> Prognosis:
        return Prognosis(name, answer.numpy().astype(np.float64)[None] + self.beside(name), self.curves)

    def predict(self, image: Image, clinical: Mapping[str, Any] | None = None) -> Prognosis:
        """The prognosis of one image: a path, a Pillow image, or pixels; `clinical` are its values by column."""
        made = super().predict(image)
        if clinical is None:
            return made
        if self.clinical is None:
            raise ConfigError("the model has no clinical columns", do="leave them out")
        names = [column.name for column in self.clinical.columns]
        for name in clinical:
            if name not in names:
                raise ConfigError(f"the model has no clinical column {name!r}", do=did_you_mean(name, names))
        texts = {name: [str(clinical.get(name, ""))] for name in names}
        return replace(made, logits=made.logits - self.beside(made.name) + self.clinical.effect(texts))

    def inputs(self, words: Sequence[str]) -> Sequence[Image]:
        """Files, folders or globs; or one table with paths (or scans) and clinical columns."""
        table = Path(words[0]).expanduser() if len(words) == 1 else Path()
        if table.suffix.lower() not in TABLES:
            return super().inputs(words)
        header, columns, rows = read_table(table, ImageData())
        scans = self.preparation.scans
        if not scans and "path" not in columns:
            raise DataError("the table has no column for the path", where=table, do="call it path")
        images = super().inputs(words) if scans else [table.parent / row.texts[columns["path"]] for row in rows]
        needed = [column.name for column in self.clinical.columns] if self.clinical else []
        for name in needed:
            if name not in header:
                raise DataError(f"the table has no column {name!r}", where=table, do="add it; values may be missing")
        for image, row in zip(images, rows, strict=True):
            key = image.key if isinstance(image, Subject) else str(image)
            self.known[key] = {name: row.texts[name] for name in needed}
        return images

    def target_number(self, target: str | None, answer: Tensor) -> int:
        """The risk, if no interval is said."""
        if target is not None and target not in self.classes:
            raise ConfigError(f"there is no {target!r} to explain", do=did_you_mean(target, self.classes))
        return 0 if target is None else self.classes.index(target)

    def show(self, predictions: Iterable[Prognosis]) -> None:
        made = list(predictions)
        rows = [tuple(_shown(value) for value in row.values()) for row in map(self._row, made)]
        if rows:
            print(columns(("image", *list(self._row(made[0]))[1:]), rows))
        unknown = sum(p.name not in self.known for p in made) if self.clinical else 0
        if unknown:
            names = ", ".join(self.column_names[2:])
            print(f"{names} of {unknown} images are not known and count as missing: give a table with these columns")

    def save(self, predictions: Iterable[Prognosis], path: Path) -> Path:
        rows = [self._row(p) for p in predictions]
        write_text(path, to_json(rows) if path.suffix == ".json" else to_csv(rows))
        return path

    def _row(self, made: Prognosis) -> dict[str, Any]:
        row: dict[str, Any] = {"name": made.name, "risk": made.risk}
        if self.curves.fitted:
            row |= {f"survival at {self.curves.horizon:g}": made.survival(self.curves.horizon), "median": made.median}
        return row


def _shown(value: Any) -> str:
    if value is None:
        return "not reached"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
