"""DICOM folders: the series in them told apart, each checked slice by slice and read as one volume.

What would make a wrong volume is an error: several series, missing or doubled slices, a tilted gantry, slices of
different sizes or directions. The affine comes from the slices' own positions and is never replaced by another.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.console import columns
from regard.data.volumes.scan import VOXELS_PER_PIXEL, Scan, check_scan, require_medical, require_voxels
from regard.errors import DataError, counted, did_you_mean
from regard.image_groups import MAX_MEGAPIXELS

MOST_FILES = 20_000
MAX_BYTES = 2**31
"""Of one file."""
MOST_TILT = 0.5
"""Degrees between the direction of the slices' positions and their normal."""
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
IDENTIFYING = (
    "PatientName", "PatientID", "IssuerOfPatientID", "OtherPatientIDs", "OtherPatientIDsSequence", "OtherPatientNames",
    "PatientBirthName", "PatientMotherBirthName", "PatientBirthDate", "PatientBirthTime", "PatientAddress",
    "PatientTelephoneNumbers", "PatientTelecomInformation", "PatientInsurancePlanCodeSequence", "MedicalRecordLocator",
    "MilitaryRank", "CountryOfResidence", "RegionOfResidence", "PatientReligiousPreference", "ResponsiblePerson",
    "AccessionNumber", "StudyID", "AdmissionID", "IssuerOfAdmissionID", "ServiceEpisodeID", "PatientComments",
    "InstitutionName", "InstitutionAddress", "ReferringPhysicianName", "ReferringPhysicianAddress",
    "ReferringPhysicianTelephoneNumbers", "PerformingPhysicianName", "PhysiciansOfRecord", "RequestingPhysician",
    "NameOfPhysiciansReadingStudy", "OperatorsName", "PersonName",
)  # fmt: skip
"""Fields that say directly who was examined, when born, where treated and by whom: from the basic profile of PS3.15,
table E.1-1, without dates, UIDs and descriptions of the examination."""
_TAGS = [
    "SeriesInstanceUID", "SeriesNumber", "SeriesDescription", "Rows", "Columns", "PixelSpacing",
    "ImageOrientationPatient", "ImagePositionPatient", "InstanceNumber", "NumberOfFrames", "SamplesPerPixel",
    *IDENTIFYING,
]  # fmt: skip


