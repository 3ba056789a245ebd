"""The loss of masks beside that of classes and boxes (Carion et al., 2020, section 4.4).

- Focal loss (Lin et al., 2017) and the Dice coefficient (Milletari et al., 2016) of the masks of matched queries.
- Of the last decoder block only; divided by the number of objects, as the losses of boxes are.
- Compared on the grid on which masks are predicted, a quarter of the input's resolution. The authors enlarge the
  predicted masks to the input first: sixteen times the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Tensors
from regard.tasks.objects.loss import FOCAL, SetLoss


@dataclass(frozen=True)
class PanopticLoss(SetLoss):
    """Set prediction loss with masks. Targets: also `masks` (B, T, rows, columns), true inside."""

    mask_weights: tuple[float, float] = (1.0, 1.0)
    """Of focal loss and Dice loss."""
    masks_only: bool = False
    """Whether boxes and classes stay as they are, and are used for the matching only."""

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        terms = self.terms(output, targets)
        focal, dice = self.mask_terms(output.masks, terms.queries[-1], targets)
        of_masks = self.mask_weights[0] * focal + self.mask_weights[1] * dice
        return of_masks if self.masks_only else self.weighted(output, targets, terms) + of_masks

    def mask_terms(self, masks: Tensor, queries: Tensor, targets: Tensors) -> tuple[Tensor, Tensor]:
        """Focal and Dice loss of masks (B, Q, rows, columns), given the query of each target (B, T), -1 for none."""
        with torch.autocast(masks.device.type, enabled=False):
            matched, grid = queries >= 0, masks.shape[2:]
            wanted = targets["masks"].flatten(2).float()
            index = queries.clamp_min(0)[..., None].expand(-1, -1, grid[0] * grid[1])
            logits = masks.flatten(2).gather(1, index).float()  # (B, T, rows · columns)
            valid = targets["labels"] >= 0
            per_image = targets["per_image"].mean() if "per_image" in targets else valid.sum() / len(valid)
            count = (len(valid) * per_image).clamp_min(1)
            return (
                torch.where(matched, mask_focal(logits, wanted), 0.0).sum() / count,
                torch.where(matched, mask_dice(logits, wanted), 0.0).sum() / count,
            )


def mask_focal(logits: Tensor, wanted: Tensor) -> Tensor:
    """Mean over the pixels of each mask (..., pixels)."""
    alpha, gamma = FOCAL
    error = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    share = logits.sigmoid()
    missed = share * (1 - wanted) + (1 - share) * wanted
    return (error * missed**gamma * (alpha * wanted + (1 - alpha) * (1 - wanted))).mean(-1)


def mask_dice(logits: Tensor, wanted: Tensor) -> Tensor:
    """One minus the Dice coefficient of each mask (..., pixels), both halves increased by one pixel."""
    share = logits.sigmoid()
    return 1 - (2 * (share * wanted).sum(-1) + 1) / (share.sum(-1) + wanted.sum(-1) + 1)
