"""Groups of settings: frozen dataclasses whose fields have a default, a help text and a range. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    above: float | None = None,
    common: bool = False,
    opens: bool = False,
    weights: str = "",
    shows: bool = False,
    volumes: bool = False,
) -> Any:
    """A field of a group. Numbers lie between `least` and `most`, above `above` and below `below`.

    `common` ones are in the short help. Those that say what the data is (`opens`) are flags of `regard check` too.
    `weights` is the flag of one that names trained weights, which must be there. An option of `regard predict` that
    `shows` is for printing predictions and not for making them. Pictures do not have those of `volumes`.
    """
    about = {"help": help, "range": (least, most, below, above), "common": common, "opens": opens}
    about |= {"weights": weights, "shows": shows, "volumes": volumes}
    return field(default=default, metadata=about)


class Group:
    """Base of the groups: checks every number against its range."""

    title: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for entry in fields(self):  # pyright: ignore[reportArgumentType]
            _check_range(entry, getattr(self, entry.name))


def _check_range(entry: Field[Any], value: Any) -> None:
    least, most, below, above = entry.metadata.get("range", (None, None, None, None))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    flag = f"--{entry.name.replace('_', '-')}"
    if not math.isfinite(value):
        raise ConfigError(f"{entry.name}={value} is not a number", do=f"give {flag} a finite number")
    if least is not None and value < least:
        raise ConfigError(f"{entry.name}={value} is too small", do=f"give {flag} at least {least}")
    if above is not None and value <= above:
        raise ConfigError(f"{entry.name}={value} is too small", do=f"give {flag} more than {above}")
    if most is not None and value > most:
        raise ConfigError(f"{entry.name}={value} is out of range", do=f"give {flag} {least or 0} to {most}")
    if below is not None and value >= below:
        raise ConfigError(
            f"{entry.name}={value} is out of range", do=f"give {flag} {least or 0} up to, not including, {below}"
        )


@dataclass(frozen=True)
class Model(Group):
    """Which network, and the fields of its config that differ from its own."""

    title: ClassVar[str] = "model"
    model: str = setting(
        "vit_s16", "Name of the model; `regard models` lists them. Default: the recipe's.", common=True
    )
    shape: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The changed fields that are not None."""
        return {name: value for name, value in self.shape.items() if value is not None}


@dataclass(frozen=True)
class General(Group):
    title: ClassVar[str] = "general"
    recipe: str | None = setting(None, "Settings by name (below). Default: chosen by the data.", common=True)
    out: str | None = setting(
        None, "Run folder to make. Default: runs/DATA-MODEL, with a number if that exists.", common=True
    )
    seed: int = setting(
        0, "Seed of weights, order and augmentation; the same seed gives the same weights on a CPU.",
        least=0, below=2**31, common=True,
    )  # fmt: skip
    explain: int = setting(6, "Number of test samples explained in the report.", least=0)


@dataclass(frozen=True)
class Optim(Group):
    title: ClassVar[str] = "optimizer"
    epochs: int = setting(100, "Passes over the training data.", least=1, common=True)
    steps: int | None = setting(None, "Number of optimizer steps; overrides epochs.", least=1)
    minutes: float | None = setting(
        None, "Train for about this long: epochs are fitted to the speed of this machine.", least=0.01, common=True
    )
    accumulate: int = setting(1, "Batches per optimizer step: gradient accumulation.", least=1)
    optimizer: Literal["adamw", "muon", "sgd"] = setting(
        "adamw",
        "AdamW; Muon for the matrices of the blocks and AdamW for the rest; or SGD with momentum 0.9.",
    )
    lr: float = setting(1e-3, "Peak learning rate.", above=0, common=True)
    weight_decay: float = setting(0.05, "Weight decay, on matrices only.", least=0)
    warmup: float = setting(0.05, "Share of the steps over which the learning rate rises.", least=0, below=1)
    schedule: Literal["cosine", "inverse_sqrt", "drop"] = setting(
        "cosine", "How the learning rate falls after the warm-up; drop: to a tenth, for the last third."
    )
    ema: float = setting(
        0.998,
        "Decay of the exponential moving average of the weights, which is validated and saved; 0: off.",
        least=0,
        below=1,
    )
    choose: Literal["best", "last"] = setting(
        "best", "Which weights the run keeps: of the best epoch on validation data, or the last."
    )
    clip: float = setting(1.0, "Largest norm of the gradient; 0: no clipping.", least=0)


