"""Residual networks: the convolutional baseline that a Vision Transformer is measured against.

He et al., "Deep Residual Learning" (2016), Table 1, and BiT's R50x1 (Kolesnikov et al., 2020).

Departures from the paper: in a bottleneck the 3 × 3 convolution has the stride, not the first ("v1.5", as
everybody's weights have it); pictures of up to 64 pixels may keep their resolution in the stem, as in the
paper's own CIFAR networks (section 4.2); the head starts at zero, as ViT's and BiT's do; stochastic depth.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.geometry import TokenMap, grid_of
from regard.networks.base import Network, Output
from regard.networks.resnet.bit import Bottleneck, PreActivation, even_conv, group_norm
from regard.networks.resnet.config import ResNetConfig, configure
from regard.nn import DropPath, drop_rates, pad_to


def plain_conv(before: int, after: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    padding = kernel // 2 * dilation
    return nn.Conv2d(before, after, kernel, stride=stride, padding=padding, dilation=dilation, bias=False)


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm that takes a last batch of one picture and one cell, which has no variance, as in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.shape[0] * input.shape[2] * input.shape[3] == 1:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


class FrozenNorm(nn.Module):
    """BatchNorm with fixed statistics, scale and shift: none of them is a parameter."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int):
        super().__init__()
        for name, value in {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}.items():
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=1e-5)


Norm = type[BatchNorm] | type[FrozenNorm]


class Basic(nn.Module):
    """Two 3 × 3 convolutions, the first with the stride, added to the input or its projection."""

    def __init__(
        self,
        before: int,
        after: int,
        stride: int,
        drop_path: float | None = None,
        *,
        conv: Callable[..., nn.Module] = plain_conv,
        norm: Norm = BatchNorm,
    ):
        super().__init__()
        self.conv1, self.norm1 = conv(before, after, 3, stride), norm(after)
        self.conv2, self.norm2 = conv(after, after, 3), norm(after)
        changed = before != after or stride > 1
        self.shortcut = conv(before, after, 1, stride) if changed else None
        self.shortcut_norm = norm(after) if changed else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return F.relu(x + self.drop_path(y))


def make_block(
    kind: str,
    before: int,
    after: int,
    stride: int,
    drop_path: float | None,
    *,
    first: bool,
    dilation: int = 1,
    norm: Norm = BatchNorm,
) -> nn.Module:
    """One block of the given kind; `first` of its stage."""
    if kind == "bit":
        return PreActivation(before, after, stride, drop_path, first=first)
    block = Basic if kind == "basic" else Bottleneck
    return block(before, after, stride, drop_path, conv=partial(plain_conv, dilation=dilation), norm=norm)


