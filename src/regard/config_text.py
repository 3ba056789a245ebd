"""Settings of the networks that take words, as those of `config` that take images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from regard.config import RunConfig, require_positive, require_shares
from regard.errors import ConfigError


@dataclass(frozen=True)
class TextConfig:
    """What every translator has: words in and out, and three of them that are no words."""

    vocabulary: int | tuple[int, int] = 37_000
    """How many words: one number for both languages together, or two, of source and target."""
    embeddings: Literal["shared", "tied", "separate"] = "shared"
    """One matrix for source, target and output; "tied": another for the source; "separate": three."""
    output_bias: bool = False
    width: int = 512
    depth: int = 6
    dropout: float = 0.1
    padding: int = 0
    start: int = 1
    """What the decoder is given before the first word."""
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
    def source_words(self) -> int:
        return self.vocabulary if isinstance(self.vocabulary, int) else self.vocabulary[0]

    @property
    def target_words(self) -> int:
        return self.vocabulary if isinstance(self.vocabulary, int) else self.vocabulary[1]


@dataclass(frozen=True)
class TransformerConfig(TextConfig):
    """An encoder and a decoder, each of `depth` blocks. The columns of the paper's Table 3 are fields here."""

    heads: int = 8
    mlp: int = 2048
    key_width: int | None = None
    """Table 3's d_k, of each head; width / heads if not said."""
    value_width: int | None = None
    """Table 3's d_v; width / heads if not said."""
    decoder_depth: int | None = None
    """Blocks of the decoder, where it has not as many as the encoder."""
    positions: Literal["sinusoidal", "halves", "learned"] = "sinusoidal"
    """"halves" are sinusoids with all sines before all cosines, as Marian has them."""
    length: int = 512
    """The longest sentence that positions are learned for; sinusoids go on."""
    norm: Literal["pre", "post"] = "post"
    final_norm: bool | None = None
    """A norm after each stack; if not said, only where the blocks' own come first."""
    activation: Literal["gelu", "relu", "swish"] = "relu"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "heads", "mlp", "length")
        for name in ("key_width", "value_width", "decoder_depth"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        if self.width % self.heads and None in (self.key_width, self.value_width):
            raise ConfigError(f"width {self.width} does not divide into {self.heads} heads", do="change width or heads")
        if not 0 < self.eps < 1:
            raise ConfigError(f"eps={self.eps} is out of range", do="give a small number above 0, such as 1e-6")


@dataclass(frozen=True)
class RNNConfig(TextConfig):
    """A recurrent encoder, which reads both ways, and a recurrent decoder, each of `depth` layers."""

    depth: int = 2
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["dot", "additive", "none"] = "dot"
    """How a target word finds what to look at in the source; "none": it knows where the encoder ended, no more."""


TEXT_CONFIGS: dict[str, type[TextConfig]] = {"transformer": TransformerConfig, "rnn": RNNConfig}
"""By family, as `config.CONFIGS` is for models that take images."""

TEXT_FIELDS = (
    "width", "depth", "heads", "mlp", "dropout", "norm", "positions", "embeddings", "key_width", "value_width",
    "decoder_depth", "cell", "attention",
)  # fmt: skip
"""Settings of a run that are fields of its translator's config, where that has them."""


@dataclass(frozen=True)
class TranslateConfig(RunConfig):
    """Everything that decides a run of translation: a training run's settings, and these."""

    text: ClassVar[bool] = True

    source: str | None = None
    """Language (or column) to translate from, where the data has more than two."""
    target: str | None = None
    """Language (or column) to translate to."""
    tokenizer: Literal["bpe", "wordpiece"] = "bpe"
    """How words are parted into tokens: byte-level BPE or WordPiece, learnt from the training sentences."""
    vocabulary: int = 8000
    """Tokens there are at most, of both languages together, or of each if they are not joint."""
    joint: bool = True
    """One vocabulary for both languages, so that source, target and output share one matrix."""
    tokens: int = 4096
    """Tokens a step on either side, padding counted, over all processes: a batch by tokens, not by sentences."""
    longest: int = 256
    """Pairs with more tokens on a side are not trained on; they are counted."""
    beams: int = 4
    """Sentences that the search for a translation goes on with."""
    penalty: float = 0.6
    """Exponent of the length penalty; more favours longer translations."""
    embeddings: Literal["shared", "tied", "separate"] | None = None
    """One matrix for source, target and output; tied: another for the source; separate: three."""
    key_width: int | None = None
    """Numbers of a head's queries and keys. Default: width / heads, as for the values."""
    value_width: int | None = None
    """Numbers of a head's values."""
    decoder_depth: int | None = None
    """Blocks of the decoder. Default: as many as the encoder has."""
    cell: Literal["lstm", "gru"] | None = None
    """Of an RNN."""
    attention: Literal["dot", "additive", "none"] | None = None
    """Of an RNN: how it finds what to look at."""
