"""One training step. If memory runs out, it is repeated in smaller pieces with the same result."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.errors import RunError, is_out_of_memory
from regard.networks.base import Network
from regard.settings import RunConfig
from regard.task import Objective
from regard.training.distributed import ALONE, World
from regard.training.gradients import Gradients
from regard.training.replay import Replay

GRAPHS = 64
"""Compiled forms of one kind of block: one for each of its widths and each size of input, where torch allows eight."""


class Step:
    """Updates a model's weights; `rows` is the size of a full batch, None if full batches have several shapes."""

    def __init__(
        self,
        model: Network,
        objective: Objective,
        config: RunConfig,
        device: torch.device,
        world: World = ALONE,
        say: Callable[[str], None] = lambda text: None,
        rows: int | None = None,
    ):
        self.gradients = Gradients(model, objective, config, device, world)
        self.replay = Replay(self.gradients, rows)
        self.objective, self.say, self.device, self.world, self.pieces = objective, say, device, world, 1
        if config.machine.compile:
            if hasattr(torch.compiler.config, "recompile_limit"):  # not in the oldest torch
                torch.compiler.config.recompile_limit = max(GRAPHS, torch.compiler.config.recompile_limit)
            for part in model.compiled():
                part.compile(dynamic=rows is None)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.gradients.optimizers

    def set_lr(self, lr: float) -> None:
        self.gradients.set_lr(lr)

    def train_step(self, batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """Gradients and update. Returns the sum of the losses, and whether the update was skipped (not finite)."""
        try:
            return self.replay.run(batches, self.pieces)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            most = max(map(len, batches))
            if self.world.size > 1 or self.pieces >= most or not self.objective.divisible:
                do = "give a smaller batch with --accumulate, a smaller --size or model, or --checkpointing"
                if not self.objective.divisible:
                    do = "give --checkpointing, a smaller --size or model, or a smaller --batch-size: it is not divided"
                if self.world.size > 1:
                    do += "; only one process alone repeats a step in smaller parts, several wait for each other in it"
                raise RunError(f"out of memory at {most} samples per step: {error}", do=do) from None
            # Recording a graph needs the memory twice: without it the batch may still fit.
            self.pieces *= 1 if self.replay.warm else 2
            self.replay.disable()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        each = -(-max(map(len, batches)) // self.pieces)
        self.say(f"out of memory: each step is now made of pieces of {each} samples, with the same result")
        return self.train_step(batches)
