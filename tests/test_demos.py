"""The demos learn what they promise, at their own settings."""

import pytest

import regard

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "figure", "least"),
    [
        ("digits", "accuracy", 0.96),
        ("translate", "exact_match", 0.97),
    ],
)
def test_a_demo_is_as_good_as_its_recipe_says(name, figure, least, tmp_path):
    """What the recipes' docstrings say, less what seeds and machines may change."""
    summary = regard.demo(name, out=tmp_path / "run", quiet=True).read_json("summary.json")
    assert summary["figures"][figure]["value"] >= least
    assert summary["figures"][figure]["n"] > 200
