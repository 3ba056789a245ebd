"""Which format of annotated boxes a path holds: COCO JSON, YOLO, Pascal VOC or COCO panoptic. Free of torch, cheap."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
PEEK = 2**18  # bytes at either end of a JSON file that are looked at
LOOKED_AT = 2000  # files of a folder that are looked at
DEPTH = 3  # folders with nothing beside them that an archive may have put around the data
NOT_BOXES = ("captions", "person_keypoints", "panoptic_", "stuff", "image_info")
"""COCO's own files of other annotations, by their first words."""


@dataclass(frozen=True)
class Annotations:
    """What was found: COCO, YOLO, VOC or COCO panoptic, the reason, the folder that holds all of it, and its files if
    there are few: JSON files of COCO, the YAML file of YOLO."""

    kind: str
    why: str
    root: Path
    files: tuple[Path, ...] = ()


def recognise_objects(path: Path) -> str | None:
    """Why a path holds images with boxes; None if it does not."""
    layout = find_annotations(path) or find_panoptic(path)
    return layout.why if layout else None


def find_panoptic(path: Path) -> Annotations | None:
    """COCO's panoptic annotations at a path: a folder, or a .json file beside the folder of its PNGs."""
    path = path.expanduser()
    if path.is_file():
        if path.suffix.lower() != ".json" or not holds_segments(path):
            return None
        root = path.parent.parent if path.parent.name == "annotations" else path.parent
        return Annotations("COCO panoptic", f"{path.name} holds images and segments", root, (path,))
    if not path.is_dir():
        return None
    files = {p.resolve(): p for place in (path, path / "annotations", *_folders(path)) for p in _files(place, ".json")}
    held = [p for p in files.values() if holds_segments(p)]
    names = ", ".join(p.relative_to(path).as_posix() for p in held)
    return Annotations("COCO panoptic", f"{names} in COCO's panoptic format", path, tuple(held)) if held else None


def find_annotations(path: Path) -> Annotations | None:
    """The annotations at a path: a folder, perhaps inside others that hold nothing else, or a .json or .yaml file."""
    path = path.expanduser()
    if path.is_file():
        if path.suffix.lower() == ".json" and holds_boxes(path):
            root = path.parent.parent if path.parent.name.lower() == "annotations" else path.parent
            return Annotations("COCO", f"{path.name} is in COCO's format", root, (path,))
        if path.suffix.lower() in (".yaml", ".yml") and _is_yolo(path):
            return Annotations("YOLO", f"{path.name} names classes and train and val images", path.parent, (path,))
        return None
    folder = path
    for _ in range(DEPTH if path.is_dir() else 0):
        if layout := _coco(folder) or _yolo(folder) or _voc(folder):
            return layout
        inside = [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))]
        if len(inside) != 1:
            break
        folder = inside[0]
    return _pairs(path) if path.is_dir() else None


def _coco(root: Path) -> Annotations | None:
    places = (root, root / "annotations", *_folders(root))
    files = {p.resolve(): p for place in places for p in _files(place, ".json")}
    held = [p for p in files.values() if not p.name.startswith(NOT_BOXES) and holds_boxes(p)]
    if not held:
        return None
    instances = [p for p in held if p.name.startswith("instances")]
    names = [p.relative_to(root).as_posix() for p in instances or held]
    return Annotations("COCO", f"{', '.join(names)} in COCO's format", root, tuple(instances or held))


def _yolo(root: Path) -> Annotations | None:
    named = [p for ending in (".yaml", ".yml") for p in _files(root, ending) if _is_yolo(p)]
    if named:
        first = next((p for p in named if p.stem == "data"), named[0])
        return Annotations("YOLO", f"{first.name} names classes and train and val images", root, (first,))
    for place in (root, *_folders(root)):
        labels = place / "labels"
        if (place / "images").is_dir() and labels.is_dir() and any(p.suffix == ".txt" for p in _below(labels)):
            inside = "" if place == root else f" in {place.name}"
            return Annotations("YOLO", f"folders images and labels{inside}, with .txt files", root)
    return None


def _voc(root: Path) -> Annotations | None:
    if (root / "Annotations").is_dir() and any(p.suffix == ".xml" for p in _below(root / "Annotations")):
        return Annotations("VOC", "a folder Annotations with .xml files", root)
    return None


def _pairs(root: Path) -> Annotations | None:
    """VOC's annotations beside images, or anywhere else in the folder."""
    stems, xml = dict[str, set[str]](), None
    for path in _below(root):
        kind = "image" if path.suffix.lower() in IMAGES else path.suffix.lower()
        stems.setdefault(path.stem, set()).add(kind)
        xml = xml or (path if kind == ".xml" and b"<annotation" in _start(path) else None)
        if xml and stems[xml.stem] >= {"image", ".xml"}:
            return Annotations("VOC", "images and .xml files of the same names", root)
    return None


def holds_boxes(path: Path) -> bool:
    """Whether a JSON file looks like COCO's of objects; panoptic ones have segments instead."""
    text = _ends(path)
    named = re.search(rb'"(images|annotations|categories)"\s*:\s*\[', text)
    return bool(named) and b'"bbox"' in text and b'"segments_info"' not in text


def holds_segments(path: Path) -> bool:
    """Whether a JSON file looks like COCO's of panoptic segments."""
    return b'"segments_info"' in _ends(path)


def _ends(path: Path) -> bytes:
    """The first and the last bytes of a file."""
    try:
        with path.open("rb") as file:
            head = file.read(PEEK)
            file.seek(max(PEEK, path.stat().st_size - PEEK))
            return head + file.read(PEEK)
    except OSError:
        return b""


def _is_yolo(path: Path) -> bool:
    text = _start(path)
    return all(re.search(rf"^{key}\s*:".encode(), text, re.MULTILINE) for key in ("names", "train"))


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(PEEK)
    except OSError:
        return b""


def _files(folder: Path, ending: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.suffix.lower() == ending and p.is_file())


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))[:LOOKED_AT]


def _below(folder: Path) -> Iterator[Path]:
    """The first files below a folder."""
    walked = (Path(place, name) for place, _, names in os.walk(folder) for name in sorted(names))
    return islice(walked, LOOKED_AT)
