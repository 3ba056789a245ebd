"""Tables of images: a CSV or TSV with a path and a label in each row, perhaps a split and a patient."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from regard.data.folders import list_files, not_used
from regard.data.source import SPLITS, Files, Sample, Source, split_names
from regard.errors import DataError, NoLabelError, counted, did_you_mean
from regard.image_groups import ImageData

COLUMNS = {
    "path": ("path", "image", "file", "filename", "filepath"),
    "label": ("label", "class", "target", "diagnosis"),
    "split": ("split", "fold", "set"),
    "group": ("group", "patient", "patientid", "subject", "subjectid", "case", "caseid"),
}
FLAGS = {"path": "image-column", "label": "label-column"}
"""The settings by which a column may be named."""
MISSING = ("", "na", "n/a", "nan", "none", "null", "?", "unknown", "missing")
"""What stands for a missing label of a scan, one of several labels, a number, time or event; in any case."""
SHOWN = 5
NAMED = 10
"""Of rows that are left out."""


class TableRow(NamedTuple):
    """One row: its line, what it has in the columns of known roles, all of its texts, and whether it has too many."""

    number: int
    roles: dict[str, str]
    texts: dict[str, str]
    extra: bool


def has_columns(path: Path, how: ImageData) -> bool:
    """Whether a table names images and labels, or is about something else."""
    try:
        _, columns, _ = read_table(path, how)
    except DataError:
        return False
    return "path" in columns and "label" in columns


def table_source(path: Path, why: str, how: ImageData, whole_folder: bool = False, labels: bool = True) -> Source:
    """Paths are relative to the table. Every fault is named by its row.

    `whole_folder`: the user gave the folder of the table, so images that the table does not list are reported.
    Without `labels`, no label column is needed.
    """
    header, columns, rows = read_table(path, how)
    for role in ("path", "label") if labels else ("path",):
        if role not in columns:
            raise (NoLabelError if role == "label" else DataError)(
                f"the table has no column for the {role}",
                where=path,
                do=f"name it by --{FLAGS[role]}, or call it one of {', '.join(COLUMNS[role])}; "
                f"the table has {', '.join(filter(None, header))}",
            )
    rows, left_out = without_missing(rows, how.needed, lambda own: [row.roles["path"] for row in own])
    if not rows:
        what = f"no row has a value in {' and '.join(how.needed)}" if left_out else "the table has no rows"
        raise DataError(what, where=path)
    splits = split_names({row.roles["split"] for row in rows})
    problems = []
    for number, row, _, extra in rows:
        file = row["path"]
        if labels and not row["label"]:
            problems.append(f"row {number}: no label")
        if not file or not os.path.isfile(path.parent / file):
            problems.append(f"row {number}: no file {file[:80]!r}")
        if row["split"] and row["split"] not in splits:
            known = [name for names in SPLITS.values() for name in names]
            problems.append(f"row {number}: split {row['split']!r} is unknown, {did_you_mean(row['split'], known)}")
        if extra:
            problems.append(f"row {number}: more fields than the header has (quote texts that hold a comma)")
    refuse_rows(problems, path)
    twice = [file for file, count in Counter(row.roles["path"] for row in rows).items() if count > 1]
    refuse_rows([f"{file!r} is listed more than once" for file in twice], path)
    partly = sum(not row.roles["split"] for row in rows)
    if 0 < partly < len(rows):
        raise DataError(f"{partly} of {len(rows)} rows have no split", where=path, do="fill the column or remove it")
    classes = sorted({row.roles["label"] for row in rows}, key=natural)
    samples = [
        Sample(row["path"], classes.index(row["label"]), splits.get(row["split"]), row["group"] or None)
        for _, row, _, _ in rows
    ]
    paths = [path.parent / row.roles["path"] for row in rows]
    ignored = not_used(path.parent, paths, list_files(path.parent)[0]) if whole_folder else ()
    others = [name for name in header if name and name not in columns.values()]
    extra = {name: [row.texts.get(name, "") for row in rows] for name in header if name}
    used = ", ".join(f"{role} from {columns[role]!r}" for role in COLUMNS if role in columns)
    why += f"; {used}" + (f"; columns not used: {', '.join(others)}" if others else "")
    reader, numbers = Files(paths, how.max_megapixels), [row.number for row in rows]
    return Source(
        path.stem, "table", why, tuple(classes), tuple(samples), reader, ignored, left_out, columns=extra, rows=numbers
    )


def read_table(path: Path, how: ImageData) -> tuple[list[str], dict[str, str], list[TableRow]]:
    """The header, which of our columns it has, and the rows in our names with their line numbers."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise DataError("this is no file", where=path, do="give a table in a file of its own")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the table is not UTF-8: {error}", where=path, do="save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"the table cannot be read: {error}", where=path) from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count) if path.suffix.lower() != ".tsv" else "\t"
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restval="")
    try:
        header = list(reader.fieldnames or [])
        columns: dict[str, str] = {}
        for role, names in COLUMNS.items():
            if asked := how.named(FLAGS[role].replace("-", "_")) if role in FLAGS else None:
                if asked not in header:
                    what = f"the table has no column {asked!r}"
                    raise DataError(what, where=path, do=did_you_mean(asked, filter(None, header)))
                columns[role] = asked
            known = [(re.sub(r"[^a-z]", "", raw.lower()), raw) for raw in header]
            there = [(name, raw) for name, raw in known if name in names]
            if role == "group":  # a patient may have several subjects or cases
                there.sort(key=lambda pair: names.index(pair[0]))
            if there:
                columns.setdefault(role, there[0][1])
        rows = []
        for row in reader:
            values = {role: row[columns[role]].strip() if role in columns else "" for role in COLUMNS}
            texts = {name: (row[name] or "").strip() for name in header}
            extra = any(row.get(None) or ())  # pyright: ignore[reportArgumentType] - what is too much
            rows.append(TableRow(reader.line_num, values, texts, extra))
    except csv.Error as error:
        raise DataError(f"the table is not well formed: {error}", where=f"{path}, line {reader.line_num}") from None
    return header, columns, rows


def refuse_rows(problems: list[str], path: Path) -> None:
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise DataError("; ".join(problems[:SHOWN]) + more, where=path, do="correct or delete these rows")


def is_missing(label: str) -> bool:
    return label.strip().lower() in MISSING


def without_missing(
    rows: list[TableRow], names: Iterable[str], keys: Callable[[list[TableRow]], list[str]]
) -> tuple[list[TableRow], tuple[str, ...]]:
    """The rows that have a value in each of these columns, and lines about the others."""
    told = []
    for name in names:
        lacking = [row for row in rows if name in row.texts and is_missing(row.texts[name])]
        if lacking:
            rows = [row for row in rows if not is_missing(row.texts[name])]
            more = ", …" if len(lacking) > NAMED else ""
            told.append(f"{counted(len(lacking), 'rows')} without {name}: {', '.join(keys(lacking)[:NAMED])}{more}")
    return rows, tuple(told)


def natural(name: str) -> tuple[bool, int, str]:
    """Sort key: numbers by value, before names."""
    number = re.fullmatch(r"-?[0-9]{1,18}", name)
    return number is None, int(name) if number else 0, name
