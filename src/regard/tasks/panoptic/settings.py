"""Settings of panoptic segmentation, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard import registry
from regard.annotations import find_annotations, find_panoptic
from regard.errors import ConfigError
from regard.image_groups import ObjectAugment, ObjectData
from regard.setting_groups import Group, setting
from regard.settings import PictureRunConfig
from regard.tasks.image_options import LoadOptions
from regard.tasks.objects.options import BoxExplainOptions, BoxPredictOptions, ObjectTransfer, SetOptions


@dataclass(frozen=True)
class Options(SetOptions):
    title: ClassVar[str] = "panoptic"
    mask_weight: float = setting(1.0, "Weight of the focal loss of masks.", least=0)
    dice_weight: float = setting(1.0, "Weight of the Dice loss of masks.", least=0)
    freeze_boxes: bool = setting(
        False, "Train the mask head only: classes and boxes stay as the weights of --from have them."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mask_weight and not self.dice_weight:
            what = "mask_weight=0 and dice_weight=0 leave nothing to learn of masks"
            raise ConfigError(what, do="give one of them, or train boxes only, with a model without masks")


@dataclass(frozen=True)
class Config(PictureRunConfig):
    """Everything that decides a run of panoptic segmentation."""

    task_name: ClassVar[str] = "panoptic"
    predicts: ClassVar[str] = "boxes"
    data: ObjectData = field(default_factory=ObjectData)
    transfer: ObjectTransfer = field(default_factory=ObjectTransfer)
    augment: ObjectAugment = field(default_factory=ObjectAugment)
    task: Options = field(default_factory=Options)


@dataclass(frozen=True)
class EvalOptions(Group):
    title: ClassVar[str] = "panoptic"
    batch_size: int = setting(16, "Images per batch.", least=1)


PredictOptions = BoxPredictOptions
ExplainOptions = BoxExplainOptions

__all__ = ["RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "recognise"]


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    """By a model with masks; or by panoptic maps, where no model is named and there are no other annotations."""
    model = asked.get("model")
    masks = asked.get("masks") or (model is not None and getattr(registry.configure(model), "masks", False))
    if model is not None and not masks:
        return None
    panoptic = None if asked.get("stuff") is False else find_panoptic(data)
    instances = None if asked.get("stuff") else find_annotations(data)
    if panoptic and (masks or not instances):
        return f"panoptic maps: {panoptic.why}"
    return f"masks of objects: {instances.why}" if masks and instances else None


def panoptic() -> Config:
    """Things and stuff on a few hundred images or more, from scratch: boxes and masks learnt together.

    regard train scenes/ --model detr_nano_panoptic

    The network is a DETR in modern mode, as for boxes. Cost and figures depend on the data.
    """
    return Config.of(
        model="detr_nano_panoptic", batch_size=16, optimizer="muon", lr=6e-3, weight_decay=0.05, clip=5.0, dropout=0.0,
        norm="pre", fused_stages=3, classification="focal", class_weight=12.0, two_stage=True, refine=True,
        box_bias=True, denoising=4,
    )  # fmt: skip


def panoptic_plain() -> Config:
    """DETR as published (Carion et al., 2020, section 4.4), boxes and masks learnt together.

    regard train coco/ --model detr_r50_panoptic --recipe panoptic_plain

    For COCO: 43.4 PQ in the paper, days on many GPUs. On little data it finds next to nothing.
    """
    return Config.of(
        model="detr_r50_panoptic", epochs=300, batch_size=64, lr=1e-4, weight_decay=1e-4, clip=0.1, schedule="drop",
        warmup=0.0, ema=0.0, crop_share=0.5, scale_low=0.6, scale_high=1.0, colour=0.0,
    )  # fmt: skip


def panoptic_finetune() -> Config:
    """From trained weights: those of a run of detection get a mask head, and all of it learns.

    regard train scenes/ --model detr_nano_panoptic --from runs/boxes
    """
    return Config.of(model="detr_r50_panoptic", batch_size=8, lr=2e-4, weight_decay=1e-4, clip=0.1)


def panoptic_masks() -> Config:
    """The second stage of the paper's two: boxes are frozen, and 25 epochs train the mask head.

    regard train scenes/ --model detr_nano_panoptic --from runs/boxes --recipe panoptic_masks

    The first stage is a run of detection on the same things and stuff: --stuff.
    """
    return Config.of(
        model="detr_r50_panoptic", epochs=25, batch_size=8, lr=1e-3, weight_decay=1e-4, clip=0.1, freeze_boxes=True
    )


def scenes_masks() -> Config:
    """The second stage of the demo: the mask head on the first stage's boxes, which are frozen.

    regard demo scenes

    Three minutes on one core of two; PQ 0.376 of 300 test scenes, stuff 0.66 and things 0.29 (one seed).
    """
    return Config.of(
        model="detr_nano_panoptic", epochs=5, batch_size=16, lr=5e-3, weight_decay=1e-4, clip=1.0, freeze_boxes=True,
        flip=False, scale_low=0.8, scale_high=1.25, crop_share=0.0, explain=4,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Config]] = {
    f.__name__: f for f in (panoptic, panoptic_plain, panoptic_finetune, panoptic_masks, scenes_masks)
}
