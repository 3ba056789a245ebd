"""Settings of classification, its recipes, and how its data is recognised. Free of torch.

A recipe is a function; its docstring says the command, the cost and the score to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard.errors import ConfigError, did_you_mean
from regard.image_groups import Augment, LabelData, PixelOptions
from regard.setting_groups import Group, Transfer, setting
from regard.settings import ImageRunConfig
from regard.tasks.image_options import ImageExplainOptions, LoadOptions


@dataclass(frozen=True)
class Options(PixelOptions):
    title: ClassVar[str] = "classification"
    loss: Literal["softmax", "bce"] = setting(
        "softmax", "Cross-entropy over all classes, or binary cross-entropy per class."
    )
    label_smoothing: float = setting(0.1, "Probability spread over the wrong classes.", least=0, below=1)
    class_weights: Literal["equal", "balanced"] = setting(
        "equal", "balanced: weigh classes in the loss by one over their number of training images."
    )


@dataclass(frozen=True)
class Teaching(Group):
    """DeiT's distillation (Touvron et al., 2021)."""

    title: ClassVar[str] = "distillation"
    teacher: str | None = setting(
        None,
        "Learn from this trained classifier too: a run or weights file with the same classes.",
        weights="--teacher",
    )
    distillation: Literal["hard", "soft"] | None = setting(
        None, "What to learn from the teacher: its decision (hard, the default) or its probabilities (soft)."
    )
    teacher_weight: float | None = setting(
        None, "Share of the teacher in the loss. Default: 0.5 hard, 0.1 soft, as in the paper.", above=0, below=1
    )
    temperature: float | None = setting(None, "soft: divides the logits of both. Default: 3.", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("distillation", "teacher_weight", "temperature"):
            if self.teacher is None and getattr(self, name) is not None:
                raise ConfigError(f"{name} needs a teacher", do="give --teacher RUN")
        if self.temperature is not None and self.distillation != "soft":
            raise ConfigError("temperature is for soft distillation only", do="give --distillation soft")


@dataclass(frozen=True)
class Config(ImageRunConfig):
    """Everything that decides a run of classification."""

    task_name: ClassVar[str] = "classification"
    data: LabelData = field(default_factory=LabelData)
    transfer: Transfer = field(default_factory=Transfer)
    augment: Augment = field(default_factory=Augment)
    task: Options = field(default_factory=Options)
    teaching: Teaching = field(default_factory=Teaching)


@dataclass(frozen=True)
class EvalOptions(Group):
    title: ClassVar[str] = "classification"
    batch_size: int = setting(64, "Images per batch.", least=1)
    mirror: bool = setting(
        False, "Mean over each image and its mirror image: often a little better, for twice the work."
    )
    corruptions: bool = setting(
        False,
        "Also under noise, blur, occlusion, shift, contrast, brightness, pixelation and JPEG: 40 times the work.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corruptions and self.mirror:
            raise ConfigError("corruptions are measured without mirror images", do="leave --mirror out")


@dataclass(frozen=True)
class PredictOptions(Group):
    title: ClassVar[str] = "classification"
    top: int = setting(3, "Classes to print for each image; --out writes all of them.", least=1, shows=True)


ExplainOptions = ImageExplainOptions

PROBES = ("few_shot", "linear", "neighbours")
NEEDED = {"shots": "few_shot", "draws": "few_shot", "seed": "few_shot", "neighbours": "neighbours", "keep": "linear"}
"""The probe that each option of `regard probe` is for."""


def check_probes(methods: Collection[str], **given: Any) -> None:
    """Refuse probes that there are not, and options of those that are not asked for; None is one that is not given."""
    for method in methods:
        if method not in PROBES:
            raise ConfigError(f"there is no probe {method!r}", do=did_you_mean(method, PROBES))
    if not methods:
        raise ConfigError("no probe is asked for", do=f"choose from {', '.join(PROBES)}")
    for name, value in given.items():
        if value is not None and NEEDED[name] not in methods:
            what = f"--{name} is for the probe {NEEDED[name]}, and --methods names {', '.join(methods)}"
            raise ConfigError(what, do=f"leave --{name} out, or add {NEEDED[name]} to --methods")


@dataclass(frozen=True)
class ProbeOptions(Group):
    title: ClassVar[str] = "probes"
    methods: str = setting(",".join(PROBES), "Which probes, with commas.")
    shots: str | None = setting(
        None,
        "Training images per class, with commas: 1,5,10. Default: as many of 1,5,10,25,50,100 as there are.",
    )
    draws: int | None = setting(None, "How often the shots are drawn. Default: 5.", least=1)
    neighbours: int | None = setting(None, "Nearest training images that vote. Default: 20.", least=1)
    seed: int | None = setting(None, "Decides which images are drawn. Default: 0.", least=0)
    out: str | None = setting(None, "Folder to make for probe.json, probe.csv and probe.svg.")
    keep: str | None = setting(
        None,
        "Folder to make for a run of this network with the linear probe as its head: predict, eval and explain take "
        "it.",
    )

    def keywords(self) -> dict[str, Any]:
        """Those of `regard.probe`."""
        methods = [name for name in self.methods.split(",") if name]
        shots = None if self.shots is None else self.shots.split(",")
        if not all(number.isdecimal() for number in shots or ()):
            raise ConfigError(f"--shots {self.shots} are not numbers", do="give some with commas: 1,5,10")
        given: dict[str, Any] = {"shots": shots and [int(number) for number in shots]}
        given |= {"draws": self.draws, "neighbours": self.neighbours, "seed": self.seed, "keep": self.keep}
        check_probes(methods, **given)
        return {"methods": methods, "out": self.out, **given}


__all__ = [
    "RECIPES", "Config", "EvalOptions", "ExplainOptions", "LoadOptions", "PredictOptions", "ProbeOptions", "recognise",
]  # fmt: skip


def recognise(data: Path, asked: Mapping[str, Any]) -> str | None:
    return "images with one label each"


def default() -> Config:
    """From scratch on a few hundred to some ten thousand images, for every family of networks.

    regard train DATA
    regard train DATA --model resnet18

    Network, input size and number of epochs are chosen from the data and the machine (`tasks/small_data.py`), and said.
    Costs and scores: benchmarks/results/small_data.md.
    """
    return Config.of(
        optimizer="muon", lr=2e-3, weight_decay=0.4, policy="trivial", mixup=0.2, cutmix=1.0, drop_path=0.2,
    )  # fmt: skip


def plain() -> Config:
    """A network as published, from scratch, with AdamW and crops only: to compare with.

    regard train DATA --recipe plain
    regard train DATA --recipe plain --model resnet18

    ViT-S/16 for 100 epochs; for images of up to 64 pixels vit_nano for 60 epochs, batches of 128, twice the rate.
    """
    return Config()


def cifar() -> Config:
    """A ViT from scratch on some ten thousand small colour pictures, on a GPU, plain supervision.

    regard train DATA --recipe cifar

    Two convolutions make the tokens (--stem patch: one projection). Positions come from convolutions in the blocks and
    from RoPE. The first epochs see three quarters of each side. CIFAR-10 on one H200, from start to end: 95.05 % of the
    test images in 465 seconds with seed 0, 95.22 % in 447 seconds with seed 1; fourteen runs of it have read the test
    images (benchmarks/results/cifar10.md). On a CPU it would take days.
    """
    return Config.of(
        model="vit_s16", patch=2, width=256, heads=4, mlp=1024, depth=6, pool="mean", stem="conv",
        positions="conditional", rope=True, epochs=190, batch_size=250, low_res=0.6,
        optimizer="muon", lr=2e-3, weight_decay=0.4, ema=0.999, policy="trivial", mixup=0.8, cutmix=1.0, drop_path=0.1,
        holdout=0.02, choose="last", save_every=120.0,
    )  # fmt: skip


def digits() -> Config:
    """The embedded hand-written digits (1,797 of 8 × 8 pixels) on two CPU cores.

    regard train digits --recipe digits

    70 seconds of training on two CPU cores; 98.3 % test accuracy for the worst of five seeds, 98.7 % on
    average (benchmarks/results/digits.md).
    """
    return Config.of(model="vit_nano", patch=2, epochs=120, batch_size=32, lr=2e-3, mixup=0.2, crop="shift", flip=False)


def finetune() -> Config:
    """From trained weights on a few hundred to some ten thousand images: the default with --from.

    regard train DATA --from WEIGHTS

    The number of epochs is chosen from the number of images, and the size from theirs (`tasks/small_data.py`).
    Costs and scores: benchmarks/results/small_data.md.
    """
    return Config.of(lr=1e-4, layer_decay=0.75, policy="trivial", drop_path=0.1)


def paper_finetune() -> Config:
    """Fine-tuning as in the ViT paper (section 4.1 and Table 4): SGD, cosine, no weight decay, at a larger size.

    regard train DATA --from B_16.npz --recipe paper_finetune --size 384 --seeds 3

    The paper chose the rate for each data set: 0.003, 0.01, 0.03 or 0.06 for ImageNet, 0.001, 0.003, 0.01 or 0.03
    for the others. 0.03 and a warm-up over 5 % of CIFAR's steps are what the authors' code has. The paper counts
    steps: 20,000 for ImageNet (--epochs 8 at batch 512), 10,000 for CIFAR (--epochs 100), 500 for Pets and Flowers
    (--epochs 70 and 125). ViT-B/16 of ImageNet-21k then has 83.97 % on ImageNet, 98.95 % on CIFAR-10, 91.67 % on
    CIFAR-100 (Table 5). Data of fewer than ten batches get a smaller batch, as everywhere here.

    Not run here on those sets; on the embedded digits it is in benchmarks/results/transfer.md.
    """
    return Config.of(
        model="vit_b16", epochs=100, batch_size=512, optimizer="sgd", lr=0.03, weight_decay=0.0, clip=1.0,
        label_smoothing=0.0, ema=0.0,
    )  # fmt: skip


def deit3() -> Config:
    """ViT-S/16 from scratch on ImageNet-1k as in DeiT III (Touvron et al., 2022), 3-Augment and binary cross-entropy.

    regard train imagenet/ --recipe deit3
    regard train imagenet/ --recipe deit3 --model vit_b16 --drop_path 0.2 --size 192

    Published: 81.4 % for ViT-S at 224 pixels after 800 epochs; 83.8 % for ViT-B, trained at 192 and fine-tuned at 224.
    The authors move the weights by LAMB at 4e-3, which is not here: AdamW at DeiT's rate for this batch takes its
    place, so expect less. Also missing: repeated augmentation, crops of less than a quarter of the picture. With more
    data than ImageNet-1k they crop by --crop simple. Eight GPUs for days: not run here.
    """
    return Config.of(
        model="vit_s16", epochs=800, batch_size=2048, lr=2e-3, weight_decay=0.05, warmup=0.00625, loss="bce",
        label_smoothing=0.0, policy="three", crop="resized", flip=True, mixup=0.8, cutmix=1.0, layer_scale=1e-4,
        drop_path=0.05, ema=0.0, clip=1.0,
    )  # fmt: skip


def better_plain() -> Config:
    """ViT-S/16 from scratch on ImageNet-1k as in "Better plain ViT baselines" (Beyer et al., 2022).

    regard train imagenet/ --recipe better_plain
    regard train imagenet/ --recipe better_plain --epochs 300 --warmup 0.0267

    Published: 76.5 % after 90 epochs, 6 to 7 hours on a TPU-v3-8; 80 % after 300, less than a day. Their weight decay
    of 1e-4 does not pass through the rate of 1e-3; AdamW's here does, so 0.1 pulls as hard. Our sinusoids have the
    same two axes, in another order of channels; our crops keep at least a quarter of the picture, theirs a twentieth.
    Not run here.
    """
    return Config.of(
        model="vit_s16", pool="mean", positions="sinusoidal", epochs=90, batch_size=1024, lr=1e-3, weight_decay=0.1,
        warmup=0.0889, label_smoothing=0.0, policy="rand", strength=1.0, mixup=0.2, crop="resized", flip=True, ema=0.0,
        clip=1.0, holdout=0.01,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Config]] = {
    f.__name__: f for f in (default, plain, cifar, digits, finetune, paper_finetune, deit3, better_plain)
}
