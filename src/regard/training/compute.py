"""What training costs: floating-point operations, device time, and energy where the device reports it.

While a network trains, the loop only counts samples by the shape of their batch. Operations are counted afterwards, on
a copy of the network without values (device "meta"), once per shape: training is not slowed down, and a resumed run
has the same count. Counted are matrix products, convolutions and attention, two operations per multiply-add, forward
and backward; not validation, the optimizer, or activations that checkpointing computes again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from regard.data.batch import Batch, Tensors

ROWS = 2
"""Samples in the counted batch: a batch norm needs more than one."""


@dataclass
class Work:
    """What a run has done so far; kept in its saved state."""

    samples: dict[str, int] = field(default_factory=dict)
    """Samples trained on, by the shape of their batch."""
    device_seconds: float = 0.0
    joules: float | None = 0.0
    """Energy of all devices; None if one of them did not report it."""

    @staticmethod
    def of(stored: Any) -> Work:
        """From the plain values of a file."""
        made = Work(**stored)
        fits = isinstance(made.samples, dict) and all(type(n) is int and n >= 0 for n in made.samples.values())
        numbers = [made.device_seconds, 0.0 if made.joules is None else made.joules]
        if not fits or any(type(number) not in (int, float) for number in numbers):
            raise TypeError(f"work cannot be {stored!r}")
        return made

    def add(self, batch: Batch) -> None:
        shape = shape_of(batch)
        self.samples[shape] = self.samples.get(shape, 0) + batch.total


def shape_of(batch: Batch) -> str:
    """Name, type and shape of one sample's tensors, as text.

    >>> shape_of(Batch({"image": torch.zeros(8, 3, 32, 32)}, {}, total=8))
    '[{"image": ["float32", 3, 32, 32]}, {}]'
    """
    parts = [
        {name: [str(t.dtype).removeprefix("torch."), *t.shape[1:]] for name, t in part.items()}
        for part in (batch.inputs, batch.targets)
    ]
    return json.dumps(parts)


def blank_batch(shape: str) -> Batch:
    """A batch of such samples without values."""

    def tensors(part: Mapping[str, list[Any]]) -> Tensors:
        return {
            name: torch.empty(ROWS, *sides, dtype=getattr(torch, kind), device="meta")
            for name, (kind, *sides) in part.items()
        }

    inputs, targets = json.loads(shape)
    return Batch(tensors(inputs), tensors(targets), list(range(ROWS)), total=ROWS)


class _WithoutValues(TorchFunctionMode):
    """Inside the block, copied tensors are on the device "meta": no memory is used."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.clone:
            return torch.empty_like(args[0], device="meta")
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            memo[id(tensor)] = made = torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
            return made
        return func(*args, **(kwargs or {}))


class Blueprint(NamedTuple):
    """A network and its objective without values."""

    model: Any
    objective: Any

    @staticmethod
    def of(model: Any, objective: Any) -> Blueprint | str:
        """Made before the network is compiled or wrapped for several processes; where it cannot be, why."""
        try:
            with _WithoutValues():
                made = Blueprint(*copy.deepcopy((model, objective)))
            made.model.checkpointing = False
            return made
        except Exception as error:  # counting must never stop a run
            return _reason(error)

    def flops(self, shape: str) -> float:
        """Operations of training on one sample."""
        self.model.train()
        batch = blank_batch(shape)
        with FlopCounterMode(display=False) as counter:
            output = self.objective.forward(self.model, batch)
            try:
                loss = self.objective.loss(output, batch.targets)
            except Exception:  # a matching needs values; the backward pass through the network is the same
                loss = torch.stack([t.float().sum() for t in _tensors(output) if t.requires_grad]).sum()
            loss.backward()
        return counter.get_total_flops() / ROWS


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:200]


COUNTED = (
    "forward and backward passes of training, by torch's FlopCounterMode on one batch per shape times samples seen; "
    "matrix products, convolutions and attention, 2 per multiply-add"
)
NOT_COUNTED = "the run was begun by a version that did not count"


def count_flops(blueprint: Blueprint | str | None, work: Work | None) -> dict[str, Any]:
    """For summary.json: `flops` in all, per sample, samples, and how they were counted; or null, and why."""
    nothing = {"flops": None, "flops_per_sample": None, "samples": None}
    if work is None:
        return nothing | {"flops_counted": f"not counted: {NOT_COUNTED}"}
    samples = sum(work.samples.values())
    if not isinstance(blueprint, Blueprint):
        return nothing | {"samples": samples, "flops_counted": f"not counted: {blueprint}"}
    try:
        total = sum(count * blueprint.flops(shape) for shape, count in work.samples.items())
    except Exception as error:  # an operator that has no form without values, or a wrong saved shape
        return nothing | {"samples": samples, "flops_counted": f"not counted: {_reason(error)}"}
    each = total / max(samples, 1)
    return {"flops": float(total), "flops_per_sample": each, "samples": samples, "flops_counted": COUNTED}
