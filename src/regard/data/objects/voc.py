"""Pascal VOC: an XML file for each image, in a folder Annotations, beside the image, or anywhere in the folder."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from regard.annotations import Annotations
from regard.data.folders import list_files
from regard.data.objects.annotated import Annotated, Read, read_text, split_of
from regard.errors import DataError

MAX_BYTES = 2**22
LAYOUT = "corners in pixels"
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_voc(annotations: Annotations) -> Read:
    root = annotations.root
    pictures, others = list_files(root)
    by_stem: dict[str, list[Path]] = {}
    for path in pictures:
        by_stem.setdefault(path.stem, []).append(path)
    read, splits, unused = Read([], [], LAYOUT), _lists(root), 0
    parsed: list[tuple[Annotated, str, ElementTree.Element]] = []
    files = [path for path in others if path.suffix.lower() == ".xml"]
    used: set[Path] = set()
    for file in files:
        tree = _parse(file)
        if tree.tag != "annotation":
            continue
        where = file.relative_to(root).as_posix()
        near = [p for p in by_stem.get(file.stem, ()) if p.parent == file.parent]
        image = next(iter(near or by_stem.get(file.stem, ())), None)
        if splits and file.stem not in splits:
            unused += 1
            continue
        path = image or file.parent / (tree.findtext("filename") or f"{file.stem}.jpg").rpartition("/")[2]
        used.add(path)
        folders = reversed(path.relative_to(root).parts[:-1])
        split = splits[file.stem] if splits else split_of(*folders)
        item = Annotated(path, path.relative_to(root).as_posix(), split, size=_size(tree))
        read.images.append(item)
        parsed.append((item, where, tree))
    if not parsed:
        raise DataError("there is no annotation for an image", where=root, do="put NAME.xml beside NAME.jpg")
    for stem in splits.keys() - {item.path.stem for item in read.images}:
        path = next(iter(by_stem.get(stem, ())), root / "JPEGImages" / f"{stem}.jpg")
        fault = "it is listed in ImageSets and has no annotation"
        used.add(path)
        read.images.append(Annotated(path, path.relative_to(root).as_posix(), splits[stem], fault=fault))
    if unused:
        read.note("annotated images that no list of ImageSets names, left out", f"{unused} of {len(files)}")
    read.classes = sorted({name for _, _, tree in parsed for name in _names(tree)})
    read.ids = list(range(len(read.classes)))
    for item, where, tree in parsed:
        _add(read, item, where, tree)
    if not splits and any(item.split for item in read.images):
        for item in read.images:
            item.split = item.split or "train"
    return read


def _names(tree: ElementTree.Element) -> list[str]:
    return [name.strip() for each in tree.iter("object") if (name := each.findtext("name"))]


def _add(read: Read, item: Annotated, where: str, tree: ElementTree.Element) -> None:
    # VOC's own files count pixels from 1 and include the last; what tools write today counts edges from 0.
    first = 1.0 if (tree.findtext("source/database") or "").startswith("The VOC") else 0.0
    for number, each in enumerate(tree.iter("object"), start=1):
        place, name = f"{where}, object {number}", (each.findtext("name") or "").strip()
        if not name:
            read.leave_out("without a class", place)
            continue
        try:
            box = [float(each.findtext(f"bndbox/{corner}") or "") for corner in CORNERS]
        except ValueError:
            read.leave_out("not four numbers", place)
            continue
        box[:2] = [value - first for value in box[:2]]
        item.add(box, read.classes.index(name), (each.findtext("difficult") or "0").strip() == "1")


def _size(tree: ElementTree.Element) -> tuple[int, int] | None:
    sides = [(tree.findtext(f"size/{name}") or "").strip() for name in ("height", "width")]
    numbers = [int(side) if re.fullmatch("[0-9]{1,6}", side) else 0 for side in sides]
    return (numbers[0], numbers[1]) if all(numbers) else None


def _parse(path: Path) -> ElementTree.Element:
    """The root of an XML file. A document type is refused: its entities could grow without end, or read files."""
    text = read_text(path, MAX_BYTES)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DataError("the file declares a document type, which annotations have no use for", where=path)
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"not an XML file: {error}", where=path, do="repair or remove it") from None


def _lists(root: Path) -> dict[str, str]:
    """The split of each image by ImageSets/Main: train, val, test; trainval counts where there is no train."""
    folder = next((p for p in (root / "ImageSets" / "Main", root / "ImageSets") if p.is_dir()), None)
    splits: dict[str, str] = {}
    files = {p.stem: p for p in sorted(folder.glob("*.txt"))} if folder else {}
    named = {stem: split for stem in files if (split := split_of(stem))}
    rest = {"trainval": "train"} if "trainval" in files and "train" not in named.values() else {}
    for stem, split in (named | rest).items():
        for row in read_text(files[stem], MAX_BYTES).splitlines():
            name = row.split()[0] if row.strip() else ""
            if name and splits.setdefault(name, split) != split and stem in named:
                what = f"{name} is listed in {splits[name]} and in {split}"
                raise DataError(what, where=files[stem], do="list each image in one split")
    return splits
