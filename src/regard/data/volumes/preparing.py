"""From a subject's scans to one array: reoriented, on one grid, cropped, resampled, normalised."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from regard.data.volumes.frame import ScanFrame
from regard.data.volumes.scan import Scan, axes_to_ras, read_scan
from regard.errors import DataError
from regard.geometry import Frame

SAME_PLACE = 0.1
"""Share of a voxel by which the corners of two grids may differ to be the same grid."""
LEAST_SHARED = 0.5
"""Share of the first scan's volume that another one must show."""
DARK = 0.1
"""Share of the intensities' range up to which voxels are air, where most of the outer faces are."""
PLANE = 0.01
"""Share of a plane's voxels that must be foreground for it to count, where air is noisy."""


@dataclass(frozen=True)
class Subject:
    """One row of the table: a path for each scan, "" where there is none, and masks by column."""

    key: str
    scans: tuple[str, ...]
    masks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """How scans become a network's input."""

    scans: tuple[str, ...]
    """Names of the channels: columns of the table."""
    spacing: tuple[float, ...]
    """Millimetres per voxel: right, anterior, superior."""
    size: tuple[int, ...]
    foreground: bool = True
    """Whether the air around the patient is cropped."""
    intensity: str = "zscore"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Prepared(NamedTuple):
    """A network's input before its own normalisation, and where it lies in the first scan's file."""

    pixels: Tensor
    """(channels, *size) float32."""
    frame: ScanFrame
    name: str = ""
    masks: tuple[tuple[str, str], ...] = ()
    """The subject's masks: column and path."""


class Loaded(NamedTuple):
    """A subject's scans on the grid of the first, with axes right, anterior, superior."""

    scans: list[Scan]
    """As stored."""
    channels: list[np.ndarray]
    affine: np.ndarray
    foregrounds: list[np.ndarray | None]
    """True in the patient; None: no air was recognised, all counts."""
    box: tuple[tuple[int, int], ...]
    """(start, stop) of the union of the foregrounds on each axis."""
    resampled: list[int]
    """Numbers of the scans that were on another grid."""


def load_subject(subject: Subject, names: tuple[str, ...], max_megapixels: float) -> Loaded:
    """Every scan of a subject on one grid; what is wrong is named by scan."""
    scans: list[Scan] = []
    for name, path in zip(names, subject.scans, strict=True):
        if not path:
            do = "add the scan to the table, train without this column (--scans), or leave the subject out"
            raise DataError(f"there is no {name} scan", where=subject.key, do=do)
        try:
            scans.append(read_scan(path, max_megapixels))
        except DataError as error:
            raise DataError(f"{name}: {error.what}", where=error.where, do=error.do) from None
    straight = [scan.to_ras() for scan in scans]
    first, channels, moved = straight[0], [straight[0].array], list[int]()
    for number, scan in enumerate(straight[1:], start=1):
        if not same_grid(first, scan):
            moved.append(number)
            scan = _on_grid(first, scan, names[0], names[number])
        channels.append(scan.array)
    foregrounds = [foreground(array) for array in channels]
    boxes = [
        tuple((0, side) for side in array.shape) if inside is None else _box(inside)
        for array, inside in zip(channels, foregrounds, strict=True)
    ]
    box = tuple((min(b[axis][0] for b in boxes), max(b[axis][1] for b in boxes)) for axis in range(3))
    return Loaded(scans, channels, first.affine, foregrounds, box, moved)


def prepare(loaded: Loaded, plan: Plan, name: str = "") -> Prepared:
    """The middle of the foreground at the middle of the input, at the plan's spacing; outside of the scan is 0."""
    import torch

    shape = loaded.channels[0].shape
    box = loaded.box if plan.foreground else tuple((0, side) for side in shape)
    spacing = np.linalg.norm(loaded.affine[:3, :3], axis=0)
    window = []
    for (start, stop), own, wanted, size in zip(box, spacing, plan.spacing, plan.size, strict=True):
        length = size * wanted / float(own)
        window.append(((start + stop) / 2 - length / 2, length))
    channels = []
    for array, inside in zip(loaded.channels, loaded.foregrounds, strict=True):
        values, outside = normalised(array, inside, plan.intensity)
        for axis, ((start, length), size) in enumerate(zip(window, plan.size, strict=True)):
            values = _resampled(values - outside, axis, start, length, size) + outside
        channels.append(values)
    first = loaded.scans[0]
    order, flipped = axes_to_ras(first.affine)
    frame = Frame(tuple(shape), plan.size, tuple(window))
    affine = tuple(tuple(float(n) for n in row) for row in first.affine)
    pixels = torch.from_numpy(np.stack(channels).astype(np.float32))
    return Prepared(pixels, ScanFrame(frame, order, flipped, affine), name)


