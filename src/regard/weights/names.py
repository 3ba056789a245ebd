"""Tensor names of other libraries: one table per format, used for reading and writing.

A row says our name, theirs and how the shape differs. `{n}` is a number (`{n+1}` counts from one), and
`[query|key|value]` names the parts that ours holds stacked. Beside the state dict's own names, ours are
`head` for the last linear layer (of two heads, the labels') and `hidden` for the one before it where the head has two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

COUNTS = "num_batches_tracked"
"""How a batch norm's counter is named: a whole number."""
INDEX = "relative_position_index"
"""How Swin's index into its bias table is named: whole numbers too."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class Shape(NamedTuple):
    """The same numbers in another shape: theirs to ours, and back."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Any], Tensor]


SAME = Shape(lambda t: t, lambda t, _: t)
FLAT = Shape(lambda t: t.flatten(), lambda t, _: t)


class Row(NamedTuple):
    ours: str
    theirs: str
    shape: Shape = SAME


def both(ours: str, theirs: str) -> tuple[Row, Row]:
    """Weight and bias under the same two names."""
    return Row(f"{ours}.weight", f"{theirs}.weight"), Row(f"{ours}.bias", f"{theirs}.bias")


@dataclass(frozen=True)
class Format:
    """Names and shapes of a model in one library. Fields about tokens are for Vision Transformers."""

    name: str
    rows: tuple[Row, ...]
    sign: tuple[str, ...]
    """Names that every file of this format has; `a|b` is either."""
    absent: tuple[str, ...] = ()
    """Names that no file of it has."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Other versions' names (a regular expression) and how the rows spell them."""
    spare: str = r"(?!)"
    """Names that may be left out without changing the class token's answer, as a regular expression."""
    eps: float = 1e-6
    statistics: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET
    """Mean and standard deviation its images are usually normalised with."""
    prefix: tuple[str, ...] = ("class",)
    """Which tokens the position table may have rows for: "class", "all" (registers too) or "none"."""
    needs_class: bool = True
    """Its models always have a class token."""
    square: bool = False
    """Its models take only square grids."""

    def respell(self, name: str) -> str:
        for pattern, replacement in self.spellings:
            name = re.sub(pattern, replacement, name)
        return name

    def knows(self, name: str) -> bool:
        return _translate(self.respell(name), self.rows, "theirs") is not None

    def read(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Our names and shapes, and the unknown names. Without one of query, key and value, all three are unknown."""
        state: dict[str, Tensor] = {}
        parts: dict[str, dict[str, Tensor]] = {}
        origins: dict[tuple[str, str], str] = {}
        unknown: list[str] = []
        for original, tensor in tensors.items():
            match = _translate(self.respell(original), self.rows, "theirs")
            if match is None:
                unknown.append(original)
                continue
            row, ours, part = match
            first = origins.setdefault((ours, part), original)
            if first != original:  # two spellings in one file: neither is the right one
                unknown.append(f"{original} (a second {first})")
                continue
            try:
                value = row.shape.read(tensor)
            except (RuntimeError, IndexError):  # a shape this name cannot have; the comparison will say so
                value = tensor
            if part:
                parts.setdefault(ours, {})[part] = value
            else:
                state[ours] = value
        for ours, held in parts.items():
            order = _parts(next(row for row in self.rows if _pattern(row.ours).fullmatch(ours)).theirs)
            shapes = {tensor.shape for tensor in held.values()}
            floats = all(t.is_floating_point() and t.element_size() > 1 for t in held.values())  # others do not mix
            if set(held) == set(order) and len(shapes) == 1 and all(map(len, shapes)) and floats:
                state[ours] = torch.cat([held[part] for part in order])
            else:
                unknown += [f"{ours} ({', '.join(f'{part} {tuple(held[part].shape)}' for part in held)})"]
        return state, unknown

    def write(self, state: Mapping[str, Tensor], config: Any) -> tuple[dict[str, Tensor], list[str]]:
        """Their names and shapes, and the names of ours that the format does not have."""
        tensors: dict[str, Tensor] = {}
        unknown: list[str] = []
        for ours, tensor in state.items():
            match = _translate(ours, self.rows, "ours")
            if match is None:
                unknown.append(ours)
                continue
            row, theirs, _ = match
            names = _spell_out(theirs)
            values = tensor.chunk(len(names)) if len(names) > 1 else (tensor,)
            for name, value in zip(names, values, strict=True):
                tensors[name] = row.shape.write(value, config).contiguous()
        return tensors, unknown

    def called(self, ours: str) -> str | None:
        """Their name for a tensor of ours, if they have one."""
        match = _translate(ours, self.rows, "ours")
        return match and match[1]

    def names_of(self, ours: str) -> list[str]:
        """Their names for the parts of a tensor of ours; its own name if they have none."""
        return _spell_out(self.called(ours) or ours)


def _parts(pattern: str) -> tuple[str, ...]:
    group = re.search(r"\[(.*)\]", pattern)
    return tuple(group.group(1).split("|")) if group else ()


def _spell_out(theirs: str) -> list[str]:
    """The name of each part, where a name stands for several."""
    return [re.sub(r"\[.*\]", part, theirs) for part in _parts(theirs)] or [theirs]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    escaped = re.escape(text)
    escaped = re.sub(r"\\\{(\w)(\\\+1)?\\\}", r"(?P<\1>\\d{1,4})", escaped)
    escaped = re.sub(r"\\\[(.*)\\\]", lambda m: f"(?P<part>{m.group(1).replace(chr(92), '')})", escaped)
    return re.compile(escaped)


def _translate(name: str, rows: tuple[Row, ...], side: str) -> tuple[Row, str, str] | None:
    """The row that has `name` on one side, the name on the other side, and which part it is."""
    for row in rows:
        here, there = (row.ours, row.theirs) if side == "ours" else (row.theirs, row.ours)
        match = _pattern(here).fullmatch(name)
        if match:
            numbers = match.groupdict()
            part = numbers.pop("part", "") or ""
            for letter, number in numbers.items():
                value = int(number) - (f"{{{letter}+1}}" in here)
                there = there.replace(f"{{{letter}+1}}", str(value + 1)).replace(f"{{{letter}}}", str(value))
            return row, there, part
    return None


def detect(names: Iterable[str], formats: Iterable[Format]) -> tuple[Format, list[str]] | None:
    """The format whose signs are all there, and what stands before them: mostly one prefix, and mostly an empty one.

    >>> from regard.weights.vit_names import FORMATS
    >>> names = ["net.conv_proj.weight", "net.encoder.pos_embedding", "net.encoder.ln.weight"]
    >>> format, prefixes = detect(names, FORMATS)
    >>> format.name, prefixes
    ('torchvision', ['net.'])
    """
    names = list(names)
    for candidate in formats:
        first = candidate.sign[0]
        ends = {name[: -len(first)] for name in names if name.endswith(f".{first}")}
        prefixes = (
            [""] if _has_signs(candidate, names) else [end for end in sorted(ends) if _has_signs(candidate, names, end)]
        )
        if prefixes:
            return candidate, prefixes
    return None


def _has_signs(format: Format, names: list[str], prefix: str = "") -> bool:
    spelt = {format.respell(name.removeprefix(prefix)) for name in names if name.startswith(prefix)}
    return all(set(sign.split("|")) & spelt for sign in format.sign) and not set(format.absent) & spelt


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The same without a prefix of names, where that makes no two of them equal."""
    short = {name: name.removeprefix(prefix) for name in tensors}
    return {name if short[name] != name and short[name] in tensors else short[name]: t for name, t in tensors.items()}
