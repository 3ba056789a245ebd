"""Images with panoptic maps: things and stuff as objects with boxes, and the map of their pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.annotations import Annotations
from regard.data.objects.annotated import Annotated, Read, inside
from regard.data.objects.coco import LAYOUT, files_by_split, image_folders
from regard.data.objects.dataset import ObjectDataset
from regard.data.objects.panoptic import PanopticFile, PanopticImage, read_ids, read_panoptic
from regard.errors import DataError


@dataclass
class PanopticDataset(ObjectDataset):
    """Objects are the segments of panoptic maps: things, and stuff, of which each class has one segment per image."""

    things: tuple[bool, ...] = ()
    """Of each class, whether it is one of things."""
    maps: list[Path] = field(default_factory=list, repr=False)
    """The PNG of each sample."""

    @property
    def has_masks(self) -> bool:
        return True

    def ids(self, number: int) -> np.ndarray:
        """The number of each pixel's segment in a sample's map (height, width), 0 for none."""
        return read_ids(self.maps[number])

    def segment_ids(self, number: int) -> list[int]:
        """The number of each object in the sample's map."""
        return [segment["id"] for segment in self.objects[number].segments or ()]

    def outlines(self, number: int) -> Tensor:
        ids = torch.from_numpy(self.ids(number))
        return ids == torch.tensor(self.segment_ids(number)).reshape(-1, 1, 1)

    def lines(self, splits: Sequence[str]) -> list[str]:
        things, stuff = (
            [name for name, thing in zip(self.source.classes, self.things, strict=True) if thing is kind]
            for kind in (True, False)
        )
        words = [f"{len(own)} of {kind}" for own, kind in ((things, "things"), (stuff, "stuff"))]
        return [f"classes: {', '.join(words)}", *super().lines(splits)]

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        things = dict(zip(self.source.classes, self.things, strict=True))
        return super().to_json(splits, note) | {"things": things}


def read_panoptic_annotations(annotations: Annotations) -> Read:
    """All files of a data set, whose maps are compared with the JSON files: an image with a wrong one is at fault."""
    files, folders = files_by_split(annotations)
    loaded = {path: read_panoptic(path) for path in files}
    first = next(iter(loaded.values()))
    for path, held in loaded.items():
        if (held.classes, held.class_ids, held.things) != (first.classes, first.class_ids, first.things):
            raise DataError("the files do not have the same categories", where=path, do=f"{first.path.name} has others")
    read = Read(list(first.classes), list(first.class_ids), LAYOUT, folders=folders, things=list(first.things))
    for path, held in loaded.items():
        _add(read, held, files[path], annotations.root)
    read.leave_out_copies(annotations.root)
    return read


def _add(read: Read, held: PanopticFile, split: str | None, root: Path) -> None:
    names = [inside(Path(), image.file_name, held.path) for image in held.images]
    read.image_folders.append(image_folders(names, held.path, split, root))
    folder = read.image_folders[-1][0]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = list(pool.map(_fault, held.images))
    for image, name, fault in zip(held.images, names, faults, strict=True):
        file = folder / name
        own = Annotated(
            file, file.relative_to(root).as_posix(), split, size=image.size, fault=fault, panoptic_map=image.map
        )
        for segment in image.segments:
            left, top, right, bottom = segment.box
            outline = {"size": list(image.size), "id": segment.number}
            box = [left, top, right - left, bottom - top]
            own.add(box, segment.label, segment.crowd, segment.area, outline)
        read.images.append(own)


def _fault(image: PanopticImage) -> str:
    try:
        image.read_ids()
    except DataError as error:
        return f"{error.what} ({image.map.name})"
    return ""
