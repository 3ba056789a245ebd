"""One scan: its voxels, and where they lie in the patient."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from regard.errors import DataError, missing
from regard.image_groups import MAX_MEGAPIXELS

VOXELS_PER_PIXEL = 8
"""A volume may have so many times the voxels that a picture may have pixels."""
NIFTI = (".nii", ".nii.gz")


@dataclass(frozen=True, eq=False)
class Scan:
    """`array` (i, j, k) float32 as stored; `affine` (4, 4) takes its indices to millimetres: right, anterior, superior.

    It is never guessed: a file that does not say where its voxels lie is refused.
    """

    array: np.ndarray = field(repr=False)
    affine: np.ndarray = field(repr=False)
    path: str
    identifying: tuple[str, ...] = ()
    """Names of fields that may tell who the patient is."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Millimetres from voxel to voxel along each axis of the array."""
        return tuple(float(round(side, 6)) for side in np.linalg.norm(self.affine[:3, :3], axis=0))

    @property
    def orientation(self) -> str:
        """Where each axis of the array leads, such as RAS: right, anterior, superior."""
        order, flipped = axes_to_ras(self.affine)
        letters = [""] * 3
        for out, (axis, flip) in enumerate(zip(order, flipped, strict=True)):
            letters[axis] = ("LPI" if flip else "RAS")[out]
        return "".join(letters)

    def to_ras(self) -> Scan:
        """The same voxels with axes in the order right, anterior, superior: nothing is resampled."""
        order, flipped = axes_to_ras(self.affine)
        array, affine = self.array.transpose(order), self.affine[:, [*order, 3]].copy()
        for axis, flip in enumerate(flipped):
            if flip:
                array = np.flip(array, axis)
                affine[:3, 3] += affine[:3, axis] * (array.shape[axis] - 1)
                affine[:3, axis] *= -1
        return replace(self, array=np.ascontiguousarray(array), affine=affine)


def axes_to_ras(affine: np.ndarray) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """For each of right, anterior, superior: the array's axis that runs along it, and whether it runs the other way."""
    from nibabel.orientations import io_orientation

    ornt = io_orientation(affine)
    order = tuple(int(np.flatnonzero(ornt[:, 0] == out)[0]) for out in range(3))
    return order, tuple(bool(ornt[axis, 1] < 0) for axis in order)


def require_medical(*packages: str) -> None:
    """An error that names the extra, if what reads scans is not installed."""
    for package in packages:
        try:
            __import__(package)
        except ImportError:
            raise missing(package, "medical") from None


def is_nifti(path: str | Path) -> bool:
    return str(path).lower().endswith(NIFTI)


def read_scan(path: str | Path, max_megapixels: float = MAX_MEGAPIXELS, *, constant: bool = False) -> Scan:
    """A NIfTI file, or a folder with one DICOM series; FOLDER#NAME is one of several series in it.

    NaN, infinite, constant and empty volumes are refused; so are sizes beyond the limit, before anything is read.
    With `constant`, as for masks, all voxels may be equal.
    """
    from regard.data.volumes.dicom import read_dicom
    from regard.data.volumes.nifti import read_nifti

    require_medical("nibabel")
    most = round(max_megapixels * 1e6 * VOXELS_PER_PIXEL)
    if is_nifti(path):
        scan = read_nifti(Path(path), most)
    else:
        require_medical("pydicom", "highdicom")
        folder, _, series = str(path).partition("#")
        scan = read_dicom(Path(path if Path(path).exists() else folder), most, "" if Path(path).exists() else series)
    return check_scan(scan, constant)


def check_scan(scan: Scan, constant: bool = False) -> Scan:
    """The same scan, if its voxels are numbers that differ and its axes are at right angles."""
    bad = int((~np.isfinite(scan.array)).sum())
    if bad:
        do = "set them to the value of the background, or leave the subject out"
        raise DataError(f"{bad:,} voxels are NaN or infinite", where=scan.path, do=do)
    low, high = float(scan.array.min()), float(scan.array.max())
    if low == high and not constant:
        what = (
            "the volume is empty: every voxel is 0" if low == 0 else f"the volume is constant: every voxel is {low:g}"
        )
        raise DataError(what, where=scan.path, do="replace the file, or leave the subject out")
    sides = np.linalg.norm(scan.affine[:3, :3], axis=0)
    cosines = scan.affine[:3, :3] / sides
    skewed = np.abs(cosines.T @ cosines - np.eye(3)).max()
    if skewed > 0.01:  # half a degree
        degrees = float(np.degrees(np.arcsin(min(1.0, skewed))))
        raise DataError(
            f"the axes of the volume are not at right angles: {degrees:.1f} degrees off (gantry tilt, or a shear)",
            where=scan.path,
            do="resample it to a straight grid first, for example with dcm2niix",
        )
    return scan


def require_voxels(shape: tuple[int, ...], most: int, path: object) -> None:
    """Refuse a claimed shape before anything of that size is read."""
    from math import prod

    if len(shape) != 3 or min(shape) < 1:
        raise DataError(
            f"the file holds an array of {' × '.join(map(str, shape))}, not one volume",
            where=path,
            do="save each volume (time point, echo, channel) as a file of its own, with three axes",
        )
    if prod(shape) > most:
        needed = -(-prod(shape) // (1_000_000 * VOXELS_PER_PIXEL))
        raise DataError(
            f"the file claims {' × '.join(map(str, shape))} = {prod(shape) / 1e6:,.0f} million voxels; "
            f"up to {most / 1e6:,.0f} million are read",
            where=path,
            do=f"if it is that large, give --max-megapixels {needed}; otherwise remove it",
        )
