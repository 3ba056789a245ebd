"""One marked voxel goes from the file to the input, a token, a map and a NIfTI file, and lands where it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.deform import draw_deformation
from regard.data.volumes import Plan, Prepared, ScanFrame, Subject
from regard.data.volumes.preparing import load_subject, prepare
from regard.geometry import TokenMap
from regard.image_groups import Augment
from regard.weights import write_aside
from tests.data.volumes.scans import ORIENTATIONS, affine_of, phantom, save

SPACING = (1.0, 2.0, 1.5)


def read(path: Path, plan: Plan) -> Prepared:
    return prepare(load_subject(Subject("one", (str(path),)), plan.scans, 64), plan)


def load(path: Path) -> Any:
    import nibabel

    return nibabel.load(path)


def follow(orientation: str, folder: Path) -> None:
    """The whole way of one voxel, stored in this orientation."""
    marked = (3, 9, 6)  # in RAS; off the middle of every axis
    array = phantom()
    array[marked] = 5000
    path = save(folder / "scan.nii", array, affine_of(SPACING), orientation)
    stored = load(path)
    voxel = np.unravel_index(np.asarray(stored.dataobj).argmax(), stored.shape)
    made = read(path, Plan(("t1",), (1.5, 1.5, 1.5), (16, 20, 12), intensity="raw"))
    place = made.frame.voxel_to_input([int(n) for n in voxel])
    peak = np.unravel_index(int(made.pixels[0].argmax()), made.pixels.shape[1:])
    assert tuple(int(n) for n in place) == tuple(int(n) for n in peak)

    where = TokenMap(grid=(4, 5, 3), cell=(4, 4, 4), size=(16, 20, 12))
    boxes = [where.box(token) for token in range(where.tokens)]
    token = next(n for n, box in enumerate(boxes) if all(a <= at < b for (a, b), at in zip(box, place, strict=True)))
    painted = where.paint(torch.nn.functional.one_hot(torch.tensor(token), where.places).float())
    made.frame.save(painted, folder / "map.nii.gz", "a test", write_aside)
    written = load(folder / "map.nii.gz")
    assert written.shape == stored.shape
    assert np.allclose(written.affine, stored.affine, atol=1e-6)
    values = written.get_fdata()
    assert values[voxel] == pytest.approx(1.0)
    there = np.argwhere(values > 0.5)
    world = np.c_[there, np.ones(len(there))] @ written.affine.T
    truth = np.array([*marked, 1]) @ affine_of(SPACING).T  # where the phantom has it, whatever the file's order
    extent = np.ptp(world[:, :3], axis=0) + np.array(SPACING)
    assert (extent <= 4 * 1.5 + 2 * np.array(SPACING)).all(), "no larger than a token and its border"
    assert (np.abs(world[:, :3].mean(0) - truth[:3]) <= 3.0 + np.array(SPACING)).all()


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "PIR", "SLA", "ASL", "IPL"])
def test_a_voxel_lands_where_it_began(orientation: str, tmp_path: Path) -> None:
    follow(orientation, tmp_path)


@pytest.mark.long
def test_a_voxel_lands_where_it_began_in_all_48_orientations(tmp_path: Path) -> None:
    for orientation in ORIENTATIONS:
        follow(orientation, tmp_path)


def oblique() -> np.ndarray:
    """A patient who lies askew: the phantom's axes turned by 12 and 8 degrees."""
    from scipy.spatial.transform import Rotation

    affine = affine_of(SPACING)
    affine[:3, :3] = Rotation.from_euler("zx", (12, 8), degrees=True).as_matrix() @ affine[:3, :3]
    return affine


