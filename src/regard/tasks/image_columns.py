"""Columns of a table beside its images, which some tasks predict: opening it, refusing values, reading the images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regard.console import Progress
from regard.data import ImageDataset, Source, open_source, scan
from regard.errors import DataError, did_you_mean
from regard.image_groups import ImageData
from regard.tasks.images import tell_plan

SHOWN = 5
UNUSED = "; columns not used: "

Kind = TypeVar("Kind", bound=ImageDataset)


def open_columns(
    data: str | Path, names: Sequence[str], how: ImageData, size: int | tuple[int, ...] | None, what: str, example: str
) -> Source:
    """The table, which must have these columns. For an error: `what` they hold, and an `example` of a table."""
    source = open_source(data, labels=False, how=how, size=size)
    if not source.columns:
        do = f"give a .csv or .tsv with {example}"
        raise DataError(f"{what} are read from a table, and this is not a table", where=data, do=do)
    for name in names:
        if name not in source.columns:
            raise DataError(f"the table has no column {name!r}", where=data, do=did_you_mean(name, source.columns))
    why, _, unused = source.why.partition(UNUSED)
    unused = ", ".join(name for name in unused.split(", ") if name and name not in names)
    return replace(source, why=f"{why}{UNUSED}{unused}" if unused else why)


def refuse_values(data: str | Path, source: Source, wrong: Iterable[tuple[int, str]], what: str, do: str) -> None:
    """An error that names the first wrong values, given by sample and column."""
    bad = [
        f"row {source.rows[n]} ({source.samples[n].key}): {name} is {source.columns[name][n]!r}" for n, name in wrong
    ]
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise DataError(f"{len(bad)} values are no {what}: {'; '.join(bad[:SHOWN])}{more}", where=data, do=do)


def read_columns(kind: type[Kind], data: str | Path, source: Source, progress: Progress, **own: Any) -> Kind:
    """Read every image once; `own` are the fields that `kind` has beside those of images."""
    with progress.bar("reading", len(source.samples)) as tick:
        read = scan(source, lambda done, total: tick(done))
    tell_plan(read, progress)
    held: dict[str, Any] = {f.name: getattr(read, f.name) for f in fields(ImageDataset)} | {"path": str(data)}
    return kind(**held, **own)
