"""COCO's JSON: images, annotations and categories in one file, or in one for each split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.annotations import Annotations, holds_segments
from regard.data.objects.annotated import Annotated, Read, inside, read_text, split_of
from regard.errors import DataError, counted

MAX_BYTES = 2**30
"""COCO's own training file has 448 MB."""
LAYOUT = "x, y, width, height in pixels"
TRIED = 200  # images by which the folder of images is chosen
MOST = 0.5  # share of the images by which a folder's name decides before the number of its files
USUAL = frozenset({"images", "imgs", "jpegimages"})
"""Names of folders that hold nothing but the images themselves."""


def read_coco(annotations: Annotations) -> Read:
    files, folders = files_by_split(annotations)
    loaded = {path: _load(path) for path in files}
    names = _categories(loaded)
    read = Read(list(names.values()), list(names), LAYOUT, folders=folders)
    _leave_out_parent(read, loaded)
    for path, contents in loaded.items():
        _add(read, contents, path, files[path], annotations.root)
    read.leave_out_copies(annotations.root)
    return read


def files_by_split(annotations: Annotations) -> tuple[dict[Path, str | None], list[str]]:
    """The split of each file, one file per split; and the files that are not used, with the reason."""
    files: dict[Path, str | None] = {path: split_of(path.stem, path.parent.name) for path in annotations.files}
    unnamed = [path.name for path, split in files.items() if split is None]
    folders = []
    if len(files) > 1 and unnamed:
        if len(unnamed) == len(files):
            what = f"there are several annotation files, none of them named for a split: {', '.join(sorted(unnamed))}"
            raise DataError(what, where=annotations.root, do="give one of them, or name them train, val and test")
        folders = [f"{name}: not named for a split" for name in unnamed]
        files = {path: split for path, split in files.items() if split is not None}
    twice = [split for split in files.values() if list(files.values()).count(split) > 1]
    if twice:
        raise DataError(f"several files are of the split {twice[0]}", where=annotations.root, do="give one of them")
    return files, folders


