"""The encoder block and its parts: MLP, LayerScale, stochastic depth."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.nn.multihead import MultiHeadAttention
from regard.nn.patches import ConditionalPositions

Activation = Literal["gelu", "relu", "swish"]
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "swish": nn.SiLU}


@dataclass(frozen=True)
class BlockConfig:
    """The shape that all blocks of a stack share.

    norm="pre" is ViT's, x + f(LN(x)); norm="post" is the original Transformer's, LN(x + f(x)).
    """

    width: int
    heads: int
    mlp: int
    """Hidden width of the MLP."""
    norm: Literal["pre", "post"] = "pre"
    activation: Activation = "gelu"
    dropout: float = 0.0
    """On the output of each branch."""
    mlp_dropout: float = 0.0
    """Within the MLP; the original Transformer has none there."""
    key_width: int | None = None
    value_width: int | None = None
    layer_scale: float | None = None
    eps: float = 1e-6

    def layer_norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.width, eps=self.eps)

    def attention(self) -> MultiHeadAttention:
        return MultiHeadAttention(self.width, self.heads, key_width=self.key_width, value_width=self.value_width)

    def scale(self) -> nn.Module:
        return nn.Identity() if self.layer_scale is None else LayerScale(self.width, self.layer_scale)


class MLP(nn.Module):
    """The position-wise feed-forward network: width → hidden → width, for each token separately."""

    def __init__(self, width: int, hidden: int, *, activation: Activation = "gelu", dropout: float = 0.0):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = ACTIVATIONS[activation]()
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.act(self.up(x))))


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch (Touvron et al., "Going deeper", equation 4)."""

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.initial = initial
        self.scale = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.initial)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016): in training a sample skips the branch with probability `rate`.

    Surviving branches are divided by 1 - rate, so the expectation is that of evaluation. With rate None no random
    numbers are drawn.
    """

    rate: Tensor

    def __init__(self, rate: float | None):
        super().__init__()
        self.active = rate is not None
        # A tensor, not a number: blocks with different rates (also 0) then share one compiled graph.
        self.register_buffer("rate", torch.tensor(rate or 0.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.active:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.rate
        return x * (keep / (1.0 - self.rate)).to(x.dtype)


def drop_rates(last: float, depth: int) -> list[float | None]:
    """The rate of each of `depth` blocks, rising linearly from 0 to `last`; None for all if `last` is 0.

    >>> drop_rates(0.2, 3)
    [0.0, 0.1, 0.2]
    """
    return [last * number / max(depth - 1, 1) if last else None for number in range(depth)]


class LastNorm(nn.LayerNorm):
    """A LayerNorm that can be compiled alone: torch.compile skips torch's own modules."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class EncoderBlock(nn.Module):
    """Attention and MLP, each on a residual branch.

    With `axes` it first adds conditional positions, a convolution on a grid of that many axes.
    """

    def __init__(self, config: BlockConfig, *, drop_path: float | None = None, axes: int = 0):
        super().__init__()
        self.positions = ConditionalPositions(axes, config.width) if axes else None
        self.norm_first = config.norm == "pre"
        self.norm1 = config.layer_norm()
        self.attention = config.attention()
        self.norm2 = config.layer_norm()
        self.mlp = MLP(config.width, config.mlp, activation=config.activation, dropout=config.mlp_dropout)
        self.scale1, self.scale2 = config.scale(), config.scale()
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        only: int | None = None,
        grid: tuple[int, ...] = (),
        rope: Tensor | None = None,
    ) -> Tensor:
        """Tokens (B, N, width) in and out; `only`: compute just the first few tokens, which still attend to all."""
        if self.positions is not None:
            x = self.positions(x, grid)
        keys = self.norm1(x) if self.norm_first else x
        x = x[:, :only]
        asked = (keys,) if only is None else (keys[:, :only], keys)
        x = x + self._branch(self.scale1, self.attention(*asked, mask=mask, rope=rope))
        if self.norm_first:
            return x + self._branch(self.scale2, self.mlp(self.norm2(x)))
        x = self.norm1(x)
        return self.norm2(x + self._branch(self.scale2, self.mlp(x)))

    def _branch(self, scale: nn.Module, x: Tensor) -> Tensor:
        return self.drop_path(scale(self.drop(x)))