@dataclass(frozen=True)
class Series:
    """The slices of one series, in the order of their files."""

    uid: str
    number: str
    description: str
    paths: tuple[Path, ...]
    headers: tuple[Any, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """What a table calls it after the folder: its description, else number, else UID."""
        return self.description or self.number or self.uid

    @property
    def identifying(self) -> tuple[str, ...]:
        return tuple(name for name in IDENTIFYING if any(_filled(h.get(name)) for h in self.headers))

    def __str__(self) -> str:
        number = f" (number {self.number})" if self.number and self.description else ""
        return f"{self.name}{number}, {counted(len(self.paths), 'files')}"


def _filled(value: Any) -> bool:
    return value is not None and str(value).strip() not in ("", "[]")


def dicom_folders(root: Path) -> list[Path]:
    """The folder itself and those in it, however deep, that hold DICOM files."""
    try:
        folders = [root, *(p for p in sorted(root.rglob("*")) if p.is_dir())] if root.is_dir() else []
        return [folder for folder in folders if has_dicom(folder)]
    except OSError:  # a folder that may not be entered
        return []


def describe_dicom(root: Path, folders: list[Path], max_megapixels: float = MAX_MEGAPIXELS) -> str:
    """Every series in these folders as a table names it, read slice by slice, with what is wrong with it."""
    require_medical("nibabel", "pydicom", "highdicom")
    rows, notes, most = list[tuple[str, ...]](), list[str](), round(max_megapixels * 1e6 * VOXELS_PER_PIXEL)
    for folder in folders:
        series = find_series(folder)
        for one in series:
            cell = _cell(root, folder, one, series)
            slices = str(len(one.paths))
            try:
                scan = check_scan(read_series(one, most, str(folder)))
            except DataError as error:
                rows.append((cell, slices, "–", "–", "–", error.what))
                notes += [f"{cell}: {error.do}"] if error.do else []
                continue
            fields = f"identifying: {', '.join(scan.identifying)}" if scan.identifying else ""
            shape, spacing = (" × ".join(f"{n:g}" for n in own) for own in (scan.shape, scan.spacing))
            rows.append((cell, slices, shape, spacing, scan.orientation, fields))
    header = ("series", "files", "voxels", "spacing, mm", "stored as", "what to look at")
    return "\n".join([columns(header, rows), *(f"to do: {note}" for note in notes)])


def _cell(root: Path, folder: Path, one: Series, beside: list[Series]) -> str:
    """The cell of a table beside the root that stands for a series: the folder if it is alone there."""
    place = (Path(root.resolve().name) / folder.relative_to(root)).as_posix()
    if len(beside) == 1:
        return place
    for name, names in (
        (one.description, [s.description for s in beside]),
        (one.number, [s.number for s in beside]),
    ):
        if name and names.count(name) == 1:
            return f"{place}#{name}"
    return f"{place}#{one.uid}"


def has_dicom(folder: Path) -> bool:
    """Whether a DICOM file lies in the folder; a few files are looked at."""
    files = [p for p in sorted(folder.iterdir())[:50] if p.is_file()]
    return any(_is_dicom(path) for path in files)


def _is_dicom(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def find_series(folder: Path) -> list[Series]:
    """The series in a folder, in the order of their numbers; files that are no DICOM images are passed over."""
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    if not folder.is_dir():
        what = "there is no such folder" if not folder.exists() else "this is neither NIfTI nor a DICOM folder"
        raise DataError(what, where=folder, do="give .nii, .nii.gz or a folder of DICOM files")
    paths = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name != "DICOMDIR"]
    if len(paths) > MOST_FILES:
        raise DataError(f"{len(paths):,} files; at most {MOST_FILES:,} are read as one scan", where=folder)
    groups: dict[str, list[tuple[Path, Any]]] = {}
    for path in paths:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"the file has more than {MAX_BYTES:,} bytes", where=path)
        try:
            header = dcmread(path, stop_before_pixels=True, specific_tags=_TAGS)
        except InvalidDicomError:
            continue
        except Exception as error:  # pydicom raises errors of any kind at what it does not expect
            raise DataError(f"the DICOM file is damaged: {error}", where=path, do="export it again") from None
        if header.get("Rows") and header.get("Columns"):  # not a report or a presentation state
            groups.setdefault(str(header.get("SeriesInstanceUID", "")), []).append((path, header))
    series = [_series(uid, files) for uid, files in groups.items()]
    return sorted(series, key=lambda s: (not s.number.isdecimal(), int(s.number) if s.number.isdecimal() else 0, s.uid))


def _series(uid: str, files: list[tuple[Path, Any]]) -> Series:
    first = files[0][1]
    number, description = (str(first.get(name) or "").strip() for name in ("SeriesNumber", "SeriesDescription"))
    return Series(uid, number, description, tuple(path for path, _ in files), tuple(header for _, header in files))


def read_dicom(folder: Path, most: int, name: str = "") -> Scan:
    """The one series of a folder, or the one of that description, number or UID."""
    series = find_series(folder)
    if not series:
        raise DataError("there is no DICOM image here", where=folder, do="give .nii, .nii.gz or a DICOM folder")
    where = f"{folder}#{name}" if name else str(folder)
    chosen = [s for s in series if name in (s.uid, s.number, s.description)] if name else series
    if not chosen:
        do = did_you_mean(name, [s.name for s in series])
        raise DataError(f"the folder has no series {name!r}", where=folder, do=do)
    if len(chosen) > 1:
        some = "; ".join(map(str, chosen[:10])) + (f"; and {len(chosen) - 10} more" if len(chosen) > 10 else "")
        raise DataError(
            f"the folder holds {len(chosen)} series{f' called {name}' if name else ''}: {some}",
            where=folder,
            do=f"say which one after a #, such as {folder.name}#{chosen[0].uid if name else chosen[0].name}, "
            "or give each series a folder of its own",
        )
    return read_series(chosen[0], most, where)


