"""What every network of the package offers."""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.nn.attention import Attention


class Output(NamedTuple):
    """logits (B, classes); features (B, width), the input of the head; tokens (B, N, width), before pooling.

    Of a network with a distillation token, `both` (B, 2, classes) are the logits of the class token and of that one;
    `logits` and `features` are the means of both tokens.
    """

    logits: Tensor
    features: Tensor
    tokens: Tensor
    both: Tensor | None = None


class Network(nn.Module):
    """Base class of all models.

    `forward(x, class_token_only=True)` skips work that the logits do not need: if there is a class token, the
    output's `tokens` contain only that.
    """

    BLOCKS: ClassVar[tuple[type[nn.Module], ...]] = ()
    """Classes of its repeated blocks."""
    TOKENS_ON_INPUT: ClassVar[bool] = False
    """Whether the output's tokens are at the positions of the token map."""

    config: Any
    """The frozen dataclass of its settings."""
    loaded: Any = None
    """If weights were loaded: the report on how each was used."""
    checkpointing: bool = False
    """Recompute each block's activations in the backward pass: less memory, a third more time."""
    frozen: tuple[str, ...] = ()
    """Modules that do not train: they stay in evaluation mode, without dropout or updates of BatchNorm statistics."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """For type checkers: families have different modules, and `regard.create` chooses one by name."""

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

    def run_block(self, block: nn.Module, *inputs: Tensor | None, **options: Any) -> Tensor:
        """A block's output; with `checkpointing`, its activations are not kept."""
        if self.checkpointing and self.training:
            return checkpoint(block, *inputs, use_reentrant=False, **options)  # pyright: ignore[reportReturnType]
        return block(*inputs, **options)

    def compiled(self) -> list[nn.Module]:
        """Modules to compile separately: all blocks share one graph, so compiling takes seconds, not minutes."""
        return self.repeated()

    def token_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """The box of each token of the last stage on an input of this size (default: the configured size)."""
        raise NotImplementedError

    def input_map(self, size: tuple[int, ...] | None = None) -> TokenMap:
        """The box of each token of the first stage; without merges, that of the last."""
        return self.token_map(size)

    def token_flow(self, size: tuple[int, ...] | None = None) -> tuple[AttentionStep | MergeStep, ...]:
        """What moves information between tokens, in the order of the forward pass, on an input of this size.

        Here: layers of attention over the whole sequence, one after the other.
        """
        return tuple(AttentionStep(name) for name, module in self.named_modules() if isinstance(module, Attention))
