"""Settings of a fully connected network, and the variants by name. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.config import change, require_positive, require_shares
from regard.geometry import per_axis
from regard.networks.config import ImageConfig, shape

# name: (width, depth)
VARIANTS = {"mlp_nano": (256, 3), "mlp": (1024, 3)}


@dataclass(frozen=True)
class MLPConfig(ImageConfig):
    """A fully connected network on flattened pixels: `depth` hidden layers of `width`."""

    family = "mlp"
    named_fields = ("width", "depth")
    any_size = False

    size: tuple[int, ...] = shape((32, 32), "Input size in pixels. Default: chosen by the data.", common=True)
    width: int = shape(1024, "Neurons per hidden layer.")
    depth: int = shape(3, "Number of hidden layers.")
    dropout: float = shape(0.0, "Dropout rate.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "width", "depth")
        require_shares(self, "dropout")

    @property
    def features(self) -> int:
        return self.width

    @property
    def block_count(self) -> int:
        return self.depth


def configure(name: str, **changes: Any) -> MLPConfig:
    """The config of the variant called `name`."""
    width, depth = VARIANTS[name]
    if "size" in changes:
        axes = 2 if isinstance(changes["size"], int) else len(changes["size"])
        changes["size"] = per_axis(changes["size"], axes, "size")
    return change(MLPConfig(width=width, depth=depth), changes, where=name)
