"""What a run costs stands in its summary, its report and its card, with what its pre-training has cost."""

import json
from typing import Any

import pytest

import regard
from regard.run.compute import with_pretraining
from regard.weights import Run
from tests.conftest import whole_runs

QUICK: dict[str, Any] = {"epochs": 2, "explain": 0, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
@whole_runs()
def runs(tmp_path_factory) -> tuple[Run, Run]:
    """A pre-training of one block, and a fine-tuning from it."""
    place = tmp_path_factory.mktemp("cost")
    first = regard.pretrain("digits", patch=2, depth=1, out=place / "first", **QUICK)
    return first, regard.train("digits", weights=str(first.path), out=place / "second", **QUICK)


def compute(run: Run) -> dict[str, Any]:
    return run.read_json("summary.json")["compute"]


def test_a_run_says_what_it_cost(runs):
    for run in runs:
        cost, counts = compute(run), run.read_json("data.json")["counts"]["train"]
        images = sum(counts.values()) if isinstance(counts, dict) else counts
        assert cost["samples"] == 2 * images
        assert cost["flops"] == pytest.approx(cost["flops_per_sample"] * cost["samples"])
        assert "FlopCounterMode" in cost["flops_counted"]
        assert cost["device_hours"] == pytest.approx(run.read_json("summary.json")["seconds"] / 3600, rel=0.2)
        assert "energy_kwh" not in cost, "a CPU does not report it"


def test_the_cost_of_pre_training_stands_beside(runs):
    first, second = map(compute, runs)
    assert "pre_training" not in first
    assert second["pre_training"]["flops"] == first["flops"]
    assert second["in_all"]["flops"] == first["flops"] + second["flops"]
    card, page = runs[1].read_text("model_card.md"), runs[1].read_text("report.html")
    assert "**Compute.** " in card
    assert "with pre-training: " in card
    assert "compute with pre-training" in page


def test_unknown_pre_training_is_said_to_be_unknown(runs, tmp_path):
    own = {"flops": 1.0, "device_hours": 2.0}
    weights = regard.save(regard.create("vit_nano"), tmp_path / "w.safetensors")
    assert "no run" in with_pretraining(own, str(weights))["pre_training"]["unknown"]
    old = Run(tmp_path / "old")
    old.write_rows("splits.csv", [{"name": "a", "split": "train"}])
    old.write_json("summary.json", {})
    assert "did not count" in with_pretraining(own, str(old.path))["pre_training"]["unknown"]
    old.write_json("summary.json", {"compute": own | {"pre_training": {"from": "x", "unknown": "y"}}})
    made = with_pretraining(own, str(old.path))
    assert made["pre_training"]["flops"] == 1.0
    assert made["pre_training"]["unknown"] == "the pre-training of that run: y"
    assert "in_all" not in made


def test_sentences_are_counted_by_their_lengths(translation_run):
    cost = json.loads((translation_run.path / "summary.json").read_text())["compute"]
    assert cost["flops"] > 0
