"""Settings of a recurrent translator, and the variants by name. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change
from regard.errors import ConfigError
from regard.networks.config import TextConfig, shape

# width, depth, attention
VARIANTS = {
    "rnn_nano": (128, 1, "dot"),
    "rnn_attention": (512, 2, "dot"),
    "rnn_plain": (512, 2, "none"),
}


@dataclass(frozen=True)
class RNNConfig(TextConfig):
    """A recurrent encoder, which reads both ways, and a recurrent decoder, each of `depth` layers."""

    family = "rnn"
    can_compile = False

    depth: int = shape(2, "Number of layers.")
    cell: Literal["lstm", "gru"] = shape("lstm", "RNN: recurrent cell.")
    attention: Literal["dot", "additive", "none"] = shape(
        "dot", "RNN: score of source tokens; none: the decoder sees the encoder's last state only."
    )
    query: Literal["previous", "newest"] = shape(
        "previous", "RNN: decoder state that asks the source, before the newest word or after it."
    )
    input_feeding: bool = shape(True, "RNN: the decoder reads the context beside each word.")
    cells: bool = shape(True, "RNN: an LSTM's decoder starts with the encoder's cells; no: with zeros.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual, absent, why in (
            ("query", "previous", self.attention == "none", "without attention nothing is asked"),
            ("cells", True, self.cell == "gru", "a GRU has none"),
        ):
            if absent and getattr(self, name) != usual:
                raise ConfigError(f"{name}={getattr(self, name)!r}, but {why}", do=f"leave {name} out")


def configure(name: str, **changes: Any) -> RNNConfig:
    """The config of the variant called `name`; with two vocabularies, only target and output share a matrix."""
    width, depth, attention = VARIANTS[name]
    if isinstance(changes.get("vocabulary"), (tuple, list)):
        changes.setdefault("embeddings", "tied")
    return change(RNNConfig(width=width, depth=depth), {"attention": attention} | changes, where=name)
