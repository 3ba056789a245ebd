"""COCO's panoptic format: a JSON file, and a PNG per image that holds the number of each pixel's segment.

A pixel's number is R + 256 G + 256² B; 0 is no segment. The PNGs lie in the folder of the JSON file's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.config import read_json
from regard.data.images import read_image
from regard.errors import DataError, RunError
from regard.image_groups import MAX_MEGAPIXELS

MAX_JSON = 2**30
"""Bytes of a JSON file that are read; COCO's own has 0.4 · 10⁹."""
MAX_ID = 2**24 - 1
VOID = 0
SHOWN = 5


class Segment(NamedTuple):
    """A part of an image: its number in the map, class, box by corners in the file's pixels, area, crowd or not."""

    number: int
    label: int
    box: tuple[float, float, float, float]
    area: int
    crowd: bool = False


@dataclass(frozen=True)
class PanopticImage:
    """The annotation of one image: the image's id, file and size, the PNG of its map, and its segments."""

    image_id: Any
    file_name: str
    size: tuple[int, int]
    map: Path
    segments: tuple[Segment, ...]

    def read_ids(self, max_megapixels: float = MAX_MEGAPIXELS) -> np.ndarray:
        """The number of each pixel's segment (H, W); an error if they are not those of the annotation."""
        ids = read_ids(self.map, max_megapixels)
        if ids.shape != self.size:
            raise DataError(f"the map has {_size(ids.shape)} pixels, and the image {_size(self.size)}", where=self.map)
        here, known = set(np.unique(ids).tolist()) - {VOID}, {segment.number for segment in self.segments}
        for missing, what in (
            (here - known, "in the PNG that the JSON does not name"),
            (known - here, "in the JSON that the PNG does not show"),
        ):
            if missing:
                raise DataError(
                    f"there are segments {what}: {_some(sorted(missing))}",
                    where=self.map,
                    do="write both again from one source",
                )
        return ids


@dataclass(frozen=True)
class PanopticFile:
    """What a JSON file holds: classes with their ids as written and which of them are things, and annotated images."""

    path: Path
    classes: tuple[str, ...]
    class_ids: tuple[int, ...]
    things: tuple[bool, ...]
    images: tuple[PanopticImage, ...]


def read_panoptic(path: str | Path, maps: str | Path | None = None) -> PanopticFile:
    """Read a JSON file; `maps` is the folder of its PNGs, if that is not of the same name. No PNG is opened yet."""
    path = Path(path).expanduser()
    maps = path.with_suffix("") if maps is None else Path(maps).expanduser()
    held = _load(path)
    if not maps.is_dir():
        raise DataError("the folder of the panoptic PNGs is missing", where=maps, do=f"it belongs to {path.name}")
    names, ids, things = _categories(held["categories"], path)
    images = {image["id"]: image for image in held["images"]}
    number = {own: n for n, own in enumerate(ids)}
    annotated, seen = list[PanopticImage](), set[Any]()
    for row in held["annotations"]:
        where = f"{path}: image {row.get('image_id')!r}"
        image = images.get(row.get("image_id"))
        if image is None or row["image_id"] in seen:
            why = "annotated twice" if image else "not among the images"
            raise DataError(f"an annotation's image is {why}", where=where)
        seen.add(row["image_id"])
        png = maps / str(row["file_name"])
        if png.resolve().parent != maps.resolve() or not png.is_file():
            raise DataError("a panoptic PNG is missing", where=png, do=f"{path.name} names it")
        segments = tuple(_segment(segment, number, where) for segment in row["segments_info"])
        if len({segment.number for segment in segments}) < len(segments):
            raise DataError("two segments of one image have the same id", where=where)
        size = int(image["height"]), int(image["width"])
        annotated.append(PanopticImage(row["image_id"], str(image["file_name"]), size, png, segments))
    return PanopticFile(path, names, ids, things, tuple(annotated))


def read_ids(path: Path, max_megapixels: float = MAX_MEGAPIXELS) -> np.ndarray:
    """The number of each pixel's segment (H, W) from a panoptic PNG."""
    pixels, mode = read_image(path, max_megapixels)
    if mode != "RGB":
        raise DataError(f"a panoptic PNG has three channels of 8 bits; this one is {mode}", where=path)
    red, green, blue = pixels.numpy().astype(np.int64)
    return red + 256 * green + 65536 * blue


