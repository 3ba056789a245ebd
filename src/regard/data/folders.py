"""Image folders: one folder per class, with or without folders for the splits above them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path

from regard.data.images import SUFFIXES
from regard.data.source import UNLABELLED, Files, Sample, Source, split_names
from regard.errors import ConfigError, DataError

SYSTEM = frozenset({"__MACOSX", "@eaDir"})
"""Folders that systems make."""
NOT_DATA = SYSTEM | {"annotations", "Annotations"}
"""Folders that lie beside images and are neither a class nor a split."""


def list_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Image files below a folder, and the others, in order; hidden ones are neither. Links are followed."""
    images, others = [], []
    for path in _walk(folder):
        (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return sorted(images, key=_parts), sorted(others, key=_parts)


def _walk(folder: Path, images_only: bool = False) -> Iterator[Path]:
    """Files below a folder in no order, without hidden ones; linked folders are followed, each once."""
    visited = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in visited else sorted(f for f in folders if not f.startswith(".") and f not in SYSTEM)
        for name in [] if real in visited else files:
            path = Path(place, name)
            if not name.startswith(".") and not (images_only and path.suffix.lower() not in SUFFIXES):
                _require_text(name)
                yield path
        visited.add(real)


def _parts(path: Path) -> tuple[str, ...]:
    """The sort key of paths, computed once for each."""
    return path.parts


def _require_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(name).decode(errors="replace")
        raise DataError("a file name is not UTF-8", where=name, do="rename the file") from None


def inner_folder(root: Path) -> Path:
    """Where the data begins: the folder itself, or the only one in it that holds folders of images, and so on."""
    folder = root
    while len(inner := [p for p in _subfolders(folder) if has_images(p)]) == 1:
        if split_names([inner[0].name]) or not _class_folders(inner[0]):
            break
        folder = inner[0]
    return folder


def folder_source(root: Path) -> Source:
    """A folder of class folders, or of train, val and test folders that hold class folders."""
    parts, left_out = _labelled_splits(root)
    why = f"split folders {_names(parts)}, each with one folder per class" if parts else "one folder per class"
    if not parts:
        _refuse_data_sets(root)
        left_out = [*_not_data(root), *_without_images(root)]
    parts = parts or {"": root}
    classes = sorted({p.name for part in parts.values() for p in _class_folders(part)})
    samples, paths = [], []
    for split, part in parts.items():
        for label, name in enumerate(classes):
            for path in list_files(part / name)[0]:
                samples.append(Sample(path.relative_to(root).as_posix(), label, split or None))
                paths.append(path)
    images, others = list_files(root)
    if not samples:
        raise DataError(
            f"there are {f'{len(images)} images but' if images else 'no images and'} no class folders with images",
            where=root,
            do="put each class's images into a folder of its own, or list path,label in a .csv beside them "
            f"(read are {', '.join(sorted(SUFFIXES))}; NIfTI and DICOM are read by a table of subjects)"
            + ("; or take labels from file names by --label-pattern" if images else "")
            + ("; `regard pretrain` takes images without labels" if images else ""),
        )
    ignored = not_used(root, paths, [*images, *others])
    files = Files(paths)
    return Source(root.resolve().name, "folder", why, tuple(classes), tuple(samples), files, ignored, tuple(left_out))


def _names(parts: dict[str, Path]) -> str:
    """The splits, with the folder's name where it differs."""
    return ", ".join(name if part.name == name else f"{part.name} ({name})" for name, part in parts.items())


def _labelled_splits(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Where each split with class folders lies, if any does, and what is left out beside them."""
    named = split_names(p.name for p in _subfolders(root))
    inside = {p: _same_name_inside(p) for p in _subfolders(root)}
    parts = _one_per_split(root, [p for p in inside.values() if p.name in named and _class_folders(p)], named)
    there = [p for p in inside if has_images(p)]
    if not parts:
        if there and all(p.name in named for p in there):
            raise DataError(
                f"{' and '.join(p.name for p in there)} hold images, but no folder per class",
                where=root,
                do="put each class's images into a folder of its own there; or take labels from file names by "
                "--label-pattern, such as '^(cat|dog)'; `regard pretrain` takes images without labels",
            )
        return {}, []
    classes = {p.name for part in parts.values() for p in _class_folders(part)}
    left_out = _not_data(root)
    for path in (p for p in inside if inside[p] not in parts.values()):
        if classes.intersection(p.name for p in _class_folders(path)):
            raise DataError(
                f"beside {', '.join(p.name for p in parts.values())} there is {path.name}, which is no split and holds "
                "the same classes",
                where=root,
                do="call it train, val or test, or move it away",
            )
        images, others = list_files(path)
        why = "no folder per class, so no labels" if path.name in named else "no split"
        left_out.append(f"{path.name}: {len(images)} images, {len(others)} other files; {why}")
    return parts, left_out


def _same_name_inside(path: Path) -> Path:
    """A folder, or what an archive unpacked twice holds: training_set/training_set."""
    inner = path / path.name
    return inner if inner.is_dir() and [p.name for p in _subfolders(path)] == [path.name] else path


def _refuse_data_sets(root: Path) -> None:
    """Folders that hold split folders are no classes."""
    for path in _class_folders(root):
        inner = [p.name for p in _subfolders(path) if _class_folders(p)]
        if "train" in split_names(inner).values():
            raise DataError(
                f"{path.name} holds {' and '.join(inner)}: it is a data set of its own, not a class",
                where=root,
                do=f"give {path}",
            )


def _without_images(root: Path) -> list[str]:
    """Folders without an image, said; but an empty one was meant to be a class."""
    left_out, empty = [], []
    for path in _subfolders(root):
        images, others = list_files(path)
        if others and not images:
            left_out.append(f"{path.name}: {len(others)} files, none an image")
        elif not images:
            empty.append(path.name)
    if empty:
        what = f"class folders without images: {', '.join(empty)}"
        raise DataError(what, where=root, do="add images or remove the folders")
    return left_out


def _not_data(root: Path) -> list[str]:
    return [f"{p.name}: never part of the data" for p in sorted(root.iterdir()) if p.is_dir() and p.name in NOT_DATA]


def pattern_source(root: Path, pattern: str) -> Source:
    """Labels from file names, by the first group of a pattern; train, val and test folders are splits."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--label-pattern {pattern!r} is no regular expression: {error}") from None
    if not expression.groups:
        do = "put brackets around the part that is the label: '^(.+)_[0-9]+'"
        raise ConfigError(f"--label-pattern {pattern!r} has no group", do=do)
    parts, left_out = _splits(root)
    labelled: list[tuple[Path, str, str]] = []
    for split, part in parts.items():
        images = _images(part)
        own = [(p, m[1], split) for p in images if (m := expression.search(p.name)) and m[1]]
        if len(own) < len(images):
            odd = next(p.name for p in images if p not in {p for p, _, _ in own})
            left_out.append(
                f"{part.name}: {len(images) - len(own)} of {len(images)} images, whose names such as {odd} "
                "--label-pattern does not match"
            )
        labelled += own
    if not labelled:
        raise DataError(f"--label-pattern {pattern!r} matches no file name", where=root, do="; ".join(left_out) or None)
    classes = sorted({label for _, label, _ in labelled})
    samples = [Sample(p.relative_to(root).as_posix(), classes.index(c), split or None) for p, c, split in labelled]
    paths = [path for path, _, _ in labelled]
    why = f"labels from file names by {pattern!r}" + (f", split folders {_names(parts)}" if "" not in parts else "")
    ignored = not_used(root, paths, [p for files in list_files(root) for p in files])
    return Source(
        root.resolve().name, "folder", why, tuple(classes), tuple(samples), Files(paths), ignored, tuple(left_out)
    )


def unlabelled_folder(root: Path) -> Source:
    """All images below a folder, whatever the folders between mean; train, val and test folders are splits."""
    parts, left_out = _splits(root)
    samples, paths = [], []
    for split, part in parts.items():
        own = _images(part)
        samples += [Sample(path.relative_to(root).as_posix(), 0, split or None) for path in own]
        paths += own
    if not samples:
        raise DataError(
            "there are no images here", where=root, do=f"give a folder of images ({', '.join(sorted(SUFFIXES))})"
        )
    return Source(
        name=root.resolve().name,
        kind="folder",
        why=f"split folders {_names(parts)} with images" if "" not in parts else "a folder of images",
        classes=UNLABELLED,
        samples=tuple(samples),
        reader=Files(paths),
        ignored=not_used(root, paths, [p for files in list_files(root) for p in files]),
        left_out=tuple(left_out),
        labelled=False,
    )


def _images(folder: Path) -> list[Path]:
    """The images of a folder, without those of folders that are no data."""
    return [p for p in list_files(folder)[0] if not NOT_DATA.intersection(p.relative_to(folder).parts)]


def _splits(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Where the images of each split lie, or all under "", and what is left out beside them."""
    named = split_names(p.name for p in _subfolders(root))
    parts = _one_per_split(root, [p for p in _subfolders(root) if p.name in named and has_images(p)], named)
    left_out = _not_data(root)
    if parts:
        others = [(p.name, len(list_files(p)[0])) for p in _subfolders(root) if p not in parts.values()]
        left_out += [f"{name}: {count} images; no split" for name, count in others]
    return parts or {"": root}, left_out


def _one_per_split(root: Path, folders: list[Path], named: dict[str, str]) -> dict[str, Path]:
    parts: dict[str, Path] = {}
    for path in folders:
        split = named[path.name]
        if split in parts:
            raise DataError(f"{parts[split].name} and {path.name} are the same split", where=root, do="merge them")
        parts[split] = path
    return parts


def has_images(folder: Path) -> bool:
    """Whether there is an image anywhere below."""
    return next(_walk(folder, images_only=True), None) is not None


def _class_folders(folder: Path) -> list[Path]:
    return [p for p in _subfolders(folder) if has_images(p)]


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in NOT_DATA)


def not_used(root: Path, used: list[Path], there: list[Path]) -> tuple[str, ...]:
    """Names of the files that are there and not used."""
    return tuple(p.relative_to(root).as_posix() for p in sorted(set(there) - set(used), key=_parts))


def find_images(inputs: Iterable[str]) -> list[Path]:
    """Image files of the given files, folders and globs, in order, each once; none is an error."""
    paths: dict[Path, None] = {}
    inputs = list(inputs)
    if not inputs:
        raise DataError("no image was given", do="give image files, folders of them, or a glob")
    for text in inputs:
        path = Path(text).expanduser()
        if path.is_dir():
            here = list_files(path)[0]
        elif path.is_file():
            if path.suffix.lower() not in SUFFIXES:
                raise DataError(
                    f"a {path.suffix or 'nameless'} file is no image", where=text, do="arrays can be given in Python"
                )
            here = [path]
        else:
            names = [Path(name) for name in sorted(glob(str(path), recursive=True))]
            here = [p for p in names if p.is_file() and p.suffix.lower() in SUFFIXES]
        if not here:
            raise DataError("there is no image here", where=text, do="give image files, folders of them, or a glob")
        paths.update(dict.fromkeys(here))
    return list(paths)
