"""The scan of a dataset before training: every sample is read once for size, mode, duplicates and damage."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import re
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from regard.console import columns
from regard.data.dataset import UNUSED, leaked, listed
from regard.data.source import Files, Source
from regard.data.workers import signals_held
from regard.errors import DataError, counted

CACHE_SIDE = 512
SITES = re.compile(
    r"(^|[_\W])(site|scanner|cent(re|er)|hospital|institut\w*|manufacturer|vendor|protocol|field.?strength|tss)s?"
    r"(?=$|[_\W])",
    re.IGNORECASE,
)
"""Columns that say where or how a picture was made."""
GREY = "RGB, all grey"
"""Mode of a grey picture that is stored as colour."""
GREY_LEVELS = 0.5
"""Mean difference of channels, of 255 levels, below which a picture is grey."""
CACHE_BYTES = 2**30


@dataclass
class ImageDataset:
    """A scanned dataset. `digests` are hashes of pixels, not files: the same picture saved twice has one digest."""

    source: Source
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    channels: int = 1
    digests: list[str | None] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    cache: dict[int, Tensor] = field(default_factory=dict, repr=False)
    """Decoded samples, kept when all are small enough to stay in memory."""
    path: str = ""
    """The path or name that the user gave."""
    shapes: list[tuple[int, ...] | None] = field(default_factory=list, repr=False)
    """The size of each sample, if it could be read."""
    reading: dict[str, Any] = field(default_factory=dict, repr=False)
    """The settings that it was read by."""

    samples_word: ClassVar[str] = "images"
    whole_tests: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def why(self) -> str:
        return self.source.why

    @property
    def tested(self) -> bool:
        return self.source.labelled

    def __len__(self) -> int:
        return len(self.source.samples)

    def key(self, number: int) -> str:
        return self.source.samples[number].key

    def given_splits(self) -> list[str | None]:
        return [sample.split for sample in self.source.samples]

    def strata(self) -> list[int]:
        return [sample.label for sample in self.source.samples]

    def stratum_name(self, stratum: int) -> str:
        return f"class {self.source.classes[stratum]!r}" if len(self.source.classes) > 1 else "the data"

    def ties(self, number: int) -> list[Hashable]:
        group, digest = self.source.samples[number].group, self.digests[number]
        pixels = [("pixels", digest)] if digest else []  # what cannot be read is equal to nothing
        return [("group", group), *pixels] if group else [*pixels]

    def traits(self) -> np.ndarray | None:
        return None

    def require_trainable(self, splits: Sequence[str]) -> None:
        """Every class needs training images."""
        trained = {s.label for s, name in zip(self.source.samples, splits, strict=True) if name == "train"}
        lacking = set(range(len(self.source.classes))) - trained
        if lacking:
            raise DataError(
                f"classes without training images: {', '.join(self.source.classes[n] for n in sorted(lacking))}",
                where=self.name,
                do="add images of them to the training split, or remove them from the others",
            )

    def summary(self) -> str:
        source = self.source
        classes = counted(len(source.classes), "classes") if source.labelled else "labels not used"
        return f"{source.kind} ({source.why}), {counted(len(source.samples), 'images')}, {classes}"

    def warnings(self, splits: Sequence[str]) -> list[str]:
        counts = (
            (len(self.unreadable), "images that cannot be read, and are left out"),
            (len(self.groups_across_splits(splits)), "patients with images in more than one split"),
        )
        if survey := self.source.survey:
            counts += (
                (len(survey.notes()), "notes on single scans"),
                (len(survey.cut()), "subjects that are larger than the input, and are cut at its edges"),
            )
        lines = [f"{what}: {count:,} (data.json lists them)" for count, what in counts if count]
        return [*lines, *self.leak_lines(splits)]

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        classes = self.source.classes
        return [
            {"name": s.key, "split": name, "label": classes[s.label], "pixels": digest or "", "group": s.group or ""}
            for s, name, digest in zip(self.source.samples, splits, self.digests, strict=True)
        ]

    def seen(self, rows: Sequence[Mapping[str, str]]) -> set[int]:
        """The same pixels, or the same patient."""
        pixels, groups = {row["pixels"] for row in rows}, {row["group"] for row in rows} - {""}
        return {i for i, s in enumerate(self.source.samples) if self.digests[i] in pixels or s.group in groups}

    def duplicates(self) -> list[list[int]]:
        """Groups of samples with the same pixels."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, digest in enumerate(self.digests):
            if digest is not None:
                groups[digest].append(index)
        return [group for group in groups.values() if len(group) > 1]

    def leak_lines(self, splits: Sequence[str]) -> list[str]:
        """How many images of each split occur in an earlier one, in sentences."""
        lines = []
        for part in (name for name in ("val", "test") if name in splits):
            if count := len(leaked(self, splits, part)):
                where = "training" if part == "val" else "training or validation"
                lines.append(f"{count} of {splits.count(part)} {part} images occur in {where}, by pixels or patient")
        return lines

    def crossing(self, splits: Sequence[str]) -> list[list[int]]:
        """Duplicates in more than one split: leaks from training into evaluation."""
        return [group for group in self.duplicates() if len({splits[i] for i in group} - {UNUSED}) > 1]

    def groups_across_splits(self, splits: Sequence[str]) -> list[str]:
        """Groups (patients) with images in more than one split: leaks too."""
        splits_of: dict[str, set[str]] = defaultdict(set)
        for sample, name in zip(self.source.samples, splits, strict=True):
            if sample.group and name != UNUSED:
                splits_of[sample.group].add(name)
        return sorted(group for group, names in splits_of.items() if len(names) > 1)

    def num_groups(self) -> int:
        return len({sample.group for sample in self.source.samples} - {None})

    def exchanged(self, order: Sequence[int]) -> Self:
        """The same images, each with the outcome of the sample whose number `order` has in its place."""
        samples = self.source.samples
        swapped = tuple(replace(own, label=samples[other].label) for own, other in zip(samples, order, strict=True))
        return replace(self, source=replace(self.source, samples=swapped))

    def covariates(self) -> dict[str, np.ndarray]:
        """What may give a label away without a look at the picture, as features (N, F) by name.

        Columns that name a site or a scanner; the size of the file, of a scan its voxels.
        """
        made = {}
        for name, texts in self.source.columns.items():
            levels = sorted(set(texts))
            if SITES.search(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)) and 1 < len(levels) <= len(texts) / 2:
                made[name] = np.eye(len(levels))[[levels.index(text) for text in texts]]
        if survey := self.source.survey:
            facts = {own.key: own for own in survey.usable}
            known = [facts.get(sample.key) for sample in self.source.samples]
            made["voxel spacing and shape"] = np.array([
                [0.0] * 6 if own is None else [*own.spacing, *next(iter(own.scans.values()))["shape"]] for own in known
            ])  # fmt: skip
        else:
            made["image size"] = np.array([list(shape or (0,) * len(next(iter(self.sizes)))) for shape in self.shapes])
        return {name: values for name, values in made.items() if len(values) and (values != values[0]).any()}

    def conflicting(self) -> list[list[int]]:
        """Duplicates with different labels."""
        labels = self.strata()
        return [group for group in self.duplicates() if len({labels[i] for i in group}) > 1]

    def fingerprint(self) -> str:
        """One hash of the dataset: names, labels and pixels."""
        total = hashlib.sha256()
        for sample, digest in zip(self.source.samples, self.digests, strict=True):
            total.update(f"{sample.key}\0{sample.label}\0{digest}\n".encode())
        return total.hexdigest()

    def describe(self) -> str:
        """The report of `regard check`, for people."""
        source, splits = self.source, [s.split or "all" for s in self.source.samples]
        parts = [self.counts_table(), ""]
        parts.append("sizes: " + ", ".join(f"{'×'.join(map(str, s))} ({n})" for s, n in self.sizes.most_common(8)))
        parts.append("modes: " + ", ".join(f"{mode} ({n})" for mode, n in self.modes.most_common()))

        def names(groups: list[list[int]]) -> list[str]:
            return [" = ".join(source.samples[i].key for i in group) for group in groups]

        patients = self.num_groups()
        without = sum(sample.group is None for sample in source.samples)
        for title, lines in (
            ("images that occur more than once", names(self.duplicates())),
            ("of these, across splits (leaks)", names(self.crossing(splits))),
            ("of these, with different labels", names(self.conflicting())),
            (f"patients or other groups across splits (leaks), of {patients}", self.groups_across_splits(splits)),
            ("rows left out" if source.survey else "folders left out", list(source.left_out)),
            ("files that are not part of the data", list(source.ignored)),
            ("images that cannot be read", [f"{key}: {why}" for key, why in self.unreadable]),
        ):
            parts.append(f"{title}: {len(lines)}" if patients or "patients" not in title else "patients: not known")
            parts += listed(lines)
        parts += self.leak_lines(splits)
        if patients and without:
            parts.append(f"images without a patient or group, each taken to stand alone: {without}")
        if survey := self.source.survey:
            parts += [f"larger than the input, and cut at its edges: {len(survey.cut())}", *listed(survey.cut())]
            parts += [f"notes on single scans: {len(survey.notes())}", *listed(survey.notes())]
            parts += ["", columns(("volumes", ""), survey.rows())]
        return "\n".join(parts)

    def counts_table(self) -> str:
        """Samples per class and split."""
        counts = self.source.counts()
        named = [name for name in ("train", "val", "test", "all") if name in counts]
        rows = [(name, *(counts[split][c] for split in named)) for c, name in enumerate(self.source.classes)]
        return columns(("class", *named), [*rows, ("total", *(counts[split].total() for split in named))])

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        """data.json: counts, hashes and problems of the dataset."""
        source = self.source
        kinds = ("train", "val", "test", UNUSED, "unreadable")
        counts = {name: dict.fromkeys(source.classes, 0) for name in kinds if name in splits}
        for sample, name in zip(source.samples, splits, strict=True):
            counts[name][source.classes[sample.label]] += 1

        def keys(groups: list[list[int]]) -> list[list[str]]:
            return [[f"{splits[i]}: {source.samples[i].key}" for i in group] for group in groups]

        return {
            "name": source.name,
            "kind": source.kind,
            "recognised_by": source.why,
            "fingerprint": self.fingerprint(),
            "classes": list(source.classes),
            "counts": counts,
            "splits": note,
            "sizes": {"×".join(map(str, size)): n for size, n in self.sizes.most_common(20)},
            "modes": dict(self.modes),
            "left_out": list(source.left_out),
            "ignored": list(source.ignored),
            "unreadable": dict(self.unreadable),
            "duplicates": keys(self.duplicates()),
            "leaks": keys(self.crossing(splits)),
            "leaked": self.leak_lines(splits),
            "groups": self.num_groups(),
            "groups_across_splits": self.groups_across_splits(splits),
            "conflicting_labels": keys(self.conflicting()),
            "samples": self.samples_word,
            "findings": self.findings(splits),
            **({"volumes": source.survey.to_json()} if source.survey else {}),
        }

    def findings(self, splits: list[str]) -> list[str]:
        """Problems of the data, in sentences."""
        groups, crossing = self.num_groups(), len(self.groups_across_splits(splits))
        known = f"{groups}; across splits: {crossing}" if groups else "not known"
        return [
            f"Images that occur more than once: {sum(map(len, self.duplicates()))}; "
            f"with differing labels: {sum(map(len, self.conflicting()))}.",
            *(f"{line}." for line in self.leak_lines(splits)),
            f"Files ignored: {len(self.source.ignored)}.",
            *(f"Left out: {line}." for line in self.source.left_out),
            *([f"Unreadable and left out: {len(self.unreadable)}."] if self.unreadable else []),
            f"Patients or groups: {known}.",
        ]

    def require_usable(self, share: float = 0.0) -> None:
        """Raise an error if more than this share of the samples is damaged."""
        bad, total = len(self.unreadable), len(self.source.samples)
        if bad > share * total:
            lines = "\n".join(listed([f"{key}: {why}" for key, why in self.unreadable], 10))
            raise DataError(
                f"{bad} of {total} images cannot be read:\n{lines}",
                where=self.source.name,
                do="repair or remove them"
                + (f", or let more be left out: --unreadable {math.ceil(1000 * bad / total) / 1000}" if share else ""),
            )


