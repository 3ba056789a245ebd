"""Reads subjects as arrays (channels, *size), through a cache on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.source import Source
from regard.data.volumes.cache import Cache
from regard.data.volumes.frame import ScanFrame
from regard.data.volumes.preparing import Plan, Prepared, Subject, load_subject, prepare
from regard.data.volumes.survey import Facts, Survey, Wanted, choose_plan, in_one_line, survey_subject
from regard.errors import DataError

SHOWN = 5
KEPT = 6
"""Fields of `Facts` that are kept on disk; the others say what could not be read."""


@dataclass(frozen=True)
class VolumeReader:
    """Reads samples by a plan. A class, not a closure, so that it can be sent to worker processes."""

    subjects: tuple[Subject, ...]
    plan: Plan
    cache: Cache
    max_megapixels: float
    errors: dict[int, str] = field(default_factory=dict, repr=False)
    """Subjects that were found not to be usable."""

    def __call__(self, index: int) -> tuple[Tensor, str]:
        return self.prepared(index).pixels, " + ".join(self.plan.scans)

    def prepared(self, index: int) -> Prepared:
        """The input of one subject and where it lies, from the cache if it is there."""
        subject = self.subjects[index]
        if index in self.errors:
            raise DataError(self.errors[index], where=subject.key)
        return read_prepared(subject, self.plan, self.cache, self.max_megapixels)

    def cost(self) -> str:
        """Memory and time of one volume on this machine, measured on the first one that can be used."""
        index = next(n for n in range(len(self.subjects)) if n not in self.errors)
        begun = time.perf_counter()
        read_prepared(self.subjects[index], self.plan, None, self.max_megapixels)
        made = time.perf_counter()
        pixels = self.prepared(index).pixels
        again = time.perf_counter()
        return (
            f"{pixels.nbytes / 1e6:.1f} MB, in memory and on disk; {made - begun:.2f} s to prepare once, "
            f"{1000 * (again - made):.0f} ms to read again"
        )


def read_prepared(subject: Subject, plan: Plan, cache: Cache | None, max_megapixels: float) -> Prepared:
    """A subject by a plan; without a cache nothing is kept."""
    key = cache.key(subject.scans, plan.to_json()) if cache else ""
    if cache:
        array, held = cache.read_array(key, (len(plan.scans), *plan.size)), cache.read_json(key)
        if array is not None and held is not None:
            try:
                return Prepared(torch.from_numpy(array), ScanFrame.from_json(held), subject.key, subject.masks)
            except (KeyError, TypeError, ValueError, IndexError):
                pass  # damaged: prepared again
    try:
        made = prepare(load_subject(subject, plan.scans, max_megapixels), plan, subject.key)
    except DataError as error:
        raise DataError(in_one_line(error), where=subject.key) from None
    if cache:
        cache.write_json(key, made.frame.to_json())
        cache.write_array(key, made.pixels.numpy())
    return made._replace(masks=subject.masks)


@dataclass(frozen=True)
class Unsettled:
    """A reader before the data's common spacing and size are known: `settle` looks at every subject."""

    subjects: tuple[Subject, ...]
    wanted: Wanted
    cache: Cache
    max_megapixels: float

    def __call__(self, index: int) -> tuple[Tensor, str]:
        raise DataError("the volumes have not been read yet", where=self.subjects[index].key)

    def settle(self, source: Source, tick: Callable[[int, int], None]) -> Source:
        """The same source with a plan for all subjects, and what was found."""
        facts: list[Facts] = []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with ThreadPoolExecutor(min(cores, 8)) as pool:
            for each in pool.map(self._facts, self.subjects):
                facts.append(each)
                tick(len(facts), len(self.subjects))
        usable = [each for each in facts if not each.error]
        if not usable:
            some = "; ".join(f"{each.key}: {each.error}" for each in facts[:SHOWN])
            raise DataError(f"no subject can be read: {some}", where=source.name, do="correct the table or the files")
        plan, why = choose_plan(usable, self.wanted)
        survey = Survey(tuple(facts), plan, why)
        errors = {n: each.error for n, each in enumerate(facts) if each.error}
        reader = VolumeReader(self.subjects, plan, self.cache, self.max_megapixels, errors)
        return replace(source, reader=reader, survey=survey, settle=None)

    def follow(self, plan: Plan) -> VolumeReader:
        """Reads by a plan that is known, such as a trained model's."""
        return VolumeReader(self.subjects, plan, self.cache, self.max_megapixels)

    def _facts(self, subject: Subject) -> Facts:
        """Of one subject, as they were kept if no file has changed.

        What could not be read is tried again each time: memory, rights and disks change while the file does not.
        """
        paths = (*subject.scans, *(path for _, path in subject.masks))
        settings: Any = ["facts", subject.key, self.wanted.scans, [name for name, _ in subject.masks]]
        key = self.cache.key(paths, [*settings, self.max_megapixels])
        held = self.cache.read_json(key)
        try:
            name, scans, spacing, extent, whole, notes = held
            return Facts(str(name), dict(scans), tuple(spacing), tuple(extent), tuple(whole), tuple(notes))
        except (TypeError, ValueError):
            facts = survey_subject(subject, self.wanted.scans, self.max_megapixels)
            if not facts.error and not facts.unread:
                self.cache.write_json(key, list(facts[:KEPT]))
            return facts
