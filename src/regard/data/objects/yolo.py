"""YOLO: a text file for each image, with a line "class x y width height" for each object, as shares of the image.

A line with more numbers is a polygon: "class x1 y1 x2 y2 …".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.annotations import Annotations
from regard.data.folders import list_files
from regard.data.images import SUFFIXES
from regard.data.objects.annotated import Annotated, Read, inside, read_text, split_of
from regard.errors import DataError, counted, missing

MAX_BYTES = 2**24
LAYOUT = "centre, width, height as shares"
MOST_UNNAMED = 1000
NAMES = ("classes.txt", "obj.names", "labels/classes.txt")


def read_yolo(annotations: Annotations) -> Read:
    root = annotations.root
    names, parts = _yaml(annotations.files[0], root) if annotations.files else (_names(root), {})
    images = {split: _images(paths) for split, paths in parts.items()} or {"": list_files(root)[0]}
    read = Read([], [], LAYOUT)
    lines: list[tuple[Annotated, str, list[str]]] = []
    for split, paths in images.items():
        for path in paths:
            folders = reversed(path.relative_to(root).parts[:-1])
            image = Annotated(path, path.relative_to(root).as_posix(), split or split_of(*folders))
            read.images.append(image)
            if file := _labels(path, root):
                rows = read_text(file, MAX_BYTES).splitlines()
                place = file.relative_to(root).as_posix()
                lines += [(image, f"{place}, line {n}", row.split()) for n, row in enumerate(rows, 1) if row.strip()]
            else:
                read.note("images without a label file, taken to hold no object", image.key)
    if not read.images:
        raise DataError("there are no images", where=root, do=f"put images ({', '.join(sorted(SUFFIXES))}) there")
    without = len(next(iter(read.notes.values()), []))
    if without == len(read.images):
        what = f"none of the {counted(without, 'images')} has a label file"
        raise DataError(what, where=root, do="put NAME.txt in a folder labels beside the folder images")
    _name_splits(read)
    numbers = {row[0] for _, _, row in lines if row[0].isdecimal() and len(row[0]) < 7}
    if names is None:
        most = max(map(int, numbers), default=0)
        if most >= MOST_UNNAMED:
            what = f"there is a class {most}, and no data.yaml or classes.txt that names it"
            raise DataError(what, where=root, do="name the classes in data.yaml")
        names = {n: str(n) for n in range(most + 1)}
        read.note("names of classes", "no data.yaml or classes.txt: the classes are called by their numbers")
    read.ids, read.classes = list(names), list(names.values())
    place = {str(number): n for n, number in enumerate(read.ids)}
    for image, where, row in lines:
        _add(read, image, where, row, place)
    return read


def _name_splits(read: Read) -> None:
    """Where some folders are no splits, their images train; where none is, the data names no splits."""
    if any(image.split for image in read.images):
        for image in read.images:
            image.split = image.split or "train"


def _add(read: Read, image: Annotated, where: str, row: list[str], place: dict[str, int]) -> None:
    try:
        numbers = [float(word) for word in row[1:]]
    except ValueError:
        return read.leave_out("not numbers", f"{where}: {' '.join(row)[:60]}")
    number = row[0].removesuffix(".0")
    label = place.get(number)
    if label is None:
        read.unknown |= {int(number)} if number.isdecimal() and len(number) < 7 else set()
        return read.leave_out("of an unknown class", f"{where}: class {row[0][:20]!r}")
    if len(numbers) == 4:
        return image.add(numbers, label)
    if len(numbers) < 6 or len(numbers) % 2:
        what = f"{where}: {counted(len(numbers), 'numbers')} after the class"
        return read.leave_out("neither a box of four numbers nor a polygon", what)
    xs, ys = numbers[::2], numbers[1::2]
    left, right, top, bottom = min(xs), max(xs), min(ys), max(ys)
    box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    return image.add(box, label, segment=[numbers])


def _labels(path: Path, root: Path) -> Path | None:
    """The label file of an image: in a folder labels in place of images, or beside it."""
    parts = list(path.relative_to(root).with_suffix(".txt").parts)
    beside = root.joinpath(*parts)
    if "images" in parts[:-1]:
        at = len(parts) - 2 - parts[-2::-1].index("images")
        parts[at] = "labels"
    swapped = root.joinpath(*parts)
    return next((file for file in (swapped, beside) if file.is_file()), None)


def _yaml(path: Path, root: Path) -> tuple[dict[int, str], dict[str, list[Path]]]:
    """Names of classes by number, and the folders or lists of images of each split."""
    try:
        import yaml
    except ImportError:
        raise missing("PyYAML", "detect") from None
    try:
        contents: Any = yaml.safe_load(read_text(path, 2**20))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(f"not a YAML file: {str(error).splitlines()[0]}", where=path) from None
    if not isinstance(contents, dict):
        raise DataError("the file names no classes", where=path, do="give names: and train: and val:")
    names = contents.get("names")
    named: dict[Any, Any] = dict(enumerate(names)) if isinstance(names, list) else {}
    named = names if isinstance(names, dict) else named
    numbered = bool(named) and all(type(n) is int and n >= 0 for n in named)
    if not numbered or not all(isinstance(name, str | int | float) for name in named.values()):
        raise DataError("names must be a list of class names, or names by number", where=path)
    count = contents.get("nc")
    if count is not None and count != len(named):
        raise DataError(f"nc is {count} and there are {len(named)} names", where=path, do="correct one of them")
    parts: dict[str, list[Path]] = {}
    for key, value in contents.items():
        split = split_of(key) if isinstance(key, str) else None
        if split is None or value in (None, ""):
            continue
        entries = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, str) for entry in entries):
            raise DataError(f"{key} must be a folder of images or a list of images", where=path)
        parts[split] = [_place(root, contents.get("path"), entry, path, key) for entry in entries]
    if "train" not in parts and "val" not in parts:
        raise DataError("the file names no images: train is missing", where=path)
    return {number: str(name) for number, name in sorted(named.items())}, parts


def _place(root: Path, base: Any, entry: str, path: Path, key: str) -> Path:
    """Where a split's images are. Exported files often name folders of the machine they were written on."""
    tail = entry.replace("\\", "/")
    while tail.startswith("../"):
        tail = tail[3:]
    tried = [f"{base}/{entry}"] if isinstance(base, str) else []
    for name in (*tried, entry, tail):
        try:
            place = inside(root, name, path)
        except DataError:
            continue
        if place.exists():
            return place
    raise DataError(
        f"{key}: {entry[:80]!r} is not there, or outside of the folder of {path.name}",
        where=path,
        do=f"put the images inside {root}, and name them relative to it",
    )


def _images(places: list[Path]) -> list[Path]:
    images: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            images |= dict.fromkeys(list_files(place)[0])
        elif place.suffix.lower() == ".txt":
            rows = [row.strip() for row in read_text(place, MAX_BYTES).splitlines() if row.strip()]
            images |= dict.fromkeys(inside(place.parent, row.removeprefix("./"), place) for row in rows)
        else:
            raise DataError("this is neither a folder nor a .txt list of images", where=place)
    return list(images)


def _names(root: Path) -> dict[int, str] | None:
    for name in NAMES:
        if (root / name).is_file():
            rows = [row.strip() for row in read_text(root / name, MAX_BYTES).splitlines()]
            return dict(enumerate(row for row in rows if row))
    return None
