"""Tables of subjects: one row each, with one or more columns of scans; and folders with one folder per case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.source import SPLITS, UNLABELLED, Sample, Source, split_names
from regard.data.tables import TableRow, natural, read_table, refuse_rows, without_missing
from regard.data.volumes.cache import Cache, cache_folder
from regard.data.volumes.dicom import has_dicom
from regard.data.volumes.preparing import Subject
from regard.data.volumes.reader import Unsettled
from regard.data.volumes.scan import is_nifti, require_medical
from regard.data.volumes.survey import Wanted
from regard.errors import ConfigError, DataError, NoLabelError, did_you_mean
from regard.geometry import per_axis
from regard.image_groups import ImageData

MASKS = re.compile(r"(^|[_\W])(mask|seg|segmentation|roi|labelmap|gt)s?$", re.IGNORECASE)
"""Names of columns and files that hold masks, which no network sees."""
NAMES = ("subject", "subjectid", "case", "caseid", "id", "name", "scan", "scanid")
"""Columns that name a row, before the patient's."""
LOOKED_AT = 50
"""Rows by which columns are recognised."""


class Layout(NamedTuple):
    """Which columns of a table are scans and masks; or `case`, the column that names case folders."""

    scans: tuple[str, ...]
    masks: tuple[str, ...]
    case: str | None = None


def recognise(path: Path, how: ImageData) -> Layout | None:
    """The columns of scans in a table, or None if there are none."""
    try:
        header, _, rows = read_table(path, how)
    except DataError:
        if how.scans is None:
            return None
        raise
    cells = {name: [row.texts[name] for row in rows[:LOOKED_AT] if row.texts[name]] for name in filter(None, header)}
    there = [name for name, own in cells.items() if _most(own, lambda cell: _is_scan(path.parent, cell))]
    masks = tuple(name for name in there if MASKS.search(name))
    scans = tuple(name for name in there if name not in masks)
    named = tuple(name.strip() for name in how.scans.split(",")) if how.scans else ()
    if how.image_column and not named and scans:
        named = (how.image_column,)
    case = None
    if not scans:
        beside = [n for n, own in cells.items() if _most(own, lambda cell: bool(case_files(path.parent / cell)))]
        case = beside[0] if beside else None
        if case:
            names = Counter(name for row in rows for name in case_files(path.parent / row.texts[case]))
            masks = tuple(name for name in names if MASKS.search(name))
            scans = tuple(sorted(name for name in names if name not in masks))
    if not scans:
        if how.scans is None:
            return None
        do = "columns of scans hold paths of .nii, .nii.gz or DICOM folders, relative to the table"
        raise DataError("the table has no column of scans", where=path, do=do)
    for name in named:
        if name not in (*scans, *masks) and (case or name not in header):
            raise DataError(f"there is no scan called {name!r}", where=path, do=did_you_mean(name, scans))
        if name in masks:
            do = f"choose from {', '.join(scans)}; if it is to be seen, give it a name that does not say mask"
            raise DataError(f"{name!r} is a mask, which no network is shown", where=path, do=do)
    if len(set(named)) < len(named):
        raise ConfigError(f"--scans {how.scans} names one scan twice", do="name each once")
    return Layout(named or scans, tuple(name for name in masks if name not in named), case)


def _most(cells: Sequence[str], is_one: Callable[[str], bool]) -> bool:
    return bool(cells) and sum(is_one(cell) for cell in cells) > len(cells) / 2


def _is_scan(folder: Path, cell: str) -> bool:
    if is_nifti(cell):
        return True
    path = folder / cell.partition("#")[0]
    try:
        return path.is_dir() and path != folder and has_dicom(path)
    except (OSError, ValueError):  # a text that can be no path
        return False


def case_files(folder: Path) -> dict[str, Path]:
    """The NIfTI files of a case folder by what their names add to the folder's: case_1/case_1_flair.nii.gz is flair."""
    try:
        paths = [p for p in sorted(folder.iterdir()) if is_nifti(p) and p.is_file()] if folder.is_dir() else []
    except (OSError, ValueError):
        return {}
    names = {}
    for path in paths:
        stem = re.sub(r"\.nii(\.gz)?$", "", path.name, flags=re.IGNORECASE)
        own = stem.removeprefix(folder.name).strip("_- ")
        names[own if own and own != stem else re.split(r"[_\-\s]", stem)[-1]] = path
    return names


