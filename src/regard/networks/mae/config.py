"""Settings of the masked autoencoder. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from regard.config import require_positive
from regard.errors import ConfigError


@dataclass(frozen=True)
class MAEConfig:
    """Settings of masking and of the decoder, whose MLPs have four times its width."""

    mask: float = 0.75
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalise: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.mask < 1:
            raise ConfigError(f"mask={self.mask} is not a share of patches", do="give a number between 0 and 1")
        require_positive(self, "decoder_width", "decoder_depth", "decoder_heads")

    @classmethod
    def of(cls, settings: Any) -> MAEConfig:
        """From the settings of a run, which have the same fields."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
