"""Made brains with known lesions: the MNI152 template, deformed anew for each subject, with one lesion in it.

The lobe it lies in decides the label; its size and that lobe decide the time until the event: truth is known. Written
to disk as NIfTI files and a table, so that they are read as anyone's data is. The template is a file inside the nilearn
package; nilearn itself is not imported.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.volumes.scan import read_scan, require_medical
from regard.errors import ConfigError, DataError, missing

TEMPLATE = "datasets/data/mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
SPACING = 4.0
"""Millimetres per voxel of the files."""
MARGIN = 14
"""Voxels of the template around the brain, for heads that are turned."""
LABELS = ("wild type", "mutated")
LOBES = {"wild type": (52.0, -32.0, 2.0), "mutated": (28.0, 38.0, 18.0)}
"""Middle of the right temporal and of the right frontal lobe, in the template's millimetres (right, front, top). A
lesion lies in one of these lobes, right or left: which lobe decides the label."""
SCATTER = 9.0
"""Millimetres by which lesions lie away from there, on each axis (one deviation)."""
RADII = (8.0, 22.0)
"""Smallest and largest radius of a lesion in millimetres."""
EFFECTS = {"radius": 1.2, "wild type": 1.6}
"""Log hazard ratios: of one deviation of the radius, and of the place."""
DAYS = 600.0
"""Median survival of a median subject."""
FOLLOWED = (300.0, 3000.0)
"""Days after which subjects are censored: between these."""

Array = np.ndarray


class Template(NamedTuple):
    """At `SPACING`, axes right, anterior, superior; `affine` is to the template's millimetres."""

    t1: Array
    """0 outside of the brain, about 1 in white matter."""
    flair: Array
    """Simulated from the tissues: grey matter brighter than white, liquor dark."""
    white: Array
    """Probability of white matter."""
    tissue: Array
    """Of grey or white matter."""
    affine: Array


class Lesion(NamedTuple):
    """A lesion and what it decides."""

    middle: tuple[float, ...]
    """In the template's millimetres."""
    radius: float
    label: str
    risk: float
    """The true log hazard."""
    days: float
    event: bool


@lru_cache(1)
def read_template(spacing: float = SPACING) -> Template:
    """The MNI152 template (ICBM 2009a, symmetric), cut to the brain and made coarser."""
    require_medical("nibabel")
    package = find_spec("nilearn")
    if package is None or not package.submodule_search_locations:
        raise missing("nilearn", "brain")
    parts = []
    for name in ("t1", "wm", "gm"):
        path = Path(package.submodule_search_locations[0]) / TEMPLATE.format(name)
        if not path.is_file():
            what = "this nilearn has no MNI152 template"
            raise ConfigError(what, where=path, do="pip install 'nilearn>=0.11'")
        parts.append(read_scan(path).to_ras())
    affine = parts[0].affine
    tissue = parts[1].array + parts[2].array
    brain = np.argwhere(tissue > 0.3 * tissue.max())
    start, stop = brain.min(0) - MARGIN, brain.max(0) + 1 + MARGIN
    step = [round(spacing / side) for side in np.linalg.norm(affine[:3, :3], axis=0)]
    coarse = []
    for part in parts:
        array = part.array / part.array.max()
        inside = np.pad(array, MARGIN)[tuple(slice(a + MARGIN, b + MARGIN) for a, b in zip(start, stop, strict=True))]
        coarse.append(_averaged(inside, step))
    moved = affine.copy()
    moved[:3, 3] = (affine @ [*(start + (np.array(step) - 1) / 2), 1])[:3]
    moved[:3, :3] = affine[:3, :3] * step
    t1, white, grey = coarse
    t1 = t1 / np.percentile(t1[white > 0.9], 50)
    flair = (0.15 + 0.6 * grey + 0.4 * white) * (t1 > 0.05)
    return Template(t1, flair, white, np.clip(white + grey, 0, 1), moved)


