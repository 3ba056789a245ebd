"""The Swin Transformer, for images and volumes alike.

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows" (2021).

Departures from the paper:

- Inputs of any size: patches, windows and merges are padded with zeros where the size does not divide, as in the
  authors' code for detection. Padding is attended to, as there.
- Where a grid is no longer than a window, the window shrinks to the grid and is not shifted (`small_grid`).
- The blocks start as a ViT's: Xavier instead of a normal distribution of 0.02, which is small for narrow networks. The
  head starts at zero.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.networks.base import Network, Output
from regard.networks.swin.config import SwinConfig, configure
from regard.nn import LastNorm, PatchEmbed, drop_rates
from regard.nn.windows import (
    PatchMerging,
    WindowBlock,
    WindowBlockConfig,
    Windows,
    merge_neighbours,
    relative_rows,
    shift_mask,
    to_windows,
)

DEEP = 6
"""Blocks of a stage up to which it is compiled as a whole; more would take minutes."""


class Stage(nn.Module):
    """Blocks on one grid, every second one with shifted windows; then, in all but the last stage, a merge."""

    rows: Tensor
    mask: Tensor | None

    def __init__(self, config: SwinConfig, stage: int, rates: list[float | None]):
        super().__init__()
        self.config = config
        width, self.grid = config.widths[stage], config.grids()[stage]
        hidden, window = int(config.mlp_ratio * width), config.window
        shape = WindowBlockConfig(width, config.heads[stage], hidden, eps=config.eps, window=window)
        self.blocks = nn.ModuleList(WindowBlock(shape, drop_path=rate) for rate in rates)
        last = stage == len(config.depths) - 1
        self.merge = None if last else PatchMerging(width, len(window), config.eps)
        _, shifted = self._windows_on(self.grid)
        self.register_buffer("rows", shifted.rows, persistent=False)
        self.register_buffer("mask", shifted.mask, persistent=False)

    def forward(self, x: Tensor, run_block: Callable[..., Tensor]) -> Tensor:
        """Tokens on their grid (B, *grid, C); `run_block` is the network's."""
        windows = self.windows(tuple(x.shape[1:-1]), x.device)
        for number, block in enumerate(self.blocks):
            x = run_block(block, x, windows=windows[number % 2])
        return x if self.merge is None else self.merge(x)

    def windows(self, grid: tuple[int, ...], device: torch.device) -> tuple[Windows, Windows]:
        """Windows of even and of odd blocks on this grid; those of the configured size are kept."""
        if grid != self.grid:
            return self._windows_on(grid, device)
        window, shift = self.config.fit_window(grid)
        return Windows(window, (0,) * len(grid), self.rows, None), Windows(window, shift, self.rows, self.mask)

    def _windows_on(self, grid: tuple[int, ...], device: torch.device | None = None) -> tuple[Windows, Windows]:
        window, shift = self.config.fit_window(grid)
        rows = relative_rows(window, self.config.window, device)
        mask = shift_mask(grid, window, shift, device)
        return Windows(window, (0,) * len(grid), rows, None), Windows(window, shift, rows, mask)


class Swin(Network):
    """Patches in, class scores out. Its tokens are those of the last stage.

    >>> config = SwinConfig(size=(32, 48), width=8, depths=(2, 1), heads=(2, 4), window=(4, 4), classes=5)
    >>> model = Swin(config)
    >>> out = model(torch.rand(2, 3, 32, 48))
    >>> out.logits.shape, out.tokens.shape, model.token_map().cell
    (torch.Size([2, 5]), torch.Size([2, 24, 16]), (8, 8))
    """

    BLOCKS = (WindowBlock,)
    TOKENS_ON_INPUT = True

    config: SwinConfig

    def __init__(self, config: SwinConfig):
        super().__init__()
        self.config = config
        self.patches = PatchEmbed(config.patch, config.channels, config.width)
        self.patch_norm = nn.LayerNorm(config.width, eps=config.eps)
        rates = iter(drop_rates(config.drop_path, sum(config.depths)))
        self.stages = nn.ModuleList(
            Stage(config, stage, [next(rates) for _ in range(depth)]) for stage, depth in enumerate(config.depths)
        )
        self.norm = LastNorm(config.features, eps=config.eps)
        self.head = nn.Linear(config.features, config.classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for blocks and merges, LeCun for the patches, zeros for the head."""
        for module in self.stages.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.patches.project.weight, std=self.patches.project.in_features**-0.5)
        for parameter in (self.patches.project.bias, *self.head.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, *, class_token_only: bool = False) -> Output:
        """x (B, channels, *size), of any size. Tokens come normalised. `class_token_only` has no effect."""
        if x.ndim != 2 + len(self.config.patch) or x.shape[1] != self.config.channels:
            raise ConfigError(
                f"an input of shape {tuple(x.shape)} does not fit: "
                f"(batch, {self.config.channels} channels, {len(self.config.patch)} axes) is expected"
            )
        grid = self.config.grids(tuple(x.shape[2:]))[0]
        tokens = self.patches(x)
        # Under autocast a norm returns fp32, which the residual stream of the first and largest stage would keep.
        tokens = self.patch_norm(tokens).to(tokens.dtype).unflatten(1, grid)
        for stage in self.stages:
            tokens = stage(tokens, self.run_block)
        tokens = self.norm(tokens.flatten(1, -2))
        features = tokens.mean(dim=1)
        return Output(self.head(features), features, tokens)

    def merges(self) -> list[nn.Module]:
        return [module for module in self.modules() if isinstance(module, PatchMerging)]

    def hidden_layers(self) -> list[nn.Module]:
        return [*self.repeated(), *self.merges()]

    def compiled(self) -> list[nn.Module]:
        """Stages as a whole: torch keeps eight graphs of one forward, and blocks of two sizes would need more."""
        parts: list[nn.Module] = []
        for stage in self.stages:
            pieces = [module for module in stage.modules() if isinstance(module, (WindowBlock, PatchMerging))]
            parts += [stage] if len(pieces) <= DEEP + 1 else pieces
        return [*parts, self.norm]

    def input_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        size = size or self.config.size
        return TokenMap(self.config.grids(size)[0], self.config.patch, size)

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        size = size or self.config.size
        cell = tuple(2 ** (len(self.config.depths) - 1) * side for side in self.config.patch)
        return TokenMap(self.config.grids(size)[-1], cell, size)

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep | MergeStep, ...]:
        steps: list[AttentionStep | MergeStep] = []
        for number, grid in enumerate(self.config.grids(size)):
            tokens = 1 + torch.arange(torch.Size(grid).numel()).reshape(1, *grid, 1)  # padding is 0, and then -1
            window, shift = self.config.fit_window(grid)
            for block in range(self.config.depths[number]):
                by = shift if block % 2 else (0,) * len(grid)
                slots = to_windows(tokens, window, by)[..., 0] - 1
                steps.append(AttentionStep(f"stages.{number}.blocks.{block}.attention", windows=slots))
            if number < len(self.config.depths) - 1:
                steps.append(MergeStep(merge_neighbours(tokens).flatten(0, -2) - 1))
        return tuple(steps)


def build(name: str, **changes: Any) -> Swin:
    return Swin(configure(name, **changes))
