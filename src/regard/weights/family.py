"""One model family: the formats of its weights, and the functions that read and write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from regard.errors import ConfigError
from regard.weights.files import Opened
from regard.weights.names import Format
from regard.weights.notes import Notes


class Written(NamedTuple):
    """A model in another library's names."""

    tensors: dict[str, Tensor]
    settings: dict[str, Any]
    """transformers' config.json."""
    header: dict[str, Any]
    """What tensors do not say, in the same words: written into the header of other files, for Regard to read."""
    notes: list[str]
    complete: bool = False
    """Whether the names are transformers' in full: else the kind of model is put before them."""


def keep(state: dict[str, Tensor], config: Any, target: Any, notes: Notes) -> None:
    """No tensor depends on the input."""


def refuse(weights: Mapping[str, Tensor], config: Any, to: str) -> Written:
    raise ConfigError(f"{to} weights cannot represent models of the family {config.family!r}", do="keep it as regard")


@dataclass(frozen=True)
class Family:
    """A row of `families.FAMILIES`."""

    own: str
    """A tensor that every model of it has, in our names."""
    formats: tuple[Format, ...] = ()
    """In the order they are tried."""
    read: Callable[[Opened, Format, str | None, dict[str, Any], Notes], tuple[dict[str, Tensor], Any]] | None = None
    """Our state dict and the config it fits, from a file in one of the formats; a name or fields may be asked for."""
    adapt: Callable[[dict[str, Tensor], Any, Any, Notes], None] = keep
    """Change a state dict in place from one config's input (size, channels) to another's."""
    write: Callable[[Mapping[str, Tensor], Any, str], Written] = refuse
    """The model as another library names it."""
    inflate: Callable[[dict[str, Tensor], Any, Any, Any, Notes], Any] | None = None
    """Change a state dict in place from pictures to volumes of another config's depth; the config it then fits."""
    compared: tuple[str, ...] = ()
    """Fields that shapes of tensors need not show, and that a model asked for must share with the file."""
    unshaped: dict[str, Any] = field(default_factory=dict)
    """Values, always valid, of fields that no shape depends on."""
