"""The context bottleneck: how well networks repeat sentences of random symbols, by length (the decks' "Seq2seq").

- Without attention all symbols must go through a context vector of fixed size; with attention the decoder reads the
  encoder's states.
- Random symbols cannot be guessed from each other, so each one has to be stored.
- All networks get the same sentences, in the same order.
"""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import api
from regard.errors import ConfigError, did_you_mean
from regard.metrics import Figure, repeated
from regard.networks.decoding import greedy
from regard.networks.translator import Translator
from regard.study.keep import cached
from regard.study.result import Gap
from regard.training.optim import learning_rate, make_optimizers

START, END, FIRST = 1, 2, 3  # as in TextConfig; 0 is padding, FIRST is the first symbol

# Name: model, factor of the width, and further fields. One layer each.
ARMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "rnn_plain": ("rnn_plain", 1, {}),
    "rnn_plain (zero cells)": ("rnn_plain", 1, {"cells": False}),
    "rnn_plain (2 × width)": ("rnn_plain", 2, {}),
    "rnn_attention": ("rnn_attention", 1, {}),
    "transformer": ("transformer_nano", 1, {"heads": 4, "norm": "pre"}),
}


@dataclass(frozen=True)
class Repeating:
    """Settings of the task and of training."""

    symbols: int = 10
    longest: int = 24
    """Training sentences have 1 to `longest` symbols."""
    lengths: tuple[int, ...] = (4, 8, 12, 16, 20, 24, 32)
    """Lengths of the test sentences; those above `longest` do not occur in training."""
    width: int = 64
    steps: int = 1000
    batch: int = 64
    rate: float = 3e-3
    sentences: int = 200
    """Test sentences per length, the same for all networks and seeds."""


QUICK = Repeating(longest=8, lengths=(2, 4, 6, 8, 12), width=32, steps=400, sentences=50)


class Recall(NamedTuple):
    """One network on sentences of one length: the shares of sentences, and of symbols, that are right."""

    model: str
    length: int
    seed: int
    exact: float
    symbols: float


class Point(NamedTuple):
    """The same over all seeds."""

    model: str
    length: int
    exact: Figure
    symbols: Figure
    seeds: int


@dataclass(frozen=True)
class Bottleneck:
    """The results of this part."""

    task: Repeating
    recalls: list[Recall]
    parameters: dict[str, int]
    seconds: dict[str, float]
    """Training time, mean over seeds."""

    @property
    def points(self) -> list[Point]:
        points = []
        for (model, length), group in itertools.groupby(self._sorted(), key=lambda r: (r.model, r.length)):
            group = list(group)
            shares = (np.array([getattr(recall, part) for recall in group]) for part in ("exact", "symbols"))
            exact, symbols = (repeated(share, self.task.sentences) for share in shares)
            points.append(Point(model, length, exact, symbols, len(group)))
        return points

    def _sorted(self) -> list[Recall]:
        order = list(self.parameters)
        return sorted(self.recalls, key=lambda recall: (order.index(recall.model), recall.length, recall.seed))

    def gap(self, one: str, other: str, length: int) -> Gap:
        """Share of correct symbols of `one` minus that of `other`, per seed."""
        shares = {(r.model, r.seed): r.symbols for r in self.recalls if r.length == length}
        seeds = [seed for model, seed in shares if model == one and (other, seed) in shares]
        return Gap.of(length, [shares[one, seed] - shares[other, seed] for seed in seeds])

    def summary(self) -> list[str]:
        """In sentences: accuracy of each network by length, and the gain from attention."""
        seen = [length for length in self.task.lengths if length <= self.task.longest]
        shares = {(p.model, p.length): p for p in self.points}
        lines = []
        for model in self.parameters:
            first, last = (shares[model, length] for length in (seen[0], seen[-1]))
            lines.append(
                f"{model}: {first.exact.value:.0%} of sentences of {seen[0]} symbols are right, "
                f"{last.exact.value:.0%} of {seen[-1]} (symbols: {first.symbols.value:.0%} and "
                f"{last.symbols.value:.0%}; guessing: {1 / self.task.symbols:.0%})."
            )
        for one, other in (("rnn_attention", "rnn_plain"), ("transformer", "rnn_attention")):
            if {one, other} <= self.parameters.keys():
                lines.append(_ahead(one, other, self.gap(one, other, seen[-1])))
        for length in self.task.lengths:
            if length > self.task.longest:
                right = ", ".join(f"{model} {shares[model, length].exact.value:.0%}" for model in self.parameters)
                lines.append(f"Of {length} symbols, longer than any it was trained on, sentences right: {right}.")
        return lines

    def rows(self) -> list[dict[str, Any]]:
        return [recall._asdict() for recall in self._sorted()]

    def table(self) -> str:
        shares = {(p.model, p.length): p for p in self.points}
        head = "| | parameters | training, s | " + " | ".join(str(length) for length in self.task.lengths) + " |"
        lines = [head, "|---" * (3 + len(self.task.lengths)) + "|"]
        for model, count in self.parameters.items():
            cells = (shares[model, length] for length in self.task.lengths)
            percent = " | ".join(f"{100 * p.exact.value:.0f} ({100 * p.symbols.value:.0f})" for p in cells)
            lines.append(f"| {model} | {count:,} | {self.seconds[model]:.0f} | {percent} |")
        task, seeds = self.task, self.points[0].seeds
        lines += ["", (
            f"Percent of sentences right, and of symbols, by length; {task.sentences} sentences of each, mean over "
            f"{seeds} seed{'s' * (seeds > 1)}. {task.symbols} symbols, trained on lengths 1 to {task.longest}, width "
            f"{task.width}, one layer, {task.steps:,} steps of {task.batch}; 95 % intervals in study.json."
        )]  # fmt: skip
        return "\n".join(lines)


