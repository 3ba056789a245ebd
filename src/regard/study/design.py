"""A study's design: its arms, numbers of training images (or pairs of sentences) and seeds, as a list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard import registry, tasks
from regard.errors import ConfigError
from regard.run.settle import check_settings


class Measure(NamedTuple):
    """A test figure that a study compares, and how it is written.

    >>> print(ACCURACY.text(0.5), BLEU.text(3.25))
    50.00 % 3.25
    """

    key: str
    name: str
    unit: str = "points"
    """Of a difference."""
    scale: float = 100.0
    lower: bool = False
    """Whether less is better."""

    def text(self, value: float) -> str:
        return f"{self.scale * value:.2f}{' %' * (self.scale == 100)}"

    @property
    def axis(self) -> str:
        return self.name + " (%)" * (self.scale == 100)


ACCURACY = Measure("accuracy", "test accuracy")
BLEU = Measure("bleu", "test BLEU", "BLEU", 1.0)
PERPLEXITY = Measure("perplexity", "test perplexity", "of perplexity", 1.0, lower=True)


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    arm: str
    images: int | None
    """Number of training images, or pairs of sentences; None: all."""
    seed: int
    settings: dict[str, Any]
    samples: str = "images"

    @property
    def name(self) -> str:
        """Name of its run folder."""
        return f"{self.arm}-{self.images or 'all'}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.arm}, {f'{self.images:,}' if self.images else 'all'} {self.samples}, seed {self.seed}"


MODELS = {"images": ("vit_nano", "resnet_nano"), "pairs": ("transformer_nano", "rnn_nano")}


@dataclass(frozen=True)
class Study:
    """Every arm at every size with every seed; all other settings are the same."""

    kind: str
    data: str
    arms: dict[str, dict[str, Any]]
    """The settings of each arm, by name."""
    seeds: int
    out: Path
    sizes: tuple[int, ...] = ()
    """Numbers of training images or pairs; empty: all."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of `regard train` that all runs share."""
    command: Literal["train", "pretrain"] = "train"
    """What makes the runs on `data`."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} must be at least 1", do="3 or more show the noise")
        if list(self.sizes) != sorted(set(self.sizes)) or min(self.sizes, default=1) < 1:
            raise ConfigError(f"sizes={self.sizes} do not rise", do="give whole numbers in rising order, each once")
        for name in ("seed", "images", "pairs"):
            if name in self.settings:
                raise ConfigError(f"a study sets {name} itself", do="give --seeds and --sizes")
        for fields in self.arms.values():
            for name in fields.keys() & self.settings.keys():
                raise ConfigError(f"{name} is compared by this study itself", do=f"leave --{name} out")
            check_settings(tasks.choose(self.data, self.settings | fields, self.command)[0], self.settings | fields)

    @cached_property
    def samples(self) -> Literal["images", "pairs"]:
        """What it draws; the setting with their number is called the same."""
        return _samples(self.data, self.settings | next(iter(self.arms.values())), self.command)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What is compared; the first one is the main one."""
        return (ACCURACY,) if self.samples == "images" else (BLEU, PERPLEXITY)

    def trials(self) -> list[Trial]:
        """Ordered by seed, so that a stopped study has complete comparisons."""
        return [
            Trial(arm, images, seed, self.settings | fields | {"seed": seed, self.samples: images}, self.samples)
            for seed in range(self.seeds)
            for images in self.sizes or (None,)
            for arm, fields in self.arms.items()
        ]


def data_size(
    data: str | Path,
    models: Sequence[str] = (),
    sizes: Sequence[int] = (),
    *,
    seeds: int = 3,
    out: str | Path | None = None,
    **settings: Any,
) -> Study:
    """Test accuracy against the number of training images, or BLEU and perplexity against that of training pairs.

    Each run trains and tests on the same data; `transfer_size` has the ViT paper's Figures 3 and 4, which pre-train.
    `models` default to two of about the same size.

    >>> study = data_size("digits", ("vit_nano", "mlp_nano"), (100, 200), seeds=2, out="x", steps=500)
    >>> len(study.trials()), str(study.trials()[0])
    (8, 'vit_nano, 100 images, seed 0')
    """
    for model in models:
        registry.find(model)
    models = models or MODELS[_samples(str(data), settings)]
    return Study(
        "data-size", str(data), {m: {"model": m} for m in models}, seeds, _place(out, data, "data-size"), tuple(sizes),
        settings,
    )  # fmt: skip


def positions(
    data: str | Path, sizes: Sequence[int] = (), *, seeds: int = 3, out: str | Path | None = None, **settings: Any
) -> Study:
    """Accuracy by position embeddings: none, learned (1D), axial (2D) or sinusoidal; the ViT paper's Table 8.

    Of text, learned and sinusoidal ones: the Transformer paper's Table 3, row E.
    """
    text = _samples(str(data), settings) == "pairs"
    kinds = ("sinusoidal", "learned") if text else ("learned", "none", "axial", "sinusoidal")
    arms = {kind: {"positions": kind} for kind in kinds}
    return Study("positions", str(data), arms, seeds, _place(out, data, "positions"), tuple(sizes), settings)


def norm(
    data: str | Path, sizes: Sequence[int] = (), *, seeds: int = 3, out: str | Path | None = None, **settings: Any
) -> Study:
    """Pre-norm, as in ViT, compared with post-norm, as in the first Transformer."""
    arms = {kind: {"norm": kind} for kind in ("pre", "post")}
    return Study("norm", str(data), arms, seeds, _place(out, data, "norm"), tuple(sizes), settings)


def _samples(data: str, settings: dict[str, Any], command: str = "train") -> Literal["images", "pairs"]:
    return "pairs" if tasks.choose(data, settings, command)[0].config.takes == "text" else "images"


def _place(out: str | Path | None, data: str | Path, kind: str) -> Path:
    return Path(out or f"studies/{Path(data).stem}-{kind}").expanduser()
