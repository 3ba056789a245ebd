"""All that a run needs to go on exactly where it was, as named tensors and plain values: safetensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RunError
from regard.training.optim import Average
from regard.weights import write_aside

FORMAT = "regard-state-1"

State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and what is not a tensor."""


def pack(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], average: Average | None) -> dict[str, Tensor]:
    """The weights, their average, and what each optimizer remembers of each of them, by name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    if average:
        tensors |= {f"average/{name}": tensor for name, tensor in average.named()}
    for number, optimizer in enumerate(optimizers):
        for parameter, memory in optimizer.state.items():
            for key, tensor in memory.items():
                if tensor is not None:
                    tensors[f"optimizer/{number}/{names[parameter]}/{key}"] = tensor
    return tensors


def unpack(
    tensors: dict[str, Tensor], model: nn.Module, optimizers: list[torch.optim.Optimizer], average: Average | None
) -> None:
    """Put back what `pack` took. The model must be the same one, as far as names and shapes go."""
    parameters = dict(model.named_parameters())
    live = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    if average:
        live |= {f"average/{name}": tensor for name, tensor in average.named()}
    stored = {name for name in tensors if not name.startswith("optimizer/")}
    if differing := sorted(live.keys() ^ stored):
        raise RunError(f"the state is of another model: {len(differing)} names differ, such as {differing[0]}")
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(tensors[name])
    for optimizer in optimizers:
        optimizer.state.clear()
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, number, parameter, key = name.split("/")
            owner = parameters[parameter]
            optimizers[int(number)].state[owner][key] = tensor.to(owner.device)


def save_state(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "about": json.dumps(about)}
    write_aside(path, lambda aside: save_file(held, aside, metadata=header))


def load_state(path: Path) -> State | None:
    """What `save_state` wrote; None where nothing has been saved yet."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise RunError(f"the file is not a state of this version ({FORMAT})", where=path)
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(header["about"])  # noqa: SIM118
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        do = "delete it, and `regard resume` begins anew"
        raise RunError(f"the saved state is damaged: {error}", where=path, do=do) from None
