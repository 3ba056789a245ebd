"""From annotated files to a checked dataset."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from regard.annotations import Annotations, find_annotations, find_panoptic
from regard.console import Progress
from regard.data.dataset import existing_path
from regard.data.folders import list_files, not_used
from regard.data.objects.annotated import Read
from regard.data.objects.checks import checked, misread, shifted
from regard.data.objects.coco import read_coco
from regard.data.objects.dataset import ObjectDataset, Objects
from regard.data.objects.panoptic_dataset import PanopticDataset, read_panoptic_annotations
from regard.data.objects.voc import read_voc
from regard.data.objects.yolo import read_yolo
from regard.data.scanner import ImageDataset, scan
from regard.data.source import Files, Sample, Source
from regard.errors import DataError, counted
from regard.image_groups import ObjectData

READERS = {"COCO": read_coco, "YOLO": read_yolo, "VOC": read_voc, "COCO panoptic": read_panoptic_annotations}
KNOWN = "COCO JSON, a YOLO folder with data.yaml, Pascal VOC, or COCO's panoptic PNG and JSON"
FEW_IMAGES = 2000
KEPT_SIDE = 1280
"""Images of up to so many pixels on a side are kept in memory, where there are few."""


def read_objects(data: str | Path, progress: Progress, how: ObjectData | None = None) -> ObjectDataset:
    """Read annotations (COCO JSON, YOLO, Pascal VOC, COCO panoptic) and every image once, saying what they are."""
    how = how or ObjectData()
    path = existing_path(data, KNOWN)
    annotations = _find(path, how.stuff)
    read = READERS[annotations.kind](annotations)
    for line in read.folders:
        progress.say(f"left out: {line}")
    twice = [key for key, count in Counter(image.key for image in read.images).items() if count > 1]
    if twice:
        more = f" (and {counted(len(twice) - 1, 'others')})" if len(twice) > 1 else ""
        raise DataError(f"{twice[0]}{more} is listed more than once", where=annotations.root, do="list each image once")
    source = _source(read, path.resolve().name, annotations, how)
    with progress.bar("reading", len(source.samples)) as tick:
        side = KEPT_SIDE if len(source.samples) <= FEW_IMAGES else None
        scanned = scan(source, lambda done, total: tick(done), side)
    dataset = _dataset(read, scanned, str(data))
    if source.ignored:
        progress.say(f"not part of the data: {counted(len(source.ignored), 'images')} (`regard check` lists them)")
    return dataset


def _find(path: Path, stuff: bool | None) -> Annotations:
    """Panoptic annotations, with `stuff`, or others; where that is not said, others if there are any."""
    annotations = None if stuff else find_annotations(path)
    if annotations is None and stuff is not False:
        annotations = find_panoptic(path)
    if annotations is None:
        kind = "panoptic maps" if stuff else "boxes"
        raise DataError(f"there are no {kind} that can be read", where=path, do=f"give {KNOWN}")
    return annotations


def _source(read: Read, name: str, annotations: Annotations, how: ObjectData) -> Source:
    samples = tuple(Sample(image.key, min(image.labels, default=0), image.split) for image in read.images)
    paths = [image.path for image in read.images]
    maps = [image.panoptic_map for image in read.images if image.panoptic_map]
    around = Path(os.path.commonpath([path.parent for path in paths]))
    there = list_files(around)[0] if around.is_dir() else []
    return Source(
        name=name,
        kind=annotations.kind,
        why=annotations.why,
        classes=tuple(read.classes),
        samples=samples,
        reader=Files(paths, how.max_megapixels),
        ignored=not_used(annotations.root, [*paths, *maps], there),
        left_out=tuple(read.folders),
    )


def _dataset(read: Read, scanned: ImageDataset, path: str) -> ObjectDataset:
    """Images with their checked boxes; those whose annotation cannot be theirs count as unreadable."""
    shapes = [(shape[0], shape[1]) if shape else None for shape in scanned.shapes]
    wrong = misread(read, shapes), shifted(read)
    objects: list[Objects] = []
    for number, (image, shape) in enumerate(zip(read.images, shapes, strict=True)):
        fault = image.fault
        if shape and image.size and image.size != shape:
            turned = " (perhaps turned by its EXIF tag)" if image.size == shape[::-1] else ""
            (high, wide), (own_high, own_wide) = image.size, shape
            fault = f"it has {own_wide} × {own_high} pixels, and its boxes are for {wide} × {high}{turned}"
        if shape and fault:
            scanned.unreadable.append((image.key, fault))
            scanned.digests[number], shape = None, None
        objects.append(checked(image, shape, read) if shape else Objects.of())
    for image, item, digest in zip(read.images, objects, scanned.digests, strict=True):
        if digest and not len(item):
            read.note("images without an object", image.key)
    held: dict[str, Any] = {f.name: getattr(scanned, f.name) for f in fields(ImageDataset)} | {"path": path}
    held |= {
        "objects": objects,
        "class_ids": tuple(read.ids),
        "left_out": read.left_out,
        "notes": read.notes,
        "errors": [each for each in wrong if each],
    }
    if read.things is None:
        return ObjectDataset(**held)
    maps = [image.panoptic_map for image in read.images if image.panoptic_map]
    return PanopticDataset(**held, things=tuple(read.things), maps=maps)
