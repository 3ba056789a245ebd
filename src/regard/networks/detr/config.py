"""Settings of DETR, and the variants by name. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change, require_positive, require_shares
from regard.errors import ConfigError
from regard.geometry import per_axis
from regard.networks.config import ImageConfig, shape
from regard.networks.resnet.config import ResNetConfig

# The paper's Table 1, and one for a laptop. Images are 800 pixels high and 1333 wide, at most (section 4).
VARIANTS: dict[str, dict[str, Any]] = {
    "detr_nano": {
        "size": (128, 128), "width": 64, "depth": 2, "decoder_depth": 2, "heads": 8, "mlp": 256, "queries": 20,
        "backbone_width": 16, "blocks": (2, 2, 2, 2), "kind": "basic", "dilated": True,
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
    """A ResNet, an encoder of `depth` blocks on its last feature map, and a decoder of object queries."""

    family = "detr"
    predicts = "boxes"
    named_fields = (
        "width", "depth", "decoder_depth", "heads", "mlp", "queries", "backbone_width", "blocks", "kind", "dilated",
        "masks",
    )  # fmt: skip
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

    def backbone(self) -> ResNetConfig:
        return ResNetConfig(
            size=self.size, channels=self.channels, classes=1, width=self.backbone_width, blocks=self.blocks,
            kind=self.kind,
        )  # fmt: skip

    @property
    def features(self) -> int:
        return self.width

    @property
    def logits(self) -> int:
        return self.classes + 1

    @property
    def block_count(self) -> int:
        return sum(self.blocks) + self.depth + self.decoder_depth


def configure(name: str, **changes: Any) -> DETRConfig:
    """The config of the variant called `name`."""
    if "size" in changes:
        changes["size"] = per_axis(changes["size"], 2, "size")
    return change(DETRConfig(), VARIANTS[name] | changes, where=name)
