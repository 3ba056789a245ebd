"""Transfer by the amount of pre-training data: which runs are made, that they resume, and what is said of them."""

import csv
import json
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from regard import api
from regard.errors import ConfigError, DataError, RunError
from regard.study import transfer_size
from regard.study.transfer_curves import TransferCurves, TransferSize
from regard.weights import Run
from tests.conftest import make_folder, whole_runs

TUNE: dict[str, Any] = {"steps": 2, "batch_size": 20}
NOTHING = SimpleNamespace(summary=list, out=Path("x"))
QUICK: dict[str, Any] = {"steps": 2, "shots": 2, "quiet": True, "tune": TUNE}
HELD = ("7", "8", "9")


@pytest.fixture(scope="module")
@whole_runs()
def made(tmp_path_factory) -> TransferCurves:
    """Two models pre-trained on two amounts of the digits 0 to 6, transferred to 7, 8 and 9."""
    out = tmp_path_factory.mktemp("studies") / "sizes"
    return transfer_size(
        "digits", None, ("vit_nano", "mlp_nano"), (40, 90), seeds=1, hold_classes=HELD, out=out, **QUICK
    )


def names_of(run: Run, part: str) -> set[str]:
    return {row["name"] for row in run.split_rows() if row["split"] == part}


def test_pre_training_images_are_nested_and_never_of_the_held_classes(made):
    assert [(row["arm"], row["images"]) for row in made.rows] == [
        ("vit_nano", 40), ("mlp_nano", 40), ("vit_nano", 90), ("mlp_nano", 90),
    ]  # fmt: skip
    runs = {(row["arm"], row["images"]): made.out / row["run"] for row in made.rows}
    small, large = (names_of(Run(runs["vit_nano", n] / "pretrained"), "train") for n in (40, 90))
    assert small < large
    assert small == names_of(Run(runs["mlp_nano", 40] / "pretrained"), "train")
    with np.load(made.out / "data" / "pretrain.npz") as first, np.load(made.out / "data" / "transfer.npz") as second:
        assert set(first["train_labels"].tolist()) == set(range(7))
        assert set(second["train_labels"].tolist()) == {7, 8, 9}
        assert (
            len(first["train_labels"])
            + len(second["train_labels"])
            + len(first["test_labels"])
            + len(second["test_labels"])
            == 1797
        )


def test_weights_go_from_the_first_phase_into_the_second_and_into_the_probe(made):
    for row in made.rows:
        place = made.out / row["run"]
        settings = Run(place / "tuned").read_config().settings
        assert settings["transfer"]["weights"]["value"] == str(place / "pretrained")
        assert Run(place / "tuned").read_json("summary.json")["figures"]["accuracy"]["value"] == row["tuned"]
        probes = Run(place / "probe").read_json("probe.json")
        assert probes["weights"] == str(place / "pretrained")
        assert [(p["probe"], p["shots"]) for p in probes["probes"]] == [("few_shot", 2), ("linear", None)]
        assert probes["probes"][0]["accuracy"] == row["few_shot"]
        compute = Run(place / "tuned").read_json("summary.json")["compute"]
        assert compute["pre_training"]["flops"] == row["pre_training_cost"]["flops"]