def scan(
    source: Source, tick: Callable[[int, int], None] = lambda done, total: None, side: int | None = None
) -> ImageDataset:
    """Read every sample once, in parallel; damaged files are listed and raise no error.

    Samples of up to `side` pixels (by default CACHE_SIDE) are kept, if all of them fit in memory.
    """
    side = CACHE_SIDE if side is None else side
    source = source.settle(source, tick) if source.settle else source
    dataset, cached, total = ImageDataset(source), 0, len(source.samples)
    with closing(_check_all(source, total, side)) as results:  # whatever happens, its threads or processes end here
        for index, result in enumerate(results):
            tick(index + 1, total)
            if isinstance(result, str):
                dataset.unreadable.append((source.samples[index].key, result))
                dataset.digests.append(None)
                dataset.shapes.append(None)
                continue
            shape, mode, digest, pixels = result
            dataset.shapes.append(shape[1:])
            dataset.sizes[shape[1:]] += 1
            dataset.modes[mode] += 1
            dataset.channels = max(dataset.channels, 1 if mode == GREY else shape[0])
            dataset.digests.append(digest)
            if pixels is not None and cached <= CACHE_BYTES:
                cached += pixels.nbytes
                dataset.cache[index] = torch.from_numpy(pixels)
    if len(dataset.cache) < total - len(dataset.unreadable):
        dataset.cache.clear()
    return dataset


