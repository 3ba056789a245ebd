"""Which format a dataset has, and how that was recognised."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.arrays import arrays_source
from regard.data.dataset import existing_path
from regard.data.folders import folder_source, inner_folder, pattern_source, unlabelled_folder
from regard.data.source import Files, Pixels, Sample, Source
from regard.data.tables import has_columns, table_source
from regard.data.volumes.dicom import dicom_folders
from regard.data.volumes.subjects import recognise, subjects_source
from regard.errors import ConfigError, DataError
from regard.image_groups import ImageData

TABLES = (".csv", ".tsv")
VOLUMES = tuple(entry.name for entry in fields(ImageData) if entry.metadata["volumes"])
"""Settings that only volumes have."""


def open_source(
    data: str | Path, labels: bool = True, how: ImageData | None = None, size: int | tuple[int, ...] | None = None
) -> Source:
    """The dataset of a folder, table, archive or the name `digits`; without its labels if not wanted.

    `how` says what the files do not: columns of a table, a pattern of file names. Volumes are cropped or padded to
    `size`, if it is given.

    >>> open_source("digits").why
    'the hand-written digits that come with scikit-learn'
    """
    source = _open(data, labels, how or ImageData(), size)
    return source if labels else source.without_labels()


def _open(data: str | Path, labels: bool, how: ImageData, size: int | tuple[int, ...] | None) -> Source:
    if str(data) == "digits":
        _refuse_unused(how, "digits", "has its own labels")
        return _digits()
    path = existing_path(data, "a folder, .csv, .tsv, .npz or digits")
    if path.is_dir():
        return _open_folder(path, labels, how, size)
    if path.suffix.lower() in TABLES:
        _refuse_unused(how, path, "is a table", "label_pattern")
        if layout := recognise(path, how):
            why = f"the file's ending {path.suffix} and paths of volumes in it"
            return subjects_source(path, why, how, layout, size, labels)
        _refuse_unused(how, path, "is a table of images", *VOLUMES)
        return table_source(path, f"the file's ending {path.suffix}", how, labels=labels)
    if path.suffix.lower() == ".npz":
        _refuse_unused(how, path, "is an archive of arrays")
        return arrays_source(path, labels)
    ending = path.suffix or "nameless"
    raise DataError(f"a {ending} file is no known data", where=path, do="give a folder, .csv, .tsv or .npz")


def _open_folder(path: Path, labels: bool, how: ImageData, size: int | tuple[int, ...] | None) -> Source:
    inner = inner_folder(path)
    for folder in dict.fromkeys([] if how.named("label_pattern") else [path, inner]):
        tables = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in TABLES]
        layouts = {p: layout for p in tables if (layout := recognise(p, how))}
        if len(layouts) == 1:
            (table, layout), *_ = layouts.items()
            why = f"a folder with the table {table.relative_to(path)} of subjects in it"
            return subjects_source(table, why, how, layout, size, labels)
        if layouts:
            names = ", ".join(p.name for p in layouts)
            raise DataError(f"there are several tables of subjects: {names}", where=path, do="give one of them")
    _refuse_unused(how, path, "has no table of subjects in it", *VOLUMES)
    for folder in dict.fromkeys([] if how.named("label_pattern") else [path, inner]):
        tables = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in TABLES and has_columns(p, how)]
        if len(tables) == 1:
            why = f"a folder with the table {tables[0].relative_to(path)} of paths and labels in it"
            return table_source(tables[0], why, how, whole_folder=True)
    _refuse_unused(how, path, "has no table with these columns in it", "image_column", "label_column")
    inside = "" if inner == path else f"inside {inner.relative_to(path)}: "
    if labels and how.named("label_pattern"):
        source = pattern_source(inner, how.named("label_pattern"))
    else:
        source = _folder_of_images(inner, path, labels)
    reader = Files(source.reader.paths, how.max_megapixels) if isinstance(source.reader, Files) else source.reader
    return replace(source, name=path.resolve().name, why=inside + source.why if labels else source.why, reader=reader)


def _folder_of_images(inner: Path, path: Path, labels: bool) -> Source:
    try:
        return folder_source(inner) if labels else unlabelled_folder(path)
    except DataError:
        folders = dicom_folders(path)
        if not folders:
            raise
        example = f"{(Path(path.resolve().name) / folders[0].relative_to(path)).as_posix()}#SERIES"
        raise DataError(
            "these are DICOM files without a table of subjects",
            where=path,
            do=f"beside the folder, write a .csv with a row per subject, such as subject,t1,label and s01,{example},a; "
            "`regard check` of the folder lists its series",
        ) from None


def _refuse_unused(how: ImageData, where: object, why: str, *names: str) -> None:
    """A setting that cannot have an effect on this data is an error."""
    for name in names or ("image_column", "label_column", "label_pattern", *VOLUMES):
        if how.named(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is not for this data: it {why}", where=where, do=f"leave {flag} out")


def _digits() -> Source:
    """1,797 digits of 8 × 8 pixels; every fifth of each class is the test set, fixed for all seeds."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    pixels = (bunch.images * (255 / 16)).round().astype(np.uint8)[:, None]
    seen: Counter[int] = Counter()
    samples = []
    for number, label in enumerate(int(n) for n in bunch.target):
        samples.append(Sample(f"digit-{number:04d}", label, "test" if seen[label] % 5 == 4 else "train"))
        seen[label] += 1
    return Source(
        name="digits",
        kind="digits",
        why="the hand-written digits that come with scikit-learn",
        classes=tuple(str(n) for n in range(10)),
        samples=tuple(samples),
        reader=Pixels(list(pixels)),
    )
