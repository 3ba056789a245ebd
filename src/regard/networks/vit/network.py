"""The Vision Transformer, for signals, images and volumes alike.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), equations 1 to 4.

Departures from the paper:

- Patches are padded where the size does not divide.
- Positions may be axial, sinusoidal, absent, or a convolution in every block (Chu et al., 2021); queries and keys may
  be rotated by position (RoPE; Heo et al., 2024).
- A distillation token (DeiT; Touvron et al., 2021) may follow the class token, with a position and a head.
- Register tokens (Darcet et al., 2024) may follow these, without a position.
- Mean pooling (Zhai et al., 2022) does without a class token.
- Convolutions (Xiao et al., 2021) may replace the patch projection, as may the paper's own ResNet (section 3.1,
  "Hybrid architecture").
- The norms of a block may come after its branches; the last norm stays where it is.
- One of MONAI's convolutional networks may see the same input: its pooled features stand beside the class token's
  before the head, and both are trained together.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.geometry import TokenMap, grid_of
from regard.networks.base import Network, Output
from regard.networks.monai.network import MonaiNetwork
from regard.networks.monai.network import build as build_monai
from regard.networks.resnet.bit import HybridStem
from regard.networks.resnet.network import Basic, ResidualStem
from regard.networks.vit.config import ViTConfig, configure
from regard.nn import (
    BlockConfig,
    ConvStem,
    EncoderBlock,
    GridPositions,
    LastNorm,
    PatchEmbed,
    drop_rates,
    recording,
    rope_table,
)

STEMS = {"patch": PatchEmbed, "conv": ConvStem, "residual": ResidualStem, "r50": HybridStem}


class DistilledHead(nn.Module):
    """A linear layer for the class token, which learns the labels, and one for the distillation token: the teacher's.

    Touvron et al., "Training data-efficient image transformers & distillation through attention" (2021), section 4.
    """

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.label, self.teacher = nn.Linear(width, classes), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, 2, classes) of the two tokens (B, 2, width)."""
        return torch.stack([self.label(tokens[:, 0]), self.teacher(tokens[:, 1])], dim=1)


