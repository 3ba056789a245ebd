"""Scans made for tests: an asymmetric phantom as NIfTI in any orientation, and as DICOM slices."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

ORIENTATIONS = [
    "".join(letters) for order in itertools.permutations(("RL", "AP", "SI")) for letters in itertools.product(*order)
]
"""All 48 ways in which a volume can be stored."""


def phantom(shape: tuple[int, ...] = (12, 14, 10), seed: int = 0) -> np.ndarray:
    """A block with a border of zeros, brighter to the right, front and top: like no mirror image of itself."""
    draw = np.random.default_rng(seed)
    inner = tuple(side - 4 for side in shape)
    ramps = np.meshgrid(*(np.linspace(0, 1, side) for side in inner), indexing="ij")
    block = 100 + 60 * ramps[0] + 30 * ramps[1] ** 2 + 20 * ramps[2] + 10 * draw.random(inner)
    return np.pad(block, 2).astype(np.float32)


def affine_of(
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0), origin: tuple[float, ...] = (-20.0, 30.0, 5.0)
) -> np.ndarray:
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = origin
    return affine


def save(path: Path, array: np.ndarray, affine: np.ndarray | None = None, orientation: str = "RAS") -> Path:
    """A NIfTI file of an array given in RAS, stored in another orientation by nibabel."""
    import nibabel
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

    image = nibabel.Nifti1Image(array, affine_of() if affine is None else affine)
    turned = image.as_reoriented(ornt_transform(io_orientation(image.affine), axcodes2ornt(orientation)))  # pyright: ignore[reportArgumentType]
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(turned, path)
    return path


def save_dicom(
    folder: Path,
    array: np.ndarray,
    *,
    spacing: tuple[float, ...] = (1.0, 1.0, 2.0),
    series: str = "T1",
    skip: tuple[int, ...] = (),
    double: tuple[int, ...] = (),
    tilt: float = 0.0,
    name: str = "",
    directions: tuple[float, ...] = (1, 0, 0, 0, 1, 0),
    slope: float = 1.0,
    intercept: float = 0.0,
    number: int = 1,
) -> Path:
    """Slices of an array (columns, rows, slices); by default axial ones, whose axes run left, posterior, superior."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True, exist_ok=True)
    uid = generate_uid(entropy_srcs=[str(folder), series])
    numbers = [n for n in range(array.shape[2]) if n not in skip] + list(double)
    normal = np.cross(directions[:3], directions[3:])
    for file_number, place in enumerate(reversed(numbers)):  # not in the order of the slices
        meta: Any = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.4"
        meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[uid, str(file_number)])
        path = folder / f"{series}_{file_number:03d}.dcm"
        slice_: Any = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        slice_.SOPClassUID, slice_.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        slice_.SeriesInstanceUID, slice_.StudyInstanceUID = uid, generate_uid(entropy_srcs=[str(folder)])
        slice_.FrameOfReferenceUID = generate_uid(entropy_srcs=["frame"])
        slice_.SeriesDescription, slice_.SeriesNumber, slice_.Modality = series, number, "MR"
        slice_.PatientName, slice_.PatientID = name, "1"
        slice_.Rows, slice_.Columns = array.shape[1], array.shape[0]
        slice_.PixelSpacing = [spacing[1], spacing[0]]
        slice_.SliceThickness = spacing[2]
        slice_.ImageOrientationPatient = list(directions)
        shift = float(np.tan(np.radians(tilt)) * place * spacing[2])
        slice_.ImagePositionPatient = (np.array([-10.0, 5.0 + shift, 7.0]) + place * spacing[2] * normal).tolist()
        slice_.InstanceNumber = place + 1
        slice_.SamplesPerPixel, slice_.PhotometricInterpretation = 1, "MONOCHROME2"
        slice_.BitsAllocated, slice_.BitsStored, slice_.HighBit, slice_.PixelRepresentation = 16, 16, 15, 0
        slice_.RescaleSlope, slice_.RescaleIntercept = slope, intercept
        slice_.PixelData = array[:, :, place].T.astype("<u2").tobytes()
        slice_.save_as(path, enforce_file_format=True)
    return folder
