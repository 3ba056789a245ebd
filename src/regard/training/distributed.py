"""Distributed training: process group, DDP and FSDP2, sharded tensors and checkpoints."""
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
    """This process among `size`. `talk` is a gloo group for small messages, which never wait for a GPU."""

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
        """Whether `flag` is true in any process. All processes get the same answer at the same step."""
        return self.sums([float(flag)])[0] > 0

    def agree(self, text: str) -> str:
        """The text of the first process, in all processes."""
        if self.size == 1:
            return text
        said = torch.tensor(list(text.encode()) if self.first else [], dtype=torch.uint8)
        length = torch.tensor([len(said)])
        dist.broadcast(length, 0, group=self.talk)
        said = said if self.first else torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(said, 0, group=self.talk)
        return bytes(said.tolist()).decode()

    def wait(self) -> None:
        """Wait for all processes."""
        self.sums([0.0])


ALONE = World()


@contextmanager
def joined(device: torch.device, timeout: float) -> Iterator[World]:
    """The process group of torchrun or of the caller, if there is one; else a world of one process."""
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
    """Turn connection errors into a RunError: they mean that another process died or hangs."""
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
    """The model wrapped so that gradients are averaged over all processes; unchanged if there is only one.

    DDP: every process has all weights. With `shard`, FSDP2: weights are sharded block by block.
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
    """No communication of gradients while they accumulate; only the `last` backward pass synchronises."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)  # pyright: ignore
    return model.no_sync() if not last and hasattr(model, "no_sync") else nullcontext()  # pyright: ignore


class _GatherRows(torch.autograd.Function):
    """Rows of all processes; the gradient of a process's own rows is summed over all processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, ranks: int) -> Tensor:
        ctx.rank, ctx.count = rank, len(rows)
        parts = [torch.empty_like(rows) for _ in range(ranks)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.rank * ctx.count : (ctx.rank + 1) * ctx.count], None, None


def gather_rows(rows: Tensor, most: int, world: World) -> Tensor:
    """The rows (n, columns) of all processes, up to `most` of each, the rest zeros: (ranks × most, columns).

    Gradients flow back to the process that a row came from. If every process computes the same loss of all rows,
    weighted by its share of the batch, its gradients are those of the loss.
    """
    padded = torch.nn.functional.pad(rows, (0, 0, 0, most - len(rows)))
    return _GatherRows.apply(padded, world.rank, world.size)  # pyright: ignore[reportReturnType]


def unshard(tensor: Tensor) -> Tensor:
    """The full tensor, if it is sharded; all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """The local shard of a tensor, if it is sharded; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_like(share: Tensor, like: Tensor) -> Tensor:
    """The full tensor of local shards that are laid out as those of `like`; all processes must call this."""
    if not isinstance(like, DTensor):
        return share
    shape, stride = like.shape, like.stride()
    return unshard(DTensor.from_local(share, like.device_mesh, like.placements, shape=shape, stride=stride))


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A full tensor, present in every process, sharded as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Each process writes its shards, as safetensors. Scalars would be lost, so they get one axis."""
    import torch.distributed.checkpoint as dcp

    dcp.save(_with_axes(tensors), storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True))


def load_shards(folder: Path, targets: dict[str, Tensor]) -> None:
    """Fill the targets in place. The number of processes may differ from that at saving."""
    import torch.distributed.checkpoint as dcp

    reader, alone = dcp.HuggingFaceStorageReader(str(folder)), not dist.is_initialized()
    dcp.load(_with_axes(targets), storage_reader=reader, no_dist=alone)


def shard_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    import torch.distributed.checkpoint as dcp

    entries = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(entry.size) for name, entry in entries.items()}  # pyright: ignore


def _with_axes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor if tensor.ndim else tensor.view(1) for name, tensor in tensors.items()}
