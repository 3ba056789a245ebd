"""Scans that a trained model is asked about: files, folders, rows of a table, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.masks import read_mask
from regard.data.volumes.dicom import has_dicom
from regard.data.volumes.frame import ScanFrame
from regard.data.volumes.preparing import Plan, Subject, same_grid
from regard.data.volumes.scan import Scan, is_nifti, read_scan
from regard.data.volumes.subjects import case_files, read_subjects
from regard.errors import ConfigError, DataError, did_you_mean

TABLES = (".csv", ".tsv")


def as_subject(image: Any, scans: tuple[str, ...]) -> Subject:
    """From a path, where the model sees one scan; from a path for each scan; or from a case folder."""
    if isinstance(image, Mapping):
        for name in image:
            if name not in scans:
                raise ConfigError(f"the model sees no scan {name!r}", do=did_you_mean(str(name), scans))
        paths = {str(name): str(path) for name, path in image.items()}
        return Subject(next(iter(paths.values()), "scans"), tuple(paths.get(name, "") for name in scans))
    if not isinstance(image, str | Path):
        what = f"a {type(image).__name__} is no scan"
        raise DataError(what, do=f"give a path, or a path for each of {', '.join(scans)} as a dict")
    files = case_files(Path(image).expanduser())
    if set(scans) <= files.keys():
        return Subject(str(image), tuple(str(files[name]) for name in scans))
    if len(scans) > 1:
        do = f"give a table with these columns, a case folder, or in Python a dict of paths; scans: {', '.join(scans)}"
        raise DataError(f"the model sees {len(scans)} scans of a subject, and this is one", where=image, do=do)
    return Subject(str(image), (str(Path(image).expanduser()),))


def find_subjects(words: Sequence[str], scans: tuple[str, ...]) -> list[Subject]:
    """Subjects of NIfTI files, DICOM folders, case folders, folders of these, tables and globs; none is an error."""
    subjects: dict[Subject, None] = {}
    if not words:
        raise DataError("no scan was given", do="give NIfTI files, DICOM folders or a table")
    for word in words:
        path = Path(word).expanduser()
        if path.suffix.lower() in TABLES and path.is_file():
            here = list(read_subjects(path, scans))
        elif path.exists() or Path(word.partition("#")[0]).expanduser().is_dir():
            here = _in_path(path, scans)
        else:
            names = sorted(glob(str(path), recursive=True))
            here = [subject for name in names for subject in _in_path(Path(name), scans)]
        if not here:
            do = "give NIfTI files, DICOM folders or a table of them"
            raise DataError("there is no scan here", where=word, do=do)
        subjects.update(dict.fromkeys(here))
    return list(subjects)


def _in_path(path: Path, scans: tuple[str, ...]) -> list[Subject]:
    if not path.is_dir() or has_dicom(path) or set(scans) <= case_files(path).keys():
        return [as_subject(path, scans)]
    folders = [p for p in sorted(path.iterdir()) if p.is_dir() and (has_dicom(p) or case_files(p))]
    files = [p for p in sorted(path.iterdir()) if is_nifti(p)] if len(scans) == 1 else []
    return [as_subject(p, scans) for p in [*files, *folders]]


def prepared_array(pixels: Tensor, plan: Plan) -> Tensor:
    """An array that was prepared already: (channels, *size), finite."""
    shape = (len(plan.scans), *plan.size)
    if tuple(pixels.shape) != shape or not torch.isfinite(pixels.float()).all():
        what = f"an array of shape {tuple(pixels.shape)} is not the model's input, {shape} and finite"
        raise DataError(what, do="give paths of scans: they are prepared as the model's own were")
    return pixels.float()


def read_scan_mask(mask: Any, frame: ScanFrame) -> Tensor:
    """True inside, of the scan's own shape: from a NIfTI mask on the scan's voxels, an array, or a box."""
    if not (isinstance(mask, str | Path) and is_nifti(mask)):
        return read_mask(mask, frame.file_size)
    try:
        held = read_scan(Path(mask).expanduser(), constant=True)
    except DataError as error:
        raise ConfigError(f"the mask cannot be read: {error.what}", where=mask, do=error.do) from None
    scan = Scan(np.broadcast_to(np.float32(0), frame.file_size), np.array(frame.affine), "the scan")
    straight = held.to_ras()
    if not same_grid(scan.to_ras(), straight):
        do = "resample the mask to the scan's voxels"
        raise ConfigError("the mask does not lie on the voxels of the scan", where=mask, do=do)
    inside = torch.from_numpy(straight.array != 0)  # back to the order of the scan's axes
    inside = inside.flip([axis for axis, flip in enumerate(frame.flipped) if flip])
    return inside.permute([frame.order.index(axis) for axis in range(3)])


def marked(masks: Sequence[tuple[str, str]], frame: ScanFrame, column: str | None = None) -> Tensor | None:
    """What a subject's mask marks, on the scan's voxels: of this column, or the first; None if it marks nothing."""
    path = next((path for name, path in masks if path and column in (None, name)), "")
    inside = read_scan_mask(path, frame) if path else None
    return inside if inside is not None and inside.any() else None
