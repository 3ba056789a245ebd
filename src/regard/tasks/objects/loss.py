"""The loss between a set of predicted boxes and the objects of an image (Carion et al., 2020, section 3.1).

Letters in shapes: L decoder blocks, B images, Q queries, C classes, T targets with padding.

- Every decoder block has its own matching and its own loss; they are added up.
- "No object" has a tenth of the weight of a class.
- Box losses are divided by the number of boxes in the batch. So that a batch can be split with the same result, its
  targets may hold `per_image` (B,), the mean number of boxes per image of the whole batch.

Without the softmax there is no "no object": focal loss (Lin et al., 2017), or varifocal loss (Zhang et al., 2021),
whose target is the predicted box's overlap with the object, as in RT-DETR (Zhao et al., 2024).

Published weights of the class term are for a ResNet that was trained on ImageNet. From scratch boxes are learnt first,
and classes stay at chance for long: `class_weight` is for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch, Tensors
from regard.networks.detr.config import DETRConfig
from regard.nn.boxes import overlaps, to_corners
from regard.tasks.objects.matching import match
from regard.tasks.objects.options import SetOptions

FOCAL = 0.25, 2.0
"""Weight of a class against its absence, and exponent, of focal loss and its matching cost."""
VARIFOCAL = 0.75, 2.0
"""The same of varifocal loss, where the weight is that of the absence."""


def scores(logits: Tensor, classification: str) -> Tensor:
    """Probabilities (…, C) of the classes; "no object" is left out."""
    logits = logits.float()
    return logits.softmax(-1)[..., :-1] if classification == "softmax" else logits.sigmoid()


class Terms(NamedTuple):
    """Classification, L1 and generalised-IoU loss of each decoder block (L,), not weighted; and the query of each
    target (L, B, T), -1 for padding."""

    classes: Tensor
    l1: Tensor
    giou: Tensor
    queries: Tensor


@dataclass(frozen=True)
class SetLoss:
    """Set prediction loss. Targets: `boxes` (B, T, 4), centred shares of the image; `labels` (B, T), -1 for padding.

    Used where a network gives them:

    - `proposals` of its encoder, with `logits` (B, N, C), `boxes` (B, N, 4) and `valid` (B, N), false for padding: each
      object is matched to the `many` tokens of least cost.
    - `denoising` queries, with `logits` (L, B, D, C), `boxes` (L, B, D, 4), `targets` (B, D), the number of the target
      that each was made from, -1 if it is to find nothing; and `used` (B, D), false where that target is padding.
    """

    classification: Literal["softmax", "focal", "varifocal"] = "softmax"
    cost: tuple[float, float, float] = (1.0, 5.0, 2.0)
    """Of class, L1 and generalised IoU in the matching."""
    weights: tuple[float, float, float] = (1.0, 5.0, 2.0)
    """The same in the loss."""
    no_object: float = 0.1
    many: int = 4
    denoising: bool = False
    """Whether the network makes denoising queries of the targets, which it is then given."""
    divisible = True

    @classmethod
    def of(cls, config: DETRConfig, options: SetOptions | None = None) -> SetLoss:
        """The loss for a network: DETR's weights; for focal loss Deformable DETR's, for varifocal loss RT-DETR's."""
        kind, options = config.classification, options or SetOptions()
        cost = 1.0 if kind == "softmax" else 2.0
        weight = options.class_weight or (2.0 if kind == "focal" else 1.0)
        denoising = config.denoising > 0
        return cls(kind, (cost, 5.0, 2.0), (weight, 5.0, 2.0), options.no_object, options.one_to_many, denoising)

    def forward(self, model: Callable[..., Any], batch: Batch) -> Any:
        given = {name: batch.targets[name] for name in ("boxes", "labels")} if self.denoising else {}
        return model(batch.inputs["image"], batch.inputs["mask"], **given)

    def num_targets(self, targets: Tensors) -> int:
        return len(targets["labels"])

    def loss(self, output: Any, targets: Tensors) -> Tensor:
        return self.weighted(output, targets, self.terms(output, targets))

    def weighted(self, output: Any, targets: Tensors, terms: Terms) -> Tensor:
        """The sum of the terms, and of those of proposals and denoising queries."""
        total = self._sum(terms[:3])
        with torch.autocast(output.boxes.device.type, enabled=False):
            if (proposals := getattr(output, "proposals", None)) is not None:
                logits, boxes = proposals.logits.float()[None], proposals.boxes.float()[None]
                cost = self.costs(logits, boxes, targets).masked_fill(~proposals.valid[..., None], torch.inf)
                owners = self._nearest(cost, targets["labels"] >= 0)
                total = total + self._sum(self._terms(logits, boxes, owners, targets, self.many, proposals.valid))
            if (noised := getattr(output, "denoising", None)) is not None:
                known = (noised.targets >= 0) & noised.used
                each = (known.sum() / (targets["labels"] >= 0).sum().clamp_min(1)).clamp_min(1)
                owners = torch.where(noised.used, noised.targets, -1).expand(noised.logits.shape[:-1])
                logits, boxes = noised.logits.float(), noised.boxes.float()
                total = total + self._sum(self._terms(logits, boxes, owners, targets, each, noised.used, each))
        return total

    def terms(self, output: Any, targets: Tensors) -> Terms:
        """The losses of all decoder blocks, the last one last."""
        with torch.autocast(output.boxes.device.type, enabled=False):
            logits = torch.cat((output.auxiliary_logits, output.logits[None])).float()
            boxes = torch.cat((output.auxiliary_boxes, output.boxes[None])).float()
            chosen = match(self.costs(logits, boxes, targets), targets["labels"] >= 0)
            count = logits.shape[2]
            owners = torch.full((*chosen.shape[:2], count + 1), -1, device=chosen.device)
            numbers = torch.arange(chosen.shape[2], device=chosen.device).expand_as(chosen)
            owners.scatter_(2, torch.where(chosen >= 0, chosen, count), numbers)
            return Terms(*self._terms(logits, boxes, owners[..., :count], targets), chosen)

    @torch.no_grad()
    def costs(self, logits: Tensor, boxes: Tensor, targets: Tensors) -> Tensor:
        """Of each pair of query and target, (L, B, Q, T)."""
        labels = targets["labels"].clamp_min(0)[:, None].expand(*logits.shape[:3], -1)
        if self.classification == "softmax":
            by_class = -logits.softmax(-1)
        else:
            share, (alpha, gamma) = logits.sigmoid(), FOCAL
            by_class = alpha * (1 - share) ** gamma * -F.logsigmoid(logits)
            by_class -= (1 - alpha) * share**gamma * -F.logsigmoid(-logits)
        ours, theirs = boxes[..., None, :], targets["boxes"][:, None]
        giou = overlaps(to_corners(ours), to_corners(theirs))[1]
        l1 = (ours - theirs).abs().sum(-1)
        return self.cost[0] * by_class.gather(-1, labels) + self.cost[1] * l1 - self.cost[2] * giou

    def _terms(
        self, logits: Tensor, boxes: Tensor, owners: Tensor, targets: Tensors, each: Tensor | int = 1,
        used: Tensor | None = None, pairs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Losses (L,) where each query is for the target `owners` (L, B, Q), -1 for none; `each` per target.

        `used` (B, Q) is false for queries that do not count. Given `pairs`, there are that many of two per target.
        """
        images, labels = len(targets["labels"]), targets["labels"]
        per_image = targets["per_image"].mean() if "per_image" in targets else (labels >= 0).sum() / images
        count = (images * per_image).clamp_min(1) * each
        matched, number = owners >= 0, owners.clamp_min(0)
        wanted = targets["boxes"].expand(len(boxes), -1, -1, -1).gather(2, number[..., None].expand(-1, -1, -1, 4))
        wanted = torch.where(matched[..., None], wanted, boxes.detach())
        iou, giou = overlaps(to_corners(boxes), to_corners(wanted))
        l1 = torch.where(matched, (boxes - wanted).abs().sum(-1), 0.0).sum((1, 2)) / count
        own = labels.expand(len(boxes), -1, -1).gather(2, number)
        weight = torch.ones_like(iou) if used is None else used.expand(iou.shape).float()
        if self.classification == "softmax":
            wanted_class = torch.where(matched, own, logits.shape[-1] - 1)
            weight = weight * torch.where(matched, 1.0, self.no_object)
            error = F.cross_entropy(logits.movedim(-1, 1), wanted_class, reduction="none")
            counted = logits.shape[2] if pairs is None else 2 * pairs * per_image
            share = self.no_object * counted + (1 - self.no_object) * per_image * each
            by_class = (error * weight).sum((1, 2)) / (images * share)
        else:
            numbers = torch.arange(logits.shape[-1], device=logits.device)
            hit = (own[..., None] == numbers) & matched[..., None]
            error = self._sigmoid_error(logits, hit.float(), iou.detach()[..., None])
            by_class = (error.sum(-1) * weight).sum((1, 2)) / count
        return by_class, l1, torch.where(matched, 1 - giou, 0.0).sum((1, 2)) / count

    def _sigmoid_error(self, logits: Tensor, hit: Tensor, iou: Tensor) -> Tensor:
        """Focal or varifocal loss (L, B, Q, C); `hit` is 1 at the class of a matched query, else 0."""
        share = logits.sigmoid()
        if self.classification == "focal":
            alpha, gamma = FOCAL
            error = F.binary_cross_entropy_with_logits(logits, hit, reduction="none")
            missed = share * (1 - hit) + (1 - share) * hit
            return error * missed**gamma * (alpha * hit + (1 - alpha) * (1 - hit))
        alpha, gamma = VARIFOCAL
        wanted = hit * iou.clamp(0, 1)
        weight = alpha * share.detach() ** gamma * (1 - hit) + wanted
        return F.binary_cross_entropy_with_logits(logits, wanted, weight=weight, reduction="none")

    def _nearest(self, cost: Tensor, valid: Tensor) -> Tensor:
        """The target or -1 of each token (1, B, N), from cost (1, B, N, T): of those that have it among their `many`
        nearest, the nearest."""
        cost = cost.nan_to_num(torch.inf).masked_fill(~valid[:, None], torch.inf)
        limit = cost.topk(min(self.many, cost.shape[2]), dim=2, largest=False).values[:, :, -1:]
        taken = cost.masked_fill(cost > limit, torch.inf)
        least, number = taken.min(-1)
        return torch.where(least.isfinite(), number, -1)

    def _sum(self, terms: tuple[Tensor, ...]) -> Tensor:
        by_class, l1, giou = (weight * term.sum() for weight, term in zip(self.weights, terms, strict=True))
        return by_class + l1 + giou
