"""Small pictures with coloured rectangles, written in every format of annotations."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regard.console import Progress
from regard.data.objects import ObjectDataset, read_objects

CLASSES = ("cat", "dog")
SIZES = ((30, 40), (40, 24), (32, 32))
BOXES = (((4, 6, 14, 18), 0), ((10, 8, 22, 28), 1))
"""Corners in pixels, and classes, of the objects of every picture."""


def picture(path: Path, number: int) -> tuple[int, int]:
    """Write a picture with noise that no other has; returns its height and width."""
    height, width = SIZES[number % len(SIZES)]
    pixels = np.random.default_rng(number).integers(0, 90, (height, width, 3), dtype=np.uint8)
    for (left, top, right, bottom), label in BOXES:
        pixels[top:bottom, left:right, label] = 250
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return height, width


def coco_contents(names: list[str], sizes: list[tuple[int, int]], ids: tuple[int, int] = (1, 3)) -> dict[str, Any]:
    images = [
        {"id": 100 + n, "file_name": name, "height": height, "width": width}
        for n, (name, (height, width)) in enumerate(zip(names, sizes, strict=True))
    ]
    annotations = [
        {
            "id": 10 * n + k, "image_id": 100 + n, "category_id": ids[label], "iscrowd": 0, "area": 50.0,
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
        }
        for n in range(len(names))
        for k, ((left, top, right, bottom), label) in enumerate(BOXES)
    ]  # fmt: skip
    categories = [{"id": number, "name": name} for number, name in zip(ids, CLASSES, strict=True)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco(root: Path, images: str = "images", file: str = "annotations/boxes.json", count: int = 6, at: int = 0):
    """`count` pictures in a folder and their annotations; returns these."""
    names = [f"{at + n:03d}.png" for n in range(count)]
    sizes = [picture(root / images / name, at + n) for n, name in enumerate(names)]
    contents = coco_contents(names, sizes)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(json.dumps(contents))
    return contents


def write_yolo(root: Path, images: str, labels: str, count: int = 3, at: int = 0) -> None:
    for n in range(at, at + count):
        height, width = picture(root / images / f"{n:03d}.png", n)
        rows = [
            f"{label} {(x1 + x2) / 2 / width} {(y1 + y2) / 2 / height} {(x2 - x1) / width} {(y2 - y1) / height}"
            for (x1, y1, x2, y2), label in BOXES
        ]
        file = root / labels / f"{n:03d}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(rows))


def voc_text(size: tuple[int, int], boxes: Any = BOXES) -> str:
    objects = "".join(
        f"<object><name>{CLASSES[label]}</name><difficult>{label}</difficult><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for (x1, y1, x2, y2), label in boxes
    )
    return f"<annotation><size><width>{size[1]}</width><height>{size[0]}</height></size>{objects}</annotation>"


def write_voc(root: Path, images: str = "JPEGImages", files: str = "Annotations", count: int = 6, at: int = 0) -> None:
    for n in range(at, at + count):
        size = picture(root / images / f"{n:03d}.png", n)
        (root / files).mkdir(parents=True, exist_ok=True)
        (root / files / f"{n:03d}.xml").write_text(voc_text(size))


def opened(path: Path) -> ObjectDataset:
    return read_objects(path, Progress(quiet=True))
