"""Batches of sentence pairs by token count, in a few padded shapes.

- A GPU records one CUDA graph per shape, so there are only a few shapes. A shape is a number of rows and of source and
  target tokens. Shapes are chosen once, for the lengths of the corpus.
- Pairs that do not fill a batch of their shape move to the next larger shape. If there is none, batches have fewer
  rows. Rows that stay empty are filled and have no effect.
- Batches depend on (seed, epoch) only, not on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.random import order, uniforms
from regard.data.text.tokens import Tokenizer, Tokenizers
from regard.errors import ConfigError, DataError

SHAPES = 12
_BOUNDS = 40  # candidate lengths of shapes, per side
_AT_ONCE = 10_000  # texts tokenized at once
_STEP = 8  # rows are multiples of this, so that processes can share them evenly


class TextBatch(NamedTuple):
    """source (B, S), with end tokens; target (B, T), with start and end tokens; numbers (B,) of the pairs, -1 for
    filling rows.

    The source of a filling row is one end token, so that attention has a key. Its target is one start token, so that
    there is nothing to predict. `tokens` is the number of predicted tokens and `pairs` the number of pairs of the full
    batch, over all processes.
    """

    source: Tensor
    target: Tensor
    numbers: Tensor
    tokens: int
    pairs: int


class Shape(NamedTuple):
    """A batch of `rows` pairs, padded to `source` and `target` tokens."""

    rows: int
    source: int
    target: int


class EncodedPairs:
    """All sentences of a corpus as tokens, concatenated in memory: four bytes per token, or two.

    Sources have an end token; targets also a start token.
    """

    def __init__(self, tokenizers: Tokenizers, sources: Sequence[str], targets: Sequence[str]):
        if len(sources) != len(targets):
            raise DataError(f"there are {len(sources)} source and {len(targets)} target sentences")
        self.tokenizers = tokenizers
        self.source, self.source_at = _packed(tokenizers.source, sources, start=False)
        self.target, self.target_at = _packed(tokenizers.target, targets, start=True)

    def __len__(self) -> int:
        return len(self.source_at) - 1

    def lengths(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of source and target tokens of these pairs, with start and end tokens."""
        return np.diff(self.source_at)[index], np.diff(self.target_at)[index]


