"""A training step recorded as a CUDA graph and replayed.

With small networks a GPU waits for Python, which launches hundreds of kernels per step. A graph launches them at once.
Forward, backward, clipping and update are recorded together, once per shape of full batches.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.training.gradients import Gradients

WARM = 3  # ordinary steps before recording: libraries choose their kernels, the optimizer makes its state


class Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: Batch
    result: tuple[Tensor, Tensor]


class Replay:
    """Runs steps of `gradients`: as a CUDA graph if possible, eagerly for a last, smaller batch."""

    def __init__(self, gradients: Gradients, rows: int | None):
        self.gradients, self.rows = gradients, rows
        config, device = gradients.config, gradients.device
        alone = config.optim.accumulate == 1 and gradients.world.size == 1
        self.enabled = device.type == "cuda" and alone and bool(config.machine.compile)
        self.recorded: dict[tuple[tuple[int, ...], ...], Recorded] = {}
        self.seen = Counter[tuple[tuple[int, ...], ...]]()
        if self.enabled:
            for group in gradients.groups():
                group["lr"], group["capturable"] = torch.tensor(config.optim.lr, device=device), True

    @property
    def warm(self) -> bool:
        return self.enabled and max(self.seen.values(), default=0) >= WARM

    def disable(self) -> None:
        self.enabled, self.recorded = False, {}

    def run(self, batches: list[Batch], pieces: int) -> tuple[Tensor, Tensor]:
        """The sum of the losses, and whether the step was skipped because a gradient was not finite."""
        batch = batches[0]
        usual, shape = self.rows in (None, len(batch)), batch.shape
        if not (self.enabled and usual and self.seen[shape] >= WARM):
            self.seen[shape] += usual
            # Compiling for a size that occurs once per epoch is not worth the time.
            with nullcontext() if usual else torch.compiler.set_stance("force_eager"):
                loss = self.gradients.backward(batches, pieces)
            return loss, self.gradients.apply()
        if shape not in self.recorded:
            graph, held = torch.cuda.CUDAGraph(), batch.map(torch.clone)
            pool = next((other.graph.pool() for other in self.recorded.values()), None)  # shared: one runs at a time
            # Calls of the loader's thread, such as pinning memory, must not end the recording.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = self.gradients.backward([held]), self.gradients.apply()
            self.recorded[shape] = Recorded(graph, held, result)
        recorded = self.recorded[shape]
        recorded.batch.copy_(batch)
        recorded.graph.replay()
        return recorded.result
