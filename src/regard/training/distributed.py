"""The processes that train one model together: who they are, and what they agree on. One alone needs none of it."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from regard.errors import RunError
from regard.networks.base import Network


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
            do="look at the others' errors; `regard resume RUN` under torchrun resumes from the last saved state",
        ) from None


def wrap_ddp_or_fsdp(model: Network, world: World, device: torch.device, shard: bool) -> nn.Module:
    """The model as one whose gradients are the mean over all processes; alone, itself.

    Whole in each of them (DDP), or sharded over them, block by block (FSDP2).
    """
    if world.size == 1:
        return model
    if shard:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (world.size,))
        for block in model.repeated():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    from torch.nn.parallel import DistributedDataParallel

    ids = [world.local] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def no_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """While gradients only add up, nobody needs the others'."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)  # pyright: ignore
    return model.no_sync() if not last and hasattr(model, "no_sync") else nullcontext()  # pyright: ignore


def unshard(tensor: Tensor) -> Tensor:
    """A tensor that may be sharded, in one piece; all processes call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that may be sharded; the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_like(share: Tensor, like: Tensor) -> Tensor:
    """In one piece what each process has its share of, as it has of another tensor; all processes call this."""
    if not isinstance(like, DTensor):
        return share
    shape, stride = like.shape, like.stride()
    return unshard(DTensor.from_local(share, like.device_mesh, like.placements, shape=shape, stride=stride))


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, sharded as another one is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Each process writes what it holds, as safetensors. A number without axes would be lost: it gets one."""
    import torch.distributed.checkpoint as dcp

    dcp.save(_with_axes(tensors), storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True))


def load_shards(folder: Path, targets: dict[str, Tensor]) -> None:
    """Fill the targets in place, whatever number of processes wrote them."""
    import torch.distributed.checkpoint as dcp

    reader, alone = dcp.HuggingFaceStorageReader(str(folder)), not dist.is_initialized()
    dcp.load(_with_axes(targets), storage_reader=reader, no_dist=alone)


def shard_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    import torch.distributed.checkpoint as dcp

    entries = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(entry.size) for name, entry in entries.items()}  # pyright: ignore


def _with_axes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor if tensor.ndim else tensor.view(1) for name, tensor in tensors.items()}