def init_convolutions(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResidualStem(nn.Module):
    """The first stages of a ResNet-18 as tokens: (B, N, width), one for each patch.

    The hybrid architecture of Dosovitskiy et al. (2021, section 3.1) with the smallest residual blocks: two per halving
    of the resolution, twice the channels after each. Patches of 8 pixels and more begin with ResNet's 7 × 7 convolution
    and pooling, smaller ones with a 3 × 3 convolution at full resolution.

    >>> ResidualStem((16, 16), 3, 32)(torch.rand(2, 3, 40, 32)).shape
    torch.Size([2, 6, 32])
    """

    def __init__(self, patch: tuple[int, ...], channels: int, width: int, blocks: int = 2):
        super().__init__()
        base, halvings = max(16, min(64, width // 4)), patch[0].bit_length() - 1
        if len(patch) != 2 or len(set(patch)) > 1 or patch[0] != 2**halvings:
            raise ConfigError(
                f"stem='residual' cannot make patches of {patch}", do="use a square patch of 2, 4, 8 or 16"
            )
        self.patch, self.small = patch, halvings < 3
        self.root = plain_conv(channels, base, 3 if self.small else 7, 1 if self.small else 2)
        self.root_norm = BatchNorm(base)
        self.stages, before = nn.Sequential(), base
        for stage in range(halvings + 1 if self.small else halvings - 1):
            after = base * 2**stage
            first = Basic(before, after, 2 if stage else 1)
            self.stages.append(nn.Sequential(first, *(Basic(after, after, 1) for _ in range(blocks - 1))))
            before = after
        self.project = nn.Linear(before, width)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_to(x, self.patch).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.root_norm(self.root(x)))
        if not self.small:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        return self.project(self.stages(x).flatten(2).transpose(1, 2))


class ResNet(Network):
    """Pictures in, class scores out. Its tokens are the cells of the last feature map, in raster order.

    >>> import torch
    >>> model = ResNet(ResNetConfig(size=(64, 48), width=8, blocks=(1, 1), kind="basic", classes=5))
    >>> out = model(torch.rand(2, 3, 64, 48))
    >>> out.logits.shape, out.tokens.shape, model.token_map().cell
    (torch.Size([2, 5]), torch.Size([2, 48, 16]), (8, 8))
    """

    BLOCKS = (Basic, Bottleneck, PreActivation)
    TOKENS_ON_INPUT = True

    config: ResNetConfig

    def __init__(self, config: ResNetConfig, *, norm: Norm = BatchNorm, dilated: bool = False):
        """`dilated`: the last stage keeps its resolution, and its convolutions after the first are dilated instead."""
        super().__init__()
        if len(config.size) != 2:
            raise ConfigError(f"a ResNet reads pictures, not inputs of {len(config.size)} axes")
        if config.kind == "bit" and config.width % 32:
            raise ConfigError(f"width={config.width} does not part into GroupNorm's groups", do="give a multiple of 32")
        self.config, self.dilated = config, dilated
        bit, small = config.kind == "bit", config.stem == "small"
        conv = even_conv if bit else plain_conv
        self.root = conv(config.channels, config.width, 3 if small else 7, 1 if small else 2)
        self.root_norm = None if bit else norm(config.width)
        self.stages, before = nn.Sequential(), config.width
        rates = iter(drop_rates(config.drop_path, sum(config.blocks)))
        for stage, count in enumerate(config.blocks):
            after, units = config.features // 2 ** (len(config.blocks) - 1 - stage), nn.Sequential()
            flat = dilated and stage == len(config.blocks) - 1
            for number in range(count):
                stride = 2 if stage and not number and not flat else 1
                dilation = 2 if flat and number else 1
                units.append(
                    make_block(
                        config.kind, before, after, stride, next(rates), first=not number, dilation=dilation, norm=norm
                    )
                )
                before = after
            self.stages.append(units)
        self.norm = group_norm(config.features) if bit else None
        self.head = nn.Linear(config.features, config.classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He et al., "Delving deep into rectifiers" (2015), for the convolutions; zeros for the head."""
        init_convolutions(self)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, *, class_token_only: bool = False) -> Output:
        """x (B, channels, height, width), of any size. `class_token_only` changes nothing: there is none."""
        cells = self.stages(self.embed(x))
        if self.norm is not None:
            cells = F.relu(self.norm(cells))
        tokens = cells.flatten(2).transpose(1, 2)
        features = tokens.mean(dim=1)
        return Output(self.head(features), features, tokens)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The feature map after each stage: (B, channels, rows, columns), from images as in `forward`."""
        maps = [self.embed(x)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]

    def embed(self, x: Tensor) -> Tensor:
        """The stem: a quarter of the resolution, or all of it."""
        if x.ndim != 4 or x.shape[1] != self.config.channels:
            raise ConfigError(
                f"an input of shape {tuple(x.shape)} does not fit: "
                f"(batch, {self.config.channels} channels, height, width) is expected"
            )
        x = self.root(x.contiguous(memory_format=torch.channels_last))
        if self.root_norm is not None:
            x = F.relu(self.root_norm(x))
        if self.config.stem == "small":
            return x
        if self.root_norm is None:  # BiT pads with zeros even where all is below them
            return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, stride=2)
        return F.max_pool2d(x, 3, stride=2, padding=1)

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        size = size or self.config.size
        halvings = len(self.config.blocks) - 1 - self.dilated
        cell = (2**halvings * (1 if self.config.stem == "small" else 4),) * 2
        return TokenMap(grid_of(size, cell), cell, size)


def build(name: str, **changes: Any) -> ResNet:
    return ResNet(configure(name, **changes))
