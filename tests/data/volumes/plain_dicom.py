"""An independent reader of DICOM folders: pydicom's pixels, put together by the equations of PS3.3 C.7.6.2.1.1."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np


def read_plain(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By series description: the volume (columns, rows, slices), and its affine to right, anterior, superior."""
    from pydicom import dcmread

    groups: dict[str, list[Any]] = defaultdict(list)
    for path in folder.iterdir():
        slice_ = dcmread(path)
        groups[slice_.SeriesInstanceUID].append(slice_)
    volumes = {}
    for slices in groups.values():
        along_row, along_column = np.array(slices[0].ImageOrientationPatient, float).reshape(2, 3)
        normal = np.cross(along_row, along_column)
        slices.sort(key=lambda s: float(np.array(s.ImagePositionPatient, float) @ normal))
        places = np.array([s.ImagePositionPatient for s in slices], float)
        between_rows, between_columns = (float(n) for n in slices[0].PixelSpacing)
        affine = np.eye(4)
        affine[:3, 0], affine[:3, 1] = along_row * between_columns, along_column * between_rows
        affine[:3, 2], affine[:3, 3] = (places[-1] - places[0]) / (len(slices) - 1), places[0]
        affine[:2] *= -1  # left, posterior to right, anterior
        planes = [
            s.pixel_array.T * float(s.get("RescaleSlope", 1)) + float(s.get("RescaleIntercept", 0)) for s in slices
        ]
        volumes[str(slices[0].SeriesDescription)] = np.stack(planes, axis=2), affine
    return volumes


def differences(folder: Path, series: str) -> tuple[float, float]:
    """The largest difference of a voxel, and of the affine, between Regard's volume and the independent one."""
    import nibabel

    from regard.data.volumes import read_scan

    array, affine = read_plain(folder)[series]
    plain = nibabel.as_closest_canonical(nibabel.Nifti1Image(array.astype(np.float64), affine))
    made = read_scan(f"{folder}#{series}").to_ras()
    assert made.array.shape == plain.shape
    voxels = np.abs(made.array - np.asarray(plain.dataobj)).max()
    return float(voxels), float(np.abs(made.affine - plain.affine).max())
