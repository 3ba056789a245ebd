"""The shape of a Swin Transformer, and the sizes by name. Free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change, require_positive, require_shares
from regard.errors import ConfigError
from regard.geometry import grid_of, per_axis
from regard.networks.config import ImageConfig, shape

# name: (width, depths, heads, MLP ratio). T, S, B, L: the paper's section 3.3; its heads have 32 channels each.
SIZES = {
    "nano": (32, (2, 4), (2, 4), 4.0),
    "mini": (96, (2, 4, 2), (3, 6, 12), 3.0),
    "T": (96, (2, 2, 6, 2), (3, 6, 12, 24), 4.0),
    "S": (96, (2, 2, 18, 2), (3, 6, 12, 24), 4.0),
    "B": (128, (2, 2, 18, 2), (4, 8, 16, 32), 4.0),
    "L": (192, (2, 2, 18, 2), (6, 12, 24, 48), 4.0),
}

# name: (size, patch, window, input side, axes, channels)
VARIANTS = {
    "swin_nano": ("nano", 2, 4, 32, 2, 3),
    "swin_mini": ("mini", 2, 4, 32, 2, 3),
    "swin_t": ("T", 4, 7, 224, 2, 3),
    "swin_s": ("S", 4, 7, 224, 2, 3),
    "swin_b": ("B", 4, 7, 224, 2, 3),
    "swin_b12": ("B", 4, 12, 384, 2, 3),
    "swin_l": ("L", 4, 7, 224, 2, 3),
    "swin_l12": ("L", 4, 12, 384, 2, 3),
    "swin3d_nano": ("nano", 4, 4, 32, 3, 1),
    "swin3d_t": ("T", 4, 7, 96, 3, 1),
}

MOST_SLOTS = 4096
"""Tokens of a window; published ones have up to 576."""
MOST_PAIRS = 2**30
"""Pairs of tokens in all windows of an input: a mask has an entry for each."""


@dataclass(frozen=True)
class SwinConfig(ImageConfig):
    """A Swin Transformer's shape. `size`, `patch` and `window` have as many axes as the input.

    Stage n has `depths[n]` blocks of `width` · 2ⁿ channels and `heads[n]` heads, on a grid halved n times.
    """

    family = "swin"
    named_fields = ("width", "depths", "heads", "mlp_ratio", "patch", "window")
    can_checkpoint = True
    smallest_is = "one patch"

    patch: tuple[int, ...] = shape((4, 4), "Patch size in pixels: one number, or one per axis.")
    width: int = shape(96, "Embedding dimension of the first stage.")
    depths: tuple[int, ...] = shape((2, 2, 6, 2), "Swin: number of blocks per stage.")
    heads: tuple[int, ...] = shape((3, 6, 12, 24), "Number of attention heads per stage.")
    window: tuple[int, ...] = shape((7, 7), "Swin: window size in tokens: one number, or one per axis.")
    mlp_ratio: float = shape(4.0, "Swin: hidden dimension of the MLP divided by the embedding dimension.")
    drop_path: float = shape(0.0, "Stochastic depth: rate of the last block.")
    eps: float = shape(1e-5, "Epsilon of LayerNorm.")
    small_grid: Literal["axis", "shortest", "pad"] = shape(
        "axis",
        "Swin: where a grid is no longer than a window. axis: the window shrinks to it and is not shifted along that "
        "axis; shortest: along all axes, as transformers does; pad: the grid is padded, as torchvision does.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.size) == len(self.patch) == len(self.window) in (1, 2, 3):
            raise ConfigError(
                f"size {self.size}, patch {self.patch} and window {self.window} must all have 1, 2 or 3 axes"
            )
        require_positive(self, "width")
        for name in ("patch", "window", "depths", "heads"):
            if min(getattr(self, name), default=0) < 1:
                raise ConfigError(f"{name} must be at least 1 everywhere, not {getattr(self, name)}")
        if len(self.depths) != len(self.heads):
            raise ConfigError(
                f"depths={self.depths} and heads={self.heads} are for different numbers of stages",
                do="give one number per stage to each",
            )
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                raise ConfigError(f"width {width} does not divide into {heads} heads", do="change width or heads")
        if not 0 < self.mlp_ratio <= 64:
            raise ConfigError(f"mlp_ratio={self.mlp_ratio} is out of range", do="give a number such as 4")
        require_shares(self, "drop_path")
        if not 0 < self.eps < 1:
            raise ConfigError(f"eps={self.eps} is out of range", do="give a small number above 0, such as 1e-5")
        slots = math.prod(self.window)
        if slots > MOST_SLOTS:
            raise ConfigError(f"a window of {slots:,} tokens is too large", do=f"give one of up to {MOST_SLOTS:,}")
        if (pairs := slots * math.prod(self.grids()[0])) > MOST_PAIRS:
            what = f"size={self.size} is too large: {pairs:,} pairs of tokens"
            raise ConfigError(what, do="give a smaller size or window, or a larger patch")

    @property
    def smallest(self) -> tuple[int, ...]:
        return self.patch

    @property
    def widths(self) -> tuple[int, ...]:
        """Embedding dimension of each stage."""
        return tuple(self.width * 2**stage for stage in range(len(self.depths)))

    @property
    def features(self) -> int:
        return self.widths[-1]

    @property
    def block_count(self) -> int:
        return sum(self.depths)

    def grids(self, size: tuple[int, ...] | None = None) -> tuple[tuple[int, ...], ...]:
        """Tokens along each axis, of each stage, for an input of this size (default: the configured size)."""
        cells = [tuple(2**stage * side for side in self.patch) for stage in range(len(self.depths))]
        return tuple(grid_of(size or self.size, cell) for cell in cells)

    def fit_window(self, grid: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Window and shift on a grid; the shift is that of every second block.

        >>> SwinConfig().fit_window((14, 28)), SwinConfig().fit_window((5, 28))
        (((7, 7), (3, 3)), ((5, 7), (0, 3)))
        """
        small = [tokens <= side for tokens, side in zip(grid, self.window, strict=True)]
        if self.small_grid == "shortest" and any(small):
            return (min(*grid, *self.window),) * len(grid), (0,) * len(grid)
        shift = tuple(0 if fits else side // 2 for fits, side in zip(small, self.window, strict=True))
        if self.small_grid == "pad":
            return self.window, shift
        return tuple(map(min, grid, self.window)), shift


def configure(name: str, **changes: Any) -> SwinConfig:
    """The config of the variant called `name`; `size`, `patch` and `window` may be one number for all axes."""
    kind, patch, window, side, axes, channels = VARIANTS[name]
    width, depths, heads, mlp_ratio = SIZES[kind]
    config = SwinConfig(
        size=(side,) * axes,
        patch=(patch,) * axes,
        window=(window,) * axes,
        channels=channels,
        width=width,
        depths=depths,
        heads=heads,
        mlp_ratio=mlp_ratio,
    )
    for field in ("size", "patch", "window"):
        if field in changes:
            changes[field] = per_axis(changes[field], axes, field)
    return change(config, changes, where=name)
