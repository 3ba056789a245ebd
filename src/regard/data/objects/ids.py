"""The ids that a COCO file gives to images, so that predictions can be scored against it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from regard.config import read_json
from regard.errors import DataError, RunError

MAX_JSON = 2**30


class Listed(NamedTuple):
    """An image as a COCO file lists it."""

    id: int | str
    file_name: str
    size: tuple[Any, ...]
    """Height and width, None where the file does not say."""


class ImageIds:
    """The images of a COCO file, found by their paths."""

    def __init__(self, path: str | Path):
        self.path = Path(path).expanduser()
        try:
            held = read_json(self.path, MAX_JSON)
        except RunError as error:
            raise DataError(error.what, where=self.path) from None
        rows = held.get("images") if isinstance(held, dict) else None
        self.images: dict[str, list[Listed]] = {}
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, dict) or not isinstance(name := row.get("file_name"), str) or not _is_id(row):
                raise DataError("an image has no id or no file_name", where=self.path)
            listed = Listed(row["id"], name.replace("\\", "/"), (row.get("height"), row.get("width")))
            self.images.setdefault(PurePosixPath(listed.file_name).name, []).append(listed)
        if not self.images:
            raise DataError("the file lists no images", where=self.path, do="give a file in COCO's format")

    def find(self, path: str, size: Sequence[int]) -> Listed:
        """The image whose file name the path ends with; its size must be the file's."""
        parts = Path(os.path.abspath(Path(path).expanduser())).parts
        fitting = [
            (len(own), listed)
            for listed in self.images.get(parts[-1], ())
            if (own := PurePosixPath(listed.file_name).parts) == parts[-len(own) :]
        ]
        longest = max((count for count, _ in fitting), default=0)
        found = [listed for count, listed in fitting if count == longest]
        if len(found) != 1:
            what = f"{self.path.name} lists {'several images' if found else 'no image'} of this name"
            raise DataError(what, where=path, do="leave --ids out, or give the file that lists these images")
        if any(own is not None and own != side for own, side in zip(found[0].size, size, strict=True)):
            here, there = (f"{height} × {width}" for height, width in (size, found[0].size))
            raise DataError(f"it has {here} pixels, and in {self.path.name} {there}: it is another image", where=path)
        return found[0]


def _is_id(row: dict[str, Any]) -> bool:
    return isinstance(row.get("id"), int | str) and not isinstance(row["id"], bool)


def relative_names(paths: Sequence[str]) -> list[str]:
    """Names below the folder that holds all of these files.

    >>> relative_names(["a/1.png", "a/2.png"]), relative_names(["a/1.png", "b/1.png"])
    (['1.png', '2.png'], ['a/1.png', 'b/1.png'])
    """
    full = [Path(os.path.abspath(Path(path).expanduser())) for path in paths]
    around = os.path.commonpath([path.parent for path in full]) if full else ""
    return [path.relative_to(around).as_posix() for path in full]
