"""What every network of the package offers."""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.geometry import TokenMap


class Output(NamedTuple):
    """logits (B, classes); features (B, width), what the head sees; tokens (B, N, width), what these are made of."""

    logits: Tensor
    features: Tensor
    tokens: Tensor


class Network(nn.Module):
    """What every model of the package offers.

    `forward(x, class_token_only=True)` skips work that the logits do not need: where there is a class token, the
    output's `tokens` hold it alone.
    """

    BLOCKS: ClassVar[tuple[type[nn.Module], ...]] = ()
    """Classes of its repeated blocks."""
    TOKENS_ON_INPUT: ClassVar[bool] = False
    """Whether the output's tokens are at the positions on the input that the token map says."""

    config: Any
    """Its frozen dataclass of settings."""
    loaded: Any = None
    """Where weights were loaded: the report of what became of them."""
    checkpointing: bool = False
    """Recompute each block's activations in the backward pass: less memory, a third more time."""
    frozen: tuple[str, ...] = ()
    """Modules that do not train: they stay in evaluation mode, without dropout or updates of batch statistics."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Families have different parts, and `regard.create` chooses one by name."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self

    def repeated(self) -> list[nn.Module]:
        """Its blocks, in order."""
        return [module for module in self.modules() if isinstance(module, self.BLOCKS)]

    def hidden_layers(self) -> list[nn.Module]:
        """The modules whose matrices Muon updates."""
        return self.repeated()

    def run_block(self, block: nn.Module, *inputs: Tensor, **options: Any) -> Tensor:
        """A block's output; with `checkpointing`, its activations are not kept."""
        if self.checkpointing and self.training:
            return checkpoint(block, *inputs, use_reentrant=False, **options)  # pyright: ignore[reportReturnType]
        return block(*inputs, **options)

    def compiled(self) -> list[nn.Module]:
        """What is compiled, each by itself: all blocks share one graph, so it takes seconds, not minutes."""
        return self.repeated()

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """Where the tokens of every layer live on an input of this size (the configured one, if not said)."""
        raise NotImplementedError
