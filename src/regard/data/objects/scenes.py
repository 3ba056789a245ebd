"""Made scenes with known boxes, masks and regions: hand-written digits (things) on textures (stuff).

Written to disk in COCO's two formats, instances and panoptic, so that they are read as anyone's data is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.objects.panoptic import measured, write_panoptic
from regard.errors import ConfigError, DataError

THINGS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STUFF = ("stripes", "checks", "noise")
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
"""Of the digits' pictures: no picture is in two splits."""
MOST = 4
"""Digits of a scene."""
HEIGHTS = (0.25, 0.5)
"""Smallest and largest height of a digit, as a share of the scene's side."""
INK = 0.35
"""Share of full ink from which a pixel belongs to its digit."""

Array = np.ndarray


@dataclass(frozen=True)
class Scene:
    """Pixels (side, side, 3), the number of the segment that each pixel belongs to (side, side), and each segment's
    number and category: 1 to 10 are things, 11 to 13 stuff."""

    pixels: Array
    ids: Array
    categories: dict[int, int]


def write_scenes(
    folder: str | Path, *, train: int = 400, val: int = 100, test: int = 100, size: int = 96, seed: int = 0
) -> Path:
    """Write scenes of `size` × `size` pixels into a new folder: pictures in train, val and test, annotations beside.

    >>> folder = write_scenes(tmp / "scenes", train=2, val=1, test=1, size=64)
    >>> sorted(path.name for path in (folder / "annotations").glob("*train*"))
    ['instances_train.json', 'panoptic_train', 'panoptic_train.json']
    """
    if size < 32:
        raise ConfigError(f"size={size} leaves no room for digits", do="make scenes of at least 32 pixels")
    folder, counts = Path(folder).expanduser(), {"train": train, "val": val, "test": test}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError("there is something there already", where=folder, do="give a new folder")
    pictures = digit_pictures()
    for number, (split, count) in enumerate(counts.items()):
        if count:
            scenes = [draw_scene(pictures[split], size, (seed, number, n)) for n in range(count)]
            _write_split(folder, split, scenes)
    return folder


def draw_scene(digits: tuple[Array, Array], size: int, key: tuple[int, ...]) -> Scene:
    """Two or three textures beside each other, and one to four of these digits (pictures, labels) on them."""
    draw = np.random.default_rng(key)
    pixels, ids, categories = _textures(draw, size)
    boxes: list[tuple[int, int, int, int]] = []
    for _ in range(int(draw.integers(1, MOST + 1))):
        chosen = int(draw.integers(len(digits[0])))
        ink = _scaled(digits[0][chosen], size * draw.uniform(*HEIGHTS), draw.uniform(0.8, 1.25))
        colour = draw.uniform(170, 255, 3)
        place = _free_place(draw, boxes, ink.shape, size)
        if place is None:
            continue
        top, left = place
        rows, columns = slice(top, top + ink.shape[0]), slice(left, left + ink.shape[1])
        inside = ink > INK
        pixels[rows, columns][inside] = (colour * np.clip(0.5 + 0.6 * ink[..., None], 0, 1))[inside]
        boxes.append((top, left, *ink.shape))
        new = _new_id(draw, categories)
        ids[rows, columns][inside] = new
        categories[new] = 1 + int(digits[1][chosen])
    grain = draw.normal(0, 4, pixels.shape)
    left_over = set(np.unique(ids).tolist())
    categories = {number: category for number, category in categories.items() if number in left_over}
    return Scene(np.clip(pixels + grain, 0, 255).astype(np.uint8), ids, categories)


def digit_pictures() -> dict[str, tuple[Array, Array]]:
    """Pictures (n, 8, 8) in 0..1 and labels of each split."""
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    ends = np.cumsum([round(share * len(order)) for share in SHARES.values()])[:-1]
    parts = zip(SHARES, np.split(order, ends), strict=True)
    return {split: (data.images[part] / 16, data.target[part]) for split, part in parts}


