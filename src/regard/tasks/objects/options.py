"""Settings and options that tasks on objects share. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.errors import ConfigError
from regard.setting_groups import Group, setting
from regard.tasks.image_options import MethodOptions


@dataclass(frozen=True)
class ObjectTransfer(Group):
    """Where the weights come from, and how fast the ResNet learns."""

    title: ClassVar[str] = "fine-tuning"
    weights: str | None = setting(
        None,
        "Start from these weights: a file of any public format, or a run. The model is inferred from it.",
        common=True,
        weights="--from",
    )
    backbone_rate: float | None = setting(
        None, "Factor on the learning rate of the ResNet. Default: 0.1 with --from, else 1.", above=0, most=10
    )


@dataclass(frozen=True)
class SetOptions(Group):
    """Of the set prediction loss."""

    no_object: float = setting(
        0.1, "Weight of the class for no object, where the classification is a softmax.", above=0, most=1
    )
    class_weight: float | None = setting(
        None,
        "Weight of the class term, beside L1 with 5 and generalised IoU with 2. Default: as published, 1 for softmax "
        "and varifocal, 2 for focal.",
        above=0,
        most=100,
    )
    one_to_many: int = setting(4, "Encoder tokens that each object is matched to, with two_stage.", least=1, most=100)


@dataclass(frozen=True)
class BoxPredictOptions(Group):
    title: ClassVar[str] = "boxes"
    threshold: float | None = setting(
        None, "Smallest score of a box. Default: the best one on the run's validation data, else 0.5.", least=0, most=1
    )
    draw: str | None = setting(None, "Folder to make for pictures with their boxes drawn.")
    ids: str | None = setting(
        None, "COCO file that lists the images: predictions have its image ids and file names, to be scored against it."
    )


@dataclass(frozen=True)
class BoxExplainOptions(MethodOptions):
    title: ClassVar[str] = "boxes"
    box: int | None = setting(None, "Number of the box to explain, the surest being 0, as predict lists them.", least=0)
    point: tuple[float, ...] | None = setting(
        None, "x and y in pixels: show where the encoder looks from there, instead of a box."
    )

    @property
    def explains_with(self) -> str:
        return super().explains_with if self.point is None else "attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.point is None:
            return
        for name in ("box", "method", "checks", "target"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name} is for a box, and --point shows the encoder's attention", do="give one")
