"""A fully connected network on flattened pixels: a baseline without any bias towards neighbouring pixels."""

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.geometry import TokenMap, grid_of
from regard.networks.base import Network, Output
from regard.networks.mlp.config import MLPConfig, configure

CELLS = 16
"""Maximal number of cells per axis in explanations."""


class Hidden(nn.Module):
    """Linear, ReLU, dropout."""

    def __init__(self, before: int, after: int, dropout: float):
        super().__init__()
        self.linear, self.drop = nn.Linear(before, after), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(F.relu(self.linear(x)))


class FullyConnected(Network):
    """Pictures or volumes of one size in, class scores out.

    It has one token, the features of the whole input. The token map says which pixels an explanation changes
    together: single pixels, or boxes of pixels in larger inputs.

    >>> import torch
    >>> model = FullyConnected(MLPConfig(size=(8, 8), channels=1, width=16, depth=2, classes=5))
    >>> model(torch.rand(2, 1, 8, 8)).logits.shape, model.token_map().grid
    (torch.Size([2, 5]), (8, 8))
    """

    BLOCKS = (Hidden,)

    config: MLPConfig

    def __init__(self, config: MLPConfig):
        super().__init__()
        self.config = config
        widths = [config.channels * math.prod(config.size), *[config.width] * config.depth]
        self.layers = nn.Sequential(*(Hidden(widths[n], widths[n + 1], config.dropout) for n in range(config.depth)))
        self.head = nn.Linear(config.width, config.classes)
        self.reset_parameters()

    def repeated(self) -> list[nn.Module]:
        """The layers between hidden ones, without the first, which projects pixels like a patch projection."""
        return super().repeated()[1:]

    def reset_parameters(self) -> None:
        """He et al., "Delving deep into rectifiers" (2015), for the hidden layers; zeros for biases and the head."""
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, *, class_token_only: bool = False) -> Output:
        """x (B, channels, *size), of the configured size. `class_token_only` has no effect: there is no class token."""
        if tuple(x.shape[1:]) != (self.config.channels, *self.config.size):
            raise ConfigError(
                f"an input of shape {tuple(x.shape)} does not fit: a fully connected network is for "
                f"{self.config.channels} channels of {self.config.size} and no other size"
            )
        features = self.layers(x.flatten(1))
        return Output(self.head(features), features, features[:, None])

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        size = size or self.config.size
        cell = tuple(-(-side // CELLS) for side in size)
        return TokenMap(grid_of(size, cell), cell, size)


def build(name: str, **changes: Any) -> FullyConnected:
    return FullyConnected(configure(name, **changes))
