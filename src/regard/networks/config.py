"""Base classes of the configs: fields, and facts about a family that other modules use. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from regard.config import require_positive, require_shares
from regard.errors import ConfigError


def shape(default: Any, help: str, common: bool = False) -> Any:
    """A field of a config with its help text; if `common`, it is shown by `regard train --help`."""
    return field(default=default, metadata={"help": help, "common": common})


@dataclass(frozen=True)
class NetworkConfig:
    """Settings of a network; each family has its own subclass."""

    family: ClassVar[str]
    """Name of its folder in `networks`, and of its table of weight names in `weights`."""
    inputs: ClassVar[Literal["image", "text"]]
    predicts: ClassVar[Literal["classes", "words", "boxes"]]
    """What its output is; a task trains the networks that predict what it needs."""
    named_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that the name of a model decides: weights loaded under that name must agree with them."""
    chosen_fields: ClassVar[tuple[str, ...]] = ()
    """Those of them that recipes and data choose: a network that differs in no other is called by its name alone."""
    can_checkpoint: ClassVar[bool] = False
    """Whether it supports activation checkpointing."""
    can_compile: ClassVar[bool] = True
    """Whether compiling makes it faster on a GPU."""


@dataclass(frozen=True)
class ImageConfig(NetworkConfig):
    """Config of networks for signals, images or volumes; `size` has one number per axis of the input."""

    inputs = "image"
    predicts = "classes"
    any_size: ClassVar[bool] = True
    """Whether it takes inputs of other sizes than the configured one."""
    smallest_is: ClassVar[str] = "one pixel"
    """What an input of the smallest size is."""

    size: tuple[int, ...] = shape(
        (224, 224), "Input size in pixels: one number, or one per axis. Default: chosen by the data.", common=True
    )
    channels: int = shape(3, "Input channels. Default: those of the data.")
    classes: int = 1000

    def __post_init__(self) -> None:
        require_positive(self, "channels", "classes")
        # Not strict: a size with other axes than the patch is refused by the family, which says which it takes.
        if any(side < least for side, least in zip(self.size, self.smallest, strict=False)):
            size, least = (" × ".join(map(str, sides)) for sides in (self.size, self.smallest))
            what = f"an input of {size} pixels is smaller than {self.smallest_is}, {least}"
            smaller = ", or a smaller --patch" if hasattr(self, "patch") else ""
            raise ConfigError(what, do=f"give --size at least {least}{smaller}")

    @property
    def smallest(self) -> tuple[int, ...]:
        """The smallest input in which there is something to see."""
        return (1,) * len(self.size)

    @property
    def features(self) -> int:
        """Dimension of the head's input."""
        raise NotImplementedError

    @property
    def block_count(self) -> int:
        """Number of blocks, each of which has at least one tensor."""
        raise NotImplementedError

    @property
    def logits(self) -> int:
        """Number of outputs of the head."""
        return self.classes

    @property
    def last_layer(self) -> str:
        """Name of the linear layer that computes the logits."""
        return "head"

    @property
    def last_layers(self) -> tuple[str, ...]:
        """The same, and that of a second head where there is one."""
        return (self.last_layer,)

    def with_linear_head(self) -> Self:
        """The same config with a head of one linear layer."""
        return self


@dataclass(frozen=True)
class TextConfig(NetworkConfig):
    """Config of translators: vocabularies, embeddings, and three special tokens."""

    inputs = "text"
    predicts = "words"

    vocabulary: int | tuple[int, int] = 37_000
    """Number of words: one for both languages together, or two, of source and target."""
    embeddings: Literal["shared", "tied", "separate"] = shape(
        "shared", "One matrix for source, target and output; tied: another for the source; separate: three."
    )
    output_bias: bool = shape(False, "A bias on the output layer.")
    width: int = shape(512, "Embedding dimension.")
    depth: int = shape(6, "Number of encoder blocks or layers.")
    dropout: float = shape(0.1, "Dropout rate.")
    padding: int = 0
    start: int = 1
    """The decoder's input before the first word."""
    end: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "width", "depth", "source_words", "target_words")
        require_shares(self, "dropout")
        if self.embeddings == "shared" and self.source_words != self.target_words:
            what = f"embeddings='shared' needs one vocabulary, not one of {self.source_words} and {self.target_words}"
            raise ConfigError(what, do="use embeddings='tied' (target and output) or 'separate'")
        for name in ("padding", "start", "end"):
            if not 0 <= getattr(self, name) < self.target_words:
                raise ConfigError(f"{name}={getattr(self, name)} is not among the {self.target_words} words")
        if self.padding == self.end:
            raise ConfigError(
                f"padding and end are both {self.end}", do="what ends a sentence must be a word of its own"
            )

    @property
    def block_count(self) -> int:
        """Number of layers, each of which has at least one tensor."""
        return self.depth

    @property
    def source_words(self) -> int:
        return self.vocabulary if isinstance(self.vocabulary, int) else self.vocabulary[0]

    @property
    def target_words(self) -> int:
        return self.vocabulary if isinstance(self.vocabulary, int) else self.vocabulary[1]
