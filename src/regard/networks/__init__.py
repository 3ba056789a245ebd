"""The networks: each takes tensors, returns a small named output, and can say where its tokens live."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from regard.geometry import TokenMap


class Network(nn.Module):
    """What every model of the package offers beside its forward pass."""

    config: Any
    """Its frozen dataclass of settings."""
    loaded: Any = None
    """Where weights were loaded: the report of what became of them."""
    checkpointing: bool = False
    """Recompute each block's activations in the backward pass: less memory, a third more time."""

    lean: bool = False
    """Compute what the logits need and no more; the output's `tokens` are then only those the head reads."""

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Where the tokens of every layer live on an input of this size (the configured one, if not said)."""
        raise NotImplementedError


@contextmanager
def lean(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes what the logits need and no more."""
    before = getattr(model, "lean", False)
    model.lean = True  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        model.lean = before  # pyright: ignore[reportArgumentType]