@dataclass(frozen=True)
class Machine(Group):
    title: ClassVar[str] = "machine"
    device: Literal["auto", "cpu", "cuda", "mps"] = setting(
        "auto", "Where to run. Default: a GPU if there is one.", common=True
    )
    precision: Literal["auto", "fp32", "bf16"] = setting("auto", "Default: bf16 on a GPU that supports it, else fp32.")
    compile: bool | None = setting(None, "torch.compile the blocks. Default: on a GPU only.")
    checkpointing: bool = setting(
        False, "Recompute activations in the backward pass: less memory, more time. Not with compile."
    )
    save_every: float = setting(
        30.0, "Seconds between saves of the state that `regard resume` reads; 0: every step.", least=0
    )
    keep: int = setting(0, "Number of latest epochs whose weights are kept, beside best and last.", least=0)
    nonfinite: Literal["stop", "skip"] = setting(
        "stop", "At a loss or gradient that is not finite: stop, or skip that step."
    )
    timeout: float = setting(600.0, "Seconds after which a process that does not answer is considered dead.", least=1)


@dataclass(frozen=True)
class Data(Group):
    title: ClassVar[str] = "data"
    split_seed: int = setting(0, "Seed of the split, where the data names none.", least=0, below=2**31)
    holdout: float = setting(
        0.15, "Share held out for val (and for test) where the data names no such split.", least=0, below=0.5
    )
    unreadable: float = setting(
        0.01, "Share of samples that may be unreadable; they are listed and left out.", least=0, below=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.holdout == 0:
            raise ConfigError("holdout=0 leaves nothing to choose and test on", do="give a share such as 0.15")


@dataclass(frozen=True)
class Transfer(Group):
    """Where the weights come from, and which of them train."""

    title: ClassVar[str] = "fine-tuning"
    weights: str | None = setting(
        None,
        "Start from these weights: a file of any public format, or a run. The model is inferred from it.",
        common=True,
        weights="--from",
    )
    freeze: int | Literal["all"] | None = setting(
        None, "Freeze the stem and this many first blocks, or all but the head.", least=0
    )
    lora: int | None = setting(None, "Freeze all but the head and learn low-rank updates (LoRA) of this rank.", least=1)
    inflation: Literal["mean", "centre"] | None = setting(
        None,
        "With --from weights of a model for pictures and --model one for volumes: kernels of patches fill their depth "
        "with equal shares (mean, the default), or the middle slice alone (centre).",
    )
    layer_decay: float = setting(
        1.0, "Factor on the learning rate from each block to the one before it, such as 0.75.", least=1e-9, most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze is not None and self.lora is not None:
            raise ConfigError("lora freezes all but the head, so freeze has nothing to add", do="choose one of them")
        for name in ("freeze", "lora"):
            if getattr(self, name) is not None and self.weights is None:
                raise ConfigError(f"{name} would freeze random weights", do="give trained ones by --from")
        if self.inflation is not None and self.weights is None:
            raise ConfigError("inflation needs trained weights", do="give those of a model for pictures by --from")


@dataclass(frozen=True)
class LandscapeOptions(Group):
    title: ClassVar[str] = "landscape"
    directions: int = setting(2, "Random directions: 2 for a surface, 1 for a line.", least=1, most=2)
    points: int = setting(17, "Points along each direction, an odd number.", least=3)
    span: float = setting(1.0, "How far to go: 1 is the length of the weights themselves.", above=0)
    samples: int = setting(256, "Number of samples that the loss is the mean of, in whole batches.", least=1)
    split: Literal["train", "val"] = setting("train", "Whose samples; they are augmented as in training.")
    seed: int = setting(0, "Seed of the directions.", least=0)
    data: str | None = setting(None, "The run's data, if it has been moved.")
    out: str | None = setting(
        None, "Folder for landscape.png, .svg, .csv and .json. Default: landscape in the run folder."
    )
    device: str = setting("auto", "cpu, cuda or auto.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points % 2 == 0:
            raise ConfigError(f"points={self.points} have none in the middle", do="give --points an odd number")


@dataclass(frozen=True)
class NoOptions(Group):
    """Of a command that takes none for a task."""