def _packed(tokenizer: Tokenizer, texts: Sequence[str], start: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all texts, and the start of each text; done in parts, because Python lists need much more memory."""
    kind = np.uint16 if tokenizer.size <= 2**16 else np.int32
    tokens, lengths = [np.zeros(0, dtype=kind)], [0]
    for at in range(0, len(texts), _AT_ONCE):
        rows = tokenizer.encode(texts[at : at + _AT_ONCE], start=start, end=True)
        lengths += [len(row) for row in rows]
        tokens.append(np.fromiter(chain.from_iterable(rows), dtype=kind))
    return np.concatenate(tokens), np.cumsum(lengths, dtype=np.int64)


class TextLoader:
    """Batches of at most `tokens` source tokens and at most as many target tokens, with padding. `shuffle` is the seed
    of the order, or None for a fixed order.

    Each of `ranks` processes gets its rows of every batch, so batches do not depend on the number of processes.
    Pairs with more than `longest` tokens on a side are left out and listed in `left_out`.

    >>> from regard.data.text import train_tokenizers
    >>> pairs = EncodedPairs(train_tokenizers(["a b"], ["A B"], 270), ["a", "b a", "a b a"], ["A", "B A", "A B A"])
    >>> loader = TextLoader(pairs, [0, 1, 2], tokens=12)
    >>> [(tuple(batch.source.shape), batch.numbers.tolist()) for batch in loader.epoch(0)]
    [((2, 4), [0, 1]), ((2, 4), [2, -1])]
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        index: Sequence[int],
        tokens: int,
        *,
        shuffle: int | None = None,
        longest: int | None = None,
        shapes: int = SHAPES,
        rank: int = 0,
        ranks: int = 1,
    ):
        numbers = np.array(index, dtype=np.int64)
        source, target = pairs.lengths(numbers)
        most = np.maximum(source, target)
        fits = most <= (longest or most.max(initial=0))
        self.left_out: list[int] = numbers[~fits].tolist()
        if not fits.any():
            raise DataError("there are no sentences to make batches of")
        if int(most[fits].max()) > tokens:
            raise ConfigError(
                f"a sentence has {int(most[fits].max())} tokens, a batch at most {tokens}",
                do="make batches larger, or leave long sentences out",
            )
        self.pairs, self.tokens, self.shuffle, self.rank, self.ranks = pairs, tokens, shuffle, rank, ranks
        self.index = numbers[fits]
        largest = choose_shapes(source[fits], target[fits], tokens, shapes)
        self._home = _smallest(largest, source[fits], target[fits])
        self._shapes, self._plan = _plan(largest, np.bincount(self._home, minlength=len(largest)).tolist())

    def __len__(self) -> int:
        """Number of batches per epoch, the same for all epochs."""
        return sum(whole + bool(rest) for whole, rest, _ in self._plan)

    @property
    def shapes(self) -> list[Shape]:
        """The shapes that occur."""
        return [shape for shape, (whole, rest, _) in zip(self._shapes, self._plan, strict=True) if whole or rest]

    @property
    def padding(self) -> float:
        """The share of an epoch's tokens that are padding or filling."""
        real = sum(int(lengths.sum()) for lengths in self.pairs.lengths(self.index))
        batches = [whole + bool(rest) for whole, rest, _ in self._plan]
        area = [rows * (source + target) for rows, source, target in self._shapes]
        return 1 - real / sum(n * a for n, a in zip(batches, area, strict=True))

    def close(self) -> None:
        """Nothing is open: sentences lie in memory."""

    def batches(self, epoch: int) -> list[tuple[Shape, np.ndarray]]:
        """The shape and the pairs of every batch of an epoch, in order."""
        made: list[tuple[Shape, np.ndarray]] = []
        waiting: list[list[np.ndarray]] = [[] for _ in self._shapes]
        for n, (shape, (whole, rest, onward)) in enumerate(zip(self._shapes, self._plan, strict=True)):
            own = np.concatenate([*waiting[n], self._ordered(self.index[self._home == n], epoch)])
            made += [(shape, own[at : at + shape.rows]) for at in range(0, whole * shape.rows, shape.rows)]
            left = own[whole * shape.rows :]
            if rest:
                made.append((shape, left))
            elif onward is not None:
                waiting[onward].append(left)
        if self.shuffle is None:
            return made
        chance = uniforms(self.shuffle, epoch, np.arange(len(made)), 1, use=7)[:, 0]
        return [made[n] for n in np.argsort(chance, kind="stable")]

    def _ordered(self, numbers: np.ndarray, epoch: int) -> np.ndarray:
        return numbers if self.shuffle is None else order(self.shuffle, epoch, numbers)

    def epoch(self, number: int, start: int = 0) -> Iterator[TextBatch]:
        """The epoch's batches after its first `start` pairs; in a started batch they become filling rows."""
        for shape, members in self.batches(number):
            left = members[min(start, len(members)) :]
            start -= len(members) - len(left)
            if len(left):
                yield self._batch(shape, left)

    def _batch(self, shape: Shape, members: np.ndarray) -> TextBatch:
        """This process's rows of a batch."""
        each = -(-shape.rows // self.ranks)
        numbers = np.full(each * self.ranks, -1)
        # Rows are dealt in turn, so that processes have equal work if some rows are empty.
        numbers.reshape(each, self.ranks).flat[: len(members)] = members
        own = numbers.reshape(each, self.ranks)[:, self.rank]
        source, target = self.pairs.tokenizers.source, self.pairs.tokenizers.target
        predicted = int((self.pairs.lengths(members)[1] - 1).sum())
        return TextBatch(
            _padded(self.pairs.source, self.pairs.source_at, own, shape.source, source.pad, source.end),
            _padded(self.pairs.target, self.pairs.target_at, own, shape.target, target.pad, target.start),
            torch.from_numpy(own.copy()),
            predicted,
            len(members),
        )


def _padded(tokens: np.ndarray, at: np.ndarray, numbers: np.ndarray, width: int, pad: int, alone: int) -> Tensor:
    """Rows of tokens (numbers, width); a row of no pair is the token `alone` and padding."""
    begin = np.where(numbers < 0, 0, at[numbers])
    length = np.where(numbers < 0, 0, at[numbers + 1] - begin)
    column = np.arange(width)
    inside = column < length[:, None]
    rows = np.where(inside, tokens[np.where(inside, begin[:, None] + column, 0)], pad).astype(np.int64)
    rows[numbers < 0, 0] = alone
    return torch.from_numpy(rows)


def _rows(tokens: int, source: int, target: int) -> int:
    rows = tokens // max(source, target)
    return rows - rows % _STEP if rows >= _STEP else rows


def choose_shapes(source: np.ndarray, target: np.ndarray, tokens: int, count: int = SHAPES) -> list[Shape]:
    """At most `count` shapes for pairs of these lengths, chosen for least padding, smallest first.

    Greedy: the largest shape holds all pairs. Then the shape that saves most padding is added, until there are
    `count`. At the end each is replaced by a better one, if there is one.
    """
    bounds = [_bounds(lengths) for lengths in (source, target)]
    bins = [np.searchsorted(b, lengths) for b, lengths in zip(bounds, (source, target), strict=True)]
    pairs = np.zeros([len(b) for b in bounds])
    np.add.at(pairs, tuple(bins), 1)
    size = bounds[0][:, None] + bounds[1][None]  # tokens per row of each shape, (S, T)
    top = (len(bounds[0]) - 1, len(bounds[1]) - 1)
    chosen: list[tuple[int, int]] = []
    for _ in range(count - 1):
        chosen.append(_best(chosen, top, pairs, size))
    for n in range(len(chosen)):
        chosen[n] = _best(chosen[:n] + chosen[n + 1 :], top, pairs, size)
    limits = {(int(bounds[0][a]), int(bounds[1][b])) for a, b in {*chosen, top}}
    return [Shape(_rows(tokens, s, t), s, t) for s, t in sorted(limits, key=lambda limit: (sum(limit), limit))]


def _bounds(lengths: np.ndarray) -> np.ndarray:
    """Candidate lengths of shapes: all that occur, or quantiles if there are many."""
    there = np.unique(lengths)
    if len(there) <= _BOUNDS:
        return there
    return np.unique(np.quantile(lengths, np.linspace(0, 1, _BOUNDS + 1)[1:], method="higher"))


def _best(chosen: list[tuple[int, int]], top: tuple[int, int], pairs: np.ndarray, size: np.ndarray) -> tuple[int, int]:
    """The shape that saves the most tokens in addition to those chosen."""
    paid = np.full(size.shape, size[top])
    for a, b in chosen:
        paid[: a + 1, : b + 1] = np.minimum(paid[: a + 1, : b + 1], size[a, b])
    saved = np.zeros(size.shape)
    for a, b in np.ndindex(*size.shape):
        saved[a, b] = (pairs[: a + 1, : b + 1] * np.maximum(paid[: a + 1, : b + 1] - size[a, b], 0)).sum()
    a, b = np.unravel_index(int(saved.argmax()), size.shape)
    return int(a), int(b)


def _smallest(shapes: list[Shape], source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The first, and so the smallest, shape that holds each pair."""
    home = np.zeros(len(source), dtype=np.int64)
    for n in reversed(range(len(shapes))):
        home[(source <= shapes[n].source) & (target <= shapes[n].target)] = n
    return home


def _plan(shapes: list[Shape], sizes: list[int]) -> tuple[list[Shape], list[tuple[int, int, int | None]]]:
    """For each shape: its number of full batches, the pairs of one more partly filled batch, or the shape they move to.

    Pairs move if that costs fewer tokens than filling up. If they stay, the shape's batches share its pairs evenly,
    with fewer rows than possible.
    """
    sizes, shapes, plan = list(sizes), list(shapes), []
    for n, shape in enumerate(shapes):
        whole, rest = divmod(sizes[n], shape.rows)
        tokens = shape.source + shape.target
        larger = (m for m in range(n + 1, len(shapes)) if shape[1] <= shapes[m][1] and shape[2] <= shapes[m][2])
        onward = next(larger, None)
        if onward is not None and rest:
            more = shapes[onward].source + shapes[onward].target - tokens
            if rest * more < (shape.rows - rest) * tokens:
                sizes[onward] += rest
                plan.append((whole, 0, onward))
                continue
        if rest:
            even = -(-sizes[n] // (whole + 1))
            shapes[n] = shape._replace(rows=min(shape.rows, -(-even // _STEP) * _STEP))
            rest = sizes[n] - whole * shapes[n].rows
        plan.append((whole, rest, None))
    return shapes, plan
