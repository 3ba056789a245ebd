"""Products of eight-bit numbers, for a CPU: several at once where there was one, from a quarter of the memory."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

AT_ONCE = 2**18  # sums made at a time, which stay in a CPU's cache until they are scaled


class Int8Linear(nn.Module):
    """y = x Wᵀ + b, rounded to eight bits: each row of W once, each row of x as it comes, each with a scale of its own.

    Sums are exact; on CPUs that add two products in sixteen bits (no VNNI) W has seven bits for that. For answers, not
    for training: rounding has no gradient.

    >>> layer, x = nn.Linear(64, 8), torch.rand(2, 64)
    >>> bool((Int8Linear(layer.weight, layer.bias)(x) - layer(x)).abs().max() < 0.02)
    True
    """

    rounded: Tensor
    scales: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        rounded, scales = in_eight_bits(weight.detach().float(), most_of_weights())
        self.register_buffer("rounded", rounded)
        self.register_buffer("scales", scales[:, 0])
        self.register_buffer("bias", torch.zeros(len(weight)) if bias is None else bias.detach().float())

    @torch.no_grad()
    def forward(self, x: Tensor, room: Tensor | None = None) -> Tensor:
        """Of x (…, K); written into `room` (rows, N), where that is given."""
        rows, scales = in_eight_bits(x.reshape(-1, x.shape[-1]).float())
        if room is None and len(rows) * len(self.rounded) <= AT_ONCE:
            sums = torch._int_mm(rows, self.rounded.mT).float().mul_(scales)
            return torch.addcmul(self.bias, sums, self.scales).view(*x.shape[:-1], len(self.rounded))
        out = scales.new_empty(len(rows), len(self.rounded)) if room is None else room
        for n in range(0, out.shape[1], each := max(64, AT_ONCE // max(1, len(rows)))):
            some = slice(n, n + each)
            sums = torch._int_mm(rows, self.rounded[some].mT).float().mul_(scales)
            torch.addcmul(self.bias[some], sums, self.scales[some], out=out[:, some])
        return out.view(*x.shape[:-1], len(self.rounded))


@cache
def most_of_weights() -> int:
    """The largest weight with which this CPU's sums are right, found by trying."""
    largest = torch.full((32, 64), 127, dtype=torch.int8)
    return 127 if int(torch._int_mm(largest, largest.mT)[0, 0]) == 64 * 127**2 else 63


def in_eight_bits(rows: Tensor, most: int = 127) -> tuple[Tensor, Tensor]:
    """Each row (N, K) as whole numbers of up to ±`most`, and by what these are to be multiplied, (N, 1)."""
    scales = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / most
    return (rows / scales).round_().to(torch.int8), scales
