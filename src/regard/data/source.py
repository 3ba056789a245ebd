"""Where samples come from: folders, tables, arrays and the embedded digits, recognised and read alike."""

from __future__ import annotations

import csv
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.images import SUFFIXES, checked, read_image
from regard.errors import DataError, did_you_mean

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
MAX_ARRAY_BYTES = 8 * 2**30
COLUMNS = {
    "path": ("path", "image", "file", "filename", "filepath"),
    "label": ("label", "class", "target", "diagnosis"),
    "split": ("split", "fold", "set"),
    "group": ("group", "patient", "patient_id", "subject", "subject_id"),
}


@dataclass(frozen=True)
class Sample:
    """One labelled image: its name within the source, and what the source says of it."""

    key: str
    label: int
    split: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Files:
    """Reads samples from image files. A class, not a closure, so that loader processes can be given it."""

    paths: list[Path]

    def __call__(self, index: int) -> tuple[Tensor, str]:
        return read_image(self.paths[index])


@dataclass(frozen=True)
class Pixels:
    """Reads samples from arrays (channels, *size) in memory."""

    arrays: list[np.ndarray]

    def __call__(self, index: int) -> tuple[Tensor, str]:
        pixels = torch.from_numpy(self.arrays[index])
        return pixels, "L" if len(pixels) == 1 else "RGB"


@dataclass(frozen=True)
class Source:
    """A data set: classes, samples, and how to read one. `why` says how its format was recognised."""

    name: str
    kind: str
    why: str
    classes: tuple[str, ...]
    samples: tuple[Sample, ...]
    reader: Callable[[int], tuple[Tensor, str]] = field(repr=False)
    ignored: tuple[str, ...] = ()
    """Files that are no images, and so are not part of it."""

    def read(self, index: int) -> tuple[Tensor, str]:
        """The pixels (channels, *size) of one sample and the mode they were stored in."""
        return self.reader(index)

    def counts(self) -> dict[str, Counter[int]]:
        """Samples per split ("" where the source names none) and class."""
        table: dict[str, Counter[int]] = {}
        for sample in self.samples:
            table.setdefault(sample.split or "", Counter())[sample.label] += 1
        return table


def open_source(data: str | Path) -> Source:
    """The data set that a folder, table, archive or the name `digits` stands for.

    >>> open_source("digits").why
    'the hand-written digits that come with scikit-learn'
    """
    if str(data) == "digits":
        return _digits()
    path = Path(data).expanduser()
    if "://" in str(data):
        raise DataError(f"{data} is an address; data is read from this machine only", do="download it first")
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        raise DataError("there is no such data", where=path, do=near or "give a folder, .csv, .tsv, .npz or digits")
    if path.is_dir():
        tables = sorted(p for p in path.iterdir() if p.suffix.lower() in (".csv", ".tsv"))
        folders = [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]
        if len(tables) == 1 and not any(_images(p)[0] for p in folders if p.name.lower() in SPLITS):
            return _table(tables[0], f"a folder with the one table {tables[0].name} in it")
        return _folder(path, folders)
    if path.suffix.lower() in (".csv", ".tsv"):
        return _table(path, f"the file's ending {path.suffix}")
    if path.suffix.lower() == ".npz":
        return _arrays(path)
    raise DataError(
        f"a {path.suffix or 'nameless'} file is no known data",
        where=path,
        do="give a folder, .csv, .tsv or .npz",
    )


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


def _images(folder: Path) -> tuple[list[Path], list[Path]]:
    """Image files below a folder, and the others; hidden ones are neither."""
    images, others = [], []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _folder(root: Path, folders: list[Path]) -> Source:
    named = {p.name.lower(): p for p in folders if p.name.lower() in SPLITS}
    if named and len(named) == len(folders):
        parts = {SPLITS[name]: path for name, path in named.items()}
        why = f"split folders {', '.join(sorted(named))}, each with one folder a class"
    else:
        parts, why = {"": root}, "one folder a class"
    classes = sorted({p.name for part in parts.values() for p in part.iterdir() if p.is_dir() and p.name[0] != "."})
    samples, paths, ignored = [], [], []
    for split, part in parts.items():
        for label, name in enumerate(classes):
            images, others = _images(part / name) if (part / name).is_dir() else ([], [])
            ignored += [p.relative_to(root).as_posix() for p in others]
            for path in images:
                samples.append(Sample(path.relative_to(root).as_posix(), label, split or None))
                paths.append(path)
    if not samples:
        loose = len(_images(root)[0])
        raise DataError(
            f"the folder holds {f'{loose} images but' if loose else 'no images and'} no class folders with images",
            where=root,
            do="put each class's images into a folder of its own, or list path,label in a .csv beside them",
        )
    empty = sorted(set(range(len(classes))) - {s.label for s in samples})
    if empty:
        raise DataError(
            f"class folders without images: {', '.join(classes[n] for n in empty)}",
            where=root,
            do="add images or remove the folders",
        )
    return Source(root.name, "folder", why, tuple(classes), tuple(samples), Files(paths), tuple(ignored))


