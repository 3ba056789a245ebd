"""Reading one scan: right voxels in the right place, and hostile or wrong files refused by name."""

from __future__ import annotations

import gzip
import os
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.volumes import read_scan
from regard.data.volumes.dicom import describe_dicom
from regard.errors import ConfigError, DataError
from tests.data.volumes.plain_dicom import differences, read_plain
from tests.data.volumes.scans import ORIENTATIONS, affine_of, phantom, save, save_dicom


def test_every_orientation_is_read_as_nibabel_reads_it(tmp_path: Path) -> None:
    import nibabel

    array, affine = phantom(), affine_of((1.0, 2.0, 0.5))
    assert len(set(ORIENTATIONS)) == 48
    for orientation in ORIENTATIONS:
        path = save(tmp_path / "scan.nii", array, affine, orientation)
        scan = read_scan(path)
        assert scan.orientation == orientation
        straight = scan.to_ras()
        oracle = nibabel.as_closest_canonical(nibabel.load(path))  # pyright: ignore[reportArgumentType]
        assert np.array_equal(straight.array, np.asarray(oracle.dataobj))
        assert np.allclose(straight.affine, oracle.affine, atol=1e-6)
        assert straight.spacing == (1.0, 2.0, 0.5)


def test_scaling_units_and_byte_order_are_those_of_nibabel(tmp_path: Path) -> None:
    import nibabel

    array = (phantom() * 10).astype(">i2")
    image = nibabel.Nifti1Image(array, affine_of(), nibabel.Nifti1Header(endianness=">"))
    image.header.set_slope_inter(0.25, -3.0)
    nibabel.save(image, tmp_path / "scaled.nii.gz")
    oracle = nibabel.load(tmp_path / "scaled.nii.gz").get_fdata()  # pyright: ignore[reportAttributeAccessIssue]
    assert np.allclose(read_scan(tmp_path / "scaled.nii.gz").array, oracle, atol=1e-4)
    metres = nibabel.Nifti1Image(phantom(), affine_of((0.001, 0.001, 0.002)))
    metres.header.set_xyzt_units("meter")
    nibabel.save(metres, tmp_path / "metres.nii")
    assert read_scan(tmp_path / "metres.nii").spacing == (1.0, 1.0, 2.0)


def _change(path: Path, at: int, form: str, *values: float) -> Path:
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, at, *values)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("at", "form", "values", "says"),
    [
        (40, "<8h", (3, 20000, 20000, 20000, 1, 1, 1, 1), "million voxels"),
        (40, "<8h", (3, 30, 30, 30, 1, 1, 1, 1), "ends before its last voxel"),
        (40, "<8h", (4, 12, 14, 5, 2, 1, 1, 1), "not one volume"),
        (40, "<8h", (3, 0, 14, 10, 1, 1, 1, 1), "not one volume"),
        (70, "<h", (128,), "not understood"),
        (252, "<2h", (0, 0), "does not say how the patient lies"),
        (280, "<4f", (0, 0, 0, 0), "cannot be inverted"),
        (280, "<4f", (1, 1, 0, 0), "not at right angles"),
        (108, "<f", (1e9,), "voxels at byte"),
        (352, "<f", (float("nan"),), "1 voxels are NaN or infinite"),
    ],
)
def test_what_a_header_may_not_say(tmp_path: Path, at: int, form: str, values: tuple[float, ...], says: str) -> None:
    path = _change(save(tmp_path / "scan.nii", phantom()), at, form, *values)
    with pytest.raises(DataError, match=says):
        read_scan(path)


def test_a_small_file_that_expands_is_read_no_further_than_its_header_claims(tmp_path: Path) -> None:
    plain = save(tmp_path / "scan.nii", phantom())
    bomb = tmp_path / "bomb.nii.gz"
    with gzip.open(bomb, "wb") as file:
        file.write(plain.read_bytes())
        for _ in range(64):
            file.write(bytes(2**20))
    assert np.array_equal(read_scan(bomb).array, read_scan(plain).array)
    _change(plain, 40, "<8h", 3, 1100, 1100, 1100, 1, 1, 1, 1)
    bomb.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(DataError, match="claims 1100 × 1100 × 1100") as caught:
        read_scan(bomb)
    assert "--max-megapixels 167" in str(caught.value)
    bomb.write_bytes(bomb.read_bytes()[:60])
    with pytest.raises(DataError, match="damaged"):
        read_scan(bomb)
    with pytest.raises(DataError, match="no NIfTI"):
        read_scan(_change(plain, 0, "<i", 7))


def test_a_missing_extra_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(ConfigError, match="nibabel is not installed") as caught:
        read_scan(tmp_path / "scan.nii")
    assert caught.value.do == "pip install 'regard[medical]'"


def test_empty_and_constant_volumes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        read_scan(save(tmp_path / "zeros.nii", np.zeros((4, 4, 4), np.float32)))
    with pytest.raises(DataError, match="constant: every voxel is 7"):
        read_scan(save(tmp_path / "sevens.nii", np.full((4, 4, 4), 7.0, np.float32)))


def test_a_dicom_series_is_the_volume_it_was_made_from(tmp_path: Path) -> None:
    array = phantom((8, 10, 9)).round()
    scan = read_scan(save_dicom(tmp_path / "t1", array, spacing=(0.5, 1.5, 2.0), name="Doe^Jane")).to_ras()
    assert np.array_equal(scan.array, array[::-1, ::-1])  # left and posterior to right and anterior
    assert scan.spacing == (0.5, 1.5, 2.0)
    first = scan.affine @ [scan.shape[0] - 1, scan.shape[1] - 1, 0, 1]
    assert np.allclose(first[:3], [10.0, -5.0, 7.0])  # the position of the first slice, from LPS to RAS
    assert scan.identifying == ("PatientName", "PatientID")


