"""What every network of the package offers."""

from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from regard.geometry import TokenMap


class Output(NamedTuple):
    """logits (B, classes); features (B, width), what the head sees; tokens (B, N, width), what these are made of."""

    logits: Tensor
    features: Tensor
    tokens: Tensor


class Network(nn.Module):
    """What every model of the package offers.

    `forward(x, class_token_only=True)` computes what the logits need and no more; the output's `tokens` are then only
    those the head reads.
    """

    BLOCKS: ClassVar[tuple[type[nn.Module], ...]] = ()
    """The kinds of block it is a stack of: their matrices are moved by Muon."""
    TOKENS_ON_INPUT: ClassVar[bool] = False
    """Whether the tokens of its output stand where the token map says."""

    config: Any
    """Its frozen dataclass of settings."""
    loaded: Any = None
    """Where weights were loaded: the report of what became of them."""
    checkpointing: bool = False
    """Recompute each block's activations in the backward pass: less memory, a third more time."""
    frozen: tuple[str, ...] = ()
    """Modules that do not train: they stay in evaluation mode, so that no dropout or batch statistic moves them."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self

    def repeated(self) -> list[nn.Module]:
        """Its blocks, in order."""
        return [module for module in self.modules() if isinstance(module, self.BLOCKS)]

    def compiled(self) -> list[nn.Module]:
        """What is compiled, each by itself: all blocks share one graph, so it takes seconds, not minutes."""
        return self.repeated()

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Where the tokens of every layer live on an input of this size (the configured one, if not said)."""
        raise NotImplementedError
