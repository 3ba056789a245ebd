"""Settings of a Transformer, and the variants by name. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change, require_positive
from regard.errors import ConfigError
from regard.networks.config import TextConfig, shape

# width, depth, heads, mlp, dropout. base, big: the paper's Table 3.
VARIANTS = {
    "transformer_nano": (128, 2, 4, 512, 0.1),
    "transformer_base": (512, 6, 8, 2048, 0.1),
    "transformer_big": (1024, 6, 16, 4096, 0.3),
}


@dataclass(frozen=True)
class TransformerConfig(TextConfig):
    """An encoder and a decoder, each of `depth` blocks. The columns of the paper's Table 3 are fields here."""

    family = "transformer"
    can_checkpoint = True

    heads: int = shape(8, "Number of attention heads.")
    mlp: int = shape(2048, "Hidden dimension of the MLP.")
    key_width: int | None = shape(None, "Dimension of keys per head, d_k of Table 3. Default: width / heads.")
    value_width: int | None = shape(None, "Dimension of values per head, d_v of Table 3. Default: width / heads.")
    decoder_depth: int | None = shape(None, "Number of decoder blocks. Default: as many as the encoder's.")
    positions: Literal["sinusoidal", "halves", "learned"] = shape(
        "sinusoidal", "Position embeddings; halves: sinusoids with all sines before all cosines, as in Marian."
    )
    length: int = shape(512, "Largest number of tokens that learned positions have rows for.")
    norm: Literal["pre", "post"] = shape("post", "LayerNorm before or after attention and MLP.")
    final_norm: bool | None = shape(None, "A LayerNorm after each stack. Default: only with --norm pre.")
    activation: Literal["gelu", "relu", "swish"] = shape("relu", "Activation function of the MLP.")
    eps: float = shape(1e-6, "Epsilon of LayerNorm.")

    @property
    def block_count(self) -> int:
        return self.depth + (self.decoder_depth or self.depth)

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


def configure(name: str, **changes: Any) -> TransformerConfig:
    """The config of the variant called `name`; with two vocabularies, only target and output share a matrix."""
    width, depth, heads, mlp, dropout = VARIANTS[name]
    if isinstance(changes.get("vocabulary"), (tuple, list)):
        changes.setdefault("embeddings", "tied")
    config = TransformerConfig(width=width, depth=depth, heads=heads, mlp=mlp, dropout=dropout)
    return change(config, changes, where=name)
