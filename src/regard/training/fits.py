"""The largest batch that fits on a GPU, determined by trying: kernels need memory that shapes do not tell."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from regard.data.batch import Batch
from regard.errors import ConfigError, RunError, is_out_of_memory
from regard.networks.base import Network
from regard.settings import RunConfig
from regard.task import Objective
from regard.training.gradients import autocast


def largest_batch(
    model: Network,
    objective: Objective,
    blank: Callable[[int], Batch],
    config: RunConfig,
    device: torch.device,
    most: int = 4096,
) -> int:
    """The largest power of two, up to `most`, of images that fit in memory together with the optimizer's state."""
    if device.type != "cuda":
        raise ConfigError("batch='auto' needs a GPU: the limit of CPU memory cannot be tried out")
    best = _try_out(model, objective, blank, config, device, most)
    torch.cuda.empty_cache()
    return best


def _try_out(
    model: Network,
    objective: Objective,
    blank: Callable[[int], Batch],
    config: RunConfig,
    device: torch.device,
    most: int,
) -> int:
    twin, best = copy.deepcopy(model).train(), 0  # a copy, so that the model stays unchanged
    held = [torch.empty_like(p) for p in twin.parameters() for _ in range(3)]  # two moments and an average
    while 2 * max(best, 1) <= most:
        batch = 2 * max(best, 1)
        try:
            with autocast(config, device):
                tried = blank(batch)
                loss = objective.loss(objective.forward(twin, tried), tried.targets)
            loss.backward()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            break
        best = batch
        twin.zero_grad()
    del held
    if not best:
        raise RunError("not even two images fit in memory", do="give a smaller --size or --model, or --checkpointing")
    return best
