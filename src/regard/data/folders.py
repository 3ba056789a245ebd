"""Image folders: one folder per class, with or without folders for the splits above them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from glob import glob
from pathlib import Path

from regard.data.images import SUFFIXES
from regard.data.source import SPLITS, UNLABELLED, Files, Sample, Source
from regard.errors import DataError


def list_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Image files below a folder, and the others, in order; hidden ones are neither. Links are followed."""
    images, others, visited = [], [], set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in visited else sorted(f for f in folders if not f.startswith("."))
        for name in [] if real in visited else files:
            if not name.startswith("."):
                path = Path(place, name)
                _require_text(name)
                (images if path.suffix.lower() in SUFFIXES else others).append(path)
        visited.add(real)
    return sorted(images, key=_parts), sorted(others, key=_parts)


def _parts(path: Path) -> tuple[str, ...]:
    """The sort key of paths, computed once for each."""
    return path.parts


def _require_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(name).decode(errors="replace")
        raise DataError("a file name is not UTF-8", where=name, do="rename the file") from None


def folder_source(root: Path) -> Source:
    """A folder of class folders, or of train, val and test folders that hold class folders."""
    parts = _split_folders(root, [p for p in _subfolders(root) if p.name.lower() in SPLITS and _subfolders(p)])
    why = f"split folders {', '.join(parts)}, each with one folder per class" if parts else "one folder per class"
    parts = parts or {"": root}
    classes = sorted({p.name for part in parts.values() for p in _subfolders(part)})
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
            f"(read are {', '.join(sorted(SUFFIXES))}; DICOM and NIfTI not yet)"
            + ("; `regard pretrain` takes images without labels" if images else ""),
        )
    empty = sorted(set(range(len(classes))) - {s.label for s in samples})
    if empty:
        raise DataError(
            f"class folders without images: {', '.join(classes[n] for n in empty)}",
            where=root,
            do="add images or remove the folders",
        )
    return Source(
        name=root.resolve().name,
        kind="folder",
        why=why,
        classes=tuple(classes),
        samples=tuple(samples),
        reader=Files(paths),
        ignored=not_used(root, paths, [*images, *others]),
    )


def unlabelled_folder(root: Path) -> Source:
    """All images below a folder, whatever the folders between mean; train, val and test folders are splits."""
    parts = _split_folders(root, [p for p in _subfolders(root) if p.name.lower() in SPLITS])
    images, others = list_files(root)
    samples, paths = [], []
    for split, part in (parts or {"": root}).items():
        own = list_files(part)[0] if parts else images
        samples += [Sample(path.relative_to(root).as_posix(), 0, split or None) for path in own]
        paths += own
    if not samples:
        raise DataError(
            "there are no images here", where=root, do=f"give a folder of images ({', '.join(sorted(SUFFIXES))})"
        )
    return Source(
        name=root.resolve().name,
        kind="folder",
        why=f"split folders {', '.join(parts)} with images" if parts else "a folder of images",
        classes=UNLABELLED,
        samples=tuple(samples),
        reader=Files(paths),
        ignored=not_used(root, paths, [*images, *others]),
        labelled=False,
    )


def _split_folders(root: Path, splits: list[Path]) -> dict[str, Path]:
    """Where each split lies, if `splits` are all the folders there are."""
    if splits and (odd := ", ".join(p.name for p in _subfolders(root) if p not in splits)):
        raise DataError(
            f"beside {', '.join(p.name for p in splits)} there is {odd}, which is no split",
            where=root,
            do="move it away, or have only train, val and test here",
        )
    parts: dict[str, Path] = {}
    for path in splits:
        split = SPLITS[path.name.lower()]
        if split in parts:
            raise DataError(f"{parts[split].name} and {path.name} are the same split", where=root, do="merge them")
        parts[split] = path
    return parts


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


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
