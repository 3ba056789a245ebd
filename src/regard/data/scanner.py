"""One careful look at every sample before any work is done: sizes, modes, duplicates, damage."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.pool import ThreadPool

import numpy as np
import torch
from torch import Tensor

from regard.console import columns
from regard.data.source import Source
from regard.errors import DataError

CACHE_SIDE = 96
LISTED = 20
CACHE_BYTES = 2**30


@dataclass
class Scan:
    """What was found. `digests` name pixels, not files: the same picture saved twice has one digest."""

    source: Source
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    channels: int = 1
    digests: list[str | None] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    cache: dict[int, Tensor] = field(default_factory=dict, repr=False)
    """Decoded samples, kept when all are small enough to stay in memory."""

    def duplicates(self) -> list[list[int]]:
        """Groups of samples with the same pixels."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, digest in enumerate(self.digests):
            if digest is not None:
                groups[digest].append(index)
        return [group for group in groups.values() if len(group) > 1]

    def crossing(self, splits: list[str]) -> list[list[int]]:
        """Those duplicates that stand in more than one split: leaks from training into evaluation."""
        return [group for group in self.duplicates() if len({splits[i] for i in group}) > 1]

    def parted(self, splits: list[str]) -> list[str]:
        """Groups (patients) with images in more than one split: leaks too."""
        found: dict[str, set[str]] = defaultdict(set)
        for sample, name in zip(self.source.samples, splits, strict=True):
            if sample.group:
                found[sample.group].add(name)
        return sorted(group for group, names in found.items() if len(names) > 1)

    def conflicting(self) -> list[list[int]]:
        """Those duplicates that carry different labels."""
        labels = [sample.label for sample in self.source.samples]
        return [group for group in self.duplicates() if len({labels[i] for i in group}) > 1]

    def fingerprint(self) -> str:
        """One hash of the whole data set: names, labels and pixels."""
        total = hashlib.sha256()
        for sample, digest in zip(self.source.samples, self.digests, strict=True):
            total.update(f"{sample.key}\0{sample.label}\0{digest}\n".encode())
        return total.hexdigest()

    def describe(self) -> str:
        """The report of `regard check`, for people."""
        source, splits = self.source, [s.split or "all" for s in self.source.samples]
        counts = source.counts()
        named = [name for name in ("train", "val", "test", "all") if name in counts]
        rows = [(name, *(counts[split][c] for split in named)) for c, name in enumerate(source.classes)]
        total = ("total", *(counts[split].total() for split in named))
        parts = [columns(("class", *named), [*rows, total]), ""]
        parts.append("sizes: " + ", ".join(f"{'×'.join(map(str, s))} ({n})" for s, n in self.sizes.most_common(8)))
        parts.append("modes: " + ", ".join(f"{mode} ({n})" for mode, n in self.modes.most_common()))

        def names(groups: list[list[int]]) -> list[str]:
            return [" = ".join(source.samples[i].key for i in group) for group in groups]

        patients = len({sample.group for sample in source.samples} - {None})
        without = sum(sample.group is None for sample in source.samples)
        for title, lines in (
            ("images that occur more than once", names(self.duplicates())),
            ("of these, across splits (leaks)", names(self.crossing(splits))),
            ("of these, with different labels", names(self.conflicting())),
            (f"patients or other groups across splits (leaks), of {patients}", self.parted(splits)),
            ("files that are not part of the data", list(source.ignored)),
            ("images that cannot be read", [f"{key}: {why}" for key, why in self.unreadable]),
        ):
            parts.append(f"{title}: {len(lines)}" if patients or "patients" not in title else "patients: not known")
            parts += [f"    {line}" for line in lines[:LISTED]]
            parts += [f"    and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
        if patients and without:
            parts.append(f"images without a patient or group, each taken to stand alone: {without}")
        return "\n".join(parts)

    def require_readable(self) -> None:
        if self.unreadable:
            lines = "\n".join(f"    {key}: {why}" for key, why in self.unreadable[:10])
            more = f"\n    and {len(self.unreadable) - 10} more" if len(self.unreadable) > 10 else ""
            raise DataError(
                f"{len(self.unreadable)} of {len(self.source.samples)} images cannot be read:\n{lines}{more}",
                where=self.source.name,
                do="repair or remove them",
            )


def scan(source: Source, tick: Callable[[int, int], None] = lambda done, total: None) -> Scan:
    """Read every sample once, in parallel; damage is listed, not raised."""
    found, cached, total = Scan(source), 0, len(source.samples)
    for index, result in enumerate(_looks(source, total)):
        tick(index + 1, total)
        if isinstance(result, str):
            found.unreadable.append((source.samples[index].key, result))
            found.digests.append(None)
            continue
        shape, mode, digest, pixels = result
        found.sizes[shape[1:]] += 1
        found.modes[mode] += 1
        found.channels = max(found.channels, shape[0])
        found.digests.append(digest)
        if pixels is not None and cached <= CACHE_BYTES:
            cached += pixels.nbytes
            found.cache[index] = torch.from_numpy(pixels)
    if len(found.cache) < total - len(found.unreadable):
        found.cache.clear()
    return found


_Look = tuple[tuple[int, ...], str, str, np.ndarray | None] | str
"""Shape, mode, digest and (if small) pixels of one sample; or what is wrong with it."""


def _look(source: Source, index: int) -> _Look:
    try:
        tensor, mode = source.read(index)
    except DataError as error:
        return error.what
    pixels = np.ascontiguousarray(tensor.numpy())
    digest = hashlib.sha256(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
    digest.update(pixels.data)
    small = max(tensor.shape[1:]) <= CACHE_SIDE
    return tuple(tensor.shape), mode, digest.hexdigest()[:32], pixels if small else None


def _looks(source: Source, total: int) -> Iterator[_Look]:
    """Looks at every sample, in order. Small pictures are decoded by processes: threads only wait for each other."""
    cores = os.cpu_count() or 1
    if total < 500 or cores == 1 or multiprocessing.get_start_method() != "fork":
        with ThreadPool(cores) as threads:
            yield from threads.imap(partial(_look, source), range(total))
        return
    with multiprocessing.Pool(cores, _begin, (source,)) as processes:
        yield from processes.imap(_look_here, range(total), chunksize=32)


_HERE: list[Source] = []  # in a process of the pool: what it reads from


def _begin(source: Source) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(1)
    _HERE[:] = [source]


def _look_here(index: int) -> _Look:
    return _look(_HERE[0], index)