def write_panoptic(
    path: str | Path,
    images: Iterable[tuple[Mapping[str, Any], np.ndarray, Sequence[Mapping[str, Any]]]],
    categories: Sequence[Mapping[str, Any]],
) -> Path:
    """Write a JSON file and the folder of its PNGs, which must both be new.

    `images` are COCO's words for each (`id`, `file_name`, `height`, `width`), its map (H, W), and COCO's words for its
    segments (at least `id` and `category_id`); box and area are those of the map.
    """
    from PIL import Image

    path = Path(path).expanduser()
    maps = path.with_suffix("")
    if path.exists() or maps.exists():
        raise DataError("there is something there already", where=path if path.exists() else maps)
    maps.mkdir(parents=True)
    listed, rows = list[dict[str, Any]](), list[dict[str, Any]]()
    for image, ids, segments in images:
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= MAX_ID:
            raise DataError(f"segments are numbered 1 to {MAX_ID:,}", where=image["file_name"])
        name = f"{Path(str(image['file_name'])).stem}.png"
        while (maps / name).exists():  # images of one name in several folders
            name = f"{Path(name).stem}-{image['id']}.png"
        Image.fromarray(to_colours(ids)).save(maps / name)
        held = [dict(segment) | measured(ids == segment["id"]) for segment in segments]
        listed.append(dict(image))
        rows.append({"image_id": image["id"], "file_name": name, "segments_info": held})
    text = json.dumps({"images": listed, "annotations": rows, "categories": [dict(entry) for entry in categories]})
    path.write_text(text, encoding="utf-8")
    return path


def to_colours(ids: np.ndarray) -> np.ndarray:
    """The pixels (H, W, 3) of a panoptic PNG.

    >>> to_colours(np.array([[1 + 2 * 256 + 3 * 65536]])).tolist()
    [[[1, 2, 3]]]
    """
    return np.stack([ids >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)


def measured(mask: np.ndarray) -> dict[str, Any]:
    """COCO's words for a mask: `bbox` (x, y, width, height) and `area`.

    >>> measured(np.array([[False, True, True], [False, False, True]]))
    {'bbox': [1, 0, 2, 2], 'area': 3}
    """
    rows, columns = (np.flatnonzero(mask.any(axis)).tolist() for axis in (1, 0))
    box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1] if rows else [0, 0, 0, 0]
    return {"bbox": box, "area": int(mask.sum())}


def _load(path: Path) -> dict[str, list[Any]]:
    try:
        held = read_json(path, MAX_JSON)
    except RunError as error:
        raise DataError(error.what, where=path, do=error.do) from None
    wanted = {
        "images": {"id", "file_name", "height", "width"},
        "annotations": {"image_id", "file_name", "segments_info"},
        "categories": {"id", "name", "isthing"},
    }
    for name, keys in wanted.items():
        rows = held.get(name) if isinstance(held, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and keys <= row.keys() for row in rows):
            what = f"{name!r} is not a list of entries with {', '.join(sorted(keys))}"
            raise DataError(f"this is not COCO's panoptic format: {what}", where=path)
    return held


def _categories(rows: list[dict[str, Any]], path: Path) -> tuple[tuple[str, ...], tuple[int, ...], tuple[bool, ...]]:
    """Names, ids and which are things, in the order of the ids."""
    try:
        rows = sorted(rows, key=lambda row: int(row["id"]))
        ids, things = tuple(int(row["id"]) for row in rows), tuple(bool(int(row["isthing"])) for row in rows)
    except (TypeError, ValueError):
        raise DataError("ids of categories and isthing are whole numbers", where=path) from None
    names = tuple(str(row["name"]) for row in rows)
    if not names or len(set(ids)) < len(ids) or len(set(names)) < len(names):
        raise DataError("there are no categories, or two of one id or name", where=path)
    return names, ids, things


def _segment(row: Any, number: Mapping[int, int], where: str) -> Segment:
    try:
        own, category = int(row["id"]), int(row["category_id"])
        x, y, width, height = (float(side) for side in row["bbox"])
        area, crowd = int(row["area"]), bool(int(row.get("iscrowd", 0)))
    except (AttributeError, KeyError, TypeError, ValueError):
        what = "a segment has no id, category_id, bbox of four numbers or area"
        raise DataError(what, where=where) from None
    if category not in number:
        raise DataError(f"a segment's category {category} is not among the categories", where=where)
    if not 1 <= own <= MAX_ID:
        raise DataError(f"a segment has the id {own}; a PNG holds 1 to {MAX_ID:,}", where=where)
    return Segment(own, number[category], (x, y, x + width, y + height), area, crowd)


def _size(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _some(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(map(str, ids[:SHOWN])) + more
