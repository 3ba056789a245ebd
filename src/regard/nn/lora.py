"""Low-rank adaptation (Hu et al., "LoRA", 2022): a few trainable numbers beside frozen weights.

Departures from the paper: the changed weight is made before it is used, W + (α/r)·BA, instead of adding
B(Ax) to Wx. The function is the same, every way of using the weight sees it, and merging is exact; the
price is the full gradient of W on the way to those of A and B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.errors import ConfigError
from regard.nn.attention import MultiHeadAttention

ALPHA = 16.0
"""α of section 4.1. The change is scaled by α/r, so that a rate found for one rank serves for others."""

_PLAIN, _ORIGINAL, _CHANGE = ".weight", ".parametrizations.weight.original", ".parametrizations.weight.0."


class LowRank(nn.Module):
    """W₀ + (α/r)·BA (equation 3) for the queries and the values of one matrix that projects both and the keys."""

    scale: Tensor

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        inner, width = weight.shape[0] // 3, weight.shape[1]
        self.a = nn.Parameter(weight.new_empty(2, rank, width))
        self.b = nn.Parameter(weight.new_zeros(2, inner, rank))
        self.register_buffer("scale", weight.new_tensor(ALPHA / rank))
        for matrix in self.a:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return changed(weight, self.a, self.b, self.scale)


def changed(weight: Tensor, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """The projection (3 · inner, width) with its first and last third changed; the keys stay."""
    queries, values = scale * (b @ a)
    return weight + torch.cat([queries, torch.zeros_like(queries), values])


def add_lora(model: nn.Module, rank: int) -> None:
    """Freeze everything but the head, and let each attention's queries and values change by matrices of this rank."""
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    if not layers:
        raise ConfigError(
            f"lora={rank} changes attention and the model has none", do="leave --lora out, or use --freeze"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    for layer in layers:
        most = min(layer.inner, layer.qkv.in_features)
        if rank > most:
            raise ConfigError(f"lora={rank} is more than the width of {most}", do=f"give --lora 1 to {most}, such as 8")
        parametrize.register_parametrization(layer.qkv, "weight", LowRank(layer.qkv.weight.detach(), rank))


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with every change added to its weight, under the plain names; one without any stays as it is."""
    plain = {}
    for name, tensor in state.items():
        if name.endswith(_ORIGINAL):
            layer = name.removesuffix(_ORIGINAL)
            parts = (state[f"{layer}{_CHANGE}{part}"] for part in ("a", "b", "scale"))
            plain[layer + _PLAIN] = changed(tensor, *parts)
        elif _CHANGE not in name:
            plain[name] = tensor
    return plain
