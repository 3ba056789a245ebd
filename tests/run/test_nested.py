"""Settings chosen inside each fold: by what the fold may see, once, and on record."""

import json
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.errors import ConfigError, RunError
from regard.run.nested import inner_splits
from regard.weights import Run
from tests.run.folded import FAST, write_table

NESTED = {"lr": [1e-30, 3e-2]}
"""A rate that learns nothing, and one that does."""
SETTINGS: dict[str, Any] = FAST | {"ema": 0.0}


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    root = tmp_path_factory.mktemp("nested")
    data = write_table(root / "data", count=90)
    return data, regard.train(data, folds=3, nested=NESTED, out=root / "made", **SETTINGS)


def test_each_fold_chooses_what_learns_and_is_trained_with_it(nested: tuple[Path, Run]) -> None:
    _, made = nested
    chosen = made.read_json("summary.json")["nested"]
    assert len(chosen) == 3
    for fold, own in enumerate(chosen, start=1):
        assert own["figure"] == "auroc"
        assert own["scores"][1] > own["scores"][0], "the rate that learns scores more"
        assert own["chosen"] == {"lr": 3e-2}
        config = made.read_json(f"fold{fold}/config.json")["settings"]
        assert config["optim"]["lr"] == {"value": 3e-2, "origin": "flag"}
    assert "settings chosen inside each fold" in (made.path / "report.html").read_text()


def test_no_trial_sees_the_fold_that_is_tested(nested: tuple[Path, Run]) -> None:
    _, made = nested
    fold_of = {row["name"]: int(row["fold"]) for row in made.read_rows("predictions.csv")}
    for fold in (1, 2, 3):
        for trial in (1, 2):
            run = Run(made.path / "nested" / f"fold{fold}" / str(trial))
            splits = {row["name"]: row["split"] for row in run.split_rows()}
            assert {splits[name] for name, own in fold_of.items() if own == fold} == {"unused"}
            scored = {row["name"] for row in run.read_rows("predictions.csv")}
            assert scored == {name for name, own in fold_of.items() if own == fold % 3 + 1}
            assert {"train", "val"} == {splits[name] for name in fold_of if splits[name] not in ("test", "unused")}


def test_the_same_command_resumes_and_the_report_says_it(nested: tuple[Path, Run]) -> None:
    data, made = nested
    before = made.read_json("summary.json")["nested"]
    trial = made.path / "nested" / "fold2" / "1" / "checkpoints" / "best.safetensors"
    stamp = trial.stat().st_mtime_ns
    (made.path / "fold2" / "report.html").unlink()  # as if it had been stopped
    (made.path / "nested" / "fold2" / "chosen.json").unlink()
    regard.train(data, folds=3, nested=NESTED, out=made.path, **SETTINGS)
    assert trial.stat().st_mtime_ns == stamp, "a trial that has finished is kept"
    assert made.read_json("summary.json")["nested"] == before
    for name in ("", "fold2"):
        again = (made.path / name / "report.html").read_text().split("To reproduce</h2><pre>")[1].split("</pre>")[0]
        assert "--folds 3 --nested lr=1e-30,0.03" in again
        assert "--lr" not in again
    with pytest.raises(RunError, match="other settings: nested"):
        regard.train(data, folds=3, nested={"lr": [1e-30, 1e-2]}, out=made.path, **SETTINGS)


@pytest.mark.parametrize(
    ("values", "more", "says"),
    [
        ({"holdout": [0.1, 0.2]}, {}, "holdout cannot be chosen"),
        ({"label_column": ["a", "b"]}, {}, "label_column cannot be chosen"),
        ({"size": [8, 16]}, {"size": None}, "size cannot be chosen"),
        ({"model": ["mlp_nano", "vit_nano"]}, {"model": None}, "model cannot be chosen"),
        ({"lr": [0.1, 0.2]}, {"lr": 0.1}, "lr is given, and to be chosen"),
        ({"lr": [0.1]}, {}, "nothing to choose"),
        ({"lr": [0.1, 0.1]}, {}, "nothing to choose"),
        ({"lr": [0.1, -1]}, {}, "lr=-1"),
        ({"rate": [0.1, 0.2]}, {}, "no setting 'rate'"),
        ({"lr": [0.1, 0.2]}, {"folds": 2}, "leaves no fold to choose settings on"),
        ({"lr": [0.1, 0.2]}, {"folds": 1}, "nested is for several folds"),
    ],
)
def test_what_cannot_be_chosen_is_refused_before_data_is_read(
    tmp_path: Path, values: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    data = write_table(tmp_path / "data")
    settings = {"folds": 3, **FAST, **more, "out": tmp_path / "made"}
    with pytest.raises(ConfigError, match=says):
        regard.train(data, nested=values, **{name: value for name, value in settings.items() if value is not None})
    assert not (tmp_path / "made").exists()


def test_flags_name_the_values(tmp_path: Path, cli: Any) -> None:
    data = write_table(tmp_path / "data")
    words = ["train", str(data), "--model", "mlp_nano", "--folds", "3", "--out", str(tmp_path / "made"), "--dry-run"]
    named = ["--nested", "lr=1e-3,5e-4", "optimizer=adamw,sgd", "mixup-off=0.1,0.2"]
    code, _, told = cli(*words, "--size", "8", "8", *named)
    assert code == 0
    assert "all take 27 times as long" in told
    code, _, told = cli(*words, "--nested", "lr")
    assert code
    assert "names no values" in told
    assert not (tmp_path / "made").exists()


def test_the_next_fold_scores_and_the_last_ones_is_the_first() -> None:
    assert inner_splits([1, 2, 3, 0], 1) == ["unused", "test", "train", "unused"]
    assert inner_splits([1, 2, 3, 0], 3) == ["test", "train", "unused", "unused"]


def test_what_was_chosen_is_a_file_of_its_own(nested: tuple[Path, Run]) -> None:
    _, made = nested
    held = json.loads((made.path / "nested" / "fold1" / "chosen.json").read_text())
    assert held == made.read_json("summary.json")["nested"][0]
