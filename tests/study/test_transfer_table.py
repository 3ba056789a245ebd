"""Models times data sets: mean and deviation over runs, with what pre-training and fine-tuning cost."""

import csv
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import Any

import pytest

import regard
from regard import api
from regard.errors import ConfigError, RunError
from regard.study import norm, run_study, transfer, transfer_size
from regard.study.transfer_table import TransferTable
from regard.weights import Run
from tests.conftest import make_folder, whole_runs

NOTHING = SimpleNamespace(summary=list, out=Path("x"))
QUICK: dict[str, Any] = {"steps": 2, "batch_size": 10, "quiet": True}


@pytest.fixture(scope="module")
@whole_runs()
def made(tmp_path_factory) -> TransferTable:
    """A run and a name, on two data sets with two seeds."""
    place = tmp_path_factory.mktemp("table")
    photos = make_folder(place / "photos", per_class=20, side=16)
    settings: dict[str, Any] = {"depth": 1, "epochs": 1, "explain": 0, "quiet": True, "model": "vit_nano"}
    run = regard.train(photos, out=place / "mine", **settings)
    return transfer([photos, "digits"], [run.path, "mlp_nano"], seeds=2, out=place / "study", **QUICK)


def test_every_cell_is_the_mean_over_its_runs(made):
    assert list(made.models) == ["mine", "mlp_nano"]
    assert list(made.data) == ["photos", "digits"]
    assert len(made.rows) == 8
    for row in made.rows:
        summary = Run(made.out / row["run"]).read_json("summary.json")
        assert row["accuracy"] == summary["figures"]["accuracy"]["value"]
    cell = made.cell("mine", "digits")
    one, other = made.values("mine", "digits").values()
    assert cell.mean == pytest.approx((one + other) / 2)
    assert cell.deviation == pytest.approx(abs(one - other) / 2**0.5)


def test_a_run_brings_its_weights_and_what_they_cost(made):
    (first,) = {row["pre_training_cost"]["flops"] for row in made.rows if row["model"] == "mine"}
    assert first == Run(made.out.parent / "mine").read_json("summary.json")["compute"]["flops"]
    assert all(row["pre_training_cost"] == {} for row in made.rows if row["model"] == "mlp_nano")
    assert all(row["tuning_cost"]["flops"] > 0 for row in made.rows)
    settings = Run(made.out / "runs" / "mine-digits-0").read_config().settings
    assert settings["transfer"]["weights"]["value"] == str(made.out.parent / "mine")
    header, rows = made.table()
    assert header[:4] == ["model", "parameters", "photos", "digits"]
    assert header[4:] == [
        "fine-tuning, FLOP", "fine-tuning, device-hours", "pre-training, FLOP", "pre-training, device-hours",
    ]  # fmt: skip
    assert rows[0][-1] != "–"
    assert rows[1][-2:] == ["–", "–"]


