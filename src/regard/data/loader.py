"""From samples to batches: fitted to the network's input, in an order known beforehand, by any number of workers."""

from __future__ import annotations

import itertools
import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from regard.data.augment import middle, normalise, to_float
from regard.data.random import order, uniforms
from regard.data.scanner import CACHE_BYTES, Scan
from regard.data.send import send
from regard.data.source import Source
from regard.errors import ConfigError, DataError

EDGE = 4  # pixels mirrored around a picture by the simple crop


class ImageBatch(NamedTuple):
    """images (B, C, *size), uint8 or float in 0..1; labels (B,); numbers (B,), which samples they are.

    `steps` parts them into the batches of single steps: how many images each has, and which share of a
    batch that several processes divide among them.
    """

    images: Tensor
    labels: Tensor
    numbers: Tensor
    steps: tuple[tuple[int, float], ...] = ()


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Grey made colour by repetition, colour made grey by luminance; other numbers must match."""
    if len(pixels) == channels:
        return pixels
    if len(pixels) == 1:
        return pixels.expand(channels, *pixels.shape[1:])
    if len(pixels) == 3 and channels == 1:
        grey = (to_float(pixels) * torch.tensor([0.299, 0.587, 0.114]).reshape(3, *[1] * (pixels.ndim - 1))).sum(0)
        return _as(grey[None], pixels.dtype)
    raise DataError(f"an image has {len(pixels)} channels where {channels} are expected")


def fit(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """The largest centred part with the proportions of `size`, scaled to it: nothing is stretched."""
    old = tuple(pixels.shape[1:])
    if len(old) != len(size):
        raise DataError(f"an input of size {old} does not fit a network for {len(size)} axes")
    scale = max(new / was for new, was in zip(size, old, strict=True))
    fitting = tuple(min(was, max(1, round(new / scale))) for new, was in zip(size, old, strict=True))
    return _resize(middle(pixels, fitting), size)


def fit_loses(old: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Whether `fit` cuts something off: the proportions differ."""
    scales = [new / was for new, was in zip(size, old, strict=True)]
    return max(scales) > 1.02 * min(scales)


def random_crop(pixels: Tensor, size: tuple[int, ...], u: np.ndarray) -> Tensor:
    """Inception's crop: 25 to 100 % of the area, 3/4 to 4/3 of the proportions of `size`, scaled to it.

    A volume is cropped by the same share on every axis.
    """
    old = tuple(pixels.shape[1:])
    area, ratio = 0.25 + 0.75 * u[0], math.exp((2 * u[1] - 1) * math.log(4 / 3))
    if len(size) == 2:
        ratio *= size[0] / size[1]
        total = area * old[0] * old[1]
        lengths = [math.sqrt(total * ratio), math.sqrt(total / ratio)]
    else:
        lengths = [side * area ** (1 / len(size)) for side in old]
    for axis, (side, wish) in enumerate(zip(old, lengths, strict=True)):
        length = min(side, max(1, round(wish)))
        pixels = pixels.narrow(1 + axis, int(u[2 + axis] * (side - length + 1)), length)
    return _resize_quickly(pixels, size)


def simple_crop(pixels: Tensor, size: tuple[int, ...], u: np.ndarray) -> Tensor:
    """DeiT III's simple random crop: scaled so that the shorter side fits, four pixels mirrored around it, cut to size.

    Nearly all of the picture stays, at its own proportions and scale.
    """
    old = tuple(pixels.shape[1:])
    scale = max(new / was for new, was in zip(size, old, strict=True))
    pixels = _resize_quickly(pixels, tuple(max(new, round(was * scale)) for new, was in zip(size, old, strict=True)))
    for axis, (new, at) in enumerate(zip(size, u[2 : 2 + len(size)], strict=True), start=1):
        side = pixels.shape[axis]
        start = int(at * (side + 2 * EDGE - new + 1)) - EDGE
        index = torch.arange(start, start + new).abs()
        index = torch.where(index < side, index, 2 * (side - 1) - index).clamp(0, side - 1)
        pixels = pixels.index_select(axis, index)
    return pixels


CROPS = {"resized": random_crop, "simple": simple_crop}
"""Crops cut when an image is read, from all of its pixels; the others move what the network's input holds."""


