"""The error of standardised numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch, Tensors


@dataclass(frozen=True)
class NumberError:
    """Huber or squared error, mean over samples and columns; targets are `values` (B, columns), standardised."""

    kind: Literal["huber", "squared"] = "huber"
    delta: float = 1.0
    divisible = True

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any:
        return model(batch.inputs["image"], class_token_only=True)

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        return self.error(output.logits.float(), targets["values"])

    def error(self, predicted: Tensor, wanted: Tensor) -> Tensor:
        if self.kind == "squared":
            return F.mse_loss(predicted, wanted)
        return F.huber_loss(predicted, wanted, delta=self.delta)

    def num_targets(self, targets: Tensors) -> int:
        return len(targets["values"])
