"""Boxes as read, checked against the images: misread layouts, boxes that stick out or have no area."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from regard.data.objects.annotated import Annotated, Read
from regard.data.objects.dataset import Objects

OFTEN = 0.5
"""Where fewer boxes than this share fit into their images, the layout may be another."""
NEARLY_ALL = 0.9
"""Share of boxes that must fit in another layout for it to be the right one."""
ENOUGH = 4
"""Boxes below which nothing is said of the layout."""
SLACK = 2.0  # pixels by which a box may stick out of its image and still fit
STICKS_OUT = 0.5  # pixels from which it is said; less is rounding


def _sides(raw: np.ndarray) -> np.ndarray:
    return np.concatenate([raw[:, :2], raw[:, :2] + raw[:, 2:]], axis=1)


def _centred(raw: np.ndarray) -> np.ndarray:
    return np.concatenate([raw[:, :2] - raw[:, 2:] / 2, raw[:, :2] + raw[:, 2:] / 2], axis=1)


_WRITTEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x, y, width, height": _sides,
    "corners": lambda raw: raw,
    "centre, width, height": _centred,
}
LAYOUTS = tuple(f"{name} {unit}" for unit in ("in pixels", "as shares") for name in _WRITTEN)


def to_corners(raw: np.ndarray, layout: str, size: tuple[int, int]) -> np.ndarray:
    """Boxes (n, 4) by corners in pixels.

    >>> to_corners(np.array([[0.5, 0.5, 0.5, 1.0]]), "centre, width, height as shares", (10, 20)).tolist()
    [[5.0, 0.0, 15.0, 10.0]]
    """
    name, _, unit = layout.rpartition(" in " if layout.endswith("pixels") else " as ")
    height, width = size
    return _WRITTEN[name](raw) * (np.array([width, height] * 2) if unit == "shares" else 1.0)


def _fits(corners: np.ndarray, size: tuple[int, int]) -> Any:
    """Which of the boxes have at least a pixel and lie in the image."""
    height, width = size
    large = np.all(corners[:, 2:] - corners[:, :2] >= 1, axis=1)
    return large & np.all((corners >= -SLACK) & (corners <= np.array([width, height] * 2) + SLACK), axis=1)


def misread(read: Read, shapes: list[tuple[int, int] | None]) -> tuple[str, str] | None:
    """What is wrong with the layout, and what to do, if most boxes leave their images and fit in another layout."""
    known = [(np.array(a.boxes), shape) for a, shape in zip(read.images, shapes, strict=True) if shape and a.boxes]
    total = sum(len(raw) for raw, _ in known)
    if total < ENOUGH:
        return None
    shares = {
        layout: sum(int(_fits(to_corners(raw, layout, shape), shape).sum()) for raw, shape in known) / total
        for layout in LAYOUTS
    }
    words = read.layout.split()
    best = max(
        LAYOUTS, key=lambda layout: (shares[layout], layout.split()[:-2] == words[:-2], layout.endswith(words[-1]))
    )
    if shares[read.layout] >= OFTEN or shares[best] < NEARLY_ALL:
        return None
    return (
        f"boxes are read as {read.layout}, and {1 - shares[read.layout]:.0%} of them do not fit into their images so; "
        f"as {best}, {shares[best]:.0%} fit",
        f"write them as {read.layout}, as the format asks for",
    )


def shifted(read: Read) -> tuple[str, str] | None:
    """What is wrong with the ids of classes, and what to do, if boxes count them from another number than names do."""
    used = {read.ids[label] for image in read.images for label in image.labels} | read.unknown
    for step in (1, -1):
        if read.unknown and {number - step for number in used} <= set(read.ids):
            return (
                f"boxes have the class ids {min(used)} to {max(used)}, and the classes {min(read.ids)} to "
                f"{max(read.ids)}: one counts from 0 and the other from 1",
                f"{'subtract 1 from' if step > 0 else 'add 1 to'} the ids of the boxes, or name the classes by theirs",
            )
    return None


def checked(image: Annotated, shape: tuple[int, int], read: Read) -> Objects:
    """The objects of one image: boxes clipped to it, what is no box left out, and both said in `read`."""
    if not image.boxes:
        return Objects.of()
    raw, (height, width) = np.array(image.boxes, dtype=np.float64), shape
    corners = to_corners(raw, read.layout, shape)
    inside = np.clip(corners, 0, np.array([width, height] * 2))
    kept: list[int] = []
    seen: set[tuple[float, ...]] = set()
    for n, (box, cut) in enumerate(zip(corners.tolist(), inside.tolist(), strict=True)):
        where = f"{image.key}: {read.classes[image.labels[n]]} {_shown(box)}"
        if not np.isfinite(box).all():
            read.leave_out("not finite numbers", where)
        elif box[2] <= box[0] or box[3] <= box[1]:
            read.leave_out("without area", where)
        elif cut[2] <= cut[0] or cut[3] <= cut[1]:
            read.leave_out("outside of the image", f"{where} of {width} × {height}")
        else:
            kept.append(n)
            if max(abs(a - b) for a, b in zip(box, cut, strict=True)) > STICKS_OUT:
                read.note("boxes that stick out of their image, clipped", f"{where} of {width} × {height}")
            if (*cut, image.labels[n]) in seen:
                read.note("boxes that are there twice, kept", where)
            seen.add((*cut, image.labels[n]))
    segments = [_clamped(image.segments[n], shape, read) for n in kept]
    if any(image.segments[n] and not own for n, own in zip(kept, segments, strict=True)):
        read.note("images with outlines of another size than the image, left out", image.key)
    return Objects.of(
        inside[kept],
        [image.labels[n] for n in kept],
        [image.crowd[n] for n in kept],
        [image.area[n] for n in kept],
        segments if any(segments) else None,
    )


def _clamped(segment: Any, shape: tuple[int, int], read: Read) -> Any:
    """Polygons in pixels of the image, run-length codes of its size; None if there is no outline."""
    height, width = shape
    if isinstance(segment, dict):
        return segment if segment["size"] == [height, width] else None
    unit = np.array([width, height]) if read.layout.endswith("shares") else 1.0
    polygons = [np.array(row, dtype=np.float64).reshape(-1, 2) * unit for row in segment or ()]
    return [np.clip(points, 0, [width, height]).flatten().tolist() for points in polygons] or None


def _shown(box: list[float]) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in box) + ")"
