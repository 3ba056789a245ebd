"""Masked patches: an image without a label is its own target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class MaskedPatches:
    """Squared error of the filled-in pixels, on hidden patches only (He et al., 2022, section 3)."""

    def output(self, model: Callable[..., Any], x: Tensor, targets: Tensor) -> Any:
        """`targets` (B, N) is each image's order of patches: the last ones are hidden from the model."""
        return model(x, targets)

    def losses(self, output: Any) -> Tensor:
        """One number an image, (B,). Patches that were seen do not count."""
        errors = (output.predicted.float() - output.wanted).square().mean(-1)  # (B, N)
        hidden = output.hidden.to(errors.dtype)
        return (errors * hidden).sum(1) / hidden.sum(1)

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        return self.losses(output).mean()

    def amount(self, targets: Tensor) -> int:
        return len(targets)
