"""A batch: named input and target tensors of equal length, the same class for every task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Input of one training step. Padding masks are tensors like any other.

    If several processes divide a batch, `share` is this process's part; `total` is the size of the full batch.
    """

    inputs: Tensors
    targets: Tensors
    numbers: list[int] = field(default_factory=list)
    share: float = 1.0
    total: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(t.shape) for part in (self.inputs, self.targets) for t in part.values())

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with `function` applied to every tensor."""
        inputs = {name: function(t) for name, t in self.inputs.items()}
        targets = {name: function(t) for name, t in self.targets.items()}
        return replace(self, inputs=inputs, targets=targets)

    def copy_(self, other: Batch) -> None:
        """Overwrite the tensors in place."""
        for mine, theirs in ((self.inputs, other.inputs), (self.targets, other.targets)):
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])

    def chunk(self, pieces: int) -> list[Batch]:
        """Up to `pieces` smaller batches, in order."""
        if pieces == 1:
            return [self]
        inputs, targets = _chunks(self.inputs, pieces), _chunks(self.targets, pieces)
        return [replace(self, inputs=i, targets=t) for i, t in zip(inputs, targets, strict=True)]


def _chunks(tensors: Tensors, pieces: int) -> list[Tensors]:
    parts = zip(*(t.chunk(pieces) for t in tensors.values()), strict=True)
    return [dict(zip(tensors, part, strict=True)) for part in parts]
