"""Settings of a run of translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from regard.config import RunConfig

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
