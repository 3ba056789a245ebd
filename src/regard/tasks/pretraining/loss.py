"""Squared error of the filled-in pixels: an image without a label is its own target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.data.batch import Batch, Tensors


@dataclass(frozen=True)
class MaskedPatches:
    """Squared error of the filled-in pixels, on hidden patches only (He et al., 2022, section 3)."""

    divisible = True

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any:
        """`patch_order` (B, N) is each image's order of patches: the last ones are hidden from the model."""
        return model(batch.inputs["image"], batch.targets["patch_order"])

    def losses(self, output: Any) -> Tensor:
        """One number per image, (B,). Patches that were seen do not count."""
        errors = (output.predicted.float() - output.wanted).square().mean(-1)  # (B, N)
        hidden = output.hidden.to(errors.dtype)
        return (errors * hidden).sum(1) / hidden.sum(1)

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        return self.losses(output).mean()

    def num_targets(self, targets: Tensors) -> int:
        return len(targets["patch_order"])
