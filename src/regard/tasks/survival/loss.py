"""The two losses of survival: Cox's partial likelihood and the likelihood of discrete hazards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch, Tensors
from regard.training.distributed import ALONE, World, gather_rows

Ties = Literal["efron", "breslow"]


def cox_loss(log_hazard: Tensor, time: Tensor, event: Tensor, ties: Ties = "efron") -> Tensor:
    """Cox's negative log partial likelihood, mean over events; all of shape (N,). Without events 0, with a gradient.

    - The risk set of an event is everyone whose time is not earlier.
    - Of d events at one time, Efron's correction leaves a share l/d of them out of the risk set of the l-th of them.
    - Stable for any log-hazards: sums of exponentials are never formed. Shapes are fixed and nothing is read back.
    """
    order = time.argsort(descending=True, stable=True)
    h, early, died = log_hazard[order], -time[order], event[order].to(log_hazard.dtype)
    first = torch.searchsorted(early, early)
    last = torch.searchsorted(early, early, right=True) - 1
    at_risk = h.logcumsumexp(0)[last]
    total = died.sum()
    lost = at_risk - h
    if ties == "efron":
        before = died.cumsum(0) - died
        place = before - before[first]  # l, from 0
        count = torch.zeros_like(h).index_add(0, first, died)[first].clamp_min(1)  # d
        # The tied events' sum of exponentials, as a share of the risk set's: at most 1, so that exp cannot overflow.
        share = died * (h - at_risk).exp()
        tied = torch.zeros_like(h).index_add(0, first, share)[first].clamp_max(1)
        lost = lost + torch.log1p(-place / count * tied)
    return (died * lost).sum() / total.clamp_min(1)


def discrete_loss(logits: Tensor, at_risk: Tensor, died: Tensor) -> Tensor:
    """The negative log-likelihood of hazards sigmoid(logits) (B, bins), mean over samples.

    Each sample counts in the bins that it entered and was followed through; `died` is 1 in the bin of its event.
    Gensheimer & Narasimhan, "A scalable discrete-time survival model for neural networks" (2019), equation 3.
    """
    return (at_risk * F.binary_cross_entropy_with_logits(logits, died, reduction="none")).sum() / len(logits)


class Hazards(NamedTuple):
    """logits (B, outputs); present (B,): 0 for a sample that only keeps a process without samples in step."""

    logits: Tensor
    present: Tensor


@dataclass(frozen=True)
class SurvivalLoss:
    """Targets of Cox are `rank` of the time (B,) and `event` (B,); of discrete hazards `at_risk` and `died` (B, bins).

    Cox needs the risk set of the whole batch: of several processes each computes it from the log-hazards of all.
    """

    kind: Literal["cox", "discrete"] = "cox"
    ties: Ties = "efron"
    world: World = ALONE
    rows: int = 0
    """The most samples that a process has of a batch, where there are several."""

    @property
    def divisible(self) -> bool:
        return self.kind == "discrete"

    def forward(self, model: Callable[..., Any], batch: Batch) -> Hazards:
        beside = {"clinical": batch.inputs["clinical"]} if "clinical" in batch.inputs else {}
        logits = model(batch.inputs["image"], **beside, class_token_only=True).logits.float()
        return Hazards(logits, torch.full_like(logits[:, 0], float(batch.share > 0)))

    def loss(self, output: Hazards, targets: Tensors) -> Tensor:
        if self.kind == "discrete":
            return discrete_loss(output.logits, targets["at_risk"], targets["died"])
        rows = torch.stack([output.logits[:, 0], targets["rank"], targets["event"], output.present], dim=1)
        if self.world.size > 1:
            rows = gather_rows(rows, self.rows, self.world)
        h, rank, event, present = rows.unbind(1)
        # What is not present comes before everyone's time: it is in nobody's risk set.
        return cox_loss(h, torch.where(present > 0, rank, -1.0), event * present, self.ties)

    def num_targets(self, targets: Tensors) -> int:
        return len(next(iter(targets.values())))