def _scaled(picture: Array, height: float, stretch: float) -> Array:
    """A digit's ink at another size, without the empty margin."""
    from PIL import Image

    rows, columns = (np.flatnonzero((picture > INK).any(axis)) for axis in (1, 0))
    # Half a pixel around the ink stays: interpolation would cut strokes at the edge.
    box = (columns[0] - 0.5, rows[0] - 0.5, columns[-1] + 1.5, rows[-1] + 1.5)
    padded = Image.fromarray(np.pad(picture, 1).astype(np.float32))
    width = height * stretch * (box[2] - box[0]) / (box[3] - box[1])
    shape = max(4, round(width)), max(6, round(height))
    ink = np.asarray(padded.resize(shape, Image.Resampling.BILINEAR, box=tuple(side + 1 for side in box)))
    rows, columns = (np.flatnonzero((ink > INK).any(axis)) for axis in (1, 0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _free_place(
    draw: np.random.Generator, boxes: list[tuple[int, int, int, int]], shape: tuple[int, ...], size: int
) -> tuple[int, int] | None:
    """Top and left of a place where a digit covers at most a tenth of any other's box; None if none was drawn."""
    height, width = shape
    for _ in range(30):
        top, left = int(draw.integers(size - height + 1)), int(draw.integers(size - width + 1))
        covered = (
            max(0, min(top + height, y + h) - max(top, y)) * max(0, min(left + width, x + w) - max(left, x)) / (h * w)
            for y, x, h, w in boxes
        )
        if all(share <= 0.1 for share in covered):
            return top, left
    return None


def _textures(draw: np.random.Generator, size: int) -> tuple[Array, Array, dict[int, int]]:
    """The background: regions divided by wavy lines, each another texture of two colours."""
    kinds = draw.permutation(len(STUFF))[: int(draw.integers(2, 4))]
    y, x = np.mgrid[:size, :size] / size - 0.5
    angle = draw.uniform(0, 2 * np.pi)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    along = along + 0.06 * np.sin(across * draw.uniform(4, 12) + draw.uniform(0, 6))
    cuts = np.quantile(along, np.arange(1, len(kinds)) / len(kinds) + draw.uniform(-0.08, 0.08))
    region = np.searchsorted(cuts, along)
    pixels, ids, categories = np.zeros((size, size, 3)), np.zeros((size, size), np.int64), dict[int, int]()
    for place, kind in enumerate(kinds.tolist()):
        inside = region == place
        one, other = draw.uniform(15, 70, 3), draw.uniform(80, 140, 3)
        mix = _texture(STUFF[kind], draw, x * size, y * size)[..., None]
        pixels[inside] = (mix * one + (1 - mix) * other)[inside]
        new = _new_id(draw, categories)
        ids[inside] = new
        categories[new] = len(THINGS) + 1 + kind
    return pixels, ids, categories


def _texture(kind: str, draw: np.random.Generator, x: Array, y: Array) -> Array:
    """How much of the first colour there is at each pixel."""
    if kind == "noise":
        return draw.uniform(0, 1, x.shape)
    angle, width = draw.uniform(0, np.pi), draw.uniform(3, 6)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    bands = np.floor(u / width) if kind == "stripes" else np.floor(u / width) + np.floor(v / width)
    return bands % 2


def _new_id(draw: np.random.Generator, taken: dict[int, int]) -> int:
    """A number that no other segment has, and that is a colour to see in a panoptic PNG."""
    while (number := int(draw.integers(2**16, 2**24))) in taken:
        pass
    return number


def _write_split(folder: Path, split: str, scenes: list[Scene]) -> None:
    from PIL import Image

    (folder / split).mkdir(parents=True)
    panoptic, instances = list[tuple[dict[str, Any], Array, list[dict[str, Any]]]](), list[dict[str, Any]]()
    for number, scene in enumerate(scenes, start=1):
        name, size = f"{number:06d}.png", len(scene.ids)
        Image.fromarray(scene.pixels).save(folder / split / name)
        segments = [{"id": own, "category_id": kind, "iscrowd": 0} for own, kind in scene.categories.items()]
        panoptic.append(({"id": number, "file_name": name, "height": size, "width": size}, scene.ids, segments))
        for segment in segments:
            if segment["category_id"] <= len(THINGS):
                mask = scene.ids == segment["id"]
                own = {"id": len(instances) + 1, "image_id": number} | measured(mask)
                instances.append(segment | own | {"segmentation": {"size": [size, size], "counts": run_lengths(mask)}})
    categories = [
        {"id": number, "name": name, "isthing": int(number <= len(THINGS))}
        for number, name in enumerate((*THINGS, *STUFF), start=1)
    ]
    write_panoptic(folder / "annotations" / f"panoptic_{split}.json", panoptic, categories)
    images, things = [image for image, _, _ in panoptic], [entry for entry in categories if entry["isthing"]]
    text = json.dumps({"images": images, "annotations": instances, "categories": things})
    (folder / "annotations" / f"instances_{split}.json").write_text(text, encoding="utf-8")


def run_lengths(mask: Array) -> list[int]:
    """COCO's uncompressed run lengths: pixels in columns, outside first.

    >>> run_lengths(np.array([[0, 1], [1, 1]], dtype=bool))
    [1, 3]
    """
    flat = np.concatenate([[False], mask.T.ravel()])
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff([0, *edges.tolist(), mask.size]).tolist()
