"""Forward and backward passes of a batch, clipping, and the update of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.networks.base import Network
from regard.settings import RunConfig
from regard.task import Objective
from regard.training.distributed import World, no_sync, unshard, wrap_ddp_or_fsdp
from regard.training.optim import make_optimizers


class Gradients:
    """A model with its optimizers."""

    def __init__(self, model: Network, objective: Objective, config: RunConfig, device: torch.device, world: World):
        self.model, self.objective, self.config, self.device, self.world = model, objective, config, device, world
        shard = getattr(config.machine, "shard", False)
        self.sharded = shard and world.size > 1
        self.wrapped = wrap_ddp_or_fsdp(model, world, device, shard)
        optim, transfer = config.optim, getattr(config, "transfer", None)
        self.optimizers = make_optimizers(
            model, optim.optimizer, optim.lr, optim.weight_decay,
            getattr(transfer, "layer_decay", 1.0), getattr(transfer, "backbone_rate", None) or 1.0,
        )  # fmt: skip

    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set_lr(self, lr: float) -> None:
        for group in self.groups():
            own = lr * group.get("factor", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def backward(self, batches: list[Batch], pieces: int = 1) -> Tensor:
        """Accumulate the gradients of the mean over `batches`; returns this process's share of the sum of losses."""
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            parts = batch.chunk(pieces)
            counts = [self.objective.num_targets(part.targets) for part in parts] if len(parts) > 1 else [1]
            for place, part in enumerate(parts, start=1):
                weight = batch.share * counts[place - 1] / sum(counts)
                with no_sync(self.wrapped, number == len(batches) and place == len(parts)):
                    with autocast(self.config, self.device):
                        loss = self.objective.loss(self.objective.forward(self.wrapped, part), part.targets)
                    # DDP averages gradients over processes; the sum of their shares is needed.
                    (loss * (weight * self.world.size / len(batches))).backward()
                total += loss.detach() * weight
        return total

    def apply(self) -> Tensor:
        """Update the weights unless a gradient is not finite. Returns 1 if one is not, else 0.

        The optimizers read the flag on the device, as with a gradient scaler, so the GPU need not wait for Python.
        """
        norm = unshard(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip or math.inf))
        bad = (~torch.isfinite(norm)).float()
        if self.sharded and bad:  # optimizers cannot combine a plain flag with sharded weights
            self.model.zero_grad()
            return bad
        for optimizer in self.optimizers:
            if not self.sharded:
                setattr(optimizer, "found_inf", bad)  # noqa: B010 - torch declares no such field
            optimizer.step()
            optimizer.zero_grad()
        return bad


def autocast(config: RunConfig, device: torch.device) -> Any:
    """bf16 if the settings say so, else fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.machine.precision == "bf16")
