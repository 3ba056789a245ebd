"""What all scans of a data set have in common: facts of each subject, a fingerprint, and the plan chosen from it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from regard.data.volumes.preparing import Plan, Subject, load_subject, same_grid
from regard.data.volumes.scan import read_scan
from regard.errors import DataError, counted

STEP = 8
"""Sizes are chosen in steps of so many voxels, a common patch."""
MOST_VOXELS = 96**3
"""Of an input whose size and spacing are chosen here: coarser voxels are taken where it would be larger."""
COVERED = 95
"""Percentile of the subjects' extents that the chosen size holds."""
FAR = 1.5
"""Factor from the median spacing at which a subject is named."""


class Facts(NamedTuple):
    """What one subject's scans are; `error` says why they cannot be used."""

    key: str
    scans: dict[str, dict[str, Any]]
    spacing: tuple[float, ...] = ()
    """Millimetres: right, anterior, superior, of the first scan."""
    extent: tuple[float, ...] = ()
    """Millimetres of the foreground."""
    whole: tuple[float, ...] = ()
    """Millimetres of the first scan."""
    notes: tuple[str, ...] = ()
    error: str = ""
    unread: bool = False
    """Whether a mask could not be read; the notes say why."""


def survey_subject(subject: Subject, names: tuple[str, ...], max_megapixels: float) -> Facts:
    """Read every scan and mask of a subject; what is wrong is kept in words, with what to do."""
    try:
        loaded = load_subject(subject, names, max_megapixels)
    except DataError as error:
        return Facts(subject.key, {}, error=in_one_line(error))
    notes, unread = list[str](), False
    for number in loaded.resampled:
        scan = loaded.scans[number]
        notes.append(
            f"{names[number]} has another grid than {names[0]} ({_words(scan.shape)} voxels of "
            f"{_words(scan.spacing)} mm, {scan.orientation}): it is resampled; look whether both show the same place"
        )
    straight = loaded.scans[0].to_ras()
    for name, path in subject.masks:
        try:
            mask = read_scan(path, max_megapixels).to_ras() if path else None
        except DataError as error:
            notes.append(f"{name}: {in_one_line(error)}")
            unread = True
            continue
        if mask is None:
            notes.append(f"there is no {name}")
        elif not same_grid(straight, mask):
            notes.append(f"{name} does not lie on the voxels of {names[0]}: resample it there, or export it again")
    fields = sorted({field for scan in loaded.scans for field in scan.identifying})
    if fields:
        notes.append(f"identifying fields are filled: {', '.join(fields)}; remove them before the files are passed on")
    scans = {}
    for name, scan, array, inside in zip(names, loaded.scans, loaded.channels, loaded.foregrounds, strict=True):
        values = array if inside is None else array[inside]
        pixels = scan.to_ras().array
        scans[name] = {
            "shape": list(scan.shape),
            "spacing": list(scan.spacing),
            "orientation": scan.orientation,
            "percentiles": [float(n) for n in np.percentile(values, (0.5, 50, 99.5))],
            "mean": float(values.mean()),
            "deviation": float(values.std()),
            "foreground": 1.0 if inside is None else float(inside.mean()),
            "pixels": hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:32],
        }
    spacing = straight.spacing
    extent = tuple((stop - start) * side for (start, stop), side in zip(loaded.box, spacing, strict=True))
    whole = tuple(count * side for count, side in zip(straight.shape, spacing, strict=True))
    return Facts(subject.key, scans, spacing, extent, whole, tuple(notes), unread=unread)


def in_one_line(error: DataError) -> str:
    """What is wrong and what to do."""
    return f"{error.what}; to do: {error.do}" if error.do else error.what


def _words(numbers: Sequence[float]) -> str:
    """
    >>> _words((1.0, 0.6875, 5.0))
    '1 × 0.6875 × 5'
    """
    return " × ".join(f"{number:g}" for number in numbers)


