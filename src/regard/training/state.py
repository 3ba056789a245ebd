"""The state from which a run resumes exactly: named tensors (safetensors) and plain values (JSON).

- One file; or, for a sharded model, a folder to which each process writes its shards (torch's distributed checkpoint
  in its safetensors form).
- Either can be read by any number of processes, sharded or not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import read_json
from regard.errors import RunError
from regard.training.distributed import World, load_shards, save_shards, shard_like, shard_shapes
from regard.training.optim import Average
from regard.weights import to_json, write_aside, write_text

FORMAT = "regard-state-1"


@dataclass(frozen=True)
class State:
    """A saved state: plain values, the shapes of its tensors, and a function that fills tensors in place."""

    about: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    fill: Callable[[dict[str, Tensor]], None]


def pack(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], average: Average | None) -> dict[str, Tensor]:
    """Weights, their moving average, and the optimizers' state, by name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = _live(model, average)
    for number, optimizer in enumerate(optimizers):
        for parameter, memory in optimizer.state.items():
            for key, tensor in memory.items():
                if tensor is not None:
                    tensors[f"optimizer/{number}/{names[parameter]}/{key}"] = tensor
    return tensors


def unpack(state: State, model: nn.Module, optimizers: list[torch.optim.Optimizer], average: Average | None) -> None:
    """Restore what `pack` returned. The model must have the same names and shapes."""
    parameters, targets = dict(model.named_parameters()), _live(model, average)
    stored = {name for name in state.shapes if not name.startswith("optimizer/")}
    memories = [name for name in state.shapes if name not in stored]
    if differing := sorted(targets.keys() ^ stored):
        raise RunError(f"the state is of another model: {len(differing)} names differ, such as {differing[0]}")
    for optimizer in optimizers:
        optimizer.state.clear()
    for name in memories:
        _, number, parameter, key = name.split("/")
        owner = parameters[parameter].detach()
        like = torch.zeros_like(owner)
        if state.shapes[name] != tuple(owner.shape):  # a count of steps, such as Adam's
            like = torch.zeros((), device=owner.device)
        targets[name] = optimizers[int(number)].state[parameters[parameter]][key] = like
    with torch.no_grad():
        state.fill(targets)


def _live(model: nn.Module, average: Average | None) -> dict[str, Tensor]:
    tensors = {f"model/{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    if average:
        tensors |= {f"average/{name}": tensor for name, tensor in average.averages.items()}
    return tensors


def save_state(path: Path, tensors: dict[str, Tensor], about: dict[str, Any], world: World, sharded: bool) -> None:
    """Write a state to the file `path`, or to a folder beside it; all processes must call this."""
    from safetensors.torch import save_file

    header = {"format": FORMAT, "about": json.dumps(about)}
    pointer = path.with_suffix(".json")
    if not sharded:
        if world.first:
            held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            write_aside(path, lambda aside: save_file(held, aside, metadata=header))
            pointer.unlink(missing_ok=True)
        return
    # Each save has its own folder. A small file, written last, names the complete one.
    folder = path.with_name(f"{path.stem}-{about['history']['updates']:08d}")
    if world.first:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    world.wait()
    save_shards(folder, tensors)
    world.wait()
    if world.first:
        write_text(pointer, to_json(header | {"folder": folder.name}))
        path.unlink(missing_ok=True)
        for old in path.parent.glob(f"{path.stem}-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)


def load_state(path: Path) -> State | None:
    """What `save_state` wrote; None if nothing has been saved yet."""
    from safetensors import SafetensorError, safe_open

    pointer = path.with_suffix(".json")
    where = path if path.exists() else pointer
    if not where.exists():
        return None
    try:
        if where == pointer:
            header = read_json(pointer)
            folder = path.parent / Path(header["folder"]).name
            shapes = shard_shapes(folder)

            def fill(targets: dict[str, Tensor]) -> None:
                load_shards(folder, targets)
        else:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

            def fill(targets: dict[str, Tensor]) -> None:
                with safe_open(path, framework="pt") as file:
                    for name, target in targets.items():
                        target.copy_(shard_like(file.get_tensor(name), target))

        if header.get("format") != FORMAT:
            raise RunError(f"this is not a state of this version ({FORMAT})", where=where)
        return State(json.loads(header["about"]), shapes, fill)
    except (SafetensorError, ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        do = "delete it; `regard resume` then starts from the beginning"
        raise RunError(f"the saved state is damaged: {error}", where=where, do=do) from None
