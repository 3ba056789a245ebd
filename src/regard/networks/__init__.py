"""The networks: each takes tensors, returns a small named output, and can say where its tokens live."""

from typing import Any

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

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Where the tokens of every layer live on an input of this size (the configured one, if not said)."""
        raise NotImplementedError
