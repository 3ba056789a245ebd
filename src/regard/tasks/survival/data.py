"""Subjects with a time and an event: a table with a path, a time and whether the event was seen per row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from regard.console import Progress, columns
from regard.data import ImageDataset
from regard.errors import DataError
from regard.metrics import kaplan_meier
from regard.tasks.image_columns import open_columns, read_columns, refuse_values
from regard.tasks.survival.settings import SubjectData

EVENTS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
TERTILES = 3
PER_STRATUM = 10
"""Events (and censorings) per stratum from which a further third of the times makes one."""
PER_COLUMN = 10
"""Events per clinical column below which a fit is not to be trusted (Peduzzi et al., 1995)."""
FEW_EVENTS = 100
"""Events below which figures of a test are uncertain (Collins et al., 2016)."""


@dataclass
class SubjectDataset(ImageDataset):
    """What was read: images, and the time and event of each."""

    columns: tuple[str, ...] = ()
    """The names of the time, the event, and the clinical columns."""
    time: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)
    event: np.ndarray = field(default_factory=lambda: np.zeros(0, bool), repr=False)

    @property
    def tested(self) -> bool:
        return True

    @property
    def clinical(self) -> dict[str, Sequence[str]]:
        """The texts of the clinical columns."""
        return {name: self.source.columns[name] for name in self.columns[2:]}

    def strata(self) -> list[int]:
        """Events and censorings apart, each by thirds of their times where there are enough of them."""
        made = np.zeros(len(self.time), dtype=int)
        for seen in (False, True):
            own = np.flatnonzero(self.event == seen)
            parts = min(TERTILES, max(1, len(own) // PER_STRATUM))
            ranks = np.argsort(np.argsort(self.time[own], kind="stable"), kind="stable")
            made[own] = seen * TERTILES + ranks * parts // max(1, len(own))
        return made.tolist()

    def stratum_name(self, stratum: int) -> str:
        kind = f"with {self.columns[1]}" if stratum >= TERTILES else f"without {self.columns[1]}"
        return f"the group of subjects {kind} (part {stratum % TERTILES + 1} by {self.columns[0]})"

    def events(self, splits: Sequence[str], part: str) -> int:
        return int(self.event[[name == part for name in splits]].sum())

    def require_trainable(self, splits: Sequence[str]) -> None:
        super().require_trainable(splits)
        for part in ("train", "val"):
            if not self.events(splits, part):
                what = f"the {part} split has no subject with {self.columns[1]}: nothing can be learnt or chosen there"
                raise DataError(what, where=self.name, do="add some, or give other splits")

    def warnings(self, splits: Sequence[str]) -> list[str]:
        lines, events, joined = super().warnings(splits), self.events(splits, "train"), len(self.columns) - 2
        if events < PER_COLUMN * (joined + 1):
            per = f" for the image and each of {joined} clinical columns" if joined else ""
            lines.append(f"only {events} events to train on, fewer than {PER_COLUMN}{per}: expect nothing of it")
        tested = self.events(splits, "test")
        if "test" in splits and tested < FEW_EVENTS:
            lines.append(f"only {tested} events to test on: figures are uncertain below {FEW_EVENTS}")
        return lines

    def summary(self) -> str:
        source, (time, event) = self.source, self.columns[:2]
        seen = f"{int(self.event.sum()):,} events ({event}), time from {time}"
        return f"{source.kind} ({source.why}), {len(source.samples):,} images, {seen}"

    def fingerprint(self) -> str:
        held = self.time.tobytes() + self.event.tobytes() + repr(sorted(self.clinical.items())).encode()
        return hashlib.sha256(super().fingerprint().encode() + held).hexdigest()

    def conflicting(self) -> list[list[int]]:
        """Equal images with different times or events."""
        return [group for group in self.duplicates() if len({(self.time[i], self.event[i]) for i in group}) > 1]

    def describe(self) -> str:
        rows = [
            (name, len(own), f"{own.min():.4g}", f"{np.median(own):.4g}", f"{own.max():.4g}")
            for name, own in (("event seen", self.time[self.event]), ("censored", self.time[~self.event]))
            if len(own)
        ]
        table = columns((self.columns[0], "subjects", "shortest", "median", "longest"), rows)
        median = kaplan_meier(self.time, self.event).median
        said = "not reached" if math.isnan(median) else f"{median:.4g}"
        return f"{table}\nmedian survival (Kaplan–Meier): {said}\n\n{super().describe()}"

    def exchanged(self, order: Sequence[int]) -> Self:
        return replace(self, time=self.time[list(order)], event=self.event[list(order)])

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        return [
            row | {"time": f"{time:.17g}", "event": int(event)}
            for row, time, event in zip(super().split_rows(splits), self.time, self.event, strict=True)
        ]

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        events = {part: self.events(splits, part) for part in dict.fromkeys(splits)}
        return super().to_json(splits, note) | {"columns": list(self.columns), "events": events}


def read_subjects(
    data: str | Path, progress: Progress, how: SubjectData, size: int | tuple[int, ...] | None = None
) -> SubjectDataset:
    """Read every image once, and the time, event and clinical columns; `size` is that of volumes, if it is given."""
    how.require_columns()
    names = (how.time, how.event, *how.clinical_columns)
    source = open_columns(data, names, how, size, "times", "path, time and event")
    time = np.array([_time(text) for text in source.columns[how.time]])
    events = [EVENTS.get(text.strip().lower()) for text in source.columns[how.event]]
    wrong = [
        (n, name)
        for n in range(len(time))
        for name, bad in ((how.time, math.isnan(time[n])), (how.event, events[n] is None))
        if bad
    ]
    do = "a time is a number from 0 on, an event 0, 1, true or false: correct these rows, or delete them"
    refuse_values(data, source, wrong, "times or events", do)
    event = np.array(events, dtype=bool)
    if not event.any():
        what = f"no subject has the event: {how.event} is 0 everywhere"
        raise DataError(what, where=data, do="check which column says that it was seen; 1 is seen, 0 censored")
    if time.min() == time.max():
        raise DataError(f"all subjects have the same time: {how.time} is {time[0]:g} everywhere", where=data)
    return read_columns(SubjectDataset, data, source, progress, columns=names, time=time, event=event)


def _time(text: str) -> float:
    """A time of at least 0, or NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0 <= value < math.inf else math.nan