_Checked = tuple[tuple[int, ...], str, str, np.ndarray | None] | str
"""Shape, mode, digest and (if small) pixels of one sample; or its error message."""


def _check(source: Source, side: int, index: int) -> _Checked:
    try:
        tensor, mode = source.read(index)
    except DataError as error:
        return error.what
    pixels, digest = np.ascontiguousarray(tensor.numpy()), pixel_digest(tensor)
    if mode == "RGB" and _is_grey(pixels):
        mode = GREY
    small = max(tensor.shape[1:]) <= side
    return tuple(tensor.shape), mode, digest, pixels if small else None


def pixel_digest(pixels: Tensor) -> str:
    """A hash of decoded pixels, the column of that name in splits.csv."""
    digest = hashlib.sha256(f"{tuple(pixels.shape)}{pixels.dtype}".encode())
    digest.update(np.ascontiguousarray(pixels.numpy()).data)
    return digest.hexdigest()[:32]


def _is_grey(pixels: np.ndarray) -> bool:
    """Whether three channels hold one grey picture, but for traces of compression."""
    red, green, blue = pixels.astype(np.int16)
    return float(max(np.abs(red - green).mean(), np.abs(green - blue).mean())) < GREY_LEVELS


def _check_all(source: Source, total: int, side: int) -> Generator[_Checked, None, None]:
    """Checks of all samples, in order. Many files are decoded by processes: threads would wait for the GIL."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usual = multiprocessing.get_start_method(allow_none=True) in (None, "fork") and sys.platform == "linux"
    parent = not multiprocessing.current_process().daemon  # a daemon cannot start processes
    parts = [range(n, min(n + 32, total)) for n in range(0, total, 32)]
    if not (usual and parent and cores > 1 and total >= 500 and isinstance(source.reader, Files)):
        stop, threads = threading.Event(), ThreadPoolExecutor(cores)
        try:
            yield from _ordered(threads, partial(_check_part, source, side, stop.is_set), parts)
        finally:
            stop.set()
            threads.shutdown(cancel_futures=True)
        return
    fork = multiprocessing.get_context("fork")
    processes = ProcessPoolExecutor(cores, mp_context=fork, initializer=_start_worker, initargs=(source, side))
    finished = False
    try:
        yield from _ordered(processes, _check_in_worker, parts)
        finished = True
    except BrokenProcessPool:
        raise DataError(
            "a process that read images was killed, by a damaged file or for lack of memory",
            where=source.name,
            do="free memory and run again; if it happens again, look for the file with a few images at a time",
        ) from None
    finally:
        for process in [] if finished else list((processes._processes or {}).values()):
            process.kill()  # SIGTERM is held back there
        processes.shutdown(cancel_futures=True)  # waiting: its thread would wake up without its pipes at the exit


def _ordered(pool: Executor, work: Callable[[range], list[_Checked]], parts: list[range]) -> Iterator[_Checked]:
    """Results in order with only a few parts in flight, so that a large dataset does not fill memory."""
    with signals_held():  # the first of these start the processes
        waiting = deque(pool.submit(work, part) for part in parts[:64])
    for n in range(len(parts)):
        result = waiting.popleft().result()
        if n + 64 < len(parts):
            waiting.append(pool.submit(work, parts[n + 64]))
        yield from result


def _check_part(source: Source, side: int, stopped: Callable[[], bool], part: range) -> list[_Checked]:
    return [_check(source, side, index) for index in part if not stopped()]


_READ: list[tuple[Source, int]] = []  # in a worker process: the source it reads, and what is small


def _start_worker(source: Source, side: int) -> None:
    torch.set_num_threads(1)
    _READ[:] = [(source, side)]


def _check_in_worker(part: range) -> list[_Checked]:
    return _check_part(*_READ[0], lambda: False, part)