@pytest.mark.whole_runs
def test_what_is_written(made):
    made.write()  # with its figure
    with (made.out / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert float(rows[0]["pre_training_flops"]) > 0
    stored = json.loads((made.out / "study.json").read_text())
    assert stored["held"] == list(HELD)
    assert len(stored["points"]["few_shot"]) == 4
    text = (made.out / "study.md").read_text()
    assert "Some means are of 1 seed only" in text
    assert "| vit_nano | 40 | " in text
    picture = (made.out / "study.svg").read_text()
    assert "pre-training images (log scale)" in picture
    assert "2-shot test accuracy" in picture


def test_it_resumes_stops_in_time_and_refuses_other_settings(made, monkeypatch):
    trained, train = [], api.train
    monkeypatch.setattr(api, "train", lambda data, **s: trained.append(s["out"]) or train(data, **s))
    models, same = ("vit_nano", "mlp_nano"), {"hold_classes": HELD, "out": made.out, **QUICK}
    again = transfer_size("digits", None, models, (40, 90), seeds=1, **same)
    assert (trained, again.rows) == ([], made.rows)
    stopped = transfer_size("digits", None, models, (40, 90), seeds=2, minutes=-1.0, **same)
    assert (trained, stopped.rows) == ([], made.rows)
    (made.out / made.rows[0]["run"] / "tuned" / "report.html").unlink()
    again = transfer_size("digits", None, models, (40, 90), seeds=1, **same)
    assert trained == [made.out / made.rows[0]["run"] / "tuned"]
    assert [row["tuned"] for row in again.rows] == [row["tuned"] for row in made.rows]
    with pytest.raises(RunError, match="its settings differ"):
        transfer_size("digits", None, models, (40, 90), seeds=1, **{**same, "steps": 3})
    with pytest.raises(RunError, match="its tuning differ"):
        transfer_size("digits", None, models, (40, 90), seeds=1, **{**same, "tune": TUNE | {"lr": 0.1}})


def test_it_resumes_without_the_folders_of_its_runs(made, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "train", None)
    same: Any = {"seeds": 1, "hold_classes": HELD, **QUICK}
    here = transfer_size("digits", None, ("vit_nano", "mlp_nano"), (40, 90), out=made.out, **same)
    out = copytree(made.out, tmp_path / "study", ignore=ignore_patterns("runs"))
    again = transfer_size("digits", None, ("vit_nano", "mlp_nano"), (40, 90), out=out, **same)
    assert len(again.rows) == 4
    assert again.rows == here.rows


def test_masked_pre_training_and_another_data_set(tmp_path):
    data = make_folder(tmp_path / "photos", per_class=30, side=16)
    fields: dict[str, Any] = {"depth": 1, "patch": 4, "decoder_depth": 1}
    result = transfer_size(
        data, "digits", ("vit_nano",), (20,), seeds=1, how="masked", out=tmp_path / "s", **QUICK | fields
    )
    (row,) = result.rows
    place = tmp_path / "s" / row["run"]
    assert row["images"] == 20
    assert Run(place / "pretrained").read_config().task == "pretraining"
    assert Run(place / "tuned").read_config().data == "digits"


def test_where_models_overtake_is_said_from_the_rows():
    values = {
        "cnn": {100: (0.50, 0.52, 0.54), 10_000: (0.60, 0.62, 0.64)},
        "vit": {100: (0.30, 0.32, 0.34), 10_000: (0.80, 0.82, 0.84)},
    }
    rows = [
        {"arm": arm, "images": n, "seed": seed, "tuned": value, "few_shot": 0.5}
        for arm, sizes in values.items()
        for n, of in sizes.items()
        for seed, value in enumerate(of)
    ]
    design = TransferSize("digits", "", ("mlp_nano", "vit_nano"), Path("x"), hold=("7", "8"))
    object.__setattr__(design, "models", ("cnn", "vit"))
    lines = TransferCurves(design, rows, {}).summary()
    assert lines[0].startswith("Fine-tuned: cnn is ahead up to about 1,000 images")
    assert lines[1].startswith("Few-shot: cnn is ahead of vit at every size")
    assert "it may be chance" in lines[1]
    assert (
        lines[2]
        == "From 100 to 10,000 pre-training images, 5-shot accuracy of cnn changes by +0.0 points (+0.0 to +0.0)."
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hold_classes": ()}, "not clear what to transfer to"),
        ({"transfer": "digits"}, "not clear what to transfer to"),
        ({"hold_classes": ("7", "seven")}, "no class 'seven'"),
        ({"hold_classes": ("7",)}, "1 classes are held"),
        ({"how": "guessed"}, "no way to pre-train"),
        ({"how": "masked"}, "mlp_nano is no ViT"),
        ({"shots": 0}, "probes nothing"),
        ({"models": ("vit_nono",)}, "did you mean vit_nano"),
        ({"models": ("vit_nano", "vit_nano")}, "each model is to be given once"),
        ({"seed": 1}, "a study sets seed itself"),
        ({"tune": {"weights": "x"}}, "sets weights of the fine-tuning itself"),
        ({"tune": {"lr": "high"}}, "lr cannot be 'high'"),
        ({"sizes": (90, 40)}, "do not rise"),
    ],
)
def test_what_cannot_be_studied_is_said_before_anything_runs(changes, says, tmp_path):
    wanted = {"models": ("vit_nano", "mlp_nano"), "sizes": (40, 90), "hold_classes": HELD, **QUICK} | changes
    with pytest.raises(ConfigError, match=says):
        transfer_size("digits", out=tmp_path / "study", **wanted)
    assert not (tmp_path / "study").exists()


def test_each_data_is_read_as_the_settings_of_its_phase_say(tmp_path, monkeypatch):
    make_folder(tmp_path / "data")
    read: list[Any] = []

    def check(data: Any, **how: Any) -> Any:
        read.append((Path(data).name, {name: value for name, value in how.items() if name != "quiet"}))
        if len(read) == 2:
            raise DataError("enough")
        return check_data(data, **how)

    check_data = api.check
    monkeypatch.setattr(api, "check", check)
    settings: dict[str, Any] = {
        "models": ("vit_nano",),
        "max_megapixels": 9.0,
        "steps": 1,
        "tune": {"label_column": "b"},
    }
    with pytest.raises(DataError, match="enough"):
        transfer_size(tmp_path / "data", "digits", out=tmp_path / "study", **settings)
    assert read == [("data", {"max_megapixels": 9.0}), ("digits", {"label_column": "b"})]


def test_the_command_takes_flags_of_both_phases(cli, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(
        "regard.study.transfer_curves.transfer_size", lambda *data, **given: seen.append((data, given)) or NOTHING
    )
    words = "study transfer-size digits --models vit_nano,mlp_nano --sizes 40 90 --hold-classes 7 8 --steps 5"
    cli(*words.split(), "--tune-steps", "3", "--tune-no-flip", "--minutes", "2")
    data, given = seen[0]
    assert data == ("digits",)
    assert given["tune"] == {"steps": 3, "flip": False}
    assert (given["models"], given["sizes"], given["hold_classes"]) == (("vit_nano", "mlp_nano"), (40, 90), ("7", "8"))
    assert (given["steps"], given["minutes"]) == (5, 2.0)
    code, _, err = cli(*words.split(), "--tune-stepz", "3")
    assert code == 2
    assert "of the fine-tuning" in err