def _ahead(one: str, other: str, gap: Gap) -> str:
    sure = "" if gap.sure else "; of so few seeds, it may be chance" if gap.error else "; of one seed, a hint only"
    error = "" if gap.error is None else f" ± {100 * gap.error:.0f}"
    return (
        f"At {gap.images} symbols {one} has {100 * gap.mean:.0f}{error} points more of them right than {other}{sure}."
    )


def bottleneck(
    arms: Sequence[str] = tuple(ARMS),
    *,
    task: Repeating | None = None,
    seeds: int = 3,
    keep: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> Bottleneck:
    """Train each network with each seed and test it on each length. Finished results are stored in the folder `keep`.

    >>> tiny = Repeating(symbols=2, longest=3, lengths=(2,), width=8, steps=2, sentences=4)
    >>> [(point.model, point.length, point.seeds) for point in bottleneck(("rnn_plain",), task=tiny, seeds=2).points]
    [('rnn_plain', 2, 2)]
    """
    task = task or Repeating()
    for name in arms:
        if name not in ARMS:
            raise ConfigError(f"there is no network {name!r} in this study", do=did_you_mean(name, ARMS))
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1", do="3 or more show the noise")
    recalls, parameters, seconds = list[Recall](), dict[str, int](), dict[str, list[float]]()
    for seed in range(seeds):
        for name in arms:
            slug = re.sub(r"\W+", "-", name).strip("-")
            path = None if keep is None else keep / f"{slug}-{seed}.json"
            settings = asdict(task) | {"arm": ARMS[name]}
            cell = cached(path, settings, lambda name=name, seed=seed: _cell(name, task, seed, device))
            recalls += [Recall(name, length, seed, *shares) for length, *shares in cell["shares"]]
            parameters[name] = cell["parameters"]
            seconds.setdefault(name, []).append(cell["seconds"])
            length, _, symbols = max(share for share in cell["shares"] if share[0] <= task.longest)
            done = f"{len(recalls) // len(task.lengths)}/{seeds * len(arms)}"
            say(f"{done}: {name}, seed {seed}: {symbols:.0%} of {length} symbols right after {cell['seconds']:.0f} s")
    return Bottleneck(task, recalls, parameters, {name: statistics.fmean(each) for name, each in seconds.items()})


def _cell(name: str, task: Repeating, seed: int, device: str) -> dict[str, Any]:
    kind, times, fields = ARMS[name]
    width = times * task.width
    fields: dict[str, Any] = fields | ({"mlp": 2 * width} if kind.startswith("transformer") else {})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = api.create(kind, vocabulary=FIRST + task.symbols, width=width, depth=1, dropout=0.0, **fields)
    assert isinstance(model, Translator)
    model.to(device)
    start = time.perf_counter()
    learn(model, task, seed)
    seconds = time.perf_counter() - start
    shares = [(length, *recall(model, task, length)) for length in task.lengths]
    return {"shares": shares, "parameters": sum(p.numel() for p in model.parameters()), "seconds": seconds}


def sentences(task: Repeating, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sources (count, length + 1), random symbols and an end token, which are also the targets; and decoder inputs.

    >>> source, given = sentences(Repeating(symbols=1), 1, 3, torch.Generator())
    >>> source.tolist(), given.tolist()
    ([[3, 3, 3, 2]], [[1, 3, 3, 3]])
    """
    words = torch.randint(FIRST, FIRST + task.symbols, (count, length), generator=generator)
    return F.pad(words, (0, 1), value=END), F.pad(words, (1, 0), value=START)


def learn(model: Translator, task: Repeating, seed: int) -> None:
    """Train with AdamW: warm-up for a tenth of the steps, then a cosine schedule."""
    generator, device = torch.Generator().manual_seed(seed), next(model.parameters()).device
    (optimizer,) = make_optimizers(model, "adamw", task.rate, 0.0)
    model.train()
    for step in range(task.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, task.steps, task.rate, 0.1)
        length = int(torch.randint(1, task.longest + 1, (), generator=generator))
        source, given = (words.to(device) for words in sentences(task, task.batch, length, generator))
        F.cross_entropy(model(source, given).logits.flatten(0, 1), source.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def recall(model: Translator, task: Repeating, length: int) -> tuple[float, float]:
    """Shares of correct sentences and of correct symbols, position by position, by greedy decoding."""
    device = next(model.parameters()).device
    source, _ = sentences(task, task.sentences, length, torch.Generator().manual_seed(length))
    source = source.to(device)
    # Up to two words too many are decoded: a network that does not end in time is wrong.
    right = greedy(model.eval(), source, constant=2).words[:, 0, : length + 1] == source
    return float(right.all(1).double().mean()), float(right[:, :length].double().mean())
