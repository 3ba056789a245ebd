"""The report on loaded weights, and the error for weights that do not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from regard.errors import RunError
from regard.weights.files import Opened


@dataclass(frozen=True)
class LoadReport:
    """How a weights file was read: what was assumed, changed, left untrained or not used."""

    source: str
    format: str
    numbers: int
    """How many numbers of the file are used."""
    assumed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    inflated: bool = False
    """Whether these are weights of a network for pictures, made ready for volumes."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """For people.

        >>> print(*LoadReport("b16.npz", "google", 9, changed=("head: 10 classes, not 1000",)).lines(), sep="\\n")
        b16.npz: google names, 9 numbers used
          changed: head: 10 classes, not 1000
        """
        groups = {
            "assumed": self.assumed, "changed": self.changed, "left untrained": self.untrained, "not used": self.unused,
        }  # fmt: skip
        details = [f"  {label}: {line}" for label, lines in groups.items() for line in shortened(lines)]
        return [f"{self.source}: {self.format} names, {self.numbers:,} numbers used", *details]


@dataclass
class Notes:
    """A report being written."""

    assumed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    untrained: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    left: int = 0
    """Numbers of the file that are not used."""
    inflated: bool = False

    def leave(self, name: str, *tensors: Tensor, why: str = "") -> None:
        count = sum(tensor.numel() for tensor in tensors)
        self.unused.append(f"{name} ({count:,} numbers){why}")
        self.left += count

    def report(self, source: str, format: str, opened: Opened) -> LoadReport:
        numbers = sum(tensor.numel() for tensor in opened.tensors.values()) - self.left
        told = (self.assumed, self.changed, self.untrained, [*self.unused, *opened.left])
        return LoadReport(source, format, numbers, *map(tuple, told), inflated=self.inflated)


def shortened(lines: list[str] | tuple[str, ...], most: int = 8) -> list[str]:
    return [*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])]


def mismatch(differ: list[str], where: object, do: str | None = None) -> RunError:
    """The error that lists how a file and a model differ."""
    return RunError("the weights are not this model's:\n    " + "\n    ".join(shortened(differ)), where=where, do=do)
