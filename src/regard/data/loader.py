"""Loading images into batches. The order does not depend on the number of workers."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regard.data.augment import to_float
from regard.data.fitting import CROPS, fit, with_channels
from regard.data.random import order, uniforms
from regard.data.scanner import CACHE_BYTES, ImageDataset
from regard.data.send import send
from regard.data.source import Source
from regard.data.workers import signals_held
from regard.errors import DataError, is_out_of_memory

KEPT_SHARE = 1 / 3
"""Of a GPU's free memory, what volumes may take that stay there."""
READERS = 8
"""Threads that read them, and volumes read at once."""
SPARE = "free memory (each worker holds a few batches) or give fewer --workers; then `regard resume`"


class ImageBatch(NamedTuple):
    """images (B, C, *size), uint8 or float in 0..1; labels (B,); numbers (B,), which samples they are.

    `steps` divides them into the batches of single steps: the number of images of each, and this process's share of
    a batch that several processes divide.
    """

    images: Tensor
    labels: Tensor
    numbers: Tensor
    steps: tuple[tuple[int, float], ...] = ()


class Images(Dataset[tuple[Tensor, int, int]]):
    """Samples by (epoch, sample number); a `crop` of CROPS differs in every epoch."""

    def __init__(
        self, scan: ImageDataset, size: tuple[int, ...], channels: int, *, crop: str | None = None, seed: int = 0
    ):
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


