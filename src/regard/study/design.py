"""A study's design: its arms, numbers of training images and seeds, as a list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regard import registry, tasks
from regard.errors import ConfigError
from regard.run.settle import check_settings


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    arm: str
    images: int | None
    """Number of training images; None: all."""
    seed: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of its run folder."""
        return f"{self.arm}-{self.images or 'all'}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.arm}, {f'{self.images:,}' if self.images else 'all'} images, seed {self.seed}"


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
    """Numbers of training images; empty: all images."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of `regard train` that all runs share."""
    command: Literal["train", "pretrain"] = "train"
    """What makes the runs on `data`."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} must be at least 1", do="3 or more show the noise")
        if list(self.sizes) != sorted(set(self.sizes)) or min(self.sizes, default=1) < 1:
            raise ConfigError(f"sizes={self.sizes} do not rise", do="give whole numbers in rising order, each once")
        for name in ("seed", "images"):
            if name in self.settings:
                raise ConfigError(f"a study sets {name} itself", do="give --seeds and --sizes")
        for fields in self.arms.values():
            for name in fields.keys() & self.settings.keys():
                raise ConfigError(f"{name} is what this study compares", do=f"leave --{name} out")
            check_settings(tasks.choose(self.data, self.settings | fields, self.command)[0], self.settings | fields)

    def trials(self) -> list[Trial]:
        """Ordered by seed, so that a stopped study has complete comparisons."""
        return [
            Trial(arm, images, seed, self.settings | fields | {"seed": seed, "images": images})
            for seed in range(self.seeds)
            for images in self.sizes or (None,)
            for arm, fields in self.arms.items()
        ]


def data_size(
    data: str | Path,
    models: Sequence[str] = ("vit_nano", "resnet_nano"),
    sizes: Sequence[int] = (),
    *,
    seeds: int = 3,
    out: str | Path | None = None,
    **settings: Any,
) -> Study:
    """Test accuracy against the number of training images: the ViT paper's Figures 3 and 4.

    >>> study = data_size("digits", ("vit_nano", "mlp_nano"), (100, 200), seeds=2, out="x", steps=500)
    >>> len(study.trials()), str(study.trials()[0])
    (8, 'vit_nano, 100 images, seed 0')
    """
    for model in models:
        registry.find(model)
    return Study(
        "data-size", str(data), {m: {"model": m} for m in models}, seeds, _place(out, data, "data-size"), tuple(sizes),
        settings,
    )  # fmt: skip


def positions(
    data: str | Path, sizes: Sequence[int] = (), *, seeds: int = 3, out: str | Path | None = None, **settings: Any
) -> Study:
    """Accuracy by position embeddings: none, learned (1D), axial (2D) or sinusoidal; the ViT paper's Table 8."""
    arms = {kind: {"positions": kind} for kind in ("learned", "none", "axial", "sinusoidal")}
    return Study("positions", str(data), arms, seeds, _place(out, data, "positions"), tuple(sizes), settings)


def norm(
    data: str | Path, sizes: Sequence[int] = (), *, seeds: int = 3, out: str | Path | None = None, **settings: Any
) -> Study:
    """Pre-norm, as in ViT, compared with post-norm, as in the first Transformer."""
    arms = {kind: {"norm": kind} for kind in ("pre", "post")}
    return Study("norm", str(data), arms, seeds, _place(out, data, "norm"), tuple(sizes), settings)


def _place(out: str | Path | None, data: str | Path, kind: str) -> Path:
    return Path(out or f"studies/{Path(data).stem}-{kind}").expanduser()