@dataclass(frozen=True)
class Survey:
    """The facts of all subjects, and the plan with the reasons for it."""

    subjects: tuple[Facts, ...]
    plan: Plan
    why: tuple[str, ...]

    @property
    def usable(self) -> list[Facts]:
        return [facts for facts in self.subjects if not facts.error]

    def sentences(self) -> list[str]:
        """The plan in words, for the screen."""
        plan = self.plan
        around = "air around the patient cropped" if plan.foreground else "nothing cropped"
        channels = f"channels {', '.join(plan.scans)}"
        room = 4 * len(plan.scans) * math.prod(plan.size) / 1e6
        return [*self.why, f"{channels}; {around}; intensities: {plan.intensity} per scan; {room:.1f} MB per subject"]

    def fingerprint(self) -> dict[str, Any]:
        """Spacings, sizes after cropping, orientations, and intensities of each channel."""
        used = self.usable
        cropped = np.array([[e / s for e, s in zip(f.extent, f.spacing, strict=True)] for f in used])
        channels = {
            name: {
                "percentiles_0.5_50_99.5": [
                    float(f"{n:.6g}") for n in np.median([f.scans[name]["percentiles"] for f in used], axis=0)
                ],
                "mean": float(f"{np.median([f.scans[name]['mean'] for f in used]):.6g}"),
                "deviation": float(f"{np.median([f.scans[name]['deviation'] for f in used]):.6g}"),
                "orientations": dict(Counter(f.scans[name]["orientation"] for f in used).most_common()),
            }
            for name in self.plan.scans
        }
        return {
            "subjects": len(used),
            "spacing_mm": _ranges(np.array([f.spacing for f in used])),
            "shape_after_cropping": _ranges(cropped),
            "channels": channels,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The fingerprint and the plan, for a table."""
        held = self.fingerprint()
        rows = [
            (name, f"{_words(held[key]['median'])} ({_words(held[key]['least'])} to {_words(held[key]['most'])})")
            for name, key in (("spacing, mm", "spacing_mm"), ("voxels after cropping", "shape_after_cropping"))
        ]
        for name, channel in held["channels"].items():
            low, middle, high = (f"{n:g}" for n in channel["percentiles_0.5_50_99.5"])
            turned = ", ".join(f"{orientation} ({n})" for orientation, n in channel["orientations"].items())
            rows.append((name, f"0.5th, 50th, 99.5th percentile {low}, {middle}, {high}; stored as {turned}"))
        return [*rows, *(("input", text) for text in self.sentences())]

    def notes(self) -> list[str]:
        """What is odd about single subjects, and about pairs of them."""
        lines = [f"{facts.key}: {note}" for facts in self.subjects for note in facts.notes]
        usual = np.median([facts.spacing for facts in self.usable], axis=0)
        for facts in self.usable:
            ratio = np.maximum(np.array(facts.spacing) / usual, usual / np.array(facts.spacing)).max()
            if ratio > FAR:
                lines.append(
                    f"{facts.key}: spacing {_words(facts.spacing)} mm, where the median is {_words(usual.tolist())}: "
                    "look whether its header is right, and whether such scans have one label only"
                )
        same: dict[str, list[str]] = defaultdict(list)
        for facts in self.usable:
            for name, scan in facts.scans.items():
                same[scan["pixels"]].append(f"{name} of {facts.key}")
        do = "one file may stand in for a scan that was never made: correct the table, or leave it out"
        return lines + [f"the same pixels: {' = '.join(own)}; {do}" for own in same.values() if len(own) > 1]

    def cut(self) -> list[str]:
        """Keys of the subjects that do not fit into the input as a whole."""
        room = np.array(self.plan.size) * np.array(self.plan.spacing) + np.array(self.plan.spacing)
        kept = "extent" if self.plan.foreground else "whole"
        return [facts.key for facts in self.usable if (np.array(getattr(facts, kept)) > room).any()]

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_json(),
            "why": list(self.why),
            "fingerprint": self.fingerprint(),
            "cut": self.cut(),
            "notes": self.notes(),
            "subjects": {f.key: {"spacing": f.spacing, "extent": f.extent, "scans": f.scans} for f in self.usable},
        }


def _ranges(values: np.ndarray) -> dict[str, list[float]]:
    kinds = {"median": np.median(values, axis=0), "least": values.min(0), "most": values.max(0)}
    return {name: [float(f"{n:.4g}") for n in row] for name, row in kinds.items()}


class Wanted(NamedTuple):
    """What the user says of the input; None: chosen from the data."""

    scans: tuple[str, ...]
    spacing: tuple[float, ...] | None = None
    size: tuple[int, ...] | None = None
    foreground: bool = True
    intensity: str = "zscore"


def choose_plan(facts: Sequence[Facts], wanted: Wanted) -> tuple[Plan, tuple[str, ...]]:
    """Spacing and size for these subjects, and why.

    Spacing is the median; where the size is given, or the input would have more than MOST_VOXELS, voxels become so
    large that the size holds what the 95th percentile of the subjects shows.
    """
    spacings = np.array([f.spacing for f in facts])
    extents = np.array([f.extent if wanted.foreground else f.whole for f in facts])
    median, extent = np.median(spacings, axis=0), np.percentile(extents, COVERED, axis=0)
    spacing, size = wanted.spacing, wanted.size
    many = counted(len(facts), "subjects")
    if spacing is not None:
        why = f"spacing {_words(spacing)} mm as given (the median of {many} is {_words(_rounded(median))})"
    elif size is not None:
        spacing = _rounded(np.maximum(median, extent / np.array(size)))
        why = f"spacing {_words(spacing)} mm: so that {COVERED} % of {many} fit into the size that is given"
    else:
        least = _coarsest(median, extent)
        spacing = _rounded(np.maximum(median, least))
        why = f"spacing {_words(spacing)} mm, the median of {many}"
        if least > 0:
            why = (
                f"spacing {_words(spacing)} mm: at the median of {_words(_rounded(median))} mm the input would have "
                f"more than {MOST_VOXELS:,} voxels"
            )
    if size is not None:
        return Plan(wanted.scans, spacing, size, wanted.foreground, wanted.intensity), (
            why,
            f"size {_words(size)} as given",
        )
    size = _steps(extent, np.array(spacing))
    what = "foregrounds" if wanted.foreground else "scans"
    told = f"size {_words(size)}: the {COVERED}th percentile of the {what}, {_words(_rounded(extent))} mm, "
    plan = Plan(wanted.scans, spacing, size, wanted.foreground, wanted.intensity)
    return plan, (why, f"{told}in steps of {STEP} voxels")


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    """Four digits, upward, so that what was to fit does fit."""
    made = []
    for value in values.tolist():
        unit = 10.0 ** (math.floor(math.log10(value)) - 3)
        made.append(float(f"{math.ceil(value / unit - 1e-6) * unit:.6g}"))
    return tuple(made)


def _steps(extent: np.ndarray, spacing: np.ndarray) -> tuple[int, ...]:
    return tuple(max(STEP, STEP * math.ceil(n / STEP - 1e-3)) for n in (extent / spacing).tolist())


def _coarsest(median: np.ndarray, extent: np.ndarray) -> float:
    """The smallest spacing that no axis may be below for the input to have few enough voxels; 0: any."""
    least = 0.0
    while math.prod(_steps(extent, np.maximum(median, least))) > MOST_VOXELS:
        least = max(least, float(median.min())) * 1.02
    return least
