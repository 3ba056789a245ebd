"""Several trainings at a time in processes of one machine, all with the same data, which is read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from regard.errors import DivergedError

Each = Callable[[Callable[[Any, Any], Any], Sequence[Any], Any], Iterator[tuple[Any, Future[Any]]]]
"""Of work, items and a dataset: `work(dataset, item)` of every item, when it has ended."""


def each(
    work: Callable[[Any, Any], Any], items: Sequence[Any], dataset: Any, *, jobs: int
) -> Iterator[tuple[Any, Future[Any]]]:
    """`work(dataset, item)` of every item, when it has ended; what has diverged is in its future.

    With several `jobs`, in worker processes, which share the cores and get the dataset once: `work` is then a function
    of a module.
    """
    if jobs == 1:
        for item in items:
            future: Future[Any] = Future()
            try:
                future.set_result(work(dataset, item))
            except DivergedError as error:
                future.set_exception(error)
            yield item, future
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # As arrays: torch would send each tensor as an open file, of which a process may have only few.
    images = {number: image.numpy() for number, image in getattr(dataset, "cache", {}).items()}
    light = replace(dataset, cache={}) if images else dataset
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, (threads, light, images))
    try:
        futures = {pool.submit(_in_worker, work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        pool.shutdown(cancel_futures=True)


_DATASETS: list[Any] = []
"""In a worker process: the data."""


def _start_worker(threads: int, dataset: Any, images: dict[int, Any]) -> None:
    import torch

    torch.set_num_threads(threads)
    if images:
        dataset.cache = {number: torch.from_numpy(image) for number, image in images.items()}
    _DATASETS.append(dataset)


def _in_worker(work: Callable[[Any, Any], Any], item: Any) -> Any:
    return work(_DATASETS[0], item)
