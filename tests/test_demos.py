"""The demos learn what they promise, at their own settings."""

import json

import pytest

import regard

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "figure", "least"),
    [
        ("digits", "accuracy", 0.96),
        ("translate", "exact_match", 0.97),
        ("scenes", "ap50", 0.7),
    ],
)
def test_a_demo_is_as_good_as_its_recipe_says(name, figure, least, tmp_path):
    """What the recipes' docstrings say, less what seeds and machines may change."""
    summary = regard.demo(name, out=tmp_path / "run", quiet=True).read_json("summary.json")
    assert summary["figures"][figure]["value"] >= least
    assert summary["figures"][figure]["n"] > 200


def test_the_brain_demo_finds_the_lesions(tmp_path, capsys):
    """Smaller than the demo itself: fewer subjects and folds."""
    made = regard.demo("brain", subjects=100, folds=2, out=tmp_path / "brain", quiet=True)
    area = made.read_json("summary.json")["figures"]["auroc"]
    c_index = json.loads((tmp_path / "brain" / "prognosis" / "summary.json").read_text())["figures"]["c_index"]
    assert area["value"] > 0.65
    assert area["low"] > 0.5
    assert c_index["value"] > 0.5
    (score,) = made.read_json("explain/masks.json")["scores"]
    assert score["share"]["low"] > 2 * score["chance"]
    said = capsys.readouterr().out
    assert "C-index" in said
    assert "maps against the lesions" in said
