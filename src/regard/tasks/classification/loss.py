"""Cross-entropy against soft targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch, Tensors


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy against soft targets, with label smoothing.

    "bce" asks of each class by itself whether it is there (Wightman et al., "ResNet strikes back", 2021), mean over
    classes; probabilities are the softmax all the same, since an image has one label.
    """

    smoothing: float = 0.0
    kind: Literal["softmax", "bce"] = "softmax"
    weights: Tensor | None = None
    """A factor per class, on the device."""
    divisible = True

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any:
        return model(batch.inputs["image"], class_token_only=True)

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        logits, wanted = output.logits.float(), targets["probabilities"]
        if self.kind == "softmax":
            return F.cross_entropy(logits, wanted, weight=self.weights, label_smoothing=self.smoothing)
        wanted = wanted * (1 - self.smoothing) + self.smoothing / wanted.shape[-1]
        return F.binary_cross_entropy_with_logits(logits, wanted, weight=self.weights)

    def num_targets(self, targets: Tensors) -> int:
        return len(targets["probabilities"])


def probabilities(output: Any) -> Tensor:
    return output.logits.float().softmax(-1)
