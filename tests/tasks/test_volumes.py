"""Scans through the public commands: train, evaluate, predict and explain, on generated NIfTI and DICOM."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.cli import main
from regard.errors import ConfigError, DataError
from regard.explain.explanation import METHODS
from regard.image_groups import VOLUMES_ONLY
from regard.run import runner
from regard.run.fold_masks import explain_folds
from regard.training import ALONE
from tests.data.volumes.scans import affine_of, phantom, save, save_dicom

NANO: dict[str, Any] = {
    "model": "vit3d_nano", "depth": 1, "width": 32, "heads": 2, "mlp": 64, "size": 16, "device": "cpu",
    "quiet": True,
}  # fmt: skip
ORIENTATIONS = ("RAS", "LPS", "PIR")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 subjects in three orientations; the label is a bright block on the right in t1, the age its brightness.

    The mask is the block; one subject has none, one an empty one, and one lies on other voxels.
    """
    folder, draw = tmp_path_factory.mktemp("cohort"), np.random.default_rng(0)
    rows: list[list[object]] = [["subject", "t1", "flair", "label", "patient", "age", "mask"]]
    for n in range(48):
        right, bright = bool(draw.random() < 0.5), float(draw.uniform(100, 400))
        t1, flair = phantom((16, 16, 16), n), phantom((16, 16, 16), 100 + n)
        block = np.zeros((16, 16, 16), np.float32)
        block[slice(9, 13) if right else slice(3, 7), 5:11, 5:11] = 1
        t1 += (bright + 200) * block
        mask = {1: 0 * block, 2: block[1:]}.get(n, block)
        for name, array in (("t1", t1), ("flair", flair), ("mask", mask)):
            save(folder / f"{n}_{name}.nii", array, affine_of((1.0, 1.0, 1.0)), ORIENTATIONS[n % 3])
        side = "right" if right else "left"
        rows.append(
            [f"s{n}", f"{n}_t1.nii", f"{n}_flair.nii", side, f"p{n}", f"{bright:.2f}", f"{n}_mask.nii" if n else ""]
        )
    with (folder / "cohort.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "cohort.csv"


@pytest.fixture(scope="module")
def run(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "sides"
    return regard.train(cohort, epochs=8, lr=3e-3, explain=2, scans="t1", out=out, **NANO).path


def test_the_side_of_a_block_is_learnt_whatever_the_orientation_of_the_files(run: Path, cohort: Path) -> None:
    summary, data = (json.loads((run / name).read_text()) for name in ("summary.json", "data.json"))
    assert summary["figures"]["accuracy"]["value"] == 1.0
    assert data["volumes"]["fingerprint"]["channels"]["t1"]["orientations"].keys() == set(ORIENTATIONS)
    assert data["volumes"]["plan"]["size"] == [16, 16, 16]
    assert (run / "explain" / "01.png").is_file()
    result = regard.evaluate(run, cohort, split="test", quiet=True)
    assert result.figures["accuracy"].value == 1.0


def test_a_run_scores_its_maps_against_the_masks_and_shows_the_planes(run: Path) -> None:
    held, page = json.loads((run / "explain" / "masks.json").read_text()), (run / "report.html").read_text()
    maps = json.loads((run / "explain" / "explanations.json").read_text())
    located = [e["location"] for pair in maps for e in pair if e["location"]]
    assert len(held["subjects"]) == len(located) >= 2
    assert {score["method"] for score in held["scores"]} == {"rollout", "integrated_gradients"}
    for score in held["scores"]:
        shares = [row["share"] for row in held["subjects"] if row["method"] == score["method"]]
        assert score["share"]["value"] == pytest.approx(np.mean(shares))
        assert score["chance"] == pytest.approx(4 * 6 * 6 / 12**3)  # of the foreground
    for text in ("Maps against masks", "Slice by slice", 'id="volumes-data"', "The network’s input of 16 × 16 × 16"):
        assert text in page


def test_a_table_is_explained_with_its_masks(
    run: Path, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explain(rows: int, *more: str) -> str:
        few = cohort.parent / "masked.csv"
        few.write_text("\n".join(cohort.read_text().splitlines()[: 1 + rows]))
        words = ["explain", run, few, "--method", "occlusion", "--checks", "none", "--out", tmp_path / "m.png", *more]
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        main()
        return capsys.readouterr().out

    said = explain(2)  # without a mask, and with an empty one
    assert "maps against masks" not in said
    with pytest.raises(SystemExit):  # the third lies on other voxels: named, and the others are explained
        explain(9)
    said = capsys.readouterr()
    assert "the mask does not lie on the voxels of the scan" in said.err
    (line,) = [line for line in said.out.split("maps against masks")[1].splitlines() if line.startswith("occlusion")]
    assert line.split()[1] == "6"
    assert f"{4 * 6 * 6 / 12**3:.1%}" in line
    model: Any = regard.load(run, quiet=True)
    (subject,) = [s for s in model.inputs([str(cohort)]) if s.key == "s5"]
    assert (
        model.explain(subject, "occlusion", mask="mask", checks="none").location
        == model.explain(subject, "occlusion", checks="none", mask=cohort.parent / "5_mask.nii").location
    )


@pytest.fixture(scope="module")
def swin(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = {"model": "swin3d_nano", "size": 16, "device": "cpu", "quiet": True, "scans": "t1"}
    return regard.train(cohort, epochs=1, explain=0, out=tmp_path_factory.mktemp("runs") / "swin", **settings).path


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["run", "swin"])
def test_every_method_writes_a_map_on_the_scans_own_voxels(
    name: str, method: str, cohort: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: Any = regard.load(request.getfixturevalue(name), quiet=True)
    scan = cohort.parent / "5_t1.nii"  # PIR
    options = {"steps": 4} if method == "integrated_gradients" else {}
    made = model.explain(scan, method, checks="none", mask=cohort.parent / "5_mask.nii", **options)
    written, own = _load(made.save(tmp_path / "map.nii.gz")), _load(scan)
    assert written.shape == own.shape
    assert np.allclose(written.affine, own.affine)
    assert np.allclose(written.get_fdata(), (made.file_map * made.map.numel()).numpy(), atol=1e-5)
    assert made.location.share == pytest.approx(float(made.map[made.mask].sum()), abs=1e-5)
    if not made.says_nothing:
        assert float(made.map.sum()) == pytest.approx(1, abs=1e-4)


def test_a_scan_is_prepared_by_the_run_not_by_its_own_spacing(run: Path, cohort: Path, tmp_path: Path) -> None:
    array = phantom((16, 16, 16), 3)
    array[9:13, 5:11, 5:11] += 400
    doubled = array.repeat(2, 0).repeat(2, 1)
    fine = save(tmp_path / "fine.nii.gz", doubled, affine_of((0.5, 0.5, 1.0)), "ASL")
    dicom = save_dicom(tmp_path / "dicom", array[::-1, ::-1].round(), spacing=(1.0, 1.0, 1.0))
    model: Any = regard.load(run, quiet=True)
    plain = model.prepare(save(tmp_path / "plain.nii", array))
    assert float((model.prepare(fine) - plain).abs().mean()) < 0.25 * float(plain.abs().mean())
    assert float((model.prepare(dicom) - plain).abs().mean()) < 0.02 * float(plain.abs().mean())
    assert [p.label for p in model.predict_many([fine, dicom])] == ["right", "right"]
    with pytest.raises(DataError, match="not the model's input"):
        model.predict(np.zeros((1, 8, 8, 8), np.float32))


def test_the_command_line_predicts_and_explains_scans(
    run: Path, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import nibabel

    def command(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        main()
        return capsys.readouterr().out

    scan = cohort.parent / "1_t1.nii"
    assert "1_t1.nii" in command("predict", run, scan)
    few = cohort.parent / "few.csv"
    few.write_text("\n".join(cohort.read_text().splitlines()[:3]))
    assert "s1" in command("predict", run, few)
    out = tmp_path / "map.nii.gz"
    command("explain", run, scan, "--out", out, "--checks", "none", "--method", "occlusion", "--target", "right")
    made, own = nibabel.load(out), nibabel.load(scan)  # pyright: ignore[reportPrivateImportUsage]
    assert made.shape == own.shape  # pyright: ignore[reportAttributeAccessIssue]
    assert np.allclose(made.affine, own.affine)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_map_is_of_the_patient_and_not_of_the_order_of_the_file(run: Path, tmp_path: Path) -> None:
    import nibabel

    array, block = phantom((16, 16, 16), 3), np.zeros((16, 16, 16), np.float32)
    array[9:13, 5:11, 5:11] += 400
    block[9:13, 5:11, 5:11] = 1
    model: Any = regard.load(run, quiet=True)
    maps, locations = [], []
    for orientation in ("RAS", "SPL"):
        scan = save(tmp_path / f"{orientation}.nii", array, None, orientation)
        mask = save(tmp_path / "mask.nii", block, None, "RAS")  # on the same voxels, though stored otherwise
        made = model.explain(scan, "occlusion", target="right", mask=mask, checks="none")
        written = _load(made.save(tmp_path / f"{orientation}_map.nii"))
        assert nibabel.aff2axcodes(written.affine) == tuple(orientation)  # pyright: ignore[reportPrivateImportUsage]
        maps.append(nibabel.as_closest_canonical(written).get_fdata())  # pyright: ignore[reportPrivateImportUsage]
        locations.append(made.location)
    assert maps[0].max() > maps[0].min()
    assert np.allclose(maps[0], maps[1], atol=1e-3)
    assert locations[0].share == pytest.approx(locations[1].share, abs=1e-3)
    assert locations[0].area == pytest.approx(4 * 6 * 6 / 12**3)  # of the foreground
    with pytest.raises(ConfigError, match="does not lie on the voxels"):
        model.explain(scan, mask=save(tmp_path / "small.nii", block[1:]), checks="none")


def test_folds_are_explained_by_the_network_that_has_not_seen_the_subject(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = cohort.parent / "folded.csv"
    lines = cohort.read_text().splitlines()
    few.write_text("\n".join([lines[0], *lines[4:28]]))
    made = regard.train(few, folds=2, epochs=1, explain=0, scans="t1", out=tmp_path / "folds", **NANO)
    words = ["explain", made.path, few, "--method", "occlusion", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
    main()
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["occlusion", "24"]
    held = json.loads((made.path / "explain" / "masks.json").read_text())
    rows = {row["name"]: row for row in held["subjects"]}
    assert len(rows) == 24
    for fold in (1, 2):
        with (made.path / f"fold{fold}" / "splits.csv").open() as file:
            tested = [row["name"] for row in csv.DictReader(file) if row["split"] == "test"]
        model: Any = regard.load(made.path / f"fold{fold}", quiet=True)
        (subject,) = [s for s in model.inputs([str(few)]) if s.key == tested[0]]
        exact = model.explain(subject, "occlusion", checks="none").location
        assert rows[tested[0]]["share"] == pytest.approx(exact.share, abs=1e-6)
    assert "Maps against masks" in (made.path / "report.html").read_text()
    with pytest.raises(ConfigError, match="no folder of folds"):
        explain_folds(made.path / "fold1", few)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--checks", "none", "--out", str(tmp_path / "maps" / "map.nii.gz")])
    (tmp_path / "maps").mkdir()
    main()
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["occlusion", "24"]
    files = {path.name for path in (tmp_path / "maps").iterdir()}
    assert files == {f"map-{name}.nii.gz" for name in rows}, "each under the subject's name"
    written, scan = _load(tmp_path / "maps" / f"map-{tested[0]}.nii.gz"), _load(Path(subject.scans[0]))
    assert np.allclose(written.affine, scan.affine)
    exact = model.explain(subject, "occlusion", checks="none")
    assert np.allclose(written.get_fdata(), _load(exact.save(tmp_path / "exact.nii")).get_fdata(), atol=1e-4)


def _load(path: Path) -> Any:
    import nibabel

    return nibabel.load(path)  # pyright: ignore[reportPrivateImportUsage]


def test_a_spacing_that_predicts_the_label_is_named_by_check_run_and_folds(tmp_path: Path, cli: Any) -> None:
    header, rows = ["subject", "t1", "label"], list[list[object]]()
    for n in range(40):
        spacing = (1.0, 1.0, 1.2 if n % 2 else 1.0)
        rows.append(
            [f"s{n}", save(tmp_path / f"{n}.nii", phantom((16, 16, 16), n), affine_of(spacing)).name, "ab"[n % 2]]
        )
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    told = "oxel spacing and shape alone predicts the label: AUC 1.000"
    assert f"warning: v{told}" in cli("check", tmp_path / "table.csv")[1]
    settings: dict[str, Any] = NANO | {"epochs": 1, "explain": 0}
    made = regard.train(tmp_path / "table.csv", folds=2, out=tmp_path / "folds", **settings)
    assert any(told in line for line in made.read_json("summary.json")["warnings"])
    run = regard.train(tmp_path / "table.csv", out=tmp_path / "run", **settings)
    assert f"V{told}" in (run.path / "report.html").read_text()
    for n in range(40):
        save(tmp_path / f"{n}.nii", phantom((16, 16, 16), n), affine_of((1.0, 1.0, 1.2 if n % 3 else 1.0)))
    assert "alone predicts" not in cli("check", tmp_path / "table.csv")[1]


def test_numbers_from_two_scans(cohort: Path, tmp_path: Path) -> None:
    settings = NANO | {"column": "age", "epochs": 1, "explain": 0, "out": tmp_path / "run"}
    made = regard.train(cohort, **settings)
    model: Any = regard.load(made.path, quiet=True)
    assert model.preparation.scans == ("t1", "flair")
    paths = {name: cohort.parent / f"0_{name}.nii" for name in ("t1", "flair")}
    assert np.isfinite(model.predict(paths).value)
    assert "r2" in regard.evaluate(made.path, cohort, split="test", quiet=True).figures
    with pytest.raises(DataError, match="the model sees 2 scans"):
        model.predict(paths["t1"])
    with pytest.raises(DataError, match="there is no flair scan"):
        model.predict({"t1": paths["t1"]})


STILL: dict[str, Any] = dict.fromkeys(("rotate", "zoom", *VOLUMES_ONLY), 0.0) | {"flip_axes": None, "flip": False}


@pytest.fixture(scope="module")
def batches(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The first training batches of a run with these settings of the augmentation."""
    out, counted = tmp_path_factory.mktemp("batches"), itertools.count()

    def first(**settings: Any) -> torch.Tensor:
        class Built(Exception):
            pass

        def train(run: Any, task: Any, *_: Any) -> Any:
            raise Built(task)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "train", train)
            with pytest.raises(Built) as caught:
                regard.train(cohort, explain=0, scans="t1", out=out / str(next(counted)), **NANO | settings)
        task = caught.value.args[0]
        return next(iter(task.feed(ALONE).epoch(1, 0, iter))).inputs["image"]

    return first


@pytest.fixture(scope="module")
def still(batches: Any) -> torch.Tensor:
    return batches(**STILL)


@pytest.mark.parametrize("name", ["rotate", "zoom", "flip", *VOLUMES_ONLY])
def test_every_setting_of_their_augmentation_is_seen(name: str, batches: Any, still: torch.Tensor) -> None:
    value = {"flip": True, "flip_axes": "x,y,z", "rotate": 10.0}.get(name, 0.1)
    assert not torch.equal(batches(**STILL | {name: value, **({"flip": None} if name == "flip_axes" else {})}), still)


def test_volumes_vary_by_default_and_that_is_said(
    cohort: Path, batches: Any, still: torch.Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torch.equal(batches(**STILL), still)
    assert not torch.equal(batches(), still)
    settings: dict[str, Any] = NANO | {"quiet": False}
    regard.train(cohort, dry_run=True, scans="t1", **settings)
    said = " ".join(capsys.readouterr().err.split())
    assert "augmented by rotate 10.0, zoom 0.1, shift 0.05, elastic 0.02" in said
    assert "noise 0.05; not mirrored (--flip)" in said
    with pytest.raises(ConfigError, match="crop=shift and shift are both given"):
        batches(crop="shift", shift=0.1)
    with pytest.raises(ConfigError, match="--no-flip and --flip-axes"):
        batches(flip=False, flip_axes="x")


def test_swin_and_a_dry_run_that_says_what_was_chosen(cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"model": "swin3d_nano", "size": 16, "device": "cpu", "epochs": 1, "explain": 0}
    regard.train(cohort, dry_run=True, quiet=True, **settings)  # pyright: ignore[reportArgumentType]
    said = capsys.readouterr().out
    for what in (
        "spacing, mm",
        "voxels after cropping",
        "flair",
        "so that 95 % of 48 subjects fit",
        "per volume",
        "to prepare once",
    ):
        assert what in said
