"""The networks: each takes tensors, returns a small named output, and can say where its tokens live."""

from typing import Any, Self

from torch import nn

from regard.geometry import TokenMap


class Network(nn.Module):
    """What every model of the package offers.

    `forward(x, lean=True)` computes what the logits need and no more; the output's `tokens` are then only
    those the head reads.
    """

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

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Where the tokens of every layer live on an input of this size (the configured one, if not said)."""
        raise NotImplementedError
