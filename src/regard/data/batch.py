"""A batch: named input and target tensors of equal length, whatever the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one training step sees. Shapes are static per task; padding masks are tensors like any other.

    `share` is this process's part of a batch that several processes divide; `total` is the size of the whole batch.
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
        """The same with every tensor changed."""
        parts = ({name: function(t) for name, t in part.items()} for part in (self.inputs, self.targets))
        return replace(self, inputs=next(parts), targets=next(parts))

    def copy_(self, other: Batch) -> None:
        """Overwrite the tensors in place."""
        for mine, theirs in ((self.inputs, other.inputs), (self.targets, other.targets)):
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])

    def chunk(self, pieces: int) -> list[Batch]:
        """Up to so many smaller batches, in order."""
        if pieces == 1:
            return [self]
        parts = [{name: t.chunk(pieces) for name, t in part.items()} for part in (self.inputs, self.targets)]
        count = len(next(iter(parts[0].values())))
        return [
            replace(self, inputs=a, targets=b)
            for n in range(count)
            for a, b in [tuple({k: v[n] for k, v in part.items()} for part in parts)]
        ]