def _resize(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    if tuple(pixels.shape[1:]) == size:
        return pixels
    if len(size) == 2:
        resized = F.interpolate(to_float(pixels)[None], size=size, mode="bilinear", antialias=True)
    else:
        resized = F.interpolate(to_float(pixels)[None], size=size, mode="trilinear" if len(size) == 3 else "linear")
    return _as(resized[0], pixels.dtype)


def _resize_quickly(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """For training's crops: bytes stay bytes, the channels of a pixel side by side, in a tenth of the time.

    Each axis is rounded by itself, so a value may be one level off; what is predicted or tested goes the exact way.
    """
    if tuple(pixels.shape[1:]) == size or len(size) != 2 or pixels.dtype != torch.uint8:
        return _resize(pixels, size)
    near = pixels[None].contiguous(memory_format=torch.channels_last)
    return F.interpolate(near, size=size, mode="bilinear", antialias=True)[0]


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x * 255).round().clamp(0, 255).to(torch.uint8) if dtype == torch.uint8 else x


class Images(Dataset[tuple[Tensor, int, int]]):
    """The samples of one split, by (epoch, sample number); a `crop` of CROPS cuts anew every epoch."""

    def __init__(self, scan: Scan, size: tuple[int, ...], channels: int, *, crop: str | None = None, seed: int = 0):
        self.scan, self.crop = scan, CROPS.get(crop or "none")
        self.size, self.channels, self.seed = size, channels, seed

    @property
    def source(self) -> Source:
        return self.scan.source

    def __getitem__(self, at: tuple[int, int]) -> tuple[Tensor, int, int]:
        epoch, index = at
        cache = self.scan.cache
        pixels = cache[index] if index in cache else self.source.read(index)[0]
        pixels = with_channels(pixels, self.channels)
        if self.crop:
            u = uniforms(self.seed, epoch, np.array([index]), 5, use=3)[0]
            pixels = self.crop(pixels, self.size, u)
        else:
            pixels = fit(pixels, self.size)
        return pixels.contiguous(), self.source.samples[index].label, index


class _Order:
    """Batches of (epoch, sample number) for the loader; the epoch, and where in it to begin, are set from outside.

    A shuffled order goes on into the epochs after: those who read then need not wait for those who compute.
    """

    def __init__(self, index: np.ndarray, batch: int, seed: int | None, rank: int, ranks: int):
        self.index, self.batch, self.seed, self.rank, self.ranks = index, batch, seed, rank, ranks
        self.epoch, self.start = 0, 0

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch)

    def numbers(self, epoch: int) -> np.ndarray:
        return self.index if self.seed is None else order(self.seed, epoch, self.index)

    def batches(self, epoch: int, start: int = 0) -> list[tuple[np.ndarray, float]]:
        """What this process has of each batch, and which share of the batch that is."""
        numbers = self.numbers(epoch)
        return [self._own(numbers[at : at + self.batch]) for at in range(start, len(numbers), self.batch)]

    def _own(self, whole: np.ndarray) -> tuple[np.ndarray, float]:
        if self.ranks == 1:
            return whole, 1.0
        each = -(-len(whole) // self.ranks)
        each += each % 2  # mixing pairs neighbours: pairs stay together
        own = whole[self.rank * each : (self.rank + 1) * each]
        # Processes step together, so one that has nothing to do takes an image that counts for nothing.
        return (own, len(own) / len(whole)) if len(own) else (whole[:1], 0.0)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, start = self.epoch, self.start
        while True:
            for numbers, _ in self.batches(epoch, start):
                yield [(epoch, int(i)) for i in numbers]
            if self.seed is None:
                return
            epoch, start = epoch + 1, 0


class Loader:
    """Batches of one split. `shuffle` is the seed of the order, or None for the order of the source.

    Images that fit in memory are fitted once and kept there; `keep_on` moves them to a device for good. Of
    `ranks` processes each gets its share of every batch, so the batches are the same for any number of them.
    """

    def __init__(
        self,
        images: Images,
        index: list[int],
        batch: int,
        *,
        shuffle: int | None = None,
        workers: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.images, self.batch = images, batch
        self.order = _Order(np.array(index, dtype=np.int64), batch, shuffle, rank, ranks)
        self.stacked: ImageBatch | None = None
        self.loader: DataLoader[Any] | None = None
        self.ahead: tuple[int, int, Iterator[Any]] | None = None
        fitted = len(index) * images.channels * math.prod(images.size)
        if images.scan.cache and not images.crop and index and fitted <= CACHE_BYTES:
            self.stacked = collate([images[0, i] for i in index])
            self.sorted = np.argsort(self.order.index)
        elif workers:
            # A generator of its own keeps the loader from drawing on (and so changing) the global one.
            self.loader = DataLoader(
                _Guarded(images),
                batch_sampler=self.order,  # pyright: ignore[reportArgumentType]
                num_workers=workers,
                collate_fn=_collate_or_error,
                persistent_workers=True,
                pin_memory=torch.cuda.is_available(),
                worker_init_fn=_leave_signals,
                generator=torch.Generator(),
            )

    def __len__(self) -> int:
        return len(self.order)

    def keep_on(self, device: torch.device) -> None:
        if self.stacked is not None:
            images, labels, numbers, _ = self.stacked
            self.stacked = ImageBatch(images.to(device), labels.to(device), numbers)

    def close(self) -> None:
        """End the loader's processes now; left to Python's exit, each would be waited for."""
        running = getattr(self.loader, "_iterator", None)
        if running is not None:
            running._shutdown_workers()

    def epoch(self, number: int, together: int = 1, start: int = 0) -> Iterator[ImageBatch]:
        """The epoch's batches from sample `start` on; of images in memory, `together` of them as one."""
        batches = self.order.batches(number, start)
        if self.stacked is not None:
            for at in range(0, len(batches), together):
                some = batches[at : at + together]
                wanted = np.concatenate([numbers for numbers, _ in some])
                part = torch.from_numpy(self.sorted[np.searchsorted(self.order.index, wanted, sorter=self.sorted)])
                there = send(part, self.stacked.images.device)
                images, labels, numbers = (t[i] for t, i in zip(self.stacked[:3], (there, there, part), strict=True))
                yield ImageBatch(images, labels, numbers, tuple((len(own), share) for own, share in some))
        elif self.loader is not None:
            for (own, share), batch in zip(batches, self._from_workers(number, start, len(batches)), strict=True):
                yield batch._replace(steps=((len(own), share),))
        else:
            for own, share in batches:
                yield collate([self.images[number, int(i)] for i in own])._replace(steps=((len(own), share),))

    def _from_workers(self, epoch: int, start: int, count: int) -> Iterator[ImageBatch]:
        """The batches of an epoch, most of them made while the epoch before ended and was judged."""
        assert self.loader is not None
        try:
            if self.ahead is None or self.ahead[:2] != (epoch, start):
                self.order.epoch, self.order.start = epoch, start
                self.ahead = epoch, start, iter(self.loader)
            running, self.ahead = self.ahead[2], None
            for batch in itertools.islice(running, count):
                if isinstance(batch, DataError):
                    raise batch
                yield batch
            if self.order.seed is not None:
                self.ahead = epoch + 1, 0, running
        except RuntimeError as error:
            if "worker" not in str(error):
                raise
            raise DataError(
                f"a process that loads images died: {str(error).splitlines()[0]}",
                where=self.images.source.name,
                do="free memory (each worker holds a few batches) or give fewer --workers; `regard resume` goes on",
            ) from None


class _Guarded(Dataset[Any]):
    """Samples for a worker, whose errors travel as values: raised there, they would arrive as tracebacks."""

    def __init__(self, images: Images):
        self.images = images

    def __getitem__(self, at: tuple[int, int]) -> tuple[Tensor, int, int] | DataError:
        try:
            return self.images[at]
        except DataError as error:
            return DataError(error.what, where=error.where or self.images.source.samples[at[1]].key, do=error.do)


def _collate_or_error(samples: list[Any]) -> ImageBatch | DataError:
    return next((s for s in samples if isinstance(s, DataError)), None) or collate(samples)


def _leave_signals(worker: int) -> None:
    """Ctrl-C and SIGTERM reach every process of a group; when to stop is the parent's to say.

    Only the first SIGTERM is passed over: a second one is how the parent ends a process that does not hear.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL))


def collate(samples: list[tuple[Tensor, int, int]]) -> ImageBatch:
    images = [image for image, _, _ in samples]
    if len({image.dtype for image in images}) > 1:
        images = [to_float(image) for image in images]
    labels, index = (torch.tensor([s[n] for s in samples]) for n in (1, 2))
    return ImageBatch(torch.stack(images), labels, index)


def statistics(images: Images, index: list[int], most: int = 1000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over (up to `most` of) the given samples."""
    chosen = index[:: max(1, len(index) // most)][:most]
    total, squares, count = torch.zeros(images.channels).double(), torch.zeros(images.channels).double(), 0
    for i in chosen:
        x = to_float(images[0, i][0]).double().flatten(1)
        total, squares, count = total + x.sum(1), squares + (x * x).sum(1), count + x.shape[1]
    mean = total / count
    std = (squares / count - mean**2).clamp_min(0).sqrt().clamp_min(1e-3)
    return tuple(round(m, 6) for m in mean.tolist()), tuple(round(s, 6) for s in std.tolist())


@dataclass(frozen=True)
class Preparation:
    """How a network's input is made from decoded pixels; travels with its weights."""

    size: tuple[int, ...]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def picture(self, pixels: Tensor) -> Tensor:
        """What the network will see, before normalisation: (channels, *size) in 0..1."""
        return to_float(fit(with_channels(pixels, self.channels), self.size))

    def region(self, mask: Tensor) -> Tensor:
        """A mask as large as the decoded picture, as it lies on the network's input: true inside, (*size).

        What is smaller than a pixel of the input still marks the one it touches most.
        """
        share = fit(mask[None].float(), self.size)[0]
        if share.max() <= 0:
            what = "is empty" if not mask.any() else "lies in the part that is cut off: inputs are cut at the centre"
            raise ConfigError(f"the mask {what}", do="mark something that the network sees")
        return share >= min(0.5, float(share.max()))

    def normalised(self, pictures: Tensor) -> Tensor:
        return normalise(pictures, self.mean, self.std)

    def shown(self, x: Tensor) -> Tensor:
        """The way back: pictures in 0..1 from what a network was given, or answers in its place."""
        mean, std = (torch.tensor(v, device=x.device).reshape(-1, *[1] * len(self.size)) for v in (self.mean, self.std))
        return (x * std + mean).clamp(0, 1)

    def __call__(self, pixels: Tensor) -> Tensor:
        """(1, channels, *size), ready for the network."""
        return self.normalised(self.picture(pixels)[None])