@pytest.mark.whole_runs
def test_what_is_written(made):
    made.write()  # with its figure
    with (made.out / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert float(rows[0]["tuning_flops"]) > 0
    text = (made.out / "study.md").read_text()
    assert f"| mlp_nano | {made.rows[1]['parameters']:,} | {made.cell('mlp_nano', 'photos')} |" in text
    assert "Deviations of fewer than three runs say little." in text
    assert (made.out / "study.png").stat().st_size > 5000


def test_it_resumes_grows_and_stops_in_time(made, monkeypatch):
    trained, train = [], api.train
    monkeypatch.setattr(api, "train", lambda data, **s: trained.append(s["out"].name) or train(data, **s))
    models, data = list(made.models.values()), list(made.data.values())
    again = transfer(data, models, seeds=2, out=made.out, **QUICK)
    assert (trained, again.rows) == ([], made.rows)
    some = transfer(data, models, seeds=3, minutes=-1.0, out=made.out, **QUICK)
    assert trained == []
    assert "some cells have 2 of 3 runs" in " ".join(some.summary())
    grown = transfer(data[1:], models[1:], seeds=3, out=made.out, **QUICK)
    assert trained == ["mlp_nano-digits-2"]
    assert len(grown.rows) == 3
    with pytest.raises(RunError, match="its settings differ"):
        transfer(data, models, seeds=2, out=made.out, **{**QUICK, "steps": 3})
    other = make_folder(made.out.parent / "more" / "photos", per_class=21, side=16)
    with pytest.raises(RunError, match="other data called photos"):
        transfer([other], models, seeds=2, out=made.out, **QUICK)


def test_it_resumes_without_the_folders_of_its_runs(made, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "train", None)
    out = copytree(made.out, tmp_path / "study", ignore=ignore_patterns("runs"))
    again = transfer(list(made.data.values()), list(made.models.values()), seeds=2, out=out, **QUICK)
    assert again.rows == made.rows


def test_settings_of_the_cut_are_refused_before_a_study_runs(tmp_path):
    for part in ("train", "val", "test"):
        make_folder(tmp_path / "photos" / part, per_class=8, side=16)
    data = tmp_path / "photos"
    with pytest.raises(ConfigError, match="--holdout is not for this data"):
        transfer(["digits", data], ["mlp_nano"], out=tmp_path / "table", holdout=0.3, **QUICK)
    with pytest.raises(ConfigError, match="--split-seed is not for this data"):
        transfer_size("digits", data, ("mlp_nano",), (90,), out=tmp_path / "size", tune={"split_seed": 1}, quiet=True)
    with pytest.raises(ConfigError, match="--holdout is not for this data"):
        run_study(norm(data, out=tmp_path / "norm", holdout=0.3), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_differences_are_paired_and_doubtful_ones_say_so():
    values = {"a": (0.80, 0.82, 0.84), "b": (0.70, 0.72, 0.75), "c": (0.79, 0.85, 0.82)}
    rows = [
        {"model": name, "data": "pets", "seed": seed, "accuracy": value, "seen": name == "b"}
        for name, of in values.items()
        for seed, value in enumerate(of)
    ]
    table = TransferTable(Path("x"), {name: name for name in values}, {"pets": "pets"}, 3, {}, rows, {})
    lines = table.summary()
    assert lines[0] == "pets: a is ahead of b by 9.7 ± 0.3 points."
    assert "cannot be told apart (0.0 ± 1.5 points" in lines[1]
    assert lines[-1] == "The weights had seen test images of the data in pre-training: b on pets."


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"seeds": 0}, ConfigError, "must be at least 1"),
        ({"models": []}, ConfigError, "needs data and models"),
        ({"models": ["vit_nono"]}, ConfigError, "did you mean vit_nano"),
        ({"models": ["runs/none"]}, RunError, "no such run or file of weights"),
        ({"models": ["vit_nano", "vit_nano"]}, ConfigError, "given twice"),
        ({"seed": 1}, ConfigError, "a study sets seed itself"),
        ({"data": ["dates"]}, ConfigError, "dates holds texts"),
        ({"patch": 2}, ConfigError, "mlp_nano has no patch"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(changes, error, says, tmp_path):
    wanted: dict[str, Any] = {"data": ["digits"], "models": ["mlp_nano"], **QUICK} | changes
    with pytest.raises(error, match=says):
        transfer(out=tmp_path / "study", **wanted)
    assert not (tmp_path / "study").exists()


def test_the_command(cli, monkeypatch, picture_folder):
    seen: list[Any] = []
    monkeypatch.setattr(
        "regard.study.transfer_table.transfer", lambda *data, **given: seen.append((data, given)) or NOTHING
    )
    data = ["digits", str(picture_folder)]
    cli("study", "transfer", *data, "--models", "runs/a", "vit_nano,mlp_nano", "--seeds", "2", "--lr", "0.1")
    assert seen == [((data, ("runs/a", "vit_nano", "mlp_nano")), {"quiet": False, "seeds": 2, "lr": 0.1})]
    code, _, err = cli("study", "transfer", "digits")
    assert code == 2
    assert "no models are given" in err
    assert cli("study", "transfer", "digits", "--models", "a", "--shots", "3")[0] == 2
