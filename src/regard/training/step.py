"""One step of training: gradients of a batch, clipped, applied. On a GPU it is recorded once and replayed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import RunConfig
from regard.networks import Network
from regard.tasks import Task
from regard.training.optim import make_optimizers

WARM = 3  # ordinary steps before recording: libraries choose their kernels, the optimizer makes its state


class Step:
    """Moves a model's weights by batches.

    Small networks leave a GPU waiting for Python, which launches hundreds of kernels a step; a CUDA graph
    launches them as one. Recorded is the whole of forward, backward, clipping and update. A batch of
    another size (the last of an epoch) takes the ordinary way.
    """

    def __init__(self, model: Network, task: Task, config: RunConfig, device: torch.device):
        self.model, self.task, self.config, self.device = model, task, config, device
        self.optimizers = make_optimizers(model, config.optimizer, config.lr, config.weight_decay)
        self.recorded: tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor] | None = None
        self.recordable = device.type == "cuda" and config.accumulate == 1 and bool(config.compile)
        self.done = 0
        if self.recordable:
            for group in self.groups():
                group["lr"], group["capturable"] = torch.tensor(config.lr, device=device), True
        if config.compile:
            # Block by block: all blocks share one graph, so compiling takes seconds, not minutes.
            for block in model.repeated():
                block.compile(dynamic=False)

    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set_rate(self, rate: float) -> None:
        for group in self.groups():
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def gradients(self, x: Tensor, targets: Tensor, parts: int = 1) -> Tensor:
        """Add this batch's gradients, divided by `parts`; returns its loss."""
        with mixed(self.config, self.device):
            loss = self.task.loss(self.model(x, lean=True), targets)
        (loss / parts).backward()
        return loss.detach()

    def apply(self) -> None:
        """Move the weights by the gradients gathered, and forget these."""
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def whole(self, x: Tensor, targets: Tensor) -> Tensor:
        """Gradients and update for one batch; returns its loss."""
        usual = len(x) == self.config.batch
        if not (self.recordable and usual and self.done >= WARM):
            self.done += usual
            # Compiling for a size that comes once an epoch is not worth its time.
            with nullcontext() if usual else torch.compiler.set_stance("force_eager"):
                loss = self.gradients(x, targets)
            self.apply()
            return loss
        if self.recorded is None:
            graph, x, targets = torch.cuda.CUDAGraph(), x.clone(), targets.clone()
            with torch.cuda.graph(graph):
                loss = self.gradients(x, targets)
                self.apply()
            self.recorded = graph, x, targets, loss
        graph, held, held_targets, loss = self.recorded
        held.copy_(x)
        held_targets.copy_(targets)
        graph.replay()
        return loss


def mixed(config: RunConfig, device: torch.device) -> Any:
    """Arithmetic as the settings ask: bf16 where it is safe, or plain fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
