"""Tables of subjects: which columns are scans, channels on one grid, what is found, what is chosen, what is kept."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data import ImageDataset, Images, Loader, open_source, scan
from regard.data.volumes import nifti, reader
from regard.data.volumes.survey import Facts, Wanted, choose_plan
from regard.errors import ConfigError, DataError
from regard.image_groups import LabelData
from regard.tasks.regression.settings import NumberData
from tests.data.volumes.scans import affine_of, phantom, save, save_dicom


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def subjects(folder: Path, count: int = 4) -> Path:
    """Two scans each, t1 in one orientation and flair in another, and a mask."""
    rows = []
    for n in range(count):
        array = phantom(seed=n)
        for name, turned, values in (("t1", "RAS", array), ("flair", "LPI", 300 - array), ("mask", "RAS", array > 150)):
            save(folder / f"s{n}_{name}.nii.gz", values.astype(np.float32), None, turned)
        rows.append(
            [f"s{n}", *(f"s{n}_{name}.nii.gz" for name in ("t1", "flair", "mask")), n % 2, f"p{n // 2}", 30 + n]
        )
    return table(folder / "table.csv", ("subject", "t1", "flair", "mask", "label", "patient", "age"), rows)


def read(path: Path, size: Any = None, **how: Any) -> ImageDataset:
    return scan(open_source(path, how=LabelData(**how), size=size))


def test_columns_of_paths_are_channels_on_the_grid_of_the_first(tmp_path: Path) -> None:
    dataset = read(subjects(tmp_path), intensity="raw")
    source = dataset.source
    assert source.survey.plan.scans == ("t1", "flair")
    assert source.columns["age"] == ["30", "31", "32", "33"]
    assert [(s.key, s.label, s.group) for s in source.samples][2] == ("s2", 0, "p1")
    pixels, mode = source.read(1)
    assert mode == "t1 + flair"
    assert dataset.channels == 2
    inside = pixels[0] > 50
    assert np.allclose((pixels[0] + pixels[1])[inside].numpy(), 300, atol=0.1), (
        "flair lies on t1, though stored otherwise"
    )
    assert "masks from mask" in source.why


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ({"scans": "flair"}, lambda d: d.channels == 1),
        ({"spacing": 2.0}, lambda d: d.source.survey.plan.spacing == (2.0, 2.0, 2.0)),
        ({"foreground": False}, lambda d: d.source.survey.plan.size == (16, 16, 16)),
        ({"intensity": "percentiles"}, lambda d: float(d.cache[0].min()) >= 0 and float(d.cache[0].max()) <= 1),
        ({"size": 24}, lambda d: tuple(d.cache[0].shape) == (2, 24, 24, 24)),
    ],
)
def test_every_setting_of_volumes_is_seen(tmp_path: Path, how: dict[str, Any], shown: Any) -> None:
    path = subjects(tmp_path, 2)
    assert not shown(read(path))
    assert shown(read(path, **how))


def test_intensities_are_standardised_inside_the_foreground(tmp_path: Path) -> None:
    pixels = read(subjects(tmp_path, 2)).cache[0].numpy()
    for channel in pixels:
        inside = channel != 0
        assert abs(channel[inside].mean()) < 0.1
        assert abs(channel[inside].std() - 1) < 0.1


def test_scans_on_another_grid_are_resampled_and_others_refused(tmp_path: Path) -> None:
    array = phantom((16, 16, 16))
    save(tmp_path / "t1.nii", array, affine_of())
    save(tmp_path / "flair.nii", array[::2, ::2, ::2].copy(), affine_of((2.0, 2.0, 2.0)))
    save(tmp_path / "away.nii", array, affine_of(origin=(500.0, 0.0, 0.0)))
    header = ("id", "t1", "flair", "label")
    rows = [("near", "t1.nii", "flair.nii", 1), ("far", "t1.nii", "away.nii", 2)]
    dataset = read(table(tmp_path / "table.csv", header, rows), intensity="raw")
    far = dict(dataset.unreadable)["far"]
    assert "flair covers 0% of t1" in far
    assert "register" in far
    pixels = dataset.source.read(0)[0].numpy()
    middle = (slice(4, -4),) * 3
    assert np.abs(pixels[0][middle] - pixels[1][middle]).mean() < 5
    assert any("near: flair has another grid than t1" in note for note in dataset.source.survey.notes())


def test_check_names_what_is_wrong_by_subject(tmp_path: Path) -> None:
    array, bad = phantom(), phantom(seed=1)
    bad[3, 3, 3] = np.nan
    save(tmp_path / "good.nii", array)
    save(tmp_path / "nan.nii", bad)
    save(tmp_path / "flat.nii", np.full(array.shape, 3.0, np.float32))
    save(tmp_path / "moved.nii", (array > 150).astype(np.float32), affine_of(origin=(0.0, 0.0, 0.0)))
    save(tmp_path / "coarse.nii", phantom(seed=7), affine_of((1.0, 1.0, 4.0)))
    save_dicom(tmp_path / "dicom", phantom(seed=9).round(), spacing=(1.0, 1.0, 1.0), name="Doe^Jane")
    save_dicom(tmp_path / "holes", phantom(seed=9).round(), skip=(4,))
    rows = [
        ("good", "good.nii", "moved.nii", "a", "train", 1),
        ("copy", "good.nii", "", "a", "test", 2),
        ("nan", "nan.nii", "", "a", "train", 3),
        ("flat", "flat.nii", "", "b", "train", 4),
        ("none", "", "", "b", "train", 5),
        ("lost", "lost.nii", "", "b", "train", 6),
        ("coarse", "coarse.nii", "", "b", "train", 7),
        ("dicom", "dicom", "", "b", "test", 7),
        ("holes", "holes", "", "b", "train", 8),
    ]
    header = ("id", "t1", "seg", "label", "split", "patient")
    dataset = read(table(tmp_path / "table.csv", header, rows))
    unreadable, said = dict(dataset.unreadable), dataset.describe()
    assert unreadable.keys() == {"nan", "flat", "none", "lost", "holes"}
    for key, what in (
        ("nan", "t1: 1 voxels are NaN"), ("flat", "constant"), ("none", "no t1 scan"), ("lost", "no such file"),
        ("holes", "1 slice missing"),
    ):  # fmt: skip
        assert what in unreadable[key]
    assert all("to do:" in why for why in unreadable.values())
    assert str(tmp_path / "lost.nii") in unreadable["lost"]
    for what in (
        "good: seg does not lie on the voxels of t1", "coarse: spacing 1 × 1 × 4 mm", "identifying fields",
        "the same pixels: t1 of good = t1 of copy", "of these, across splits (leaks): 1",
        "patients or other groups across splits (leaks), of 8: 1", "stored as RAS (3), IPL (1)",
    ):  # fmt: skip
        assert what in said, what
    assert "Jane" not in said
    held = dataset.to_json([s.split or "train" for s in dataset.source.samples], "")["volumes"]
    assert held["fingerprint"]["subjects"] == 4
    assert held["plan"]["size"] == dataset.source.survey.plan.size


def bad(folder: Path, kind: str) -> tuple[str, str]:
    """The cells t1 and flair of a subject with one thing wrong."""
    array = phantom(seed=3)
    t1 = save(folder / "bad_t1.nii", array).name
    dicom = folder / "bad_dicom"
    if kind == "infinite":
        array[5, 5, 5] = np.inf
        return save(folder / "bad_inf.nii", array).name, t1
    if kind == "empty":
        return t1, save(folder / "bad_flair.nii", np.zeros_like(array)).name
    if kind == "no flair":
        return t1, ""
    if kind == "sheared":
        affine = affine_of()
        affine[0, 1] = 0.3
        return save(folder / "bad_sheared.nii", array, affine).name, t1
    if kind == "shape":
        return t1, save(folder / "bad_flair.nii", array[:-2].copy()).name
    if kind == "orientation":
        return t1, save(folder / "bad_flair.nii", array, None, "PIR").name
    if kind == "affine":
        return t1, save(folder / "bad_flair.nii", array, affine_of(origin=(-17.0, 30.0, 5.0))).name
    faults: dict[str, Any] = {"tilt": {"tilt": 9.0}, "double": {"double": (3,)}, "holes": {"skip": (4, 5)}}
    save_dicom(dicom, array.round(), spacing=(1.0, 1.0, 1.0), **faults.get(kind, {}))
    if kind == "two series":
        save_dicom(dicom, array.round(), spacing=(1.0, 1.0, 1.0), series="DWI")
    return "bad_dicom", t1


@pytest.mark.parametrize(
    ("kind", "says", "used"),
    [
        ("infinite", "t1: 1 voxels are NaN or infinite", False),
        ("empty", "flair: the volume is empty", False),
        ("no flair", "there is no flair scan", False),
        ("sheared", "not at right angles", False),
        ("tilt", "tilted by 9.0 degrees", False),
        ("double", "lie where another one lies", False),
        ("holes", "2 slices missing", False),
        ("two series", "the folder holds 2 series", False),
        ("shape", "flair has another grid than t1 (10 × 14 × 10 voxels", True),
        ("affine", "flair has another grid than t1", True),
        ("orientation", "stored as RAS (1), PIR (1)", True),
    ],
)
def test_check_finds_each_fault_and_says_what_to_do(tmp_path: Path, kind: str, says: str, used: bool) -> None:
    good = [save(tmp_path / f"good_{name}.nii", phantom(seed=n)).name for n, name in enumerate(("t1", "flair"))]
    rows = [("good", *good, "a"), ("bad", *bad(tmp_path, kind), "b")]
    dataset = read(table(tmp_path / "table.csv", ("id", "t1", "flair", "label"), rows))
    assert ("bad" in dict(dataset.unreadable)) != used
    said = dataset.describe()
    assert says in said
    if not used:
        assert f"bad: {dict(dataset.unreadable)['bad']}" in said
        assert "to do:" in dict(dataset.unreadable)["bad"]


def test_case_folders_beside_a_table_of_labels(tmp_path: Path) -> None:
    for n in range(3):
        for name in ("t1", "flair", "seg"):
            case = f"BraTS20_Training_{n:03d}"
            save(tmp_path / case / f"{case}_{name}.nii.gz", phantom(seed=n) + (name == "flair"))
    (tmp_path / "BraTS20_Training_002" / "BraTS20_Training_002_flair.nii.gz").unlink()
    rows = [(f"BraTS20_Training_{n:03d}", label) for n, label in enumerate(("HGG", "LGG", "HGG"))]
    table(tmp_path / "name_mapping.csv", ("BraTS_ID", "grade"), rows)
    dataset = read(tmp_path, label_column="grade")
    assert dataset.source.survey.plan.scans == ("flair", "t1")
    assert dataset.source.classes == ("HGG", "LGG")
    assert [key for key, _ in dataset.unreadable] == ["BraTS20_Training_002"]
    assert read(tmp_path, label_column="grade", scans="t1").channels == 1


@pytest.mark.parametrize("cell", ["", "NA", "n/a", "NaN", "Unknown", "?"])
def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path, cell: str) -> None:
    path = subjects(tmp_path)
    path.write_text(path.read_text().replace("s1_mask.nii.gz,1", f"s1_mask.nii.gz,{cell}"))
    source = open_source(path)
    assert [s.key for s in source.samples] == ["s0", "s2", "s3"]
    assert source.left_out == ("1 row without label: s1",)
    assert "Left out: 1 row without label: s1." in scan(source).findings(["train"] * 3)
    assert len(open_source(path, labels=False).samples) == 4
    numbers = open_source(path, labels=False, how=NumberData(column="label"))
    assert (len(numbers.samples), numbers.left_out) == (3, source.left_out)


def test_settings_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    path = subjects(tmp_path, 2)
    with pytest.raises(DataError, match="no scan called 'flaire'") as caught:
        open_source(path, how=LabelData(scans="t1,flaire"))
    assert "did you mean flair" in str(caught.value)
    with pytest.raises(DataError, match="'mask' is a mask, which no network is shown"):
        open_source(path, how=LabelData(scans="t1,mask"))
    with pytest.raises(ConfigError, match="does not fit a volume"):
        open_source(path, how=LabelData(spacing=(1.0, 1.0)))
    with pytest.raises(DataError, match="no column for the label"):
        open_source(table(tmp_path / "bare.csv", ("t1",), [("s0_t1.nii.gz",)]))


def test_prepared_volumes_are_kept_and_made_anew_when_a_file_or_a_setting_changes(tmp_path: Path) -> None:
    path, folder = subjects(tmp_path, 2), tmp_path / "kept"
    first = read(path, cache_folder=str(folder)).cache[0]
    arrays = sorted(folder.glob("*.f32"))
    assert len(arrays) == 2
    assert oct(folder.stat().st_mode)[-3:] == "700"
    assert not list(folder.glob("*.part"))
    for array in arrays:  # what is kept is what is read
        (np.fromfile(array, "<f4") + 1).tofile(array)
    assert np.allclose(read(path, cache_folder=str(folder)).cache[0], first + 1)
    for array in arrays:  # but nothing damaged
        array.write_bytes(array.read_bytes()[:300])
    assert np.allclose(read(path, cache_folder=str(folder)).cache[0], first)
    for array in arrays:
        np.zeros((2, 4, 4, 4), np.float32).tofile(array)
    assert np.allclose(read(path, cache_folder=str(folder)).cache[0], first)
    assert not np.allclose(read(path, cache_folder=str(folder), intensity="raw").cache[0], first)
    save(tmp_path / "s0_t1.nii.gz", phantom(seed=5))
    os.utime(tmp_path / "s0_t1.nii.gz", (1, 1))
    assert not np.allclose(read(path, cache_folder=str(folder)).cache[0], first)


@pytest.mark.parametrize("fails", ["_t1", "_mask"])
def test_a_scan_that_could_not_be_read_for_a_while_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path, folder = subjects(tmp_path, 2), str(tmp_path / "kept")

    def little(needed: int, path: Path) -> None:
        if f"s0{fails}" in path.name:
            raise DataError("this machine has no room for it", where=path)

    with monkeypatch.context() as now:
        now.setattr(nifti, "_require_room", little)
        dataset = read(path, cache_folder=folder)
    said = [*dict(dataset.unreadable).values(), *dataset.source.survey.notes()]
    assert any("no room" in line for line in said)
    dataset = read(path, cache_folder=folder)
    assert not dataset.unreadable
    assert not any("no room" in line for line in dataset.source.survey.notes())

    def again(*_: object) -> None:
        raise AssertionError("what was read is kept")

    monkeypatch.setattr(reader, "survey_subject", again)
    assert not read(path, cache_folder=folder).unreadable


def _facts(spacing: tuple[float, ...], extent: tuple[float, ...]) -> Facts:
    return Facts("one", {}, spacing, extent, extent)


def test_size_and_spacing_are_chosen_from_the_data() -> None:
    brains = [_facts((1.0, 1.0, 1.0), (140.0 + n, 170.0, 150.0)) for n in range(20)]
    plan, why = choose_plan(brains, Wanted(("t1",)))
    assert np.prod(plan.size) <= 96**3
    assert (np.array(plan.size) * plan.spacing >= (158, 170, 150)).all()
    assert "more than 884,736 voxels" in why[0]
    small = [_facts((1.0, 1.0, 5.0), (40.0, 40.0, 40.0))] * 3
    assert choose_plan(small, Wanted(("t1",)))[0].spacing == (1.0, 1.0, 5.0)
    assert choose_plan(small, Wanted(("t1",)))[0].size == (40, 40, 8)
    given, _ = choose_plan(brains, Wanted(("t1",), size=(32, 32, 32)))
    assert (np.array(given.size) * given.spacing >= (158, 170, 150)).all()
    assert choose_plan(brains, Wanted(("t1",), spacing=(2.0, 2.0, 2.0)))[0].size == (80, 88, 80)


def volume_batches(path: Path, workers: int, room: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Loader, list[Any]]:
    monkeypatch.setattr("regard.data.loader.free_on", lambda device: 3 * room)
    dataset = scan(open_source(path, labels=False))
    dataset.cache.clear()  # as of volumes that are more than memory is used for
    images = Images(dataset, tuple(dataset.sizes.most_common(1)[0][0]), 2)
    loader = Loader(images, [3, 0, 5, 1, 4], 2, shuffle=4, workers=workers)
    loader.keep_on(torch.device("cpu"))
    try:
        return loader, [batch for epoch in (0, 1) for batch in loader.epoch(epoch)]
    finally:
        loader.close()


def test_volumes_that_fit_on_the_gpu_stay_there_and_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = subjects(tmp_path, 6)
    by_workers, expected = volume_batches(path, 1, 0, monkeypatch)
    assert by_workers.stacked is None
    values = 2 * math.prod(by_workers.images.size)
    too_many, _ = volume_batches(path, 0, 5 * 4 * values - 1, monkeypatch)
    assert too_many.stacked is None
    kept, got = volume_batches(path, 1, 5 * 4 * values, monkeypatch)
    assert kept.stacked is not None
    assert kept.loader is None
    for x, y in zip(expected, got, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(x[:3], y[:3], strict=True))
        assert x.steps == y.steps
