"""NIfTI files (.nii, .nii.gz), read within limits and written.

The header is read first and what it claims is checked; then exactly the bytes of the voxels are decompressed, however
much more the file would give.
"""

from __future__ import annotations

import gzip
import io
import logging
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from regard.data.arrays import SHARE, free_memory
from regard.data.volumes.scan import Scan, require_voxels
from regard.errors import DataError

SIZES = (348, 540)
"""Bytes of a header, of NIfTI-1 and NIfTI-2."""
MAX_OFFSET = 2**24
"""Bytes before the voxels: header and extensions."""
CHUNK = 2**24
MILLIMETRES = {"meter": 1000.0, "micron": 0.001}
DICOM_EXTENSION = 2
"""Code of an extension that holds a DICOM header."""


class Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    affine: np.ndarray
    offset: int
    slope: float
    intercept: float
    extension: int
    """Code of the first extension; 0: none."""


def read_nifti(path: Path, most: int) -> Scan:
    """The volume, as float32 with the header's scaling."""
    if not path.is_file():
        what = "there is no such file" if not path.exists() else "this is a folder, not a NIfTI file"
        raise DataError(what, where=path, do=f"correct its path, {path}")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
            header = _read_header(stream, path)
            require_voxels(header.shape, most, path)
            wanted = math.prod(header.shape) * header.dtype.itemsize
            _require_room(wanted + 8 * math.prod(header.shape), path)
            if not packed and path.stat().st_size < header.offset + wanted:
                raise EOFError
            array = _read_voxels(stream, header, wanted)
    except DataError:
        raise
    except (EOFError, OSError, zlib.error, ValueError) as error:
        what = "it ends before its last voxel" if isinstance(error, EOFError) else str(error)
        raise DataError(f"the file is damaged: {what}", where=path, do="copy or export it again") from None
    identifying = ("a DICOM header in the NIfTI extension",) if header.extension == DICOM_EXTENSION else ()
    return Scan(array, header.affine, str(path), identifying)


def _require_room(needed: int, path: Path) -> None:
    room = int(SHARE * free_memory())
    if needed > room:
        what = f"the volume needs {needed:,} bytes of memory; this machine has room for {room:,}"
        raise DataError(what, where=path, do="use a machine with more memory, or resample the scan")


def _read_header(stream: BinaryIO, path: Path) -> Header:
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header
    from nibabel.spatialimages import HeaderDataError

    start = stream.read(4)
    size = next((s for s in SIZES for order in ("little", "big") if start == s.to_bytes(4, order)), None)
    if size is None:
        raise DataError("this is no NIfTI file", where=path, do="remove or replace it")
    raw = start + stream.read(size - 4)
    if len(raw) < size:
        raise EOFError
    quiet = logging.Logger("regard.nifti", logging.CRITICAL)
    kind: Any = Nifti1Header if size == SIZES[0] else Nifti2Header
    try:
        header = kind.from_fileobj(io.BytesIO(raw), check=False)
        header.check_fix(logger=quiet, error_level=logging.CRITICAL)
        shape, dtype = tuple(int(side) for side in header.get_data_shape()), np.dtype(header.get_data_dtype())
        oriented = int(header["sform_code"]) > 0 or int(header["qform_code"]) > 0
        affine = np.array(header.get_best_affine(), dtype=np.float64)
        unit = header.get_xyzt_units()[0]
        slope, intercept = (float(header[name]) for name in ("scl_slope", "scl_inter"))
        offset = int(header.get_data_offset())
    except (HeaderDataError, ValueError, KeyError, OverflowError, TypeError) as error:
        raise DataError(f"the header is damaged: {error}", where=path, do="export the scan again") from None
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        what = f"voxels of type {dtype} are not understood"
        raise DataError(what, where=path, do="save one number per voxel: whole, or floating point of up to 64 bits")
    if not oriented:
        raise DataError(
            "the header does not say how the patient lies in it: sform and qform codes are 0",
            where=path,
            do="convert the scan again from DICOM, or set its orientation where you know it",
        )
    affine[:3] *= MILLIMETRES.get(unit, 1.0)
    sides = np.linalg.norm(affine[:3, :3], axis=0)
    if not (np.isfinite(affine).all() and sides.min() > 1e-4 and abs(np.linalg.det(affine[:3, :3])) > 1e-12):
        raise DataError("the header's affine cannot be inverted", where=path, do="export the scan again")
    if not size <= offset <= MAX_OFFSET:
        raise DataError(f"the header is damaged: voxels at byte {offset:,}", where=path, do="export the scan again")
    scaled = math.isfinite(slope) and slope != 0 and math.isfinite(intercept)
    rest = stream.read(offset - size)
    code = int(np.frombuffer(rest[8:12], dtype=header.endianness + "i4")[0]) if len(rest) >= 12 and rest[0] else 0
    return Header(shape, dtype, affine, offset, slope if scaled else 1.0, intercept if scaled else 0.0, code)


def _read_voxels(stream: BinaryIO, header: Header, wanted: int) -> np.ndarray:
    """Exactly so many bytes, into memory that is only taken as it is filled; the stream stands at the voxels."""
    held = np.empty(wanted, dtype=np.uint8)
    at = 0
    while at < wanted:
        part = stream.read(min(CHUNK, wanted - at))
        if not part:
            raise EOFError
        held[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
        at += len(part)
    array = held.view(header.dtype).reshape(header.shape, order="F")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused as such
        if (header.slope, header.intercept) != (1.0, 0.0):
            return (array * header.slope + header.intercept).astype(np.float32)
        return array.astype(np.float32)


def save_nifti(array: np.ndarray, affine: np.ndarray, path: Path, about: str, write: Callable[..., None]) -> Path:
    """A float32 volume in this affine; `write(path, function)` puts a file in place, and `about` is its description."""
    import nibabel

    image = nibabel.Nifti1Image(np.asarray(array, dtype=np.float32), affine)
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = about.encode("ascii", "replace")[:79]
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    content = image.to_bytes()
    packed = gzip.compress(content, mtime=0) if str(path).lower().endswith(".gz") else content
    write(path, lambda aside: aside.write_bytes(packed))
    return path
