"""MONAI's networks by name. Free of torch and of MONAI."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.config import change
from regard.errors import ConfigError
from regard.geometry import per_axis
from regard.networks.config import ImageConfig, shape

# kind: (dimension of the head's input, blocks)
KINDS: dict[str, tuple[int, int]] = {
    "resnet10": (512, 4),
    "resnet18": (512, 8),
    "resnet34": (512, 16),
    "densenet121": (1024, 58),
    "densenet169": (1664, 82),
    "densenet201": (1920, 98),
    "efficientnet-b0": (1280, 16),
    "efficientnet-b1": (1280, 23),
    "efficientnet-b3": (1536, 26),
    "swin": (768, 8),
}
VARIANTS = {f"monai_{kind.replace('-', '_')}": kind for kind in KINDS}
SIDE = 96
SMALLEST_SIDE = 32
"""All but the ResNets halve the input five times."""


def smallest_side(kind: str) -> int:
    return 16 if kind.startswith("resnet") else SMALLEST_SIDE


@dataclass(frozen=True)
class MonaiConfig(ImageConfig):
    """Which of MONAI's networks, for inputs with two or three axes; all its other settings are MONAI's own."""

    family = "monai"
    named_fields = ("kind",)
    can_compile = False  # not measured
    smallest_is = "what MONAI's networks can halve"

    kind: Literal[
        "resnet10", "resnet18", "resnet34", "densenet121", "densenet169", "densenet201", "efficientnet-b0",
        "efficientnet-b1", "efficientnet-b3", "swin",
    ] = shape("resnet18", "Which of MONAI's networks.")  # fmt: skip

    @property
    def smallest(self) -> tuple[int, ...]:
        return (smallest_side(self.kind),) * len(self.size)

    @property
    def features(self) -> int:
        return KINDS[self.kind][0]

    @property
    def block_count(self) -> int:
        return KINDS[self.kind][1]


def configure(name: str, **changes: Any) -> MonaiConfig:
    """The config of the variant called `name`; a size of two numbers makes it a network for pictures."""
    kind = changes.get("kind")
    if kind in KINDS and kind != VARIANTS[name]:
        meant = next(other for other, own in VARIANTS.items() if own == kind)
        raise ConfigError(f"kind={kind!r} contradicts {name}", do=f"give --model {meant}, and leave --kind out")
    size = changes.get("size")
    axes = len(size) if isinstance(size, tuple | list) and len(size) == 2 else 3
    if "size" in changes:
        changes["size"] = per_axis(changes["size"], axes, "size")
    plain = replace(MonaiConfig(size=(SIDE,) * axes, channels=1), kind=VARIANTS[name])  # pyright: ignore[reportArgumentType]
    return change(plain, changes, where=name)