def _load(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(read_text(path, MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not a JSON file: {error}", where=path) from None
    for name in ("images", "annotations", "categories"):
        rows = contents.get(name) if isinstance(contents, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"the file has no list of {name}", where=path, do="give a file in COCO's format")
    return contents


def _categories(loaded: dict[Path, dict[str, Any]]) -> dict[int, str]:
    """Names by id, in the order of ids; all files must agree."""
    names: dict[int, str] = {}
    for path, contents in loaded.items():
        for n, row in enumerate(contents["categories"]):
            number, name = row.get("id"), row.get("name")
            if type(number) is not int or not isinstance(name, str):
                raise DataError(f"categories[{n}] needs a whole number as id, and a name", where=path)
            if names.setdefault(number, name) != name:
                what = f"the category {number} is called {names[number]!r} and {name!r}"
                raise DataError(what, where=path, do="give each category one id and one name in all files")
    if not names:
        raise DataError("there are no categories", where=next(iter(loaded)))
    names = dict(sorted(names.items()))
    twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if twice:
        what = f"several categories have the same name: {', '.join(twice)}"
        raise DataError(what, where=next(iter(loaded)), do="merge them, or give them names of their own")
    return names


def _leave_out_parent(read: Read, loaded: dict[Path, dict[str, Any]]) -> None:
    """Roboflow puts a category before the others that is only their group, without an example."""
    rows = [row for contents in loaded.values() for row in contents["categories"]]
    used = {row.get("category_id") for contents in loaded.values() for row in contents["annotations"]}
    groups = {row.get("supercategory") for row in rows}
    for row in rows:
        number, name = row["id"], row["name"]
        if row.get("supercategory") == "none" and name in groups and number not in used and number in read.ids:
            at = read.ids.index(number)
            del read.ids[at], read.classes[at]
            read.note("categories that are only a group of others, left out", f"{number}: {name}")


def _add(read: Read, contents: dict[str, Any], path: Path, split: str | None, root: Path) -> None:
    names = []
    for n, row in enumerate(contents["images"]):
        if not isinstance(row.get("file_name"), str) or not isinstance(row.get("id"), int | str):
            raise DataError(f"images[{n}] needs an id and a file_name", where=path)
        names.append(inside(Path(), row["file_name"], f"{path}, images[{n}]"))
    read.image_folders.append(image_folders(names, path, split, root))
    folder = read.image_folders[-1][0]
    images: dict[Any, Annotated] = {}
    for row, name in zip(contents["images"], names, strict=True):
        if row["id"] in images:
            raise DataError(f"two images have the id {row['id']}", where=path)
        size = (row.get("height"), row.get("width"))
        known = size if all(type(side) is int and side > 0 for side in size) else None
        file = folder / name
        images[row["id"]] = Annotated(file, file.relative_to(root).as_posix(), split, size=known)
    numbers = {number: n for n, number in enumerate(read.ids)}
    for n, row in enumerate(contents["annotations"]):
        _add_box(read, row, f"{path.name}, annotations[{n}]", images, numbers)
    read.images += images.values()


def _add_box(
    read: Read, row: dict[str, Any], where: str, images: dict[Any, Annotated], numbers: dict[int, int]
) -> None:
    box, number, owner = row.get("bbox"), row.get("category_id"), row.get("image_id")
    if not isinstance(owner, int | str) or owner not in images:
        return read.leave_out("of an image that is not listed", f"{where}: image_id {owner!r}")
    if not isinstance(number, int | str) or number not in numbers:
        read.unknown |= {number} if type(number) is int else set()
        return read.leave_out("of an unknown category", f"{where}: category_id {number!r}")
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(x) for x in box):
        return read.leave_out("not four numbers", f"{where}: {str(box)[:60]}")
    area: Any = row.get("area")
    own = float(area) if _is_number(area) else 0.0
    segment = _outline(row.get("segmentation"))
    images[owner].add([float(x) for x in box], numbers[number], bool(row.get("iscrowd")), own, segment)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > 1e12


def _outline(segment: Any) -> Any:
    """Polygons of at least three points, or a run-length code; None of anything else."""
    if isinstance(segment, dict) and isinstance(segment.get("counts"), str | list) and "size" in segment:
        return {"size": segment["size"], "counts": segment["counts"]}
    rows = segment if isinstance(segment, list) else []
    polygons = [row for row in rows if isinstance(row, list) and len(row) >= 6 and len(row) % 2 == 0]
    return [row for row in polygons if all(_is_number(x) for x in row)] or None


def image_folders(names: list[Path], path: Path, split: str | None, root: Path) -> list[Path]:
    """The folders below `root` that hold most of the images, the one to read first.

    The name decides first: an image that is missing there is then missed, not read from a folder of copies.
    """
    if not names:
        raise DataError("the file lists no images", where=path)
    tried = names[:: max(1, len(names) // TRIED)]
    # A folder beside a panoptic JSON file of its name holds maps, which may be called like the images.
    places = [folder for folder in _folders(root, 3) if not holds_segments(folder.parent / f"{folder.name}.json")]
    there = {folder: sum((folder / name).is_file() for name in tried) for folder in places}
    held = [folder for folder in places if there[folder] >= MOST * len(tried)]
    if held:
        return sorted(held, key=lambda folder: (_preference(folder, path, split, root), there[folder]), reverse=True)
    best = max(places, key=lambda folder: (there[folder], _preference(folder, path, split, root)))
    if not there[best]:
        raise DataError(
            f"none of its {counted(len(names), 'images')} is there, such as {names[0].as_posix()}",
            where=path,
            do=f"put the images in a folder inside {root}; looked in {', '.join(p.name for p in places[:8])}",
        )
    return [best]


def _preference(folder: Path, path: Path, split: str | None, root: Path) -> int:
    """How well a folder's name fits a file of annotations and its split."""
    named = split_of(*reversed(folder.relative_to(root).parts))
    if split is not None and named is not None:
        return 4 if named == split else 0
    if folder == path.parent:
        return 3
    return 2 if folder.name.lower() in USUAL else 1


def _folders(root: Path, depth: int) -> Iterator[Path]:
    yield root
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if depth else ():
        yield from _folders(folder, depth - 1)
