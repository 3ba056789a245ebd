"""The shape of a Vision Transformer, and the sizes by name. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from regard.config import change, require_positive, require_shares
from regard.errors import ConfigError
from regard.geometry import per_axis
from regard.networks.config import ImageConfig, shape
from regard.networks.monai.config import KINDS, smallest_side
from regard.networks.monai.config import VARIANTS as MONAI

# width, depth, heads, mlp. B, L, H: the paper's Table 1. Ti, S: DeiT (Touvron et al., 2021), Table 1.
# B_half is ViT-b of Figure 4, "all hidden dimensions halved": the widths, not the number of heads.
SIZES = {
    "nano": (64, 4, 4, 192),
    "mini": (256, 6, 4, 1024),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "B_half": (384, 12, 12, 1536),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}

# name: (size, patch, input side, axes, channels)
VARIANTS = {
    "vit_nano": ("nano", 4, 32, 2, 3),
    "vit_nano16": ("nano", 16, 128, 2, 3),
    "vit_mini4": ("mini", 4, 32, 2, 3),
    "vit_mini16": ("mini", 16, 224, 2, 3),
    "vit_ti16": ("Ti", 16, 224, 2, 3),
    "vit_s14": ("S", 14, 224, 2, 3),
    "vit_s16": ("S", 16, 224, 2, 3),
    "vit_s32": ("S", 32, 224, 2, 3),
    "vit_b14": ("B", 14, 224, 2, 3),
    "vit_b16": ("B", 16, 224, 2, 3),
    "vit_b32": ("B", 32, 224, 2, 3),
    "vit_b32_half": ("B_half", 32, 224, 2, 3),
    "vit_l14": ("L", 14, 224, 2, 3),
    "vit_l16": ("L", 16, 224, 2, 3),
    "vit_l32": ("L", 32, 224, 2, 3),
    "vit_h14": ("H", 14, 224, 2, 3),
    "vit_r50_b16": ("B", 16, 224, 2, 3),
    "vit3d_nano": ("nano", 8, 32, 3, 1),
    "vit3d_s16": ("S", 16, 96, 3, 1),
    "vit3d_b16": ("B", 16, 96, 3, 1),
}


@dataclass(frozen=True)
class ViTConfig(ImageConfig):
    """A Vision Transformer's shape. `size`, `patch` and the grid have as many axes as the input."""

    family = "vit"
    named_fields = ("width", "depth", "heads", "mlp", "patch", "stem")
    can_checkpoint = True
    smallest_is = "one patch"

    patch: tuple[int, ...] = shape((16, 16), "Patch size in pixels: one number, or one per axis.")
    width: int = shape(768, "Embedding dimension; of a ResNet, channels after the stem.")
    depth: int = shape(12, "Number of blocks or layers.")
    heads: int = shape(12, "Number of attention heads.")
    mlp: int = shape(3072, "Hidden dimension of the MLP.")
    pool: Literal["class", "mean"] = shape("class", "What the head reads: the class token, or the mean of all patches.")
    positions: Literal["learned", "axial", "sinusoidal", "conditional", "none"] = shape(
        "learned", "Position embeddings; axial: a learned table per axis; conditional: a convolution in every block."
    )
    registers: int = shape(0, "Number of register tokens.")
    distilled: bool = shape(False, "DeiT's distillation token, with a head of its own. Default: with --teacher.")
    head: Literal["linear", "mlp"] = shape("linear", "A linear head, or one with a hidden layer.")
    dropout: float = shape(0.0, "Dropout rate.")
    drop_path: float = shape(0.0, "Stochastic depth: rate of the last block.")
    layer_scale: float | None = shape(None, "Initial value of LayerScale. Default: no LayerScale.")
    stem: Literal["patch", "conv", "residual", "r50"] = shape(
        "patch",
        "Tokens from a projection per patch, from convolutions, from ResNet-18's stages, or from a ResNet-50.",
    )
    eps: float = shape(1e-6, "Epsilon of LayerNorm.")
    norm: Literal["pre", "post"] = shape("pre", "LayerNorm before or after attention and MLP.")
    rope: bool = shape(False, "Rotary position embeddings, beside any others.")
    cnn: Literal[
        "monai_resnet10", "monai_resnet18", "monai_resnet34", "monai_densenet121", "monai_densenet169",
        "monai_densenet201", "monai_efficientnet_b0", "monai_efficientnet_b1", "monai_efficientnet_b3",
    ] | None = shape(None, "MONAI's network whose features join the class token's; trained with it.")  # fmt: skip

    def __post_init__(self) -> None:
        self._require_joinable()
        super().__post_init__()
        require_positive(self, "width", "depth", "heads", "mlp")
        each, least = self.width // self.heads, 2 * len(self.size)
        if self.rope and (each % 2 or each < least):
            raise ConfigError(
                f"a head dimension of {each} is too small or odd for rope=True: it rotates pairs of channels per axis",
                do=f"change width or heads: width / heads must be even, and {least} or more",
            )
        if self.stem != "patch" and len(self.size) != 2:
            size = " × ".join(map(str, self.size))
            what = f"stem={self.stem!r} makes tokens of pictures, and the input of {size} has another number of axes"
            raise ConfigError(what, do="leave --stem out, or give --stem patch")
        if self.registers < 0:
            raise ConfigError(f"registers={self.registers} is negative")
        if self.distilled and (self.pool != "class" or self.head != "linear"):
            what = f"a distillation token stands beside a class token, and both have linear heads: pool={self.pool!r}"
            raise ConfigError(f"{what}, head={self.head!r}", do="leave --distilled out, or --pool and --head")
        require_shares(self, "dropout", "drop_path")
        if not 0 < self.eps < 1:
            raise ConfigError(f"eps={self.eps} is out of range", do="give a small number above 0, such as 1e-6")

    def _require_joinable(self) -> None:
        """A convolutional network beside the transformer needs one token to join, and room to halve its input."""
        if self.cnn is None:
            return
        if self.distilled:
            what = f"cnn={self.cnn!r} joins features to one token, and a distillation token is a second one"
            raise ConfigError(what, do="leave --cnn or --distilled out")
        least = smallest_side(MONAI[self.cnn])
        if min(self.size) < least:
            size = " × ".join(map(str, self.size))
            do = f"give --size at least {least}, or --cnn monai_resnet10, which takes {smallest_side('resnet10')}"
            raise ConfigError(f"an input of {size} pixels is smaller than {self.cnn} can halve", do=do)

    @property
    def smallest(self) -> tuple[int, ...]:
        least = smallest_side(MONAI[self.cnn]) if self.cnn else 1
        return tuple(max(side, least) for side in self.patch)

    @property
    def features(self) -> int:
        return self.width + (KINDS[MONAI[self.cnn]][0] if self.cnn else 0)

    @property
    def block_count(self) -> int:
        return self.depth

    @property
    def prefix(self) -> int:
        """Number of tokens before registers and patches, which have positions: class and distillation token."""
        return int(self.pool == "class") + int(self.distilled)

    @property
    def last_layer(self) -> str:
        return self.last_layers[0]

    @property
    def last_layers(self) -> tuple[str, ...]:
        if self.distilled:
            return "head.label", "head.teacher"
        return ("head.2",) if self.head == "mlp" else ("head",)

    def with_linear_head(self) -> Self:
        return replace(self, head="linear")


def configure(name: str, **changes: Any) -> ViTConfig:
    """The config of the variant called `name`; `size` and `patch` may be one number for all axes."""
    kind, patch, side, axes, channels = VARIANTS[name]
    width, depth, heads, mlp = SIZES[kind]
    config = ViTConfig(
        size=(side,) * axes,
        patch=(patch,) * axes,
        channels=channels,
        width=width,
        depth=depth,
        heads=heads,
        mlp=mlp,
        stem="r50" if name == "vit_r50_b16" else "patch",
    )
    for field in ("size", "patch"):
        if field in changes:
            changes[field] = per_axis(changes[field], axes, field)
    return change(config, changes, where=name)
