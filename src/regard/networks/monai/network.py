"""MONAI's convolutional networks and SwinUNETR's encoder: baselines for volumes under the recipes of the others.

Their layers, arguments and initial weights are MONAI's (Cardoso et al., "MONAI: An open-source framework for deep
learning in healthcare", 2022), as its `resnet18(...)`, `DenseNet121(...)`, `EfficientNetBN(...)` and `SwinTransformer`
build them. Departures:

- The last linear layer is the `head`, which starts at zero as those of all networks here.
- SwinUNETR's encoder gets a head: on the mean of its last feature map, 48 channels wide at first, as in Tang et al.,
  "Self-supervised pre-training of Swin Transformers for 3D medical image analysis" (2022). Its attention is MONAI's
  own, so nothing that reads attention weights works on it.
- A last batch of one volume that ends in one cell, which has no variance, is normalised as in evaluation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, missing
from regard.geometry import TokenMap
from regard.networks.base import Network, Output
from regard.networks.monai.config import MonaiConfig, configure

SWIN: dict[str, Any] = {"embed_dim": 48, "depths": (2, 2, 2, 2), "num_heads": (3, 6, 12, 24)}
BLOCKS = ("ResNetBlock", "_DenseLayer", "MBConvBlock", "SwinTransformerBlock")


def make_body(config: MonaiConfig) -> Any:
    """MONAI's network without its last layer."""
    try:
        from monai.networks.nets import densenet, efficientnet, resnet, swin_unetr
    except ImportError:
        raise missing("monai", "medical") from None
    kind, axes, channels = config.kind, len(config.size), config.channels
    if kind.startswith("resnet"):
        return getattr(resnet, kind)(spatial_dims=axes, n_input_channels=channels, feed_forward=False)
    if kind.startswith("densenet"):
        named = getattr(densenet, kind.replace("densenet", "DenseNet"))
        return named(spatial_dims=axes, in_channels=channels, out_channels=1).features
    if kind.startswith("efficientnet"):
        body: Any = efficientnet.EfficientNetBN(kind, pretrained=False, spatial_dims=axes, in_channels=channels)
        body._fc = nn.Identity()
        return body
    with torch.device("cpu"):  # it reads numbers off tensors while it builds
        body = swin_unetr.SwinTransformer(
            channels, window_size=(7,) * axes, patch_size=(2,) * axes, spatial_dims=axes, **SWIN
        )
    return body.to(torch.get_default_device())


def last_map(body: Any, kind: str, x: Tensor) -> Tensor:
    """The feature map that MONAI's network pools: (B, features, *grid)."""
    if kind.startswith("resnet"):
        x = body.maxpool(body.act(body.bn1(body.conv1(x))))
        return body.layer4(body.layer3(body.layer2(body.layer1(x))))
    if kind.startswith("densenet"):
        return torch.relu(body(x))
    if kind.startswith("efficientnet"):
        x = body._swish(body._bn0(body._conv_stem(body._conv_stem_padding(x))))
        return body._swish(body._bn1(body._conv_head(body._conv_head_padding(body._blocks(x)))))
    return body(x)[-1]


class MonaiNetwork(Network):
    """Volumes in, class scores out. Its tokens are the cells of the last feature map, in raster order.

    >>> model = MonaiNetwork(configure("monai_resnet10", size=32, classes=5))
    >>> out = model(torch.rand(2, 1, 32, 32, 32))
    >>> out.logits.shape, out.tokens.shape, model.token_map().cell
    (torch.Size([2, 5]), torch.Size([2, 8, 512]), (16, 16, 16))
    """

    TOKENS_ON_INPUT = True

    config: MonaiConfig

    def __init__(self, config: MonaiConfig):
        super().__init__()
        if len(config.size) not in (2, 3):
            raise ConfigError(f"MONAI's networks take inputs of 2 or 3 axes, not of {len(config.size)}")
        self.config = config
        self.body = make_body(config)
        self.dropout = nn.Dropout(self.body._dropout.p if config.kind.startswith("efficientnet") else 0.0)
        self.head = nn.Linear(config.features, config.classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, *, class_token_only: bool = False) -> Output:
        """x (B, channels, *size), of any size. `class_token_only` has no effect: there is none."""
        if x.ndim != 2 + len(self.config.size) or x.shape[1] != self.config.channels:
            raise ConfigError(
                f"an input of shape {tuple(x.shape)} does not fit: "
                f"(batch, {self.config.channels} channels, {len(self.config.size)} axes) is expected"
            )
        alone = self.body.training and len(x) == 1 and math.prod(grid_on(self.config, tuple(x.shape[2:]))) == 1
        if alone:
            self.body.eval()
        tokens = last_map(self.body, self.config.kind, x).flatten(2).transpose(1, 2)
        self.body.train(self.body.training or alone)
        features = tokens.mean(dim=1)
        return Output(self.head(self.dropout(features)), features, tokens)

    def repeated(self) -> list[nn.Module]:
        return [module for module in self.body.modules() if type(module).__name__ in BLOCKS]

    def hidden_layers(self) -> list[nn.Module]:
        inside = [module for block in self.repeated() for module in block.modules()]
        return [m for m in inside if isinstance(m, (nn.Linear, nn.Conv2d, nn.Conv3d))]  # no tables of biases

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Where strides do not divide the size, cells share it as evenly as whole voxels allow."""
        size = size or self.config.size
        grid = grid_on(self.config, size)
        return TokenMap(grid, tuple(-(-side // n) for side, n in zip(size, grid, strict=True)), size)


@cache
def grid_on(config: MonaiConfig, size: tuple[int, ...]) -> tuple[int, ...]:
    """Cells of the last feature map along each axis: some of MONAI's layers round up and others down."""
    with torch.device("meta"), torch.no_grad():
        x, body = torch.empty(1, config.channels, *size), make_body(config).eval()
        return tuple(last_map(body, config.kind, x).shape[2:])


def build(name: str, **changes: Any) -> MonaiNetwork:
    return MonaiNetwork(configure(name, **changes))
