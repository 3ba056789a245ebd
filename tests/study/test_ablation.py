"""Variations of the Transformer: which runs are made, that they resume, and what is said of them."""

import csv
import json
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest

from regard import api
from regard.errors import ConfigError, RunError
from regard.study.ablation import Ablation, ablation, variations
from regard.weights import Run
from tests.conftest import write_pairs

TINY: dict[str, Any] = {
    "width": 16, "heads": 2, "mlp": 16, "depth": 1, "vocabulary": 280, "batch_tokens": 512, "steps": 2, "device": "cpu"
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("ablation") / "data", 120)


@pytest.fixture(scope="module")
def made(data):
    return ablation(data, ("positions",), seeds=1, out=data.parent / "study", quiet=True, **TINY)


def test_the_rows_are_those_of_the_table():
    arms = variations("transformer_base", {})
    assert arms["base"] == {}
    assert [arms[f"heads {n}"] for n in (1, 4, 16, 32)] == [{"heads": n} for n in (1, 4, 16, 32)]
    assert [arms[f"d_k {n}"] for n in (16, 32)] == [{"key_width": n} for n in (16, 32)]
    assert arms["dropout 0.0"] == {"dropout": 0.0}
    assert "dropout 0.1" not in arms, "the base's own"
    assert arms["label smoothing 0.2"] == {"label_smoothing": 0.2}
    assert arms["positions learned"] == {"positions": "learned"}
    assert "dropout 0.1" in variations("transformer_base", {"dropout": 0.3})
    assert "heads 16" not in variations("transformer_nano", {"width": 40, "heads": 4})


def test_every_arm_changes_one_setting_and_the_figures_are_the_runs(made):
    assert [row["arm"] for row in made.rows] == ["base", "positions learned"]
    configs = {}
    for row in made.rows:
        run = Run(made.out / "runs" / f"{row['arm'].replace(' ', '-')}-0")
        figures = run.read_json("summary.json")["figures"]
        assert (row["perplexity"], row["bleu"]) == (figures["perplexity"]["value"], figures["bleu"]["value"])
        settings = run.read_json("config.json")["settings"]
        configs[row["arm"]] = {n: v["value"] for group in settings.values() for n, v in group.items() if n != "out"}
    base = configs.pop("base")
    assert base["dropout"] == base["label_smoothing"] == 0.1
    for arm, config in configs.items():
        changed = {name for name in config if config[name] != base.get(name)}
        assert changed == {arm.split()[0]}


def test_what_is_written(made):
    with (made.out / "study.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
    text = (made.out / "study.md").read_text()
    assert "| positions learned | " in text
    assert "Some arms have 1 finished seeds only" in text
    assert json.loads((made.out / "study.json").read_text())["means"]["base"]["bleu"]["low"] is None
    assert (made.out / "study.png").stat().st_size > 5000


def test_it_resumes_and_stops_in_time(made, data, monkeypatch):
    trained, train = [], api.train
    monkeypatch.setattr(api, "train", lambda data, **s: trained.append(s["out"].name) or train(data, **s))
    again = ablation(data, ("positions",), seeds=1, out=made.out, quiet=True, **TINY)
    assert (trained, again.rows) == ([], made.rows)
    none = ablation(data, ("positions",), seeds=2, out=made.out, quiet=True, minutes=-1.0, **TINY)
    assert trained == []
    assert none.rows == made.rows
    with pytest.raises(RunError, match="its settings differ"):
        ablation(data, seeds=1, out=made.out, quiet=True, **{**TINY, "steps": 3})


def test_it_resumes_without_the_folders_of_its_runs(made, data, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "train", None)
    out = copytree(made.out, tmp_path / "study", ignore=ignore_patterns("runs"))
    again = ablation(data, ("positions",), seeds=1, out=out, quiet=True, **TINY)
    assert again.rows == made.rows


@pytest.mark.long
def test_several_runs_at_a_time_give_the_same(made, data, tmp_path):
    again = ablation(data, ("positions",), seeds=1, jobs=2, out=tmp_path / "study", quiet=True, **TINY)
    for row, own in zip(again.rows, made.rows, strict=True):
        perplexity = pytest.approx(own["perplexity"], rel=1e-6)  # a worker sums with fewer threads
        assert row | {"seconds": 0} == own | {"seconds": 0, "perplexity": perplexity}
    stopped = ablation(data, ("positions",), seeds=2, jobs=2, out=tmp_path / "study", minutes=-1.0, quiet=True, **TINY)
    assert stopped.rows == again.rows


def test_changed_data_is_refused_and_the_same_by_another_path_is_not(tmp_path, monkeypatch):
    write_pairs(tmp_path / "data", 120)
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"seeds": 1, "out": tmp_path / "study", "quiet": True, "minutes": -1.0} | TINY
    ablation("data", (), **given)
    ablation("./data", (), **given)
    (tmp_path / "data" / "test.de").write_text("neun\n" * 30)
    with pytest.raises(RunError, match="its data differ"):
        ablation("data", (), **given)


def test_differences_are_per_seed_and_doubtful_ones_say_so():
    values = {"base": (10.0, 12.0, 14.0), "a": (9.0, 11.1, 12.9), "b": (9.0, 14.0, 13.0)}
    rows = [{"arm": arm, "seed": n, "perplexity": v, "bleu": v} for arm, of in values.items() for n, v in enumerate(of)]
    found = Ablation(Path("x"), "data", {arm: {} for arm in values}, {}, rows, {})
    assert found.summary() == [
        "a against base: perplexity -1.00, bleu -1.00.",
        "b against base: perplexity +0.00 ?, bleu +0.00 ?.",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": 0}, "must be at least 1"),
        ({"jobs": 0}, "must be at least 1"),
        ({"seed": 3}, "a study sets seed itself"),
        ({"model": "rnn_nano"}, "is no Transformer"),
        ({"rows": ("headz",)}, "did you mean heads"),
        ({"positions": "learned"}, "positions is compared by this study itself"),
    ],
)
def test_what_cannot_be_studied_is_said_before_anything_runs(changes, says, data, tmp_path):
    with pytest.raises(ConfigError, match=says):
        ablation(data, out=tmp_path / "study", quiet=True, **{**TINY, **changes})
    assert not (tmp_path / "study").exists()