def follow_augmented(orientation: str, affine: np.ndarray, folder: Path, sample: int) -> None:
    """The way of one voxel with augmentation between input and token: mirrored, rotated, scaled, shifted, bent."""
    marked, plan = (3, 9, 6), Plan(("t1",), (1.5, 1.5, 2.0), (16, 20, 12), intensity="raw")
    array = phantom()
    array[marked] = 5000
    path = save(folder / "scan.nii", array, affine, orientation)
    stored = load(path)
    voxel = np.unravel_index(np.asarray(stored.dataobj).argmax(), stored.shape)
    made = read(path, plan)
    config = Augment(rotate=15, zoom=0.1, shift=0.05, elastic=0.03, flip_axes="x,y,z")
    drawn = draw_deformation(config, 0, 1, torch.tensor([sample]), plan.size, plan.spacing, torch.device("cpu"))
    assert drawn is not None
    changed = drawn.apply(made.pixels[None])[0, 0]
    place = drawn.to_result(torch.tensor(made.frame.voxel_to_input([int(n) for n in voxel])).reshape(1, 1, 3).double())
    place = place.flatten().tolist()
    peak = np.unravel_index(int(changed.argmax()), changed.shape)
    assert all(abs(int(n) + 0.5 - at) <= 1.2 for n, at in zip(peak, place, strict=True)), "as it was resampled"

    where = TokenMap(grid=(4, 5, 3), cell=(4, 4, 4), size=plan.size)
    boxes = [where.box(token) for token in range(where.tokens)]
    token = next(n for n, box in enumerate(boxes) if all(a <= at < b for (a, b), at in zip(box, place, strict=True)))
    painted = where.paint(torch.nn.functional.one_hot(torch.tensor(token), where.places).float())
    made.frame.save(drawn.undo(painted[None])[0], folder / "map.nii.gz", "a test", write_aside)
    written = load(folder / "map.nii.gz")
    values = written.get_fdata()
    assert values[voxel] > 0.2
    there = np.argwhere(values > 0.5)
    world = np.c_[there, np.ones(len(there))] @ written.affine.T
    truth = np.array([*marked, 1]) @ affine.T
    token_mm = 4 * np.linalg.norm(plan.spacing) * 1.1
    assert np.linalg.norm(world[:, :3] - truth[:3], axis=1).max() <= token_mm + np.linalg.norm(SPACING)
    assert np.linalg.norm(world[:, :3].mean(0) - truth[:3]) <= token_mm / 2 + np.linalg.norm(SPACING) / 2


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "PIR", "SLA", "ASL", "IPL"])
@pytest.mark.parametrize("straight", [True, False], ids=["straight", "oblique"])
def test_an_augmented_voxel_lands_where_it_began(orientation: str, straight: bool, tmp_path: Path) -> None:
    for sample in range(3):
        follow_augmented(orientation, affine_of(SPACING) if straight else oblique(), tmp_path, sample)


@pytest.mark.long
def test_an_augmented_voxel_lands_where_it_began_in_all_48_orientations(tmp_path: Path) -> None:
    for number, orientation in enumerate(ORIENTATIONS):
        for affine in (affine_of(SPACING), oblique()):
            follow_augmented(orientation, affine, tmp_path, number)


def test_an_unchanged_grid_keeps_every_voxel(tmp_path: Path) -> None:
    array = phantom()
    plan = Plan(("t1",), SPACING, array.shape, foreground=False, intensity="raw")
    for orientation in ("RAS", "PSR"):
        path = save(tmp_path / "scan.nii", array, affine_of(SPACING), orientation)
        made = read(path, plan)
        assert np.allclose(made.pixels[0].numpy(), array, atol=1e-4)
        back = made.frame.map_to_file(made.pixels[0])
        assert np.allclose(back.numpy(), np.asarray(load(path).dataobj), atol=1e-3)
        mask = torch.from_numpy(load(path).get_fdata() > 150)
        assert torch.equal(made.frame.mask_to_input(mask) > 0.5, made.pixels[0] > 150)


def test_finer_voxels_are_those_of_nibabel(tmp_path: Path) -> None:
    from nibabel.processing import resample_from_to

    path = save(tmp_path / "scan.nii", phantom(), affine_of(SPACING), "LIP")
    plan = Plan(("t1",), (0.7, 0.9, 0.8), (16, 16, 16), intensity="raw")
    made = read(path, plan)
    import nibabel

    straight: Any = nibabel.as_closest_canonical(load(path))
    first = [start + 0.5 * length / 16 - 0.5 for start, length in made.frame.frame.window]
    affine = straight.affine @ np.diag([*(p / s for p, s in zip(plan.spacing, SPACING, strict=True)), 1.0])
    affine[:3, 3] = (straight.affine @ [*first, 1])[:3]
    oracle = resample_from_to(straight, ((16, 16, 16), affine), order=1).get_fdata()
    assert np.allclose(made.pixels[0].numpy(), oracle, atol=1e-3)
    assert np.allclose(made.frame.input_to_mm(), affine, atol=1e-6)


def test_coarser_voxels_keep_the_mean(tmp_path: Path) -> None:
    array = np.pad(phantom((24, 24, 24)), 6)
    plan = Plan(("t1",), (3.0, 3.0, 3.0), (12, 12, 12), foreground=False, intensity="raw")
    made = read(save(tmp_path / "scan.nii", array), plan)
    assert float(made.pixels.mean()) == pytest.approx(float(array.mean()), rel=0.005)


def test_a_frame_survives_the_cache(tmp_path: Path) -> None:
    import json

    path = save(tmp_path / "scan.nii", phantom(), affine_of(SPACING), "PIR")
    frame = read(path, Plan(("t1",), SPACING, (16, 16, 16))).frame
    assert ScanFrame.from_json(json.loads(json.dumps(frame.to_json()))) == frame


def test_what_is_drawn_of_a_scan_has_the_front_up_and_the_right_on_the_left() -> None:
    from regard.explain.draw import axial

    field = torch.zeros(4, 6, 5)
    field[3, 5, 2] = 1  # far right, far front, in slice 2
    assert axial(field).shape == (5, 6, 4)
    assert axial(field)[2, 0, 0] == 1
