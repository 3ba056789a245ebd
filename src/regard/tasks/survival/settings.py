"""Settings of survival, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError
from regard.image_groups import ImageData, PixelOptions, Variation
from regard.setting_groups import Group, NoOptions, Transfer, setting
from regard.settings import ImageRunConfig
from regard.tasks.image_options import ImageExplainOptions, LoadOptions

BINS = 10
HELP = {"target": "survival: --time and --event"}


@dataclass(frozen=True)
class SubjectData(ImageData):
    time: str = setting(
        "",
        "Column with the time to the event, or to the end of observation; --event says which.",
        common=True,
        opens=True,
    )
    event: str = setting(
        "",
        "Column that says whether the event was seen: 1 or true; 0 or false if censored.",
        common=True,
        opens=True,
    )
    clinical: str | None = setting(
        None, "Columns joined to the image's features, separated by commas: age,sex.", opens=True
    )

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(name for name in (self.time, self.event) if name)

    @property
    def clinical_columns(self) -> tuple[str, ...]:
        names = tuple(name.strip() for name in (self.clinical or "").split(",")) if self.clinical else ()
        if not all(names) or len({*names, self.time, self.event}) < len(names) + 2:
            what = f"clinical={self.clinical!r} names nothing, a column twice, or the time or event"
            raise ConfigError(what, do="give --clinical such as age,sex")
        return names

    def require_columns(self) -> None:
        for name, flag in ((self.time, "--time"), (self.event, "--event")):
            if not name:
                do = "give --time days --event died, say, the columns of the table"
                raise ConfigError(f"{flag} is missing: survival needs a time and an event", do=do)
        if self.time == self.event:
            raise ConfigError(f"time and event are both {self.time!r}", do="name two columns")


@dataclass(frozen=True)
class Options(PixelOptions):
    title: ClassVar[str] = "survival"
    loss: Literal["cox", "discrete"] = setting(
        "cox", "Cox's partial likelihood (proportional hazards), or hazards of discrete intervals of time."
    )
    ties: Literal["efron", "breslow"] | None = setting(
        None, "cox: how events at one time are counted. Default: Efron's way, which is the more exact."
    )
    bins: int | None = setting(
        None, f"discrete: intervals of time, with as many events in each. Default: {BINS}, or one per 10 events.",
        least=2,
    )  # fmt: skip
    horizon: float | None = setting(
        None, "Time at which AUC, calibration and predicted survival are given. Default: the median event's.",
        above=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ties is not None and self.loss != "cox":
            raise ConfigError("ties is for Cox's loss only", do="leave --ties out, or give --loss cox")
        if self.bins is not None and self.loss != "discrete":
            raise ConfigError("bins is for discrete hazards only", do="leave --bins out, or give --loss discrete")


@dataclass(frozen=True)
class Config(ImageRunConfig):
    """Everything that decides a run of survival."""

    task_name: ClassVar[str] = "survival"
    data: SubjectData = field(default_factory=SubjectData)
    transfer: Transfer = field(default_factory=Transfer)
    augment: Variation = field(default_factory=Variation)
    task: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.loss == "cox" and self.optim.accumulate > 1:
            raise ConfigError(
                "accumulate would cut the risk sets of Cox's loss into those of each batch",
                do="give a larger --batch-size, with --checkpointing if memory is short, or --loss discrete",
            )
        if self.task.loss == "cox" and self.data.batch_size == 1:
            raise ConfigError("a batch of one subject has no risk set", do="give a larger --batch-size")


@dataclass(frozen=True)
class EvalOptions(Group):
    title: ClassVar[str] = "survival"
    batch_size: int = setting(64, "Images per batch.", least=1)
    horizon: float | None = setting(
        None, "Time at which AUC, calibration and predicted survival are given. Default: the run's.", above=0
    )


PredictOptions = NoOptions
ExplainOptions = ImageExplainOptions

__all__ = ["RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "recognise"]


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    """By the columns that are asked for."""
    if not (asked.get("time") or asked.get("event")):
        return None
    return f"the time in the column {asked.get('time')} and the event in {asked.get('event')}"


def survival() -> Config:
    """A risk per picture or volume, from scratch; network, size and length are chosen from the data.

    regard train subjects.csv --time days --event died

    Cost and C-index depend on the data. Colours, brightness and scale are left alone: a risk may depend on them.
    """
    return Config.of(optimizer="muon", lr=2e-3, weight_decay=0.4, drop_path=0.1)


def survival_plain() -> Config:
    """A network as published, from scratch, with AdamW: to compare with.

    regard train subjects.csv --time days --event died --recipe survival_plain
    """
    return Config()


def survival_finetune() -> Config:
    """From trained weights: AdamW at a low rate, rates falling from block to block.

    regard train subjects.csv --time days --event died --from B_16.npz
    """
    return Config.of(epochs=40, lr=1e-4, layer_decay=0.75, weight_decay=0.05)


RECIPES: dict[str, Callable[[], Config]] = {f.__name__: f for f in (survival, survival_plain, survival_finetune)}
