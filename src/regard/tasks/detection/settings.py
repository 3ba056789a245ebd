"""Settings of detection, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard.annotations import recognise_objects
from regard.image_groups import ObjectAugment, ObjectData
from regard.setting_groups import Group, setting
from regard.settings import PictureRunConfig
from regard.tasks.image_options import LoadOptions
from regard.tasks.objects.options import BoxExplainOptions, BoxPredictOptions, ObjectTransfer, SetOptions


@dataclass(frozen=True)
class Options(SetOptions):
    title: ClassVar[str] = "detection"


@dataclass(frozen=True)
class Config(PictureRunConfig):
    """Everything that decides a run of detection."""

    task_name: ClassVar[str] = "detection"
    predicts: ClassVar[str] = "boxes"
    not_shape: ClassVar[frozenset[str]] = frozenset({"classes", "masks"})
    data: ObjectData = field(default_factory=ObjectData)
    transfer: ObjectTransfer = field(default_factory=ObjectTransfer)
    augment: ObjectAugment = field(default_factory=ObjectAugment)
    task: Options = field(default_factory=Options)


@dataclass(frozen=True)
class EvalOptions(Group):
    title: ClassVar[str] = "detection"
    batch_size: int = setting(16, "Images per batch.", least=1)


PredictOptions = BoxPredictOptions
ExplainOptions = BoxExplainOptions

__all__ = ["RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "recognise"]


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    """By annotations with boxes."""
    why = recognise_objects(data)
    return f"boxes: {why}" if why else None


def detection() -> Config:
    """Boxes on a few hundred images or more, from scratch: a DETR in modern mode, which learns much sooner.

    regard train scenes/

    Network, size, queries and length are chosen from the data. Cost and figures depend on it. Muon and a class term of
    six times the published weight were chosen on validation images of made scenes: docs/LOG.md.
    """
    return Config.of(
        model="detr_nano", batch_size=16, optimizer="muon", lr=6e-3, weight_decay=0.05, clip=5.0, dropout=0.0,
        norm="pre", fused_stages=3, classification="focal", class_weight=12.0, two_stage=True, refine=True,
        box_bias=True, denoising=4,
    )  # fmt: skip


def scenes_boxes() -> Config:
    """The first stage of the demo: boxes of digits and textures on made scenes of 64 pixels, with Muon.

    regard demo scenes

    Four minutes on one core of two; AP50 0.85 and AP 0.49 of 300 test scenes, 13 classes (one seed).
    """
    return Config.of(
        model="detr_nano", size=64, queries=20, epochs=14, batch_size=16, optimizer="muon", lr=6e-3, weight_decay=0.05,
        clip=5.0, dropout=0.0, norm="pre", fused_stages=3, stride=8, classification="focal", class_weight=12.0,
        two_stage=True, refine=True, box_bias=True, flip=False, scale_low=0.8, scale_high=1.25, crop_share=0.0,
        explain=2,
    )  # fmt: skip


def detection_plain() -> Config:
    """DETR as published (Carion et al., 2020, section 4): AdamW at 1e-4, a tenth of it in the last third, 300 epochs.

    regard train coco/ --model detr_r50 --recipe detection_plain

    For COCO: 42.0 AP after 500 epochs in the paper, days on many GPUs. On little data it finds next to nothing.
    """
    return Config.of(
        model="detr_r50", epochs=300, batch_size=64, lr=1e-4, weight_decay=1e-4, clip=0.1, schedule="drop", warmup=0.0,
        ema=0.0, crop_share=0.5, scale_low=0.6, scale_high=1.0, colour=0.0,
    )  # fmt: skip


def detection_finetune() -> Config:
    """From trained weights, such as COCO's or another run's: a new head for the classes, and the rest learns slowly.

    regard train scenes/ --from runs/other

    Weights of modern mode get Muon and the class weight of `detection` instead, chosen from the weights.
    """
    return Config.of(model="detr_r50", epochs=50, batch_size=8, lr=1e-4, weight_decay=1e-4, clip=0.1)


RECIPES: dict[str, Callable[[], Config]] = {
    f.__name__: f for f in (detection, detection_plain, detection_finetune, scenes_boxes)
}