def read_series(series: Series, most: int, where: str) -> Scan:
    """The volume of a series whose slices are regular."""
    import highdicom
    from pydicom import dcmread

    headers, first = series.headers, series.headers[0]
    frames = int(first.get("NumberOfFrames") or 1)
    if frames > 1 and len(headers) > 1:
        raise DataError("the series has several files of several frames each", where=where, do="export it as NIfTI")
    require_voxels((max(frames, len(headers)), int(first.Rows), int(first.Columns)), most, where)
    if any(int(h.get("SamplesPerPixel") or 1) != 1 for h in headers):
        raise DataError("the images are in colour: a scan has one number per voxel", where=where)
    if frames == 1:
        check_slices(headers, where)
    try:
        if frames > 1:
            volume = highdicom.imread(str(series.paths[0])).get_volume(dtype=np.float32)
        else:
            datasets = [dcmread(path) for path in series.paths]
            volume = highdicom.get_volume_from_series(datasets, dtype=np.float32, rtol=0.05, perpendicular_tol=0.01)
        array = np.ascontiguousarray(volume.array, dtype=np.float32)
        affine = LPS_TO_RAS @ np.asarray(volume.affine, dtype=np.float64)
    except DataError:
        raise
    except Exception as error:  # pydicom, its decoders and highdicom raise errors of any kind
        raise DataError(f"the series cannot be read as a volume: {error}", where=where, do="export it again") from None
    require_voxels(array.shape, most, where)
    return Scan(array, affine, where, series.identifying)


def check_slices(headers: tuple[Any, ...], where: str) -> None:
    """One size, spacing and direction; positions in equal steps along the normal, each once."""
    for name, what in (("Rows", "rows"), ("Columns", "columns"), ("PixelSpacing", "pixel spacings")):
        values = Counter(str(h.get(name)) for h in headers)
        if len(values) > 1 or "None" in values:
            seen = ", ".join(f"{value} ({n})" for value, n in values.most_common(4))
            do = "leave the odd slices out, or split the series"
            raise DataError(f"the slices have different or no {what}: {seen}", where=where, do=do)
    lacking = sum(h.get("ImagePositionPatient") is None or h.get("ImageOrientationPatient") is None for h in headers)
    if lacking:
        what = f"{lacking} of {len(headers)} slices do not say where they lie in the patient"
        raise DataError(what, where=where, do="export the original series: a position is never made up")
    directions = np.array([[float(n) for n in h.ImageOrientationPatient] for h in headers])
    if np.abs(directions - directions[0]).max() > 1e-3:
        do = "split the series by plane: it may be a localiser"
        raise DataError("the slices look in different directions", where=where, do=do)
    if len(headers) < 2:
        raise DataError("the series has one slice only", where=where, do="give the whole series")
    normal = np.cross(directions[0, :3], directions[0, 3:])
    places = np.array([[float(n) for n in h.ImagePositionPatient] for h in headers])
    along = places @ normal
    order = np.argsort(along, kind="stable")
    steps = np.diff(along[order])
    usual = float(np.median(steps))
    if doubled := int((steps < max(1e-3, 0.05 * usual)).sum()):
        raise DataError(
            f"{counted(doubled, 'slices')} lie where another one lies: doubled files, echoes or time points",
            where=where,
            do="remove the copies, or split the series by echo or time",
        )
    moved = places[order[-1]] - places[order[0]]
    tilt = float(np.degrees(np.arccos(min(1.0, abs(moved @ normal) / np.linalg.norm(moved)))))
    if tilt > MOST_TILT:
        raise DataError(
            f"the gantry was tilted by {tilt:.1f} degrees: the slices are shifted against one another",
            where=where,
            do="straighten the scan first, for example with dcm2niix",
        )
    gaps = np.flatnonzero(steps > 1.5 * usual)
    if len(gaps):
        lost = sum(round(steps[n] / usual) - 1 for n in gaps)
        at = ", ".join(f"{along[order[n]]:.1f} and {along[order[n + 1]]:.1f} mm" for n in gaps[:3])
        what = f"{counted(lost, 'slices')} missing: between {at}, where steps are of {usual:.2f} mm"
        raise DataError(what, where=where, do="export the whole series again")
    if np.abs(steps - usual).max() > 0.05 * usual + 0.01:
        what = f"the steps from slice to slice vary: {steps.min():.2f} to {steps.max():.2f} mm"
        raise DataError(what, where=where, do="export the series again, or resample it to equal steps")
