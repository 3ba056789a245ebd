"""Which models exist: one literal table, read without importing torch. Nothing registers itself."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from regard.errors import ConfigError, did_you_mean

VIT = "Dosovitskiy et al., An Image is Worth 16x16 Words (2021)"
DEIT = "Touvron et al., Training data-efficient image transformers (2021)"
SCALING = "Zhai et al., Scaling Vision Transformers (2022)"
DINOV2 = "Oquab et al., DINOv2 (2024)"
RESNET = "He et al., Deep Residual Learning (2016), Table 1"
BIT = "Kolesnikov et al., Big Transfer (2020)"
ATTENTION = "Vaswani et al., Attention Is All You Need (2017), Table 3"
ALIGN = "Bahdanau et al., Learning to Align and Translate (2015); Luong et al. (2015)"
SEQ2SEQ = "Cho et al., RNN Encoder-Decoder (2014)"
MLP = "the fully connected baseline"
OURS = "small enough for a laptop's CPU"


@dataclass(frozen=True)
class Entry:
    """One model: who builds it, how large it is with 1000 classes at its own input size, and its source.

    Those that take words have no size, and 37,000 words instead of classes.
    """

    builder: str
    parameters: int
    size: tuple[int, ...]
    paper: str

    @property
    def family(self) -> str:
        """Which config it has: a key of `config.CONFIGS`."""
        return self.builder.partition(":")[0].rpartition(".")[2]


_VIT, _RESNET, _MLP, _TRANSFORMER, _RNN = (
    f"regard.networks.{family}:build" for family in ("vit", "resnet", "mlp", "transformer", "rnn")
)

MODELS: dict[str, Entry] = {
    "vit_nano": Entry(_VIT, 239_400, (32, 32), OURS),
    "vit_ti16": Entry(_VIT, 5_717_416, (224, 224), DEIT),
    "vit_s14": Entry(_VIT, 22_004_584, (224, 224), DINOV2),
    "vit_s16": Entry(_VIT, 22_050_664, (224, 224), DEIT),
    "vit_s32": Entry(_VIT, 22_878_952, (224, 224), SCALING),
    "vit_b14": Entry(_VIT, 86_475_496, (224, 224), DINOV2),
    "vit_b16": Entry(_VIT, 86_567_656, (224, 224), VIT + ", Table 1"),
    "vit_b32": Entry(_VIT, 88_224_232, (224, 224), VIT + ", Table 1"),
    "vit_b32_half": Entry(_VIT, 22_878_952, (224, 224), VIT + ", Figure 4 (ViT-b)"),
    "vit_l14": Entry(_VIT, 304_203_752, (224, 224), DINOV2),
    "vit_l16": Entry(_VIT, 304_326_632, (224, 224), VIT + ", Table 1"),
    "vit_l32": Entry(_VIT, 306_535_400, (224, 224), VIT + ", Table 1"),
    "vit_h14": Entry(_VIT, 632_045_800, (224, 224), VIT + ", Table 1"),
    "vit_r50_b16": Entry(_VIT, 98_659_112, (224, 224), VIT + ", hybrid"),
    "vit3d_nano": Entry(_VIT, 269_096, (32, 32, 32), OURS),
    "vit3d_s16": Entry(_VIT, 23_336_296, (96, 96, 96), VIT + ", patches made volumes"),
    "vit3d_b16": Entry(_VIT, 89_138_920, (96, 96, 96), VIT + ", patches made volumes"),
    "resnet_nano": Entry(_RESNET, 239_608, (32, 32), OURS),
    "resnet18": Entry(_RESNET, 11_689_512, (224, 224), RESNET),
    "resnet34": Entry(_RESNET, 21_797_672, (224, 224), RESNET),
    "resnet50": Entry(_RESNET, 25_557_032, (224, 224), RESNET),
    "resnet101": Entry(_RESNET, 44_549_160, (224, 224), RESNET),
    "bit_r50x1": Entry(_RESNET, 25_549_352, (224, 224), BIT),
    "mlp_nano": Entry(_MLP, 1_175_272, (32, 32), OURS),
    "mlp": Entry(_MLP, 6_270_952, (32, 32), MLP),
    "transformer_nano": Entry(_TRANSFORMER, 5_661_696, (), OURS),
    "transformer_base": Entry(_TRANSFORMER, 63_082_496, (), ATTENTION),
    "transformer_big": Entry(_TRANSFORMER, 214_245_376, (), ATTENTION),
    "rnn_nano": Entry(_RNN, 5_000_320, (), OURS),
    "rnn_attention": Entry(_RNN, 26_825_216, (), ALIGN),
    "rnn_plain": Entry(_RNN, 26_825_216, (), SEQ2SEQ),
}


def find(name: str) -> Entry:
    if name not in MODELS:
        raise ConfigError(f"there is no model called {name!r}", do=did_you_mean(name, MODELS))
    return MODELS[name]


def build(name: str, **fields: Any) -> Any:
    """The named model with some fields of its config changed."""
    module, function = find(name).builder.split(":")
    builder: Callable[..., Any] = getattr(import_module(module), function)
    return builder(name, **fields)


def configure(name: str, **fields: Any) -> Any:
    """The config that `build` would give the named model."""
    return import_module(find(name).builder.partition(":")[0]).configure(name, **fields)