def _averaged(array: Array, step: list[int]) -> Array:
    """Blocks of `step` voxels averaged."""
    sides = [side // n * n for side, n in zip(array.shape, step, strict=True)]
    cut = array[tuple(slice(side) for side in sides)]
    shape = [n for side, each in zip(sides, step, strict=True) for n in (side // each, each)]
    return cut.reshape(shape).mean((1, 3, 5)).astype(np.float32)


def write_brains(
    folder: str | Path, subjects: int = 120, *, seed: int = 0, spacing: float = SPACING,
    tick: Callable[[int], None] = lambda done: None,
) -> Path:  # fmt: skip
    """Write so many subjects into a new folder: t1 and mask as NIfTI, and subjects.csv, whose path is returned.

    The column `true_risk` is the log hazard that the survival times were drawn with: what no model can beat.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError("there is something there already", where=folder, do="give a new folder")
    template = read_template(spacing)
    (folder / "scans").mkdir(parents=True)
    rows = []
    for number in range(subjects):
        lesion, arrays = draw_subject(template, (seed, number), LABELS[number % 2])
        name = f"brain{number:03d}"
        files = {kind: f"scans/{name}_{kind}.nii.gz" for kind in arrays}
        for kind, array in arrays.items():
            stored = array.astype(np.uint8) if kind == "mask" else np.round(1000 * array).astype(np.int16)
            _save(stored, template.affine, folder / files[kind])
        rows.append({
            "subject": name, **files, "label": lesion.label, "days": f"{lesion.days:.0f}", "died": int(lesion.event),
            "true_risk": f"{lesion.risk:.4f}",
        })  # fmt: skip
        tick(number + 1)
    with (folder / "subjects.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / "subjects.csv"


def _save(array: Array, affine: Array, path: Path) -> None:
    import nibabel

    image = nibabel.Nifti1Image(array, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def draw_subject(template: Template, seed: tuple[int, ...], label: str) -> tuple[Lesion, dict[str, Array]]:
    """A lesion of this label, the scans t1 and flair (0 outside of the brain) and the lesion's mask."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    draw = np.random.default_rng(seed)
    shape, spacing = template.t1.shape, float(np.linalg.norm(template.affine[:3, 0]))
    lesion = draw_lesion(template, label, draw)
    grid = np.stack(np.meshgrid(*(np.arange(side, dtype=np.float64) for side in shape), indexing="ij"))
    places = (template.affine[:3, :3] @ grid.reshape(3, -1) + template.affine[:3, 3:]).reshape(grid.shape)
    # The border: a sphere that smooth noise makes uneven. Dark on T1, most in its core; bright on FLAIR.
    away = np.sqrt(sum((places[axis] - lesion.middle[axis]) ** 2 for axis in range(3)))
    uneven = gaussian_filter(draw.standard_normal(shape), 8 / spacing)
    inside = lesion.radius - away + 0.25 * lesion.radius * uneven / uneven.std()
    strength = np.clip(inside / 5 + 0.5, 0, 1) * (template.tissue > 0.4)
    core = np.clip((inside - 0.35 * lesion.radius) / 4 + 0.5, 0, 1)
    fields = {"t1": template.t1 * (1 - (0.3 + 0.35 * core) * strength), "flair": template.flair + 0.6 * strength}
    # The subject's own head: turned, scaled and bent; the lesion moves with it.
    turned = _head(draw, grid, shape, spacing)
    brain = map_coordinates(template.t1, turned, order=1) > 0.05
    arrays = {}
    for name, field in fields.items():
        bias = 1 + sum(
            0.08 * draw.standard_normal() * ramp for ramp in 2 * grid / np.array(shape)[:, None, None, None] - 1
        )
        seen = draw.uniform(0.85, 1.15) * bias * map_coordinates(field, turned, order=1)
        noisy = seen + 0.03 * draw.standard_normal(shape)
        arrays[name] = (np.clip(noisy, 0.01, None) * brain).astype(np.float32)
    arrays["mask"] = (map_coordinates(strength, turned, order=1) > 0.5) & brain
    return lesion, arrays


def draw_lesion(template: Template, label: str, draw: np.random.Generator) -> Lesion:
    """A place in the label's lobe, a radius, and a survival time that both decide."""
    voxels = np.argwhere(template.tissue > 0.6)
    places = voxels @ template.affine[:3, :3].T + template.affine[:3, 3]
    wanted = np.array(LOBES[label]) * [draw.choice([-1, 1]), 1, 1] + draw.normal(0, SCATTER, 3)
    middle = tuple(float(n) for n in places[((places - wanted) ** 2).sum(1).argmin()])
    low, high = RADII
    radius = float(draw.uniform(low, high))
    risk = EFFECTS["radius"] * (radius - (low + high) / 2) / ((high - low) / math.sqrt(12))
    risk += EFFECTS["wild type"] * ((label == LABELS[0]) - 0.5)
    days = float(draw.exponential(DAYS / math.log(2) * math.exp(-risk)))
    followed = float(draw.uniform(*FOLLOWED))
    return Lesion(middle, radius, label, risk, max(1.0, min(days, followed)), days <= followed)


def _head(draw: np.random.Generator, grid: Array, shape: tuple[int, ...], spacing: float) -> Array:
    """For each voxel of a subject, the place in the template that it shows: (3, *shape)."""
    from scipy.ndimage import gaussian_filter
    from scipy.spatial.transform import Rotation

    middle = (np.array(shape) - 1)[:, None] / 2
    turn = Rotation.from_euler("xyz", draw.normal(0, 4, 3), degrees=True).as_matrix() * draw.normal(1, 0.04, 3)
    points = turn @ (grid.reshape(3, -1) - middle) + middle + draw.normal(0, 2 / spacing, 3)[:, None]
    bent = []
    for _ in range(3):
        field = gaussian_filter(draw.standard_normal(shape), 24 / spacing)
        bent.append(2.5 / spacing * field / field.std())  # 2.5 mm
    return points.reshape(grid.shape) + np.stack(bent)
