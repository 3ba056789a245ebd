"""The processes that train one model together: who they are, and what they agree on. One alone needs none of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.errors import RunError


@dataclass(frozen=True)
class World:
    """This process among `size`. `talk` is the group for small messages, which never wait for a GPU."""

    rank: int = 0
    size: int = 1
    local: int = 0
    talk: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sums(self, numbers: list[float]) -> list[float]:
        """Each number summed over all processes."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total, group=self.talk)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process: all of them then know at the same step."""
        return self.sums([float(flag)])[0] > 0

    def agree(self, text: str) -> str:
        """What the first process says."""
        if self.size == 1:
            return text
        said = torch.tensor(list(text.encode()) if self.first else [], dtype=torch.uint8)
        length = torch.tensor([len(said)])
        dist.broadcast(length, 0, group=self.talk)
        said = said if self.first else torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(said, 0, group=self.talk)
        return bytes(said.tolist()).decode()

    def wait(self) -> None:
        """Until all are here."""
        self.sums([0.0])


ALONE = World()


@contextmanager
def joined(device: torch.device, timeout: float) -> Iterator[World]:
    """The world that torchrun (or whoever made the process group) started this process in; else one of its own."""
    made = dist.is_available() and dist.is_initialized()
    if not made and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    local, limit = int(os.environ.get("LOCAL_RANK", "0")), timedelta(seconds=timeout)
    if device.type == "cuda":
        torch.cuda.set_device(local)
    if not made:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=limit)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), local, dist.new_group(backend="gloo", timeout=limit))
    finally:
        if not made:
            dist.destroy_process_group()


@contextmanager
def watched(world: World) -> Iterator[None]:
    """Errors of the connection as ours: a process that died or hangs is noticed by the others, not by itself."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        lost = ("gloo", "NCCL", "Connection", "connection", "Timed out", "timed out", "peer")
        if world.size == 1 or not any(word in str(error) for word in lost):
            raise
        raise RunError(
            f"process {world.rank} of {world.size} lost another one, which died or hangs: {str(error).splitlines()[0]}",
            do="look at the others' errors; `regard resume RUN` under torchrun goes on from the last saved state",
        ) from None


def spread(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """The model as one whose gradients are the mean over all processes (DDP); alone, itself."""
    if world.size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    ids = [world.local] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)


def unsynced(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """While gradients only add up, nobody needs the others'."""
    return nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()  # pyright: ignore


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be sharded, in one piece."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore
