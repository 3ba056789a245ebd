"""Batches of images with boxes: read, placed or varied, padded, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from regard.data.augment import normalise, to_float
from regard.data.batch import Batch
from regard.data.feed import Waited
from regard.data.fitting import resize, resize_quickly, with_channels
from regard.data.loader import WorkerLoader
from regard.data.objects.buckets import BucketOrder, Size, bucket_of
from regard.data.objects.composing import SMALLEST, VISIBLE, Composer, Composition, plain
from regard.data.objects.dataset import ObjectDataset
from regard.data.random import uniforms
from regard.data.send import send
from regard.data.source import Source
from regard.data.three import jitter
from regard.errors import ConfigError, DataError
from regard.geometry import Frame
from regard.image_groups import ObjectAugment
from regard.nn.boxes import area, to_centred

MASK_STRIDE = 4
"""Pixels of the input per pixel of a mask."""
SLOTS = 8
"""The number of targets of an image is padded to a multiple of this."""


class ObjectBatch(NamedTuple):
    """image (B, C, H, W), uint8 or float in 0..1; filled (B, 2), height and width of the image without its padding;
    boxes (B, T, 4), centred, as shares of that; labels (B, T), -1 for padding; numbers (B,) of the samples; masks
    (B, T, H / 4, W / 4), if asked for."""

    image: Tensor
    filled: Tensor
    boxes: Tensor
    labels: Tensor
    numbers: Tensor
    masks: Tensor | None = None


def target_slots(dataset: ObjectDataset, index: Sequence[int], most: int, augment: ObjectAugment | None = None) -> int:
    """The length T of padded targets: of the image with the most objects, but at most `most`, the number of queries.

    Mosaics and mixup may show more objects: up to four times and twice as many.
    """
    objects = max((len(dataset.objects[n].targets) for n in index), default=0)
    times = (4 if augment and augment.mosaic else 1) + (1 if augment and augment.mixup else 0)
    return max(1, min(most, SLOTS * -(-max(1, objects * times) // SLOTS)))


class ObjectImages(Dataset[ObjectBatch]):
    """Samples by (epoch, sample number, bucket), as batches of one; varied if there is a `composer`."""

    def __init__(
        self,
        dataset: ObjectDataset,
        buckets: Sequence[Size],
        channels: int,
        slots: int,
        *,
        composer: Composer | None = None,
        masks: bool = False,
    ):
        if masks and not dataset.has_masks:
            raise ConfigError(
                "masks are asked for, and the data has objects without outlines",
                where=dataset.name,
                do="train boxes only, or give data with polygons or run-length codes",
            )
        self.dataset, self.buckets, self.channels = dataset, tuple(buckets), channels
        self.slots, self.composer, self.masks = slots, composer, masks

    @property
    def source(self) -> Source:
        return self.dataset.source

    def home(self, number: int) -> int:
        """The bucket of a sample."""
        shape = self.dataset.shapes[number]
        if shape is None:
            raise DataError("this image cannot be read", where=self.dataset.key(number))
        return bucket_of(shape, self.buckets)

    def composition(self, epoch: int, number: int, bucket: int) -> Composition:
        """What lies where on an input."""
        size, shape = self.buckets[bucket], self.dataset.shapes[number]
        if self.composer:
            return self.composer(epoch, number, size)
        assert shape is not None
        return plain(number, shape, size)

    def read(self, number: int) -> Tensor:
        cache = self.dataset.cache
        pixels = cache[number] if number in cache else self.source.read(number)[0]
        return with_channels(pixels, self.channels)

    def __getitem__(self, at: tuple[int, int, int]) -> ObjectBatch:
        epoch, number, bucket = at
        composition = self.composition(epoch, number, bucket)
        boxes, labels, chosen = self.targets(composition)
        kept = area(boxes).argsort(descending=True, stable=True)[: self.slots].sort().values
        image = composition.image(self.read, resize_quickly if self.composer else resize)
        height, width = composition.filled
        shares = to_centred(boxes[kept]) / torch.tensor([width, height, width, height])
        free = self.slots - len(kept)
        masks = None
        if self.masks:
            masks = F.pad(self.outlines(composition, chosen)[kept], (0, 0, 0, 0, 0, free))[None]
        return ObjectBatch(
            image.contiguous()[None],
            torch.tensor([[height, width]]),
            F.pad(shares, (0, 0, 0, free))[None],
            F.pad(labels[kept], (0, free), value=-1)[None],
            torch.tensor([number]),
            masks,
        )

    def targets(self, composition: Composition) -> tuple[Tensor, Tensor, list[list[int]]]:
        """Boxes (n, 4) by corners in pixels of the input, classes (n,), and which objects of each part they are."""
        boxes, labels, chosen = [torch.zeros(0, 4)], [torch.zeros(0, dtype=torch.int64)], []
        for number, frame in composition.all:
            item = self.dataset.objects[number]
            own = item.targets
            moved = frame.boxes_to_input(item.boxes[own])
            seen = clipped(moved, frame)
            if self.composer:
                large = ((seen[:, 2:] - seen[:, :2]) >= SMALLEST).all(1)
                visible = (area(seen) >= VISIBLE * area(moved)) & large
                own, seen = [n for n, left in zip(own, visible.tolist(), strict=True) if left], seen[visible]
            boxes.append(seen)
            labels.append(item.labels[own])
            chosen.append(own)
        return torch.cat(boxes), torch.cat(labels), chosen

    def outlines(self, composition: Composition, chosen: list[list[int]]) -> Tensor:
        """Masks (n, H / 4, W / 4) of the chosen objects of each part."""
        height, width = (side // MASK_STRIDE for side in composition.size)
        masks = [torch.zeros(0, height, width, dtype=torch.bool)]
        for (number, frame), own in zip(composition.all, chosen, strict=True):
            masks.append(frame.resized((height, width)).nearest(self.dataset.outlines(number)[own]))
        return torch.cat(masks)


def clipped(boxes: Tensor, frame: Frame) -> Tensor:
    """Boxes by corners, clipped to the part of the input that shows their image."""
    (top, height), (left, width) = frame.filled
    low, high = boxes.new_tensor([left, top] * 2), boxes.new_tensor([left + width, top + height] * 2)
    return torch.minimum(torch.maximum(boxes, low), high)


def collate(samples: list[ObjectBatch]) -> ObjectBatch:
    images = [sample.image for sample in samples]
    if len({image.dtype for image in images}) > 1:
        images = [to_float(image) for image in images]
    filled, boxes, labels, numbers = (torch.cat(part) for part in zip(*(s[1:5] for s in samples), strict=True))
    masks = [sample.masks for sample in samples if sample.masks is not None]
    return ObjectBatch(torch.cat(images), filled, boxes, labels, numbers, torch.cat(masks) if masks else None)


class ObjectLoader(WorkerLoader):
    """Batches of one split, each of one bucket. `shuffle` is the seed of the order, or None for a fixed one."""

    def __init__(
        self,
        images: ObjectImages,
        index: Sequence[int],
        batch: int,
        *,
        shuffle: int | None = None,
        workers: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ):
        homes = np.array([images.home(n) for n in index], dtype=np.int64)
        self.order: BucketOrder
        order = BucketOrder(np.array(index, dtype=np.int64), homes, batch, shuffle, rank, ranks)
        super().__init__(images, order, collate, workers)
        self.batch = batch

    @property
    def crowded(self) -> list[int]:
        """Samples with more objects than targets: of these the largest are trained."""
        objects = self.images.dataset.objects
        return [int(n) for n in self.order.index if len(objects[n].targets) > self.images.slots]

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[ObjectBatch, float, int]]:
        """The epoch's batches from sample `start` on; this process's share of each, and the size of the full batch."""
        plan = self.order.remaining(number, start)
        shares = [share for _, share in self.order.batches(number, start)]
        made = self.made(number, start, len(plan))
        for (_, members), share, batch in zip(plan, shares, made, strict=True):
            yield batch, share, len(members)


def prepare(image: Tensor, filled: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """A network's input and its mask: (B, C, H, W), normalised, zero in the padding; (B, H, W), true elsewhere."""
    rows, columns = (torch.arange(side, device=image.device) for side in image.shape[2:])
    mask = (rows < filled[:, :1])[:, :, None] & (columns < filled[:, 1:])[:, None]
    return normalise(to_float(image), mean, std) * mask[:, None], mask


