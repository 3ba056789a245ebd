"""Low-rank adaptation (Hu et al., "LoRA", 2022): small trainable matrices beside frozen weights.

Departure from the paper: the sum W + (α/r)·BA is computed before the product with x, instead of adding B(Ax) to Wx.

- The function is the same, and merging is exact.
- The cost: the backward pass computes the full gradient of W to get those of A and B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.nn.multihead import MultiHeadAttention

ALPHA = 16.0
"""α of section 4.1. BA is scaled by α/r, so that a learning rate tuned for one rank suits other ranks."""


class LowRank(nn.Module):
    """W₀ + (α/r)·BA (equation 3) for queries and values, in a matrix that projects queries, keys and values.

    It replaces that projection and has the same attributes `weight` and `bias`.
    """

    scale: Tensor

    def __init__(self, base: nn.Linear, rank: int):
        super().__init__()
        inner, width = base.out_features // 3, base.in_features
        if not 1 <= rank <= min(inner, width):
            most = min(inner, width)
            raise ConfigError(f"lora={rank} is more than the width of {most}", do=f"give --lora 1 to {most}, such as 8")
        self.base = base
        self.a = nn.Parameter(base.weight.new_empty(2, rank, width))
        self.b = nn.Parameter(base.weight.new_zeros(2, inner, rank))
        self.register_buffer("scale", base.weight.new_tensor(ALPHA / rank))
        for matrix in self.a.data:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        return changed(self.base.weight, self.a, self.b, self.scale)

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def changed(weight: Tensor, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """The projection (3 · inner, width) with BA added to its first and last third; the keys stay."""
    queries, values = (scale * (b @ a)).unbind()
    return weight + torch.cat([queries, torch.zeros_like(queries), values])


def add_lora(model: nn.Module, rank: int) -> None:
    """Freeze everything but the head, and add low-rank matrices to the queries and values of each attention.

    A convolutional network beside the transformer trains as the head does.
    """
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    if not layers:
        raise ConfigError(
            f"lora={rank} changes attention and the model has none", do="leave --lora out, or use --freeze"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("head.", "cnn.")))
    for layer in layers:
        layer.add_module("qkv", LowRank(layer.qkv, rank))


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with BA added to each weight, under the names without LoRA; without LoRA it is unchanged."""
    layers = [name.removesuffix(".base.weight") for name in state if name.endswith(".base.weight")]
    own = {f"{layer}.{part}" for layer in layers for part in ("a", "b", "scale")}
    plain = {name.replace(".base.", "."): tensor for name, tensor in state.items() if name not in own}
    for layer in layers:
        parts = (state[f"{layer}.{part}"] for part in ("base.weight", "a", "b", "scale"))
        plain[f"{layer}.weight"] = changed(*parts)
    return plain
