"""Settings of regression, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError
from regard.image_groups import Augment, ImageData, PixelOptions
from regard.setting_groups import Group, NoOptions, Transfer, setting
from regard.settings import ImageRunConfig
from regard.tasks.image_options import ImageExplainOptions, LoadOptions

HELP = {"target": "numbers: --column"}


@dataclass(frozen=True)
class NumberData(ImageData):
    column: str = setting(
        "",
        "Column of the table that holds the number to predict; several separated by commas: age,weight.",
        common=True,
        opens=True,
    )

    @property
    def needed(self) -> tuple[str, ...]:
        return self.columns if self.column else ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to predict, in order."""
        if not self.column:
            raise ConfigError("no column is named to predict", do="give --column such as age")
        names = tuple(name.strip() for name in self.column.split(","))
        if not all(names) or len(set(names)) < len(names):
            raise ConfigError(
                f"column={self.column!r} names nothing, or one column twice", do="give --column such as age,weight"
            )
        return names


@dataclass(frozen=True)
class Options(PixelOptions):
    title: ClassVar[str] = "regression"
    loss: Literal["huber", "squared"] = setting(
        "huber", "Huber loss, which outliers move less, or squared error; of standardised numbers."
    )
    huber_delta: float = setting(1.0, "Where the Huber loss becomes linear, in standard deviations.", least=1e-6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "squared" and self.huber_delta != 1.0:
            raise ConfigError("huber_delta is for the Huber loss", do="leave --huber-delta out, or give --loss huber")


@dataclass(frozen=True)
class Config(ImageRunConfig):
    """Everything that decides a run of regression."""

    task_name: ClassVar[str] = "regression"
    data: NumberData = field(default_factory=NumberData)
    transfer: Transfer = field(default_factory=Transfer)
    augment: Augment = field(default_factory=Augment)
    task: Options = field(default_factory=Options)


@dataclass(frozen=True)
class EvalOptions(Group):
    title: ClassVar[str] = "regression"
    batch_size: int = setting(64, "Images per batch.", least=1)


PredictOptions = NoOptions
ExplainOptions = ImageExplainOptions

__all__ = ["RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "recognise"]


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    """By the column that is asked for."""
    return f"the numbers in the column {asked['column']}" if asked.get("column") else None


def regression() -> Config:
    """A number per picture, from scratch; network, size and length are chosen from the data, as for classes.

    regard train scans.csv --column age

    Cost and error depend on the data. Colours and brightness are left alone: a number may depend on them.
    """
    return Config.of(optimizer="muon", lr=2e-3, weight_decay=0.4, drop_path=0.1)


def regression_plain() -> Config:
    """A network as published, from scratch, with AdamW: to compare with.

    regard train scans.csv --column age --recipe regression_plain
    """
    return Config()


def regression_finetune() -> Config:
    """From trained weights: AdamW at a low rate, rates falling from block to block.

    regard train scans.csv --column age --from B_16.npz
    """
    return Config.of(epochs=40, lr=1e-4, layer_decay=0.75, weight_decay=0.05)


RECIPES: dict[str, Callable[[], Config]] = {f.__name__: f for f in (regression, regression_plain, regression_finetune)}
