"""What training is fed with: the batches of an epoch, varied, as tensors on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from regard.data.augment import Augmenter
from regard.data.loader import Loader
from regard.data.text import TextLoader

AT_ONCE = 2**25  # numbers augmented at once: 128 MB of them

Portion: TypeAlias = tuple[tuple[Tensor, Tensor, float], list[int], int]
"""Inputs, targets and share of a batch that processes divide; which samples these are; how many the whole batch has."""

Waited: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""The same batches, with the time counted in which there was none."""


class ImageFeed:
    """Images of a loader, augmented on the device. On a GPU many batches at once: a few launches, not many."""

    def __init__(self, loader: Loader, augment: Augmenter, device: torch.device):
        self.loader, self.augment, self.device = loader, augment, device
        self.rows: int | None = -(-loader.batch // loader.order.ranks)
        """How many images a process has of a whole batch."""
        loader.keep_on(device)

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start: int, waited: Waited) -> Iterator[Portion]:
        """The epoch's batches from sample `start` on."""
        loader, augment, device = self.loader, self.augment, self.device
        pixels = loader.batch * loader.images.channels * math.prod(loader.images.size)
        together = max(1, min(16, AT_ONCE // pixels)) if device.type == "cuda" else 1
        step, left = start // loader.batch, len(loader.order.index) - start
        for some in waited(loader.epoch(number, together, start)):
            images = augment.images(some.images.to(device, non_blocking=True), some.numbers, number)
            labels = some.labels.to(device, non_blocking=True)
            targets = augment.targets(labels, some.numbers, number)
            sizes = [n for n, _ in some.steps]
            parts = (images.split(sizes), targets.split(sizes), some.numbers.split(sizes), some.steps)
            for x, own, numbers, (_, share) in zip(*parts, strict=True):
                yield (*augment.mix(x, own, number, step), share), numbers.tolist(), min(loader.batch, left)
                step, left = step + 1, left - loader.batch

    def close(self) -> None:
        self.loader.close()


class TextFeed:
    """Sentence pairs of a loader, in its few shapes: the inputs are sources, the targets whole target sentences."""

    def __init__(self, loader: TextLoader, device: torch.device):
        self.loader, self.device = loader, device
        self.rows: int | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start: int, waited: Waited) -> Iterator[Portion]:
        """The epoch's batches from pair `start` on."""
        padding = self.loader.pairs.tokenizers.target.pad
        for batch in waited(self.loader.epoch(number, start)):
            share = 1.0 if self.loader.ranks == 1 else int((batch.target[:, 1:] != padding).sum()) / batch.tokens
            source, target = (words.to(self.device, non_blocking=True) for words in (batch.source, batch.target))
            yield (source, target, share), batch.numbers[batch.numbers >= 0].tolist(), batch.pairs

    def close(self) -> None:
        self.loader.close()
