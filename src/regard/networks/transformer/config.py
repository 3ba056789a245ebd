"""The shape of a Transformer, and the variants by name. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.config import change, require_positive
from regard.errors import ConfigError
from regard.networks.config import TextConfig

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

    heads: int = 8
    mlp: int = 2048
    key_width: int | None = None
    """Table 3's d_k, of each head; width / heads if not said."""
    value_width: int | None = None
    """Table 3's d_v; width / heads if not said."""
    decoder_depth: int | None = None
    """Blocks of the decoder; as many as the encoder's if not said."""
    positions: Literal["sinusoidal", "halves", "learned"] = "sinusoidal"
    """"halves" are sinusoids with all sines before all cosines, as Marian has them."""
    length: int = 512
    """The longest sentence that positions are learned for; sinusoids have no limit."""
    norm: Literal["pre", "post"] = "post"
    final_norm: bool | None = None
    """A norm after each stack; if not said, only with norm="pre"."""
    activation: Literal["gelu", "relu", "swish"] = "relu"
    eps: float = 1e-6

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
