"""Batches for training: those of an epoch, augmented, as tensors on the device."""

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

AT_ONCE = 2**25  # numbers augmented at once: 128 MB of them

Waited: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""The same batches, with the time counted in which there was none."""


class ImageFeed:
    """Images of a loader, augmented on the device. On a GPU many batches at once: a few launches, not many."""

    def __init__(self, loader: Loader, augment: Augmenter, device: torch.device):
        self.loader, self.augment, self.device = loader, augment, device
        self.rows: int | None = -(-loader.batch // loader.order.ranks)
        """How many images a process has of a whole batch."""
        self.early = device.type == "cuda" and loader.stacked is not None
        """Whether images are augmented before they are asked for."""
        self.next: dict[tuple[int, int], Iterator[ImageBatch]] = {}
        """By epoch and sample: what has been begun."""
        loader.keep_on(device)

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start: int, waited: Waited) -> Iterator[Batch]:
        """The epoch's batches from sample `start` on."""
        batch = self.loader.batch
        step, left = start // batch, len(self.loader.order.index) - start
        for images, targets, samples, steps in self._ahead(number, start, waited):
            sizes = [n for n, _ in steps]
            parts = (images.split(sizes), targets.split(sizes), samples.split(sizes), steps)
            for x, own, numbers, (_, share) in zip(*parts, strict=True):
                mixed, wanted = self.augment.mix(x, own, number, step)
                inputs, targets = self.augment.named(mixed, wanted)
                yield Batch(inputs, targets, numbers.tolist(), share, min(batch, left))
                step, left = step + 1, left - batch

    def _varied(self, number: int, start: int, waited: Waited) -> Iterator[ImageBatch]:
        """Groups of the epoch's batches, augmented, with what is to be learnt in place of labels."""
        loader, augment, device = self.loader, self.augment, self.device
        pixels = loader.batch * loader.images.channels * math.prod(loader.images.size)
        together = max(1, min(16, AT_ONCE // pixels)) if device.type == "cuda" else 1
        for some in waited(loader.epoch(number, together, start)):
            images = augment.images(some.images.to(device, non_blocking=True), some.numbers, number)
            labels = some.labels.to(device, non_blocking=True)
            yield ImageBatch(images, augment.targets(labels, some.numbers, number), some.numbers, some.steps)

    def _ahead(self, number: int, start: int, waited: Waited) -> Iterator[ImageBatch]:
        """The same; of images on a GPU each group is made while it still works on the one before, or the epoch."""
        groups, self.next = self.next.get((number, start)) or self._varied(number, start, waited), {}
        if not self.early:
            yield from groups
            return
        for group, later in itertools.pairwise(itertools.chain(groups, [None])):
            assert group is not None
            if later is None:
                early = self._varied(number + 1, 0, waited)
                self.next = {(number + 1, 0): itertools.chain([next(early)], early)}
            yield group

    def close(self) -> None:
        self.loader.close()


class TextFeed:
    """Sentence pairs of a loader, in its few shapes: the inputs are sources, the targets whole target sentences."""

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
