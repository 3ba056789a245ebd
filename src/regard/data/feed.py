"""Training batches of an epoch, augmented, as tensors on the device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from regard.data.augment import Augmenter
from regard.data.batch import Batch
from regard.data.loader import ImageBatch, Loader
from regard.data.text import TextLoader

AT_ONCE = 2**25  # values augmented at once: 128 MB

Waited: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""A function that passes batches through and counts the time spent waiting for them."""


class ImageFeed:
    """Images of a loader, augmented on the device; on a GPU many batches at once, to launch fewer kernels."""

    def __init__(self, loader: Loader, augment: Augmenter, device: torch.device):
        self.loader, self.augment, self.device = loader, augment, device
        self.rows: int | None = -(-loader.batch // loader.order.ranks)
        """Number of images per process in a full batch."""
        loader.keep_on(device)
        self.early = device.type == "cuda" and loader.stacked is not None
        """Whether to prefetch: to augment images before they are needed."""
        self.next: dict[tuple[int, int], Iterator[ImageBatch]] = {}
        """Prefetched batches, by epoch and start sample."""

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start: int, waited: Waited) -> Iterator[Batch]:
        """The epoch's batches from sample `start` on."""
        batch = self.loader.batch
        step, left = start // batch, len(self.loader.order.index) - start
        for images, targets, samples, steps in self._prefetched(number, start, waited):
            sizes = [n for n, _ in steps]
            parts = (images.split(sizes), targets.split(sizes), samples.split(sizes), steps)
            for x, own, numbers, (_, share) in zip(*parts, strict=True):
                mixed, wanted = self.augment.mix(x, own, number, step)
                inputs, targets = self.augment.named(mixed, wanted)
                yield Batch(inputs, targets, numbers.tolist(), share, min(batch, left))
                step, left = step + 1, left - batch

    def _augmented(self, number: int, start: int, waited: Waited) -> Iterator[ImageBatch]:
        """Groups of the epoch's batches, augmented, with targets instead of labels."""
        loader, augment, device = self.loader, self.augment, self.device
        pixels = loader.batch * loader.images.channels * math.prod(loader.images.size)
        together = max(1, min(16, AT_ONCE // pixels)) if device.type == "cuda" else 1
        for some in waited(loader.epoch(number, together, start)):
            images = augment.images(some.images.to(device, non_blocking=True), some.numbers, number)
            labels = some.labels.to(device, non_blocking=True)
            yield ImageBatch(images, augment.targets(labels, some.numbers, number), some.numbers, some.steps)

    def _prefetched(self, number: int, start: int, waited: Waited) -> Iterator[ImageBatch]:
        """The same groups; on a GPU each is made while it still works on the group or epoch before."""
        groups, self.next = self.next.get((number, start)) or self._augmented(number, start, waited), {}
        if not self.early:
            yield from groups
            return
        for group, later in itertools.pairwise(itertools.chain(groups, [None])):
            assert group is not None
            if later is None:
                early = self._augmented(number + 1, 0, waited)
                self.next = {(number + 1, 0): itertools.chain([next(early)], early)}
            yield group

    def close(self) -> None:
        self.loader.close()


class TextFeed:
    """Sentence pairs of a loader, in a few fixed shapes: inputs are sources, targets are complete target sentences."""

    def __init__(self, loader: TextLoader, device: torch.device):
        self.loader, self.device = loader, device
        self.rows: int | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start: int, waited: Waited) -> Iterator[Batch]:
        """The epoch's batches from pair `start` on."""
        padding = self.loader.pairs.tokenizers.target.pad
        for batch in waited(self.loader.epoch(number, start)):
            share = 1.0 if self.loader.ranks == 1 else int((batch.target[:, 1:] != padding).sum()) / batch.tokens
            source, target = (words.to(self.device, non_blocking=True) for words in (batch.source, batch.target))
            numbers = batch.numbers[batch.numbers >= 0].tolist()
            yield Batch({"source": source}, {"target": target}, numbers, share, batch.pairs)

    def close(self) -> None:
        self.loader.close()
