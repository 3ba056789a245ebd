"""Additive against dot-product attention by d_k, scaled and not: time, memory and what is learnt.

The decks (Vaswani et al., section 3.2.1): dot products are much faster and take less memory; for small d_k both perform
alike, for large d_k additive attention outperforms dot products without scaling.

- Time and memory: forward and backward of `length` queries on as many keys, one head, no projections.
- Learning: each of `symbols` symbols has a learned query and a learned key of d_k numbers, random of unit variance at
  first. A sentence shows some symbols in random order, each with a random value; asked for one symbol, attention must
  find its value. All kinds see the same sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.metrics import Figure, repeated
from regard.nn import attend, attend_additive
from regard.study.attention.costs import peak_memory, timed
from regard.study.keep import cached

Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
KINDS: dict[str, Score] = {
    "q·k / √d_k": lambda q, k, v, vector: attend(q, k, v),
    "q·k": lambda q, k, v, vector: attend(q, k, v, scale=1.0),
    "additive": lambda q, k, v, vector: attend_additive(q, k, v, vector),
}


@dataclass(frozen=True)
class Lookup:
    """Settings of both measurements."""

    length: int = 256
    """Queries, and keys, that are timed."""
    rounds: int = 5
    symbols: int = 32
    shown: int = 16
    values: int = 8
    steps: int = 300
    batch: int = 64
    rate: float = 0.01
    tested: int = 1000


class Scored(NamedTuple):
    """One kind at one d_k: time, memory, and the share of right answers of each seed."""

    kind: str
    d_k: int
    seconds: float
    bytes: int
    right: tuple[float, ...]


@dataclass(frozen=True)
class Scores:
    """The results of this part."""

    task: Lookup
    measured: list[Scored]

    def of(self, kind: str) -> list[Scored]:
        return sorted((row for row in self.measured if row.kind == kind), key=lambda row: row.d_k)

    def figure(self, row: Scored) -> Figure:
        """The share of right answers over seeds, with its 95 % interval."""
        return repeated(np.array(row.right), self.task.tested)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"kind": row.kind, "d_k": row.d_k, "seconds": row.seconds, "bytes": row.bytes, "seed": seed, "right": share}
            for row in self.measured
            for seed, share in enumerate(row.right)
        ]

    def summary(self) -> list[str]:
        fused, plain, additive = (self.of(kind) for kind in KINDS)
        ends = (0, -1)
        faster = [additive[n].seconds / fused[n].seconds for n in ends]
        larger = [additive[n].bytes / fused[n].bytes for n in ends]
        small, large = (fused[n].d_k for n in ends)
        lines = [
            f"Additive attention takes {faster[0]:.0f} times as long as dot products at d_k = {small} and "
            f"{faster[1]:.0f} times at {large:,}; its memory is {larger[0]:.0f} and {larger[1]:.0f} times as much "
            f"({self.task.length} queries and keys, forward and backward)."
        ]
        for n in ends:
            shares = ", ".join(f"{row[n].kind} {fmean(row[n].right):.0%}" for row in (fused, plain, additive))
            lines.append(
                f"At d_k = {fused[n].d_k:,}, right answers after {self.task.steps} steps: {shares} "
                f"(guessing: {1 / self.task.values:.0%})."
            )
        return lines

    def table(self) -> str:
        lines = ["| | d_k | time, ms | memory, MB | right answers, % | 95 % interval |", "|---" * 6 + "|"]
        for kind in KINDS:
            for row in self.of(kind):
                share = self.figure(row)
                lines.append(
                    f"| {kind} | {row.d_k:,} | {1e3 * row.seconds:.2f} | {row.bytes / 2**20:.2f} | "
                    f"{100 * share.value:.1f} | {100 * share.low:.1f} to {100 * share.high:.1f} |"
                )
        t, seeds = self.task, len(self.measured[0].right)
        lines += ["", (
            f"Time and memory: {t.length} queries and keys, forward and backward, one head. Right answers: {t.symbols} "
            f"symbols, {t.shown} shown at a time, {t.steps} steps of {t.batch}, mean over {seeds} "
            f"seed{'s' * (seeds > 1)}."
        )]  # fmt: skip
        return "\n".join(lines)


def scores(
    widths: Sequence[int] = (4, 16, 64, 256, 1024),
    *,
    task: Lookup | None = None,
    seeds: int = 3,
    keep: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> Scores:
    """Measure every kind of attention at every d_k. Finished results are stored in the folder `keep`.

    >>> tiny = Lookup(length=8, rounds=1, steps=2, tested=20)
    >>> result = scores((2, 4), task=tiny, seeds=1)
    >>> [(row.kind, row.d_k) for row in result.measured][:2]
    [('q·k / √d_k', 2), ('q·k', 2)]
    """
    task = task or Lookup()
    if seeds < 1 or len(set(widths)) < 2 or min(widths) < 1:
        raise ConfigError(
            f"widths={tuple(widths)} with {seeds} seeds show nothing", do="give two or more, such as 4,64"
        )
    measured = list[Scored]()
    for width in sorted(set(widths)):
        path = None if keep is None else keep / f"{width}.json"
        settings = asdict(task) | {"device": device, "threads": torch.get_num_threads(), "seeds": seeds}
        cell = cached(path, settings, lambda width=width: _cell(width, task, seeds, device))
        measured += [Scored(kind, width, time, size, tuple(right)) for kind, (time, size, right) in cell.items()]
        shares = ", ".join(f"{kind} {fmean(right):.0%}" for kind, (_, _, right) in cell.items())
        say(f"d_k = {width}: right answers {shares}")
    return Scores(task, measured)


def _cell(width: int, task: Lookup, seeds: int, device: str) -> dict[str, Any]:
    works = {kind: _pass(score, task, width, device) for kind, score in KINDS.items()}
    most = {kind: peak_memory(work, device) for kind, work in works.items()}  # and a first, unmeasured call
    rounds = [{kind: timed(work, 1, device) for kind, work in works.items()} for _ in range(task.rounds)]
    return {
        kind: (
            median(times[kind] for times in rounds),
            most[kind],
            [learn(score, task, width, seed) for seed in range(seeds)],
        )
        for kind, score in KINDS.items()
    }


def _pass(score: Score, task: Lookup, width: int, device: str) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, task.length, width, generator=generator).to(device) for _ in range(3))
    vector = torch.randn(width, generator=generator).to(device) / width**0.5
    given = [x.requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(score(q, k, v, vector), given, torch.ones_like(v))


def sentences(task: Lookup, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Symbols (count, shown), each once; their values; the symbol asked for (count,), and its value."""
    shown = torch.rand(count, task.symbols, generator=generator).argsort(dim=1)[:, : task.shown]
    values = torch.randint(task.values, (count, task.shown), generator=generator)
    place = torch.randint(task.shown, (count, 1), generator=generator)
    return shown, values, shown.gather(1, place)[:, 0], values.gather(1, place)[:, 0]


def learn(score: Score, task: Lookup, width: int, seed: int) -> float:
    """The share of right answers after training queries and keys of every symbol."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(task.symbols, width, generator=generator) for _ in range(2))
    vector = torch.randn(width, generator=generator) / width**0.5
    weights = [x.requires_grad_() for x in (queries, keys, vector)]
    optimizer = torch.optim.Adam(weights, lr=task.rate)

    def answer(count: int) -> tuple[Tensor, Tensor]:
        shown, values, asked, right = sentences(task, count, generator)
        one_hot = F.one_hot(values, task.values).float()
        answers = score(queries[asked][:, None, None], keys[shown][:, None], one_hot[:, None], vector)
        return answers[:, 0, 0], right

    for _ in range(task.steps):
        answers, right = answer(task.batch)
        optimizer.zero_grad()
        F.nll_loss((answers + 1e-9).log(), right).backward()
        optimizer.step()
    with torch.no_grad():
        answers, right = answer(task.tested)
    return float((answers.argmax(-1) == right).double().mean())