class ObjectFeed:
    """The batches of a loader on the device; with `augment`, colours vary."""

    def __init__(
        self,
        loader: ObjectLoader,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
        augment: ObjectAugment | None = None,
        seed: int = 0,
    ):
        self.loader, self.mean, self.std, self.device = loader, mean, std, device
        self.colour, self.seed = augment.colour if augment else 0.0, seed
        self.rows: int | None = -(-loader.batch // loader.order.ranks)
        """Number of images per process in a full batch."""

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start: int = 0, waited: Waited = iter) -> Iterator[Batch]:
        """The epoch's batches from sample `start` on. Of a batch with share 0 another process has the samples."""
        for batch, share, total in waited(self.loader.epoch(number, start)):
            image, filled, boxes, labels = (send(t, self.device) for t in batch[:4])
            if self.colour:
                image = self._coloured(image, batch.numbers, number)
            image, mask = prepare(image, filled, self.mean, self.std)
            targets = {"boxes": boxes, "labels": labels}
            if batch.masks is not None:
                targets["masks"] = send(batch.masks, self.device)
            yield Batch({"image": image, "mask": mask}, targets, batch.numbers.tolist(), share, total)

    def _coloured(self, image: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        u = torch.from_numpy(uniforms(self.seed, epoch, numbers.numpy(), 4, use=10)).float()
        return jitter(to_float(image), 1 + self.colour * (2 * u[:, :3] - 1), (u[:, 3] * 6).long())

    def close(self) -> None:
        self.loader.close()
