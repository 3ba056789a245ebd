"""The shape of a residual network, and the variants by name. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change, require_positive, require_shares
from regard.errors import ConfigError
from regard.geometry import per_axis
from regard.networks.config import ImageConfig, shape

# name: (kind, width, blocks, input side). resnet_nano is the paper's CIFAR network with n = 2.
VARIANTS = {
    "resnet_nano": ("basic", 16, (2, 2, 2), 32),
    "resnet18": ("basic", 64, (2, 2, 2, 2), 224),
    "resnet34": ("basic", 64, (3, 4, 6, 3), 224),
    "resnet50": ("bottleneck", 64, (3, 4, 6, 3), 224),
    "resnet101": ("bottleneck", 64, (3, 4, 23, 3), 224),
    "bit_r50x1": ("bit", 64, (3, 4, 6, 3), 224),
}
SMALL_SIDE = 64
SMALLEST_SIDE = 8


@dataclass(frozen=True)
class ResNetConfig(ImageConfig):
    """A residual network's shape: `blocks` in each stage, `width` channels after the stem.

    Each later stage has twice the channels and half the resolution; bottlenecks hand on four times as many.
    """

    family = "resnet"
    named_fields = ("width", "blocks", "kind")
    smallest_is = "what a ResNet can halve three times"

    width: int = shape(64, "Channels after the stem.")
    blocks: tuple[int, ...] = shape((3, 4, 6, 3), "ResNet: number of blocks per stage.")
    kind: Literal["basic", "bottleneck", "bit"] = shape("bottleneck", "ResNet: kind of residual block.")
    stem: Literal["large", "small"] = shape(
        "large", "large: 7 × 7 stride 2 and pooling; small: 3 × 3 at full resolution, for images of up to 64 pixels."
    )
    drop_path: float = shape(0.0, "Stochastic depth: rate of the last block.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "width")
        if not self.blocks or min(self.blocks) < 1:
            raise ConfigError(f"blocks={self.blocks}: every stage must have at least 1 block")
        require_shares(self, "drop_path")

    @property
    def smallest(self) -> tuple[int, ...]:
        return (SMALLEST_SIDE,) * len(self.size)

    @property
    def features(self) -> int:
        return self.width * 2 ** (len(self.blocks) - 1) * (1 if self.kind == "basic" else 4)

    @property
    def block_count(self) -> int:
        return sum(self.blocks)


def configure(name: str, **changes: Any) -> ResNetConfig:
    """The config of the variant called `name`; left open, the stem is chosen by the size."""
    kind, width, blocks, side = VARIANTS[name]
    if "size" in changes:
        changes["size"] = per_axis(changes["size"], 2, "size")
    stem = "small" if max(changes.get("size", (side,))) <= SMALL_SIDE else "large"
    given = {"size": (side, side), "width": width, "blocks": blocks, "kind": kind, "stem": stem}
    return change(ResNetConfig(), given | changes, where=name)
