"""Settings of pre-training, its recipes, and how its data is recognised. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard import registry
from regard.errors import ConfigError
from regard.image_groups import Crops
from regard.setting_groups import Group, NoOptions, setting
from regard.settings import ImageRunConfig
from regard.tasks.image_options import LoadOptions


@dataclass(frozen=True)
class Options(Group):
    title: ClassVar[str] = "pre-training"
    mask: float = setting(
        0.75, "Share of each image's patches that are hidden and reconstructed.", below=1, common=True
    )
    decoder_width: int = setting(512, "Embedding dimension of the decoder, which is not used afterwards.", least=1)
    decoder_depth: int = setting(8, "Number of decoder blocks.", least=1)
    decoder_heads: int = setting(16, "Attention heads of the decoder.", least=1)
    normalise: bool = setting(True, "Predict pixels normalised by the mean and deviation of their own patch.")


@dataclass(frozen=True)
class Config(ImageRunConfig):
    """Everything that decides a run of pre-training by masked patches."""

    task_name: ClassVar[str] = "pretraining"
    augment: Crops = field(default_factory=Crops)
    task: Options = field(default_factory=Options)

    def check_model(self, given: Mapping[str, Any]) -> None:
        super().check_model(given)
        name = self.model.model
        if registry.find(name).family != "vit":
            what = f"{name} is no ViT: only there can hidden patches be left out of the sequence"
            raise ConfigError(what, do="choose a ViT, such as vit_s16")
        if given.get("head") is not None:
            raise ConfigError("pre-training has no head, so --head has no effect", do="give it when fine-tuning")


EvalOptions = PredictOptions = ExplainOptions = NoOptions

__all__ = ["RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "recognise"]


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    return "images, their labels not used"


def mae() -> Config:
    """Pre-training by masked patches, for pictures of 64 pixels and more that have no labels.

    regard pretrain DATA --model vit_s16

    Mask, decoder, rate and crops are the paper's (He et al., 2022, appendix A.1), with a batch that one GPU holds;
    the paper's 1.3 million pictures and 800 epochs are not. Not run here at this size: no score is promised.
    """
    return Config.of(
        model="vit_s16", positions="sinusoidal", epochs=400, batch_size=256, lr=1.5e-4, crop="resized", holdout=0.02,
    )  # fmt: skip


def mae_small() -> Config:
    """The same for pictures of 16 to 64 pixels, with a network that a CPU can train.

    regard pretrain DATA

    2,000 CIFAR-10 pictures for 60 epochs take one CPU core 3.5 minutes; a linear probe then finds 45.4 % where random
    weights give 37.8 % (docs/pretrain.md). Longer runs, and the 200 epochs set here, have not been measured.
    """
    return Config.of(
        model="vit_nano", pool="mean", positions="sinusoidal", epochs=200, batch_size=128, lr=2e-3, crop="resized",
        holdout=0.05, decoder_width=64, decoder_depth=2, decoder_heads=4,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Config]] = {f.__name__: f for f in (mae, mae_small)}