class ViT(Network):
    """Patches in, class scores out.

    >>> model = ViT(ViTConfig(size=(32, 48), patch=(16, 16), width=32, depth=2, heads=4, mlp=64, classes=5))
    >>> model(torch.rand(2, 3, 32, 48)).logits.shape
    torch.Size([2, 5])
    """

    BLOCKS = (EncoderBlock,)
    TOKENS_ON_INPUT = True

    config: ViTConfig
    rope: Tensor | None

    def __init__(self, config: ViTConfig):
        super().__init__()
        if len(config.size) != len(config.patch) or len(config.size) not in (1, 2, 3):
            raise ConfigError(f"size {config.size} and patch {config.patch} must both have 1, 2 or 3 axes")
        self.config = config
        width = config.width
        self.patches = STEMS[config.stem](config.patch, config.channels, width)
        self.class_token = nn.Parameter(torch.empty(1, width)) if config.pool == "class" else None
        self.distillation_token = nn.Parameter(torch.empty(1, width)) if config.distilled else None
        self.registers = nn.Parameter(torch.empty(config.registers, width)) if config.registers else None
        grid = grid_of(config.size, config.patch)
        self.positions = GridPositions(config.positions, grid, width, config.prefix)
        self.register_buffer("rope", self.rope_on(grid) if config.rope else None, persistent=False)
        self.drop = nn.Dropout(config.dropout)
        shape = BlockConfig(
            width,
            config.heads,
            config.mlp,
            norm=config.norm,
            dropout=config.dropout,
            mlp_dropout=config.dropout,
            layer_scale=config.layer_scale,
            eps=config.eps,
        )
        axes = len(grid) if config.positions == "conditional" else 0
        rates = drop_rates(config.drop_path, config.depth)
        self.blocks = nn.ModuleList(EncoderBlock(shape, drop_path=rate, axes=axes) for rate in rates)
        self.norm = LastNorm(width, eps=config.eps)
        self.head = self._make_head(config.classes, config.head)
        self.reset_parameters()
        self.cnn = make_cnn(config) if config.cnn else None

    def reset_parameters(self) -> None:
        """The paper's own initialisation: Xavier for the blocks, LeCun for the patches, zeros for the head."""
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.normal_(module.bias, std=1e-6)
        nn.init.normal_(self.patches.project.weight, std=self.patches.project.in_features**-0.5)
        nn.init.zeros_(self.patches.project.bias)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        for tokens in (self.distillation_token, self.registers):
            if tokens is not None:
                nn.init.normal_(tokens, std=0.02)

    def _make_head(self, classes: int, kind: str) -> nn.Module:
        """Section 3.1: one hidden layer for pre-training, one linear layer for fine-tuning; starts at zero."""
        features, width = self.config.features, self.config.width
        final = (DistilledHead if self.config.distilled else nn.Linear)(
            features if kind == "linear" else width, classes
        )
        for parameter in final.parameters():
            nn.init.zeros_(parameter)
        if kind == "linear":
            return final
        return nn.Sequential(nn.Linear(features, width), nn.Tanh(), final)

    def replace_head(self, classes: int) -> None:
        """Fine-tuning's D × K head of zeros in place of whatever head there was (section 3.2)."""
        self.config = replace(self.config.with_linear_head(), classes=classes)
        self.head = self._make_head(classes, "linear").to(self.norm.weight.device)

    def forward(self, x: Tensor, *, class_token_only: bool = False) -> Output:
        """x (B, channels, *size): any size, its positions resampled if it is not the configured one.

        Tokens come normalised. `class_token_only` sends only the class token (and the distillation token) through the
        last block (all, while a tape records), and `tokens` then holds only that.
        """
        if x.ndim != 2 + len(self.config.patch) or x.shape[1] != self.config.channels:
            raise ConfigError(
                f"an input of shape {tuple(x.shape)} does not fit: "
                f"(batch, {self.config.channels} channels, {len(self.config.patch)} axes) is expected"
            )
        tokens, grid = self.embed(x), grid_of(tuple(x.shape[2:]), self.config.patch)
        rope = self.rope
        if rope is not None and grid != self.positions.grid:
            rope = self.rope_on(grid, x.device)
        alone = class_token_only and self.class_token is not None and not recording()
        for number, block in enumerate(self.blocks, start=1):
            only = self.config.prefix if alone and number == len(self.blocks) else None
            tokens = self.run_block(block, tokens, only=only, grid=grid, rope=rope)  # equations 2 and 3
        tokens = self.norm(tokens)
        if self.distillation_token is not None:
            both = self.head(tokens[:, :2])  # averaged as logits, as the authors' code does
            return Output(both.mean(dim=1), tokens[:, :2].mean(dim=1), tokens, both)
        if self.class_token is not None:
            features = tokens[:, 0]  # equation 4
        else:
            features = tokens[:, self.config.registers :].mean(dim=1)
        if self.cnn is not None:
            features = torch.cat([features, self.cnn(x).logits], dim=1)
        return Output(self.head(features), features, tokens)

    def embed(self, x: Tensor) -> Tensor:
        """Equation 1: z₀ = [x_class; x₁E; …; x_N E] + E_pos."""
        tokens = self.patches(x)
        front = [token for token in (self.class_token, self.distillation_token) if token is not None]
        tokens = torch.cat([*(token.expand(len(x), 1, -1) for token in front), tokens], dim=1)
        tokens = self.positions(tokens, grid_of(tuple(x.shape[2:]), self.config.patch))
        if self.registers is not None:
            first = self.config.prefix
            spare = self.registers.expand(len(x), -1, -1)
            tokens = torch.cat([tokens[:, :first], spare, tokens[:, first:]], dim=1)
        return self.drop(tokens)

    def rope_on(self, grid: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """The table for `apply_rope` on this grid; prefix tokens are not rotated."""
        prefix = self.config.prefix + self.config.registers
        return rope_table(grid, self.config.width // self.config.heads, prefix, device)

    def compiled(self) -> list[nn.Module]:
        whole = [self.norm] * (self.config.pool == "mean")  # of all tokens; else of one
        return [self.patches] * (self.config.stem in ("conv", "residual")) + self.repeated() + whole

    def hidden_layers(self) -> list[nn.Module]:
        beside = [] if self.cnn is None else self.cnn.hidden_layers()
        return [*(m for m in self.patches.modules() if isinstance(m, Basic)), *self.repeated(), *beside]

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        size = size or self.config.size
        prefix = ("class", "distillation")[: self.config.prefix]
        prefix += tuple(f"register {n}" for n in range(self.config.registers))
        return TokenMap(grid_of(size, self.config.patch), self.config.patch, size, prefix)


def make_cnn(config: ViTConfig) -> MonaiNetwork:
    """The network beside the transformer; what it calls logits are its features, after its own dropout."""
    assert config.cnn is not None
    network = build_monai(config.cnn, size=config.size, channels=config.channels)
    network.add_module("head", nn.Identity())
    return network


def build(name: str, **changes: Any) -> ViT:
    return ViT(configure(name, **changes))
