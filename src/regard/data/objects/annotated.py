"""What readers of annotations return, and how they read files safely."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from regard.data.source import split_names
from regard.errors import DataError

_FILLERS = re.compile(r"instances|panoptic|annotations?|coco|labels?|default|via|_+$|^_+", re.IGNORECASE)
"""Words in the names of annotation files that say nothing of the split."""


@dataclass
class Annotated:
    """One image as annotated, before its file is read. `boxes` are four numbers each, in the layout of the format."""

    path: Path
    key: str
    split: str | None = None
    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    area: list[float] = field(default_factory=list)
    segments: list[Any] = field(default_factory=list)
    size: tuple[int, int] | None = None
    """Height and width as the annotation has them."""
    fault: str = ""
    """Why the image cannot be used."""
    panoptic_map: Path | None = None

    def add(self, box: list[float], label: int, crowd: bool = False, area: float = 0.0, segment: Any = None) -> None:
        self.boxes.append(box)
        self.labels.append(label)
        self.crowd.append(crowd)
        self.area.append(area)
        self.segments.append(segment)


@dataclass
class Read:
    """A set of annotations as read."""

    classes: list[str]
    ids: list[int]
    layout: str
    """How its boxes are written: one of `checks.LAYOUTS`."""
    images: list[Annotated] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Boxes left out, by reason."""
    unknown: set[int] = field(default_factory=set)
    """Ids of classes that boxes have and no class has."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    """Files and folders that are not used, with the reason."""
    image_folders: list[list[Path]] = field(default_factory=list)
    """Of each annotation file, the folders that hold images of its names, the one that is read first."""
    things: list[bool] | None = None
    """Of panoptic annotations: whether each class is one of things."""

    def leave_out(self, why: str, where: str) -> None:
        self.left_out.setdefault(why, []).append(where)

    def leave_out_copies(self, root: Path) -> None:
        """Say which folders hold images of the same names and are not read."""
        used, named = {folders[0] for folders in self.image_folders}, dict[Path, Path]()
        for first, *others in self.image_folders:
            named |= {folder: first for folder in others if folder not in used and folder not in named}
        for folder, first in named.items():
            there, here = (place.relative_to(root).as_posix() for place in (folder, first))
            self.folders.append(f"{there}: its images have the same names as those of {here}, which are read")

    def note(self, title: str, line: str) -> None:
        self.notes.setdefault(title, []).append(line)


def read_text(path: Path, most: int) -> str:
    """The text of a file of at most `most` bytes."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise DataError("this is no file", where=path)
        if (size := path.stat().st_size) > most:
            raise DataError(f"the file has {size:,} bytes; at most {most:,} are read", where=path)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the file is not UTF-8: {error}", where=path, do="save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"the file cannot be read: {error}", where=path) from None


def inside(root: Path, name: str, where: object) -> Path:
    """A path that a file names, which must lie within `root`; links there may lead on."""
    plain = name.replace("\\", "/")
    if "://" in name or PurePosixPath(plain).is_absolute() or re.match(r"[A-Za-z]:", plain):
        kind = "an address" if "://" in name else "an absolute path"
        raise DataError(f"{name[:80]!r} is {kind}", where=where, do="give names relative to the folder of the data")
    path = Path(os.path.normpath(plain))
    if ".." in path.parts:
        raise DataError(f"{name[:80]!r} leads out of the folder of the data", where=where, do="keep images inside it")
    return root / path


def split_of(*names: str) -> str | None:
    """The split that the first telling one of these names means.

    >>> split_of("instances_val2017", "annotations"), split_of("_annotations.coco", "valid"), split_of("boxes")
    ('val', 'val', None)
    """
    for name in names:
        bare = _FILLERS.sub(" ", name)
        if splits := split_names([bare]):
            return splits[bare]
    return None
