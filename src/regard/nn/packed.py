"""Products with matrices laid out beforehand as a CPU reads them: the same numbers, sooner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

AT_ONCE = 1024  # columns of a wide product made at a time, which stay in a CPU's cache until they are moved;
WIDE = 4096  # of one with more than these

_OPERATORS: Any = torch.ops.mkldnn  # those of oneDNN that torch's own compiler calls
"""Looked up when they are called: not every build of torch has them."""


def can_pack(model: nn.Module) -> bool:
    """Whether this machine can, and the model's weights are such."""
    there = torch.backends.mkldnn.is_available() and all(
        hasattr(_OPERATORS, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
    return there and all(
        p.device.type == "cpu" and p.dtype == torch.float32 and not p.is_inference() for p in model.parameters()
    )


class PackedLinear(nn.Module):
    """y = x Wᵀ + b without gradients, for weights that stay as they are. They are held a second time.

    >>> layer, x = nn.Linear(64, 8), torch.rand(2, 64)
    >>> if can_pack(layer):
    ...     torch.testing.assert_close(PackedLinear(layer.weight, layer.bias)(x), layer(x))
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight, self.bias = weight, bias
        parts = weight.detach().split(AT_ONCE if len(weight) > WIDE else len(weight))
        self.sizes = [len(part) for part in parts]
        biases = [None] * len(parts) if bias is None else bias.detach().split(self.sizes)
        self.packed = [(_OPERATORS._reorder_linear_weight(p), b) for p, b in zip(parts, biases, strict=True)]

    @torch.no_grad()
    def forward(self, x: Tensor, room: Tensor | None = None) -> Tensor:
        """Of x (…, K); written into `room` (rows, N), where that is given."""
        if x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)
        if room is None and len(self.packed) == 1:
            return self._product(x, *self.packed[0])
        rows = x.reshape(-1, x.shape[-1])
        out = rows.new_empty(len(rows), len(self.weight)) if room is None else room
        for place, part in zip(out.split(self.sizes, dim=1), self.packed, strict=True):
            place.copy_(self._product(rows, *part))
        return out.view(*x.shape[:-1], out.shape[1])

    @staticmethod
    def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _OPERATORS._linear_pointwise(x, weight, bias, "none", [], "")
