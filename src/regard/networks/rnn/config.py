"""Settings of a recurrent translator, and the variants by name. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change
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


def configure(name: str, **changes: Any) -> RNNConfig:
    """The config of the variant called `name`; with two vocabularies, only target and output share a matrix."""
    width, depth, attention = VARIANTS[name]
    if isinstance(changes.get("vocabulary"), (tuple, list)):
        changes.setdefault("embeddings", "tied")
    return change(RNNConfig(width=width, depth=depth), {"attention": attention} | changes, where=name)