def test_series_are_told_apart_and_chosen_by_name(tmp_path: Path) -> None:
    one, two = phantom((8, 8, 8)).round(), phantom((8, 8, 8), seed=1).round()
    folder = save_dicom(tmp_path / "exam", one, series="T1")
    save_dicom(folder, two, series="FLAIR")
    (folder / "notes.txt").write_text("not DICOM")
    with pytest.raises(DataError, match=r"2 series: (T1.*FLAIR|FLAIR.*T1)"):
        read_scan(folder)
    assert np.array_equal(read_scan(f"{folder}#FLAIR").to_ras().array, two[::-1, ::-1])
    with pytest.raises(DataError, match="no series 'FLIAR'") as caught:
        read_scan(f"{folder}#FLIAR")
    assert "did you mean FLAIR" in str(caught.value)


def mixed_folder(folder: Path) -> Path:
    """Four series of other shapes, spacings, directions and scalings in one folder."""
    tilted = (0.8, 0.6, 0.0, -0.6, 0.8, 0.0)
    save_dicom(folder, phantom((8, 10, 9)).round(), series="T1", name="Doe^Jane")
    save_dicom(folder, phantom((12, 9, 7), 1).round(), series="FLAIR", spacing=(0.5, 1.5, 3.0), number=2, slope=0.5)
    save_dicom(folder, phantom((10, 8, 6), 2).round(), series="sagittal", directions=(0, 1, 0, 0, 0, -1), number=3)
    save_dicom(folder, phantom((9, 9, 9), 3).round(), series="oblique", directions=tilted, number=4, intercept=-100)
    return folder


def test_a_mixed_folder_is_the_volumes_that_an_independent_reader_sees(tmp_path: Path) -> None:
    folder = mixed_folder(tmp_path / "exam")
    assert set(read_plain(folder)) == {"T1", "FLAIR", "sagittal", "oblique"}
    for series in read_plain(folder):
        voxels, affine = differences(folder, series)
        assert voxels == 0, series
        assert affine < 1e-9, series


def test_the_real_mixed_folder_is_the_volumes_that_an_independent_reader_sees(tmp_path: Path) -> None:
    archive = Path(os.environ.get("REGARD_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "dicom_t1.tar.xz"
    if not archive.is_file():
        pytest.skip("needs ../shared/data, or REGARD_SHARED")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    found = {series: differences(tmp_path / "dicom_t1", series) for series in read_plain(tmp_path / "dicom_t1")}
    assert set(found) == {"T1post", "T1pre_reg", "FLAIR_reg", "T2_reg", "HippoCrop"}
    for voxels, affine in found.values():
        assert voxels == 0
        assert affine < 1e-5


def test_check_lists_the_series_of_a_bare_folder_and_says_how_to_name_them(tmp_path: Path, cli: Any) -> None:
    folder = mixed_folder(tmp_path / "cohort" / "exam")
    save_dicom(folder, phantom((8, 8, 8)).round(), series="holes", skip=(3,), number=5)
    code, said, error = cli("check", folder.parent)
    rows = {line.split()[0]: line for line in said.splitlines()}
    assert "9 × 10 × 8" in rows["cohort/exam#T1"]
    assert "identifying: PatientName, PatientID" in rows["cohort/exam#T1"]
    assert "3 × 1.5 × 0.5" in rows["cohort/exam#FLAIR"]
    assert "1 slice missing" in rows["cohort/exam#holes"]
    assert len([name for name in rows if name.startswith("cohort/exam#")]) == 5
    assert "to do: cohort/exam#holes: export the whole series again" in said
    assert code == 2
    assert "DICOM files without a table" in error
    assert "s01,cohort/exam#SERIES,a" in error
    table = tmp_path / "table.csv"
    table.write_text(
        "subject,t1,label\n"
        + "".join(f"s{n},cohort/exam#{name},{n % 2}\n" for n, name in enumerate(("T1", "FLAIR", "sagittal", "oblique")))
    )
    assert "t1" in cli("check", table, "--cache-folder", tmp_path / "kept")[1]


def test_series_of_one_description_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    folder = save_dicom(tmp_path / "exam", phantom((8, 8, 8)).round(), series="T1")
    for path in folder.iterdir():
        path.rename(path.with_name(f"first_{path.name}"))
    save_dicom(folder / "other", phantom((8, 8, 8), 1).round(), series="T1", number=2)
    for path in (folder / "other").iterdir():
        path.rename(folder / path.name)
    said = describe_dicom(folder, [folder])
    assert "exam#1 " in said
    assert "exam#2 " in said


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"skip": (3, 4)}, "2 slices missing: between 11.0 and 17.0 mm"),
        ({"double": (2,)}, "1 slice lie where another one lies"),
        ({"tilt": 12.0}, "tilted by 12.0 degrees"),
        ({"skip": tuple(range(1, 8))}, "one slice only"),
    ],
)
def test_faults_of_a_series_are_named(tmp_path: Path, fault: dict[str, object], says: str) -> None:
    folder = save_dicom(tmp_path / "t1", phantom((8, 8, 8)).round(), **fault)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match=says) as caught:
        read_scan(folder)
    assert caught.value.do
    assert str(folder) in str(caught.value)


def test_a_slice_without_a_position_is_never_given_one(tmp_path: Path) -> None:
    from pydicom import dcmread

    folder = save_dicom(tmp_path / "t1", phantom((8, 8, 8)).round())
    path = sorted(folder.iterdir())[2]
    slice_ = dcmread(path)
    del slice_.ImagePositionPatient
    slice_.save_as(path)
    with pytest.raises(DataError, match="1 of 8 slices do not say where they lie"):
        read_scan(folder)