class Order:
    """Batch sampler: batches of (epoch, sample number). The loader sets `epoch` and the first sample, `start`.

    A shuffled order continues with the next epochs, so that workers prefetch while the last batches train.
    """

    def __init__(self, index: np.ndarray, batch: int, seed: int | None, rank: int, ranks: int):
        self.index, self.batch, self.seed, self.rank, self.ranks = index, batch, seed, rank, ranks
        self.epoch, self.start = 0, 0

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch)

    def numbers(self, epoch: int) -> np.ndarray:
        return self.index if self.seed is None else order(self.seed, epoch, self.index)

    def batches(self, epoch: int, start: int = 0) -> list[tuple[np.ndarray, float]]:
        """This process's samples of each batch, and their share of the batch."""
        numbers = self.numbers(epoch)
        return [self._local_part(numbers[at : at + self.batch]) for at in range(start, len(numbers), self.batch)]

    def _local_part(self, whole: np.ndarray) -> tuple[np.ndarray, float]:
        if self.ranks == 1:
            return whole, 1.0
        each = -(-len(whole) // self.ranks)
        each += each % 2  # mixup pairs neighbours, so pairs stay in one process
        own = whole[self.rank * each : (self.rank + 1) * each]
        # Processes step together, so a process without images takes one with a weight of 0.
        return (own, len(own) / len(whole)) if len(own) else (whole[:1], 0.0)

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        epoch, start = self.epoch, self.start
        while True:
            yield from self.keys(epoch, start)
            if self.seed is None:
                return
            epoch, start = epoch + 1, 0

    def keys(self, epoch: int, start: int = 0) -> Iterator[list[tuple[int, ...]]]:
        """What this process's samples of each batch are asked for by."""
        for numbers, _ in self.batches(epoch, start):
            yield [(epoch, int(i)) for i in numbers]


class WorkerLoader:
    """Batches of samples, in the order of `order`; made by `workers` processes, or without any in this one."""

    def __init__(self, images: Any, order: Order, collate: Callable[[list[Any]], Any], workers: int):
        self.images, self.order, self.collate = images, order, collate
        self.loader: DataLoader[Any] | None = None
        self.running: Iterator[Any] | None = None
        self.workers: list[BaseProcess] = []
        self.ahead: tuple[int, int] | None = None
        """Epoch and first sample of the next batch of `running`."""
        if workers:
            # With its own generator the loader does not draw from (and change) the global one.
            self.loader = DataLoader(
                _Guarded(images),
                batch_sampler=order,  # pyright: ignore[reportArgumentType]
                num_workers=workers,
                collate_fn=partial(_collate_or_error, collate),
                persistent_workers=True,
                pin_memory=torch.cuda.is_available(),
                worker_init_fn=_obey_parent,
                generator=torch.Generator(),
            )

    def __len__(self) -> int:
        return len(self.order)

    def close(self) -> None:
        """End the worker processes: a DataLoader ends them when nothing refers to its iterator any more."""
        self.loader = self.running = None
        self.workers.clear()

    def made(self, epoch: int, start: int, count: int) -> Iterator[Any]:
        """The `count` batches of an epoch from sample `start` on, collated."""
        if self.loader is not None:
            yield from self._from_workers(epoch, start, count)
            return
        for keys in self.order.keys(epoch, start):
            yield self.collate([self.images[key] for key in keys])

    def _from_workers(self, epoch: int, start: int, count: int) -> Iterator[Any]:
        """The batches of an epoch; workers load the first ones during validation of the epoch before."""
        assert self.loader is not None
        try:
            if self.running is None or self.ahead != (epoch, start):
                self.order.epoch, self.order.start = epoch, start
                others = multiprocessing.active_children()
                self.running = _start_workers(self.loader)
                self.workers += [child for child in multiprocessing.active_children() if child not in others]
            self.ahead = None
            for _ in range(count):
                batch = next(self.running)
                if isinstance(batch, DataError):
                    raise batch
                yield batch
            if self.order.seed is not None:
                self.ahead = epoch + 1, 0
        except (RuntimeError, OSError, EOFError) as error:  # a broken pipe, too, says that the other end is gone
            if isinstance(error, RuntimeError) and "worker" not in str(error):
                raise
            for worker in self.workers:  # the others may wait for a lock that the dead one held
                worker.kill()
            raise DataError(
                f"a process that loads images died: {str(error).splitlines()[0]}",
                where=self.images.source.name,
                do=SPARE,
            ) from None


class Loader(WorkerLoader):
    """Batches of one split. `shuffle` is the seed of the order, or None for the order of the source.

    Images that fit in memory are resized once and kept there; `keep_on` moves them to a device, and volumes that
    fit in its memory too. Each of `ranks` processes gets its share of every batch, so batches do not depend on the
    number of processes.
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
        fitted = len(index) * images.channels * math.prod(images.size)
        kept = bool(images.scan.cache and not images.crop and index and fitted <= CACHE_BYTES)
        order = Order(np.array(index, dtype=np.int64), batch, shuffle, rank, ranks)
        super().__init__(images, order, collate, 0 if kept else workers)
        self.batch = batch
        self.stacked: ImageBatch | None = None
        if kept:
            self.stacked = collate([images[0, i] for i in index])
        self.sorted = np.argsort(self.order.index)

    def keep_on(self, device: torch.device) -> None:
        if self.stacked is None and self._fits_on(device):
            self.stacked, self.loader = self._read_onto(device), None
        elif self.stacked is not None:
            images, labels, numbers, _ = self.stacked
            self.stacked = ImageBatch(images.to(device), labels.to(device), numbers)

    def _fits_on(self, device: torch.device) -> bool:
        """Of prepared volumes, which reading in every epoch would keep a GPU waiting for."""
        images, count = self.images, len(self.order.index)
        if len(images.size) != 3 or images.crop or not count:
            return False
        return 4 * count * images.channels * math.prod(images.size) <= KEPT_SHARE * free_on(device)

    def _read_onto(self, device: torch.device) -> ImageBatch:
        """All samples as one batch on the device, a few at a time."""
        index, held, labels = self.order.index.tolist(), None, list[int]()
        with ThreadPoolExecutor(READERS) as pool:
            for at in range(0, len(index), READERS):
                some = collate(list(pool.map(lambda i: self.images[0, i], index[at : at + READERS])))
                if held is None:
                    held = torch.empty(len(index), *some.images.shape[1:], dtype=some.images.dtype, device=device)
                held[at : at + len(some.images)] = some.images.to(device)
                labels += some.labels.tolist()
        assert held is not None
        return ImageBatch(held, torch.tensor(labels, device=device), torch.tensor(index))

    def epoch(self, number: int, together: int = 1, start: int = 0) -> Iterator[ImageBatch]:
        """The epoch's batches from sample `start` on; if images are in memory, `together` batches at once."""
        batches = self.order.batches(number, start)
        if self.stacked is None:
            for (own, share), batch in zip(batches, self.made(number, start, len(batches)), strict=True):
                yield batch._replace(steps=((len(own), share),))
            return
        for at in range(0, len(batches), together):
            some = batches[at : at + together]
            wanted = np.concatenate([numbers for numbers, _ in some])
            part = torch.from_numpy(self.sorted[np.searchsorted(self.order.index, wanted, sorter=self.sorted)])
            there = send(part, self.stacked.images.device)
            images, labels, numbers = (t[i] for t, i in zip(self.stacked[:3], (there, there, part), strict=True))
            yield ImageBatch(images, labels, numbers, tuple((len(own), share) for own, share in some))


def free_on(device: torch.device) -> int:
    """Free bytes of a GPU; 0 of what is none."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


class _Guarded(Dataset[Any]):
    """Samples for a worker. Errors are returned as values: raised in a worker, they would become tracebacks."""

    def __init__(self, images: Any):
        self.images = images

    def __getitem__(self, at: tuple[int, ...]) -> Any:
        try:
            return self.images[at]
        except (DataError, RuntimeError, MemoryError) as error:
            key = self.images.source.samples[at[1]].key
            if isinstance(error, DataError):
                return DataError(error.what, where=error.where or key, do=error.do)
            if is_out_of_memory(error):
                return DataError(f"a process that loads images ran out of memory: {error}", where=key, do=SPARE)
            raise


def _collate_or_error(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    return next((s for s in samples if isinstance(s, DataError)), None) or collate(samples)


def _start_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """The loader's iterator, whose workers are not ended by a signal to the whole group of processes."""
    on_death = signal.getsignal(signal.SIGCHLD)
    with signals_held():
        running = iter(loader)
    if on_death is not None and threading.current_thread() is threading.main_thread():
        # The first DataLoader sets a handler that raises an error wherever the parent is, even within a step. The death
        # of a worker is seen when a batch is asked for, where the run can be saved.
        signal.signal(signal.SIGCHLD, on_death)
    return running


def _obey_parent(worker: int) -> None:
    """In a worker, where signals are held back: SIGTERM from the parent, which then wants it to end, ends it."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS does not say who sent a signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return
    parent = os.getppid()

    def obey() -> None:
        while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=obey, daemon=True).start()


def collate(samples: list[tuple[Tensor, int, int]]) -> ImageBatch:
    images = [image for image, _, _ in samples]
    if len({image.dtype for image in images}) > 1:
        images = [to_float(image) for image in images]
    labels, index = (torch.tensor([s[n] for s in samples]) for n in (1, 2))
    return ImageBatch(torch.stack(images), labels, index)
