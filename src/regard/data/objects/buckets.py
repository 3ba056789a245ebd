"""A few input sizes for images of all proportions, and batches that hold one size each.

- A GPU records one CUDA graph per size, so there are few. They are chosen once, for the sizes of the training images.
- Images that do not fill a batch of their size move to a larger one, so only one batch per epoch is smaller than the
  others. In evaluation every image keeps its own size, so figures do not depend on the batch.
- Batches depend on (seed, epoch) only, not on the number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np

from regard.data.loader import Order
from regard.data.random import order, uniforms
from regard.geometry import Frame

STEP = 32
"""Sides of inputs are multiples of this: the stride of a ResNet's last feature map."""

Size = tuple[int, int]


def choose_buckets(shapes: Iterable[tuple[int, ...]], size: tuple[int, ...], most: int = 3) -> tuple[Size, ...]:
    """At most `most` input sizes for images of these shapes, chosen for least padding, the smallest first.

    An image's shorter side is at most the smaller number of `size`, its longer side at most the larger one.

    >>> choose_buckets([(480, 640)] * 9 + [(600, 400)] * 5 + [(500, 500)], (640, 640), most=2)
    ((480, 640), (640, 640))
    """
    counts = Counter(_needed(shape, size) for shape in shapes) or Counter({_needed(size, size): 1})
    while len(counts) > most:
        pairs = [(_padding(a, b, counts), a, b) for a, b in combinations(sorted(counts), 2)]
        _, first, second = min(pairs)
        counts[_both(first, second)] += counts.pop(first) + counts.pop(second)
    return tuple(sorted(counts, key=lambda s: (s[0] * s[1], s)))


def _needed(shape: tuple[int, ...], size: tuple[int, ...]) -> Size:
    scale = min(min(size) / min(shape), max(size) / max(shape))
    height, width = (STEP * -(-max(1, round(side * scale)) // STEP) for side in shape)
    return height, width


def _both(first: Size, second: Size) -> Size:
    return max(first[0], second[0]), max(first[1], second[1])


def _padding(first: Size, second: Size, counts: Counter[Size]) -> int:
    height, width = _both(first, second)
    return sum(counts[own] * (height * width - own[0] * own[1]) for own in (first, second))


def bucket_of(shape: tuple[int, ...], buckets: Sequence[Size]) -> int:
    """The number of the size that an image of this shape fills best.

    >>> bucket_of((300, 400), ((480, 640), (640, 640)))
    0
    """

    def filled(bucket: Size) -> float:
        (_, height), (_, width) = Frame.placed(shape, bucket).filled
        return height * width / (bucket[0] * bucket[1])

    return max(range(len(buckets)), key=lambda n: (round(filled(buckets[n]), 6), -n))


class BucketOrder(Order):
    """Batches of (epoch, sample, bucket): each of one bucket. `homes` is the bucket of each sample of `index`."""

    def __init__(self, index: np.ndarray, homes: np.ndarray, batch: int, seed: int | None, rank: int, ranks: int):
        super().__init__(index, batch, seed, rank, ranks)
        self.homes = homes

    def __len__(self) -> int:
        return len(self.plan(0))

    def plan(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Bucket and samples of every batch, in order."""
        made, waiting = list[tuple[int, np.ndarray]](), self.index[:0]
        last = int(self.homes.max(initial=0))
        for bucket in range(last + 1):
            own = self.index[self.homes == bucket]
            own = own if self.seed is None else np.concatenate([waiting, order(self.seed, epoch, own)])
            full = len(own) if self.seed is None or bucket == last else len(own) - len(own) % self.batch
            made += [(bucket, own[at : min(at + self.batch, full)]) for at in range(0, full, self.batch)]
            waiting = own[full:]
        if self.seed is None:
            return made
        chance = uniforms(self.seed, epoch, np.arange(len(made)), 1, use=7)[:, 0]
        return [made[n] for n in np.argsort(chance, kind="stable")]

    def remaining(self, epoch: int, start: int = 0) -> list[tuple[int, np.ndarray]]:
        """The plan after the epoch's first `start` samples; a batch that they reach into has the rest of it only."""
        left = list[tuple[int, np.ndarray]]()
        for bucket, members in self.plan(epoch):
            later = members[min(start, len(members)) :]
            start -= len(members) - len(later)
            left += [(bucket, later)] if len(later) else []
        return left

    def batches(self, epoch: int, start: int = 0) -> list[tuple[np.ndarray, float]]:
        return [self._local_part(members) for _, members in self.remaining(epoch, start)]

    def keys(self, epoch: int, start: int = 0) -> Iterator[list[tuple[int, ...]]]:
        for bucket, members in self.remaining(epoch, start):
            yield [(epoch, int(number), bucket) for number in self._local_part(members)[0]]