def _table(path: Path, why: str) -> Source:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the table is not UTF-8: {error}", where=path, do="save it as UTF-8") from None
    delimiter = "\t" if path.suffix.lower() == ".tsv" or "\t" in text.partition("\n")[0] else ","
    rows = list(csv.DictReader(text.splitlines(), delimiter=delimiter))
    header = [name.strip().lower() for name in (rows[0] if rows else {})]
    column = {
        role: next((raw for raw, name in zip(rows[0], header, strict=True) if name in names), None) if rows else None
        for role, names in COLUMNS.items()
    }
    for role in ("path", "label"):
        if column[role] is None:
            raise DataError(
                f"the table has no column for the {role}" if rows else "the table has no rows",
                where=path,
                do=f"call a column one of {', '.join(COLUMNS[role])}; it has {', '.join(header) or 'none'}",
            )
    path_column, label_column = column["path"], column["label"]
    labels, paths, problems = [], [], []
    for number, row in enumerate(rows, start=2):
        label, file = (row[label_column] or "").strip(), (row[path_column] or "").strip()
        if not label:
            problems.append(f"row {number}: no label")
        if not file or not (path.parent / file).is_file():
            problems.append(f"row {number}: no file {file!r}")
        labels.append(label)
        paths.append(path.parent / file)
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError("; ".join(problems[:5]) + more, where=path, do="correct or delete these rows")
    classes = tuple(
        sorted(
            set(labels),
            key=lambda n: (not n.lstrip("-").isdigit(), int(n) if n.lstrip("-").isdigit() else 0, n),
        )
    )
    number_of = {name: n for n, name in enumerate(classes)}
    samples = []
    for at, (row, label) in enumerate(zip(rows, labels, strict=True), start=2):
        split = (row[column["split"]] or "").strip().lower() if column["split"] else ""
        if split and split not in SPLITS:
            raise DataError(f"row {at}: split {split!r} is unknown", where=path, do=did_you_mean(split, SPLITS))
        group = (row[column["group"]] or "").strip() if column["group"] else ""
        key = (row[path_column] or "").strip()
        samples.append(Sample(key, number_of[label], SPLITS.get(split), group or None))
    if len({s.key for s in samples}) < len(samples):
        twice = Counter(s.key for s in samples).most_common(1)[0][0]
        raise DataError(f"{twice!r} is listed more than once", where=path, do="keep one row a file")
    partly = sum(s.split is None for s in samples)
    if 0 < partly < len(samples):
        raise DataError(f"{partly} of {len(samples)} rows have no split", where=path, do="fill the column or remove it")
    return Source(path.stem, "table", why, classes, tuple(samples), Files(paths))


def _arrays(path: Path) -> Source:
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > MAX_ARRAY_BYTES:
            raise DataError(f"the arrays unpack to {total:,} bytes; at most {MAX_ARRAY_BYTES:,} are read", where=path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name.endswith(("images", "labels"))}
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        raise DataError(f"the archive cannot be read safely: {error}", where=path) from None
    samples, blocks, labels = [], [], []
    for prefix in ("train_", "val_", "test_", ""):
        images, targets = arrays.get(f"{prefix}images"), arrays.get(f"{prefix}labels")
        if images is None or targets is None:
            continue
        targets = targets.reshape(len(targets), -1)
        if targets.shape[1] != 1 or not np.issubdtype(targets.dtype, np.integer):
            raise DataError(
                f"{prefix}labels has shape {targets.shape} and type {targets.dtype}, not one whole number an image",
                where=path,
            )
        if len(images) != len(targets):
            raise DataError(f"{prefix}images has {len(images)} entries and {prefix}labels {len(targets)}", where=path)
        block = _as_images(images, f"{path}: {prefix}images")
        for n, label in enumerate(int(t) for t in targets[:, 0]):
            samples.append((f"{prefix or 'image_'}{n}".replace("_", "/"), label, prefix.rstrip("_") or None))
        blocks.append(block)
        labels += [label for _, label, _ in samples[-len(block) :]]
    if not samples:
        raise DataError(
            "the archive holds no train_images and train_labels (nor images and labels)",
            where=path,
            do=f"name its arrays so; it has {', '.join(sorted(arrays)) or 'neither'}",
        )
    values = sorted(set(labels))
    return Source(
        name=path.stem,
        kind="arrays",
        why="an .npz with MedMNIST's array names",
        classes=tuple(str(v) for v in values),
        samples=tuple(Sample(key, values.index(label), split) for key, label, split in samples),
        reader=Pixels([image for block in blocks for image in block]),
    )


def _as_images(block: np.ndarray, where: str) -> np.ndarray:
    """(N, channels, *size) from (N, H, W), (N, H, W, 1 or 3) or (N, D, H, W), as uint8 or float in 0..1."""
    if block.ndim == 4 and block.shape[-1] in (1, 3):
        block = np.moveaxis(block, -1, 1)
    elif block.ndim in (3, 4):
        block = block[:, None]
    else:
        raise DataError(f"images of shape {block.shape} are neither pictures nor volumes", where=where)
    if block.dtype == np.uint8:
        return np.ascontiguousarray(block)
    if block.dtype == np.uint16:
        return block.astype(np.float32) / 65535.0
    if np.issubdtype(block.dtype, np.floating):
        return checked(np.ascontiguousarray(block, dtype=np.float32), where)
    raise DataError(
        f"pixels of type {block.dtype} are not understood",
        where=where,
        do="store uint8, uint16 or float 0..1",
    )


def find_images(inputs: Iterable[str]) -> list[Path]:
    """The image files that files, folders and globs stand for, in order, each once; nothing found is an error."""
    found: dict[Path, None] = {}
    for text in inputs:
        path = Path(text).expanduser()
        if path.is_dir():
            here = _images(path)[0]
        elif path.is_file():
            here = [path]
        else:
            here = [Path(name) for name in sorted(glob(str(path), recursive=True)) if Path(name).is_file()]
        if not here:
            raise DataError("there is no image here", where=text, do="give image files, folders of them, or a glob")
        found.update(dict.fromkeys(here))
    return list(found)