def subjects_source(
    path: Path, why: str, how: ImageData, layout: Layout, size: int | tuple[int, ...] | None, labels: bool = True
) -> Source:
    """The subjects of a table, whose volumes are read once their common spacing and size are known.

    Rows without what is predicted are left out, and said. A scan that is not there makes the subject unreadable.
    """
    require_medical("nibabel")
    _, columns, rows = read_table(path, how)
    if labels and "label" not in columns:
        others = [name for name in rows[0].texts if name not in (*layout.scans, *layout.masks)] if rows else []
        do = f"name it by --label-column; it has {', '.join(others)}"
        raise NoLabelError("the table has no column for the label", where=path, do=do)
    if not rows:
        raise DataError("the table has no rows", where=path)
    needed = (*how.needed, *([columns["label"]] if labels else ()))
    rows, left_out = without_missing(rows, needed, lambda own: _keys(own, layout))
    if not rows:
        raise DataError(f"no row has a value in {' and '.join(needed)}", where=path)
    splits = split_names({row.roles["split"] for row in rows})
    refuse_rows(_problems(rows, splits), path)
    keys = _keys(rows, layout)
    classes = tuple(sorted({row.roles["label"] for row in rows}, key=natural)) if labels else UNLABELLED
    samples = [
        Sample(
            key,
            tuple(classes).index(row.roles["label"]) if labels else 0,
            splits.get(row.roles["split"]),
            row.roles["group"] or None,
        )
        for key, row in zip(keys, rows, strict=True)
    ]
    subjects = tuple(_subject(path.parent, key, row, layout) for key, row in zip(keys, rows, strict=True))
    used = [f"scans from {', '.join(layout.scans)}"] + ([f"masks from {', '.join(layout.masks)}"] * bool(layout.masks))
    used += [f"{role} from {columns[role]!r}" for role in ("label", "split", "group") if role in columns and labels]
    reader = Unsettled(
        subjects, wanted(how, layout.scans, size), Cache(cache_folder(how.cache_folder)), how.max_megapixels
    )
    texts = {name: [row.texts[name] for row in rows] for name in rows[0].texts if name}
    return Source(
        path.stem, "table of volumes", f"{why}; {'; '.join(used)}", classes, tuple(samples), reader,
        left_out=left_out, labelled=labels, columns=texts, rows=[row.number for row in rows],
        settle=reader.settle,
    )  # fmt: skip


def read_subjects(path: Path, scans: tuple[str, ...]) -> tuple[Subject, ...]:
    """The subjects of a table without labels, for a model that sees these scans."""
    how = ImageData(scans=",".join(scans))
    layout = recognise(path, how)
    _, _, rows = read_table(path, how)
    if layout is None or not rows:
        raise DataError("the table has no rows", where=path)
    return tuple(_subject(path.parent, key, row, layout) for key, row in zip(_keys(rows, layout), rows, strict=True))


def _problems(rows: Sequence[TableRow], splits: dict[str, str]) -> list[str]:
    problems, known = [], [name for names in SPLITS.values() for name in names]
    without = sum(not row.roles["split"] for row in rows)
    for row in rows:
        split = row.roles["split"]
        if split and split not in splits:
            problems.append(f"row {row.number}: split {split!r} is unknown, {did_you_mean(split, known)}")
        if row.extra:
            problems.append(f"row {row.number}: more fields than the header has (quote texts that hold a comma)")
        if not split and 0 < without < len(rows):
            problems.append(f"row {row.number}: no split, where other rows have one")
    return problems


def _keys(rows: Sequence[TableRow], layout: Layout) -> list[str]:
    """A name for each row: of the column for it, else the patient's where each has one row, else of the first scan."""
    columns = [name for name in rows[0].texts if re.sub(r"[^a-z]", "", name.lower()) in NAMES]
    options = [[row.texts[name] for row in rows] for name in columns if name not in layout.scans]
    options += [[row.texts[layout.case] for row in rows]] if layout.case else []
    options += [[row.roles["group"] for row in rows]]
    options += [] if layout.case else [[row.texts[layout.scans[0]] for row in rows]]
    for names in options:
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"row {row.number}" for row in rows]


def _subject(folder: Path, key: str, row: TableRow, layout: Layout) -> Subject:
    if layout.case:
        files = case_files(folder / row.texts[layout.case])
        paths = {name: str(files[name]) if name in files else "" for name in (*layout.scans, *layout.masks)}
    else:
        paths = {
            name: str(folder / row.texts[name]) if row.texts[name] else "" for name in (*layout.scans, *layout.masks)
        }
    return Subject(
        key, tuple(paths[name] for name in layout.scans), tuple((name, paths[name]) for name in layout.masks)
    )


def wanted(how: ImageData, scans: tuple[str, ...], size: int | tuple[int, ...] | None) -> Wanted:
    """What the settings say of the input."""
    spacing = how.spacing
    if spacing is not None:
        spacing = (float(spacing),) * 3 if isinstance(spacing, int | float) else tuple(map(float, spacing))
        if len(spacing) != 3 or not all(0.01 <= side <= 100 for side in spacing):
            do = "give --spacing one or three numbers of millimetres, such as 1 or 1 1 3"
            raise ConfigError(f"spacing={how.spacing} does not fit a volume", do=do)
    sides = None if size is None else per_axis(size, 3, "size")
    return Wanted(scans, spacing, sides, how.foreground is not False, how.intensity or "zscore")
