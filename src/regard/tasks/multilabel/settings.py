"""Settings of several labels, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError
from regard.image_groups import Augment, LabelColumnData, PixelOptions
from regard.setting_groups import Group, NoOptions, Transfer, setting
from regard.settings import ImageRunConfig
from regard.tasks.image_options import ImageExplainOptions, LoadOptions


@dataclass(frozen=True)
class Options(PixelOptions):
    title: ClassVar[str] = "several labels"
    label_smoothing: float = setting(0.1, "Probability spread over the wrong classes of a label.", least=0, below=1)
    class_weights: Literal["equal", "balanced"] = setting(
        "equal", "balanced: weigh classes of each label in the loss by one over their number of training images."
    )


@dataclass(frozen=True)
class Config(ImageRunConfig):
    """Everything that decides a run with several labels."""

    task_name: ClassVar[str] = "multilabel"
    data: LabelColumnData = field(default_factory=LabelColumnData)
    transfer: Transfer = field(default_factory=Transfer)
    augment: Augment = field(default_factory=Augment)
    task: Options = field(default_factory=Options)


@dataclass(frozen=True)
class EvalOptions(Group):
    title: ClassVar[str] = "several labels"
    batch_size: int = setting(64, "Images per batch.", least=1)


PredictOptions = NoOptions
ExplainOptions = ImageExplainOptions

__all__ = ["RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "recognise"]


RESERVED = {"name", "fold", "patient"}
"""Columns of predictions.csv."""


def label_names(data: LabelColumnData) -> tuple[str, ...]:
    """The columns of the labels, in order."""
    names = tuple(name.strip() for name in (data.label_column or "").split(","))
    if not all(names) or len(set(names)) < len(names) or len(names) < 2:
        what = f"label_column={data.label_column!r} does not name several columns, each once"
        raise ConfigError(what, do="give --label-column such as mgmt,pten,tertp")
    if taken := sorted(set(names) & RESERVED):
        what = f"a label cannot be called {', '.join(taken)}: predictions have columns of that name"
        raise ConfigError(what, do="rename the column")
    return names


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    """By several columns that are asked for."""
    column = asked.get("label_column")
    return f"the labels in the columns {column}" if isinstance(column, str) and "," in column else None


def multilabel() -> Config:
    """Several labels per image, from scratch; network, size and length are chosen from the data, as for one label.

    regard train subjects.csv --label-column mgmt,pten,tertp

    Cost and scores depend on the data.
    """
    return Config.of(
        optimizer="muon", lr=2e-3, weight_decay=0.4, policy="trivial", mixup=0.2, cutmix=1.0, drop_path=0.2,
    )  # fmt: skip


def multilabel_plain() -> Config:
    """A network as published, from scratch, with AdamW: to compare with.

    regard train subjects.csv --label-column mgmt,pten,tertp --recipe multilabel_plain
    """
    return Config()


def multilabel_finetune() -> Config:
    """From trained weights: AdamW at a low rate, rates falling from block to block.

    regard train subjects.csv --label-column mgmt,pten,tertp --from B_16.npz
    """
    return Config.of(epochs=40, lr=1e-4, layer_decay=0.75, policy="trivial", drop_path=0.1)


RECIPES: dict[str, Callable[[], Config]] = {f.__name__: f for f in (multilabel, multilabel_plain, multilabel_finetune)}
