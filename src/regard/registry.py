"""Which models exist: one literal table, read without importing torch. Nothing registers itself."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from regard.errors import ConfigError, close_names, did_you_mean

VIT = "Dosovitskiy et al., An Image is Worth 16x16 Words (2021)"
DEIT = "Touvron et al., Training data-efficient image transformers (2021)"
SCALING = "Zhai et al., Scaling Vision Transformers (2022)"
DINOV2 = "Oquab et al., DINOv2 (2024)"
SWIN = "Liu et al., Swin Transformer (2021)"
RESNET = "He et al., Deep Residual Learning (2016), Table 1"
BIT = "Kolesnikov et al., Big Transfer (2020)"
DETR = "Carion et al., End-to-End Object Detection with Transformers (2020), Table 1"
ATTENTION = "Vaswani et al., Attention Is All You Need (2017), Table 3"
ALIGN = "Bahdanau et al., Learning to Align and Translate (2015); Luong et al. (2015)"
SEQ2SEQ = "Cho et al., RNN Encoder-Decoder (2014)"
MONAI = "Cardoso et al., MONAI (2022): "
MLP = "the fully connected baseline"
OURS = "small enough for a laptop's CPU"
SMALL = "for a few thousand images, on a GPU"


MOST_BLOCKS = 10_000
"""Largest depth; those that have been published go to a thousand."""


@dataclass(frozen=True)
class Entry:
    """One model: its family, its parameter count with 1000 classes at its own input size, and its source.

    Those that take text have no size, and 37,000 words instead of classes. Detectors have 91 classes (panoptic ones of
    published size 250) and live batch norms; where these are frozen, they are buffers and not counted.
    """

    family: str
    """The folder in `networks` whose `config.py` has its settings and whose `network.py` builds it."""
    parameters: int
    size: tuple[int, ...]
    paper: str


MODELS: dict[str, Entry] = {
    "vit_nano": Entry("vit", 239_400, (32, 32), OURS),
    "vit_nano16": Entry("vit", 285_480, (128, 128), OURS),
    "vit_mini4": Entry("vit", 5_025_512, (32, 32), SMALL),
    "vit_mini16": Entry("vit", 5_243_624, (224, 224), SMALL),
    "vit_ti16": Entry("vit", 5_717_416, (224, 224), DEIT),
    "vit_s14": Entry("vit", 22_004_584, (224, 224), DINOV2),
    "vit_s16": Entry("vit", 22_050_664, (224, 224), DEIT),
    "vit_s32": Entry("vit", 22_878_952, (224, 224), SCALING),
    "vit_b14": Entry("vit", 86_475_496, (224, 224), DINOV2),
    "vit_b16": Entry("vit", 86_567_656, (224, 224), VIT + ", Table 1"),
    "vit_b32": Entry("vit", 88_224_232, (224, 224), VIT + ", Table 1"),
    "vit_b32_half": Entry("vit", 22_878_952, (224, 224), VIT + ", Figure 4 (ViT-b)"),
    "vit_l14": Entry("vit", 304_203_752, (224, 224), DINOV2),
    "vit_l16": Entry("vit", 304_326_632, (224, 224), VIT + ", Table 1"),
    "vit_l32": Entry("vit", 306_535_400, (224, 224), VIT + ", Table 1"),
    "vit_h14": Entry("vit", 632_045_800, (224, 224), VIT + ", Table 1"),
    "vit_r50_b16": Entry("vit", 98_659_112, (224, 224), VIT + ", hybrid"),
    "vit3d_nano": Entry("vit", 269_096, (32, 32, 32), OURS),
    "vit3d_s16": Entry("vit", 23_336_296, (96, 96, 96), VIT + ", patches made volumes"),
    "vit3d_b16": Entry("vit", 89_138_920, (96, 96, 96), VIT + ", patches made volumes"),
    "swin_nano": Entry("swin", 300_380, (32, 32), OURS),
    "swin_mini": Entry("swin", 5_389_534, (32, 32), SMALL),
    "swin_t": Entry("swin", 28_288_354, (224, 224), SWIN),
    "swin_s": Entry("swin", 49_606_258, (224, 224), SWIN),
    "swin_b": Entry("swin", 87_768_224, (224, 224), SWIN),
    "swin_b12": Entry("swin", 87_903_584, (384, 384), SWIN + ", windows of 12"),
    "swin_l": Entry("swin", 196_532_476, (224, 224), SWIN),
    "swin_l12": Entry("swin", 196_735_516, (384, 384), SWIN + ", windows of 12"),
    "swin3d_nano": Entry("swin", 316_372, (32, 32, 32), OURS),
    "swin3d_t": Entry("swin", 30_123_418, (96, 96, 96), SWIN + ", windows made volumes"),
    "resnet_nano": Entry("resnet", 239_608, (32, 32), OURS),
    "resnet18": Entry("resnet", 11_689_512, (224, 224), RESNET),
    "resnet34": Entry("resnet", 21_797_672, (224, 224), RESNET),
    "resnet50": Entry("resnet", 25_557_032, (224, 224), RESNET),
    "resnet101": Entry("resnet", 44_549_160, (224, 224), RESNET),
    "bit_r50x1": Entry("resnet", 25_549_352, (224, 224), BIT),
    "mlp_nano": Entry("mlp", 1_175_272, (32, 32), OURS),
    "mlp": Entry("mlp", 6_270_952, (32, 32), MLP),
    "monai_resnet10": Entry("monai", 14_869_416, (96, 96, 96), MONAI + "ResNet-10"),
    "monai_resnet18": Entry("monai", 33_673_896, (96, 96, 96), MONAI + "ResNet-18"),
    "monai_resnet34": Entry("monai", 63_983_528, (96, 96, 96), MONAI + "ResNet-34"),
    "monai_densenet121": Entry("monai", 12_267_624, (96, 96, 96), MONAI + "DenseNet-121"),
    "monai_densenet169": Entry("monai", 20_207_720, (96, 96, 96), MONAI + "DenseNet-169"),
    "monai_densenet201": Entry("monai", 27_251_816, (96, 96, 96), MONAI + "DenseNet-201"),
    "monai_efficientnet_b0": Entry("monai", 5_969_380, (96, 96, 96), MONAI + "EfficientNet-b0"),
    "monai_efficientnet_b1": Entry("monai", 8_727_496, (96, 96, 96), MONAI + "EfficientNet-b1"),
    "monai_efficientnet_b3": Entry("monai", 13_595_472, (96, 96, 96), MONAI + "EfficientNet-b3"),
    "monai_swin": Entry("monai", 8_831_002, (96, 96, 96), MONAI + "the encoder of SwinUNETR with a pooled head"),
    "detr_nano": Entry("detr", 959_792, (128, 128), OURS),
    "detr_mini": Entry("detr", 4_273_664, (640, 640), SMALL),
    "detr_r50": Entry("detr", 41_577_888, (800, 1333), DETR),
    "detr_r50_dc5": Entry("detr", 41_577_888, (800, 1333), DETR + ", DC5"),
    "detr_r101": Entry("detr", 60_570_016, (800, 1333), DETR),
    "detr_nano_panoptic": Entry("detr", 1_044_729, (128, 128), OURS),
    "detr_r50_panoptic": Entry("detr", 42_952_408, (800, 1333), DETR.replace("Table 1", "Table 5")),
    "transformer_nano": Entry("transformer", 5_661_696, (), OURS),
    "transformer_base": Entry("transformer", 63_082_496, (), ATTENTION),
    "transformer_big": Entry("transformer", 214_245_376, (), ATTENTION),
    "rnn_nano": Entry("rnn", 5_065_856, (), OURS),
    "rnn_attention": Entry("rnn", 27_873_792, (), ALIGN),
    "rnn_plain": Entry("rnn", 27_873_792, (), SEQ2SEQ),
}


def find(name: str) -> Entry:
    if name not in MODELS:
        near = close_names(name, MODELS)
        do = did_you_mean(name, MODELS) if near else "choose one that `regard models` lists"
        raise ConfigError(f"there is no model called {name!r}", do=do)
    return MODELS[name]


def build(name: str, **fields: Any) -> Any:
    """The named model with some fields of its config changed."""
    if (count := configure(name, **fields).block_count) > MOST_BLOCKS:
        raise ConfigError(f"{count:,} blocks are too many", do=f"give a depth of up to {MOST_BLOCKS:,}")
    return import_module(f"regard.networks.{find(name).family}.network").build(name, **fields)


def configure(name: str, **fields: Any) -> Any:
    """The config that `build` would give the named model; imports no torch."""
    return import_module(f"regard.networks.{find(name).family}.config").configure(name, **fields)


def title(name: str, **fields: Any) -> str:
    """The name, and whether these fields make another network of it than it usually is.

    >>> title("detr_r50", queries=20), title("detr_r50", depth=1)
    ('detr_r50', 'detr_r50 (changed)')
    """
    usual, own = configure(name), configure(name, **fields)
    shape = [field for field in own.named_fields if field not in own.chosen_fields]
    return name if all(getattr(usual, field) == getattr(own, field) for field in shape) else f"{name} (changed)"


@cache
def config_class(name: str) -> type[Any]:
    """The class of the named model's config, which says what is true of its whole family."""
    return type(configure(name))
