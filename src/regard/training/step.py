"""One step of training: gradients of a batch, clipped, applied. On a GPU it is recorded once and replayed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from regard.config import RunConfig
from regard.errors import RunError
from regard.networks.base import Network
from regard.tasks import Learning
from regard.training.distributed import ALONE, World, spread, unsynced, whole
from regard.training.optim import make_optimizers

WARM = 3  # ordinary steps before recording: libraries choose their kernels, the optimizer makes its state

Part = tuple[Tensor, Tensor, float]
"""Inputs, their targets, and which share of its batch a part is (1, unless several processes divide it)."""

Shape: TypeAlias = tuple[torch.Size, torch.Size]


class Step:
    """Moves a model's weights by batches.

    Small networks leave a GPU waiting for Python, which launches hundreds of kernels a step; a CUDA graph
    launches them as one. Recorded is the whole of forward, backward, clipping and update, once for each shape of
    whole batches. A batch of another size than `rows` (the last of an epoch) takes the ordinary way.
    """

    def __init__(
        self,
        model: Network,
        task: Learning,
        config: RunConfig,
        device: torch.device,
        world: World = ALONE,
        say: Callable[[str], None] = lambda text: None,
        rows: int | None = None,
    ):
        self.model, self.task, self.config, self.device = model, task, config, device
        self.world, self.say, self.rows = world, say, rows
        self.sharded = config.shard and world.size > 1
        self.spread = spread(model, world, device, config.shard)
        settings = (config.optimizer, config.lr, config.weight_decay, config.layer_decay)
        self.optimizers = make_optimizers(model, *settings)
        self.recorded: dict[Shape, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, tuple[Tensor, Tensor]]] = {}
        alone = config.accumulate == 1 and world.size == 1
        self.recordable = device.type == "cuda" and alone and bool(config.compile)
        self.pieces, self.done = 1, Counter[Shape]()
        if self.recordable:
            for group in self.groups():
                group["lr"], group["capturable"] = torch.tensor(config.lr, device=device), True
        if config.compile:
            for part in model.compiled():
                part.compile(dynamic=rows is None)

    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set_rate(self, rate: float) -> None:
        for group in self.groups():
            own = rate * group.get("factor", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def gradients(self, parts: list[Part]) -> Tensor:
        """Add the gradients of the mean over `parts`, and give this process's share of the sum of their losses."""
        total = torch.zeros((), device=self.device)
        for number, (x, targets, share) in enumerate(parts, start=1):
            pieces = list(zip(x.chunk(self.pieces), targets.chunk(self.pieces), strict=True))
            amounts = [self.task.amount(wanted) for _, wanted in pieces] if len(pieces) > 1 else [1]
            for place, (some, wanted) in enumerate(pieces, start=1):
                weight = share * amounts[place - 1] / sum(amounts)
                with unsynced(self.spread, number == len(parts) and place == len(pieces)):
                    with mixed(self.config, self.device):
                        loss = self.task.loss(self.task.output(self.spread, some, wanted), wanted)
                    # Processes average their gradients; what is wanted is the sum of their shares.
                    (loss * (weight * self.world.size / len(parts))).backward()
                total += loss.detach() * weight
        return total

    def apply(self) -> Tensor:
        """Move the weights by the gradients gathered, unless these are not finite; 1 if so, else 0.

        The optimizers themselves look at the flag, as they do for a gradient scaler, so that a GPU need not
        wait for Python to look.
        """
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf))
        bad = (~torch.isfinite(norm)).float()
        if self.sharded and bad:  # a flag that is whole and weights that are not do not go together
            self.model.zero_grad()
            return bad
        for optimizer in self.optimizers:
            if not self.sharded:
                setattr(optimizer, "found_inf", bad)  # noqa: B010 - torch declares no such field
            optimizer.step()
            optimizer.zero_grad()
        return bad

    def whole(self, parts: list[Part]) -> tuple[Tensor, Tensor]:
        """Gradients and update for one step; its losses' sum, and whether it was left out for not being finite.

        Where memory runs out, the step is done again in smaller pieces that add up to the same.
        """
        try:
            return self._whole(parts)
        except torch.OutOfMemoryError as error:
            most = max(len(x) for x, _, _ in parts)
            if self.world.size > 1 or self.pieces >= most:
                do = "give a smaller --batch with --accumulate, a smaller --size or model, or --checkpointing"
                raise RunError(f"memory ran out at {most} images a step: {error}", do=do) from None
            # While recording, memory is needed a second time: the ordinary way may still do.
            self.pieces *= 1 if self.recordable and max(self.done.values(), default=0) >= WARM else 2
            self.recordable, self.recorded = False, {}
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        each = -(-max(len(x) for x, _, _ in parts) // self.pieces)
        self.say(f"memory ran out: each step is now made of pieces of {each} images, with the same result")
        return self.whole(parts)

    def _whole(self, parts: list[Part]) -> tuple[Tensor, Tensor]:
        x, targets, _ = parts[0]
        usual, shape = self.rows in (None, len(x)), (x.shape, targets.shape)
        if not (self.recordable and usual and self.done[shape] >= WARM):
            self.done[shape] += usual
            # Compiling for a size that comes once an epoch is not worth its time.
            with nullcontext() if usual else torch.compiler.set_stance("force_eager"):
                loss = self.gradients(parts)
            return loss, self.apply()
        if shape not in self.recorded:
            graph, x, targets = torch.cuda.CUDAGraph(), x.clone(), targets.clone()
            pool = next((other.pool() for other, *_ in self.recorded.values()), None)  # one runs at a time
            # A loader's thread may well ask for memory meanwhile: that is no fault of the recording.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = self.gradients([(x, targets, 1.0)]), self.apply()
            self.recorded[shape] = graph, x, targets, result
        graph, held, held_targets, result = self.recorded[shape]
        held.copy_(parts[0][0])
        held_targets.copy_(parts[0][1])
        graph.replay()
        return result


def mixed(config: RunConfig, device: torch.device) -> Any:
    """Arithmetic as the settings ask: bf16 where it is safe, or plain fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
