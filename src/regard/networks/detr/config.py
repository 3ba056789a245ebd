"""Settings of DETR, and the variants by name. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from regard.config import change, require_positive, require_shares
from regard.errors import ConfigError
from regard.geometry import per_axis
from regard.networks.config import ImageConfig, shape
from regard.networks.resnet.config import ResNetConfig

# The paper's Table 1, one for a laptop, and one for a few hundred images on a GPU. The paper's images are
# 800 pixels high and 1333 wide, at most (section 4).
VARIANTS: dict[str, dict[str, Any]] = {
    "detr_nano": {
        "size": (128, 128), "width": 64, "depth": 2, "decoder_depth": 2, "heads": 8, "mlp": 256, "queries": 20,
        "backbone_width": 16, "blocks": (2, 2, 2, 2), "kind": "basic", "dilated": True,
    },
    "detr_mini": {
        "size": (640, 640), "width": 128, "depth": 3, "decoder_depth": 3, "heads": 8, "mlp": 512, "queries": 60,
        "backbone_width": 32, "blocks": (2, 2, 2, 2), "kind": "basic", "dilated": True,
    },
    "detr_nano_panoptic": {
        "size": (128, 128), "width": 64, "depth": 2, "decoder_depth": 2, "heads": 8, "mlp": 256, "queries": 20,
        "backbone_width": 16, "blocks": (2, 2, 2, 2), "kind": "basic", "dilated": True, "masks": True,
    },
    "detr_r50": {},
    "detr_r50_dc5": {"dilated": True},
    "detr_r101": {"blocks": (3, 4, 23, 3)},
    "detr_r50_panoptic": {"classes": 250, "masks": True},
}  # fmt: skip


@dataclass(frozen=True)
class DETRConfig(ImageConfig):
    """A ResNet, an encoder of `depth` blocks on its last feature map, and a decoder of object queries.

    Fields from `norm` on are not the paper's: each is off as it stands, and `modern.py` says where it comes from.
    """

    family = "detr"
    predicts = "boxes"
    named_fields = (
        "width", "depth", "decoder_depth", "heads", "mlp", "queries", "backbone_width", "blocks", "kind", "dilated",
        "masks", "norm", "stride", "fused_stages", "two_stage", "refine", "box_bias", "denoising",
    )  # fmt: skip
    chosen_fields = ("queries", "norm", "stride", "fused_stages", "two_stage", "refine", "box_bias", "denoising")
    can_checkpoint = True

    size: tuple[int, ...] = shape((800, 1333), "Size in pixels of the largest input: height and width, or one number.")
    classes: int = 91
    """COCO's ids go to 90; "no object" is one more."""
    queries: int = shape(100, "Number of object queries: the most objects that an image can have.")
    width: int = shape(256, "Embedding dimension.")
    depth: int = shape(6, "Number of encoder blocks.")
    decoder_depth: int = shape(6, "Number of decoder blocks.")
    heads: int = shape(8, "Number of attention heads.")
    mlp: int = shape(2048, "Hidden dimension of the MLP.")
    dropout: float = shape(0.1, "Dropout rate.")
    backbone_width: int = shape(64, "Channels after the stem of the ResNet.")
    blocks: tuple[int, ...] = shape((3, 4, 6, 3), "ResNet: number of blocks per stage.")
    kind: Literal["basic", "bottleneck"] = shape("bottleneck", "ResNet: kind of residual block.")
    dilated: bool = shape(False, "DC5: the ResNet's last stage keeps its resolution, by dilated convolutions.")
    masks: bool = shape(False, "A mask per query, by the panoptic head.")
    frozen_norms: bool = shape(
        False, "Fixed batch norms, and stem and first stage not trained: for a ResNet whose weights were loaded."
    )

    norm: Literal["post", "pre"] = shape("post", "LayerNorm after each residual addition, or before each branch.")
    stride: int | None = shape(
        None, "Pixels per token: 8, 16 or 32. Default: 16 with fused stages, else the last stage's."
    )
    fused_stages: int = shape(
        1, "Feature maps that are summed into the tokens: 1 is C5, 2 is C4 and C5, 3 is C3 to C5."
    )
    classification: Literal["softmax", "focal", "varifocal"] = shape(
        "softmax", "Softmax with a class for no object; or a sigmoid per class, by focal loss or with IoU targets."
    )
    two_stage: bool = shape(False, "Encoder tokens predict boxes, and the best become the queries' anchors.")
    refine: bool = shape(False, "Each decoder block refines the boxes of the block before.")
    box_bias: bool = shape(False, "Cross-attention has a position bias relative to each query's box.")
    denoising: int = shape(0, "Groups of denoising queries in training: each has two for each object. 0: none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "queries", "width", "depth", "decoder_depth", "heads", "mlp")
        require_shares(self, "dropout")
        if len(self.size) != 2:
            raise ConfigError(f"DETR reads pictures, not inputs of {len(self.size)} axes")
        if self.width % self.heads or self.width % 4:
            raise ConfigError(
                f"width {self.width} does not divide into {self.heads} heads and four parts of a position",
                do="change width or heads",
            )
        self.backbone()
        if self.masks and (len(self.blocks) != 4 or self.width % 32 or (self.width + self.heads) % 8):
            raise ConfigError(
                f"masks=True does not go with blocks={self.blocks}, width={self.width} and heads={self.heads}",
                do="use a ResNet of four stages, a width that is a multiple of 32, and 8 heads",
            )
        if self.denoising < 0:
            raise ConfigError(f"denoising={self.denoising} is no number of groups", do="give 0 or more")
        self._check_tokens()

    def _check_tokens(self) -> None:
        """An error for tokens that the ResNet cannot make."""
        if not 1 <= self.fused_stages <= len(self.blocks):
            what = f"fused_stages={self.fused_stages} does not fit a ResNet of {len(self.blocks)} stages"
            raise ConfigError(what, do=f"give 1 to {len(self.blocks)}")
        strides = sorted(set(self.stage_strides[-self.fused_stages :]))
        if self.token_stride not in strides:
            what = f"stride={self.token_stride} is none of the feature maps that become the tokens"
            raise ConfigError(what, do=f"give {' or '.join(map(str, strides))}, or change fused_stages")

    def backbone(self) -> ResNetConfig:
        return ResNetConfig(
            size=self.size, channels=self.channels, classes=1, width=self.backbone_width, blocks=self.blocks,
            kind=self.kind,
        )  # fmt: skip

    @property
    def features(self) -> int:
        return self.width

    @property
    def stage_strides(self) -> tuple[int, ...]:
        """Pixels per cell of each stage's feature map."""
        strides = [4 * 2**stage for stage in range(len(self.blocks))]
        return (*strides[:-1], strides[-1] // (2 if self.dilated else 1))

    @property
    def token_stride(self) -> int:
        """Pixels per token: as asked, or those of the last map, or of the one before if maps are fused."""
        if self.stride is not None:
            return self.stride
        return self.stage_strides[-1 if self.fused_stages == 1 else -2]

    @property
    def anchored(self) -> bool:
        """Whether each query has a box of its own before the decoder."""
        return self.two_stage or self.refine or self.box_bias or self.denoising > 0

    @property
    def logits(self) -> int:
        return self.classes + (self.classification == "softmax")

    @property
    def block_count(self) -> int:
        return sum(self.blocks) + self.depth + self.decoder_depth


_NAMES = tuple(field.name for field in fields(DETRConfig))
MODERN = _NAMES[_NAMES.index("norm") :]
"""Fields that are not the paper's."""


def configure(name: str, **changes: Any) -> DETRConfig:
    """The config of the variant called `name`."""
    if "size" in changes:
        changes["size"] = per_axis(changes["size"], 2, "size")
    return change(DETRConfig(), VARIANTS[name] | changes, where=name)