def normalised(array: np.ndarray, inside: np.ndarray | None, intensity: str) -> tuple[np.ndarray, float]:
    """The intensities of one scan, and the value outside of it. Statistics are of its own foreground."""
    if intensity == "raw":
        return array, float(array.min())
    values = array[inside] if inside is not None else array
    if intensity == "percentiles":
        low, high = (float(n) for n in np.percentile(values, (1, 99)))
        made = np.clip((array - low) / max(high - low, 1e-6), 0, 1)
    else:
        made = (array - float(values.mean())) / max(float(values.std()), 1e-6)
    return (made if inside is None else np.where(inside, made, 0)).astype(np.float32), 0.0


def foreground(array: np.ndarray) -> np.ndarray | None:
    """Where the patient is: not the one value that most voxels of the outer faces have, or brighter than dark air.

    None where most of the faces are neither: the scan is filled.
    """
    faces = np.concatenate([array.take(at, axis).ravel() for axis in range(3) for at in (0, -1)])
    values, counts = np.unique(faces, return_counts=True)
    if counts.max() >= 0.5 * len(faces):
        inside = array != values[counts.argmax()]
        return inside if inside.any() else None
    low, high = np.percentile(array[::2, ::2, ::2], (0.5, 99.5))
    dark = low + DARK * (high - low)
    if (faces <= dark).mean() < 0.5:
        return None
    inside = array > dark
    for axis in range(3):  # a plane of noise alone is air
        share = inside.mean(tuple(other for other in range(3) if other != axis))
        shape = [-1 if axis == other else 1 for other in range(3)]
        inside &= (share > PLANE).reshape(shape)
    return inside if inside.any() else None


def _box(inside: np.ndarray) -> tuple[tuple[int, int], ...]:
    sides = []
    for axis in range(3):
        there = np.flatnonzero(inside.any(tuple(other for other in range(3) if other != axis)))
        sides.append((int(there[0]), int(there[-1]) + 1))
    return tuple(sides)


def same_grid(first: Scan, other: Scan) -> bool:
    """Whether two scans have the same voxels in the same places, whatever the order of their axes in the file."""
    if first.shape != other.shape:
        return False
    corners = np.array([[*c, 1] for c in np.ndindex(2, 2, 2)]) * [*first.shape, 1]
    away = np.abs((first.affine - other.affine) @ corners.T)[:3].max()
    return bool(away <= SAME_PLACE * min(first.spacing))


def _on_grid(first: Scan, other: Scan, name: str, other_name: str) -> Scan:
    """The other scan at the first one's voxels, by linear interpolation."""
    from scipy.ndimage import affine_transform

    between = np.linalg.inv(other.affine) @ first.affine
    lines = [np.linspace(0, side - 1, 9) for side in first.shape]
    points = np.stack([g.ravel() for g in np.meshgrid(*lines, indexing="ij")] + [np.ones(9**3)])
    there = (between @ points)[:3]
    limits = np.array(other.shape)[:, None]
    shared = float(((there >= -0.5) & (there <= limits - 0.5)).all(0).mean())
    if shared < LEAST_SHARED:
        raise DataError(
            f"{name} and {other_name} show different places: {other_name} covers {shared:.0%} of {name}",
            where=other.path,
            do=f"register {other_name} to {name} first, or train without it (--scans)",
        )
    array = affine_transform(
        other.array,
        between[:3, :3],
        between[:3, 3],  # pyright: ignore[reportArgumentType]
        first.shape,
        order=1,
        mode="constant",
        cval=float(other.array.min()),
    )
    if array.min() == array.max():
        raise DataError(f"{other_name} shows nothing where {name} lies", where=other.path, do="register them first")
    return Scan(array.astype(np.float32), first.affine, other.path, other.identifying)


def _resampled(array: np.ndarray, axis: int, start: float, length: float, size: int) -> np.ndarray:
    """One axis's window (start, length) as `size` voxels: linear, over as many voxels as one new voxel covers.

    New voxels whose middle lies outside of the array are 0.
    """
    old = array.shape[axis]
    middles = start + (np.arange(size) + 0.5) * length / size - 0.5
    reach = max(1.0, length / size)
    weights = np.maximum(0, 1 - np.abs(np.arange(old)[None] - middles[:, None]) / reach)
    inside = (middles >= -0.5) & (middles <= old - 0.5)
    total = weights.sum(1, keepdims=True)
    weights = np.where(inside[:, None], weights / np.maximum(total, 1e-12), 0).astype(np.float32)
    return np.moveaxis(np.tensordot(weights, array, axes=(1, axis)), 0, axis)
