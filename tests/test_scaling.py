"""The plan of docs/scaling.md is what its script works out, and the script's arithmetic is right."""

import runpy
from math import sqrt
from pathlib import Path

import pytest

from regard.registry import MODELS

ROOT = Path(__file__).parents[1]
PLAN = runpy.run_path(str(ROOT / "benchmarks" / "scaling_plan.py"))


def test_the_page_shows_what_the_script_prints():
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert PLAN["figures"]() in page
    assert PLAN["table"]() in page


def test_the_plan_counts_parameters_as_the_registry_does():
    assert PLAN["HUGE"].parameters == MODELS["vit_h14"].parameters
    assert PLAN["LARGE"].parameters == MODELS["vit_l16"].parameters


def test_the_plan_matches_hand_arithmetic():
    giant = next(p for p in PLAN["PLANS"] if p.model.name == "ViT-22B")
    assert giant.state() == pytest.approx(21.758e9 * 20 / 8, rel=1e-4)
    assert giant.inside() == pytest.approx(21.758e9 * 8 * 7 / 8, rel=1e-4)
    assert giant.outside() == pytest.approx(2 * 21.758e9 * 4 / 8 * 127 / 128, rel=1e-4)
    assert PLAN["between_failures"]() == pytest.approx(54 * 24 * 3600 * 16384 / 419 / 1024)
    assert giant.interval() == pytest.approx(sqrt(2 * 21.758e9 * 16 / 8 / 2e9 * 54 * 86400 * 16 / 419), rel=1e-4)


def test_memory_falls_with_the_number_of_gpus_that_share_a_copy():
    over = {p.shard: p.memory() for p in PLAN["PLANS"] if p.model.name == "ViT-H/14"}
    assert over[1] > over[8] > over[1024]
