"""The made brains: a lesion lies where the truth says, looks like one, and decides label and survival."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.volumes import brain, read_scan
from regard.errors import ConfigError, DataError
from regard.metrics import Concordance


@pytest.fixture(scope="module")
def template() -> brain.Template:
    return brain.read_template(6.0)


def test_the_template_is_a_brain_in_its_own_millimetres(template: brain.Template) -> None:
    """Grey matter around white; symmetric; the corpus callosum is white and the ventricles are dark."""

    def at(field: np.ndarray, *mm: float) -> float:
        voxel = np.linalg.inv(template.affine) @ [*mm, 1]
        return float(field[tuple(np.round(voxel[:3]).astype(int))])

    assert at(template.white, 25, -25, 30) > 0.7
    assert at(template.white, -25, -25, 30) > 0.7
    assert at(template.tissue, 8, 20, 8) < at(template.white, 25, -25, 30)  # the ventricle's horn
    assert at(template.t1, 0, 0, 85) == 0  # above the brain
    assert np.abs(template.white - template.white[::-1]).mean() < 0.08


@pytest.mark.parametrize("label", brain.LABELS)
def test_a_lesion_lies_in_its_lobe_and_looks_like_one(template: brain.Template, label: str) -> None:
    for number in range(4):
        lesion, arrays = brain.draw_subject(template, (7, number), label)
        inside, tissue = arrays["mask"], arrays["t1"] > 0.3
        places = np.argwhere(inside) @ template.affine[:3, :3].T + template.affine[:3, 3]
        assert np.linalg.norm(places.mean(0) - lesion.middle) < 20, "heads are turned and bent by some millimetres"
        wanted = np.array(brain.LOBES[label])
        other = np.array(brain.LOBES[next(name for name in brain.LABELS if name != label)])
        middle = np.abs(lesion.middle) * [1, 0, 0] + np.array(lesion.middle) * [0, 1, 1]
        assert np.linalg.norm(middle - wanted) < np.linalg.norm(middle - other)
        rest = tissue & ~inside
        assert np.median(arrays["flair"][inside]) > 1.3 * np.median(arrays["flair"][rest])
        assert np.median(arrays["t1"][inside]) < 0.97 * np.median(arrays["t1"][rest])
        volume = inside.sum() * 6.0**3
        assert 0.2 < volume / (4 / 3 * np.pi * lesion.radius**3) < 2


def test_size_and_place_decide_survival(template: brain.Template) -> None:
    """By hand: two deviations of the radius are 2.4 in log hazard, the lobe 1.6; and the truth ranks the subjects."""
    draw = np.random.default_rng(0)
    made = [brain.draw_lesion(template, brain.LABELS[n % 2], draw) for n in range(400)]
    low, high = brain.RADII
    for lesion in made[:20]:
        deviations = (lesion.radius - (low + high) / 2) * 12**0.5 / (high - low)
        assert lesion.risk == pytest.approx(1.2 * deviations + (0.8 if lesion.label == "wild type" else -0.8))
    risk, days, event = (np.array([getattr(lesion, name) for lesion in made]) for name in ("risk", "days", "event"))
    assert 0.75 < Concordance(days, event).of(risk) < 0.9
    assert 0.5 < event.mean() < 0.95
    assert days.min() >= 1


def test_written_files_are_read_as_anyones(tmp_path: Path) -> None:
    import regard

    table = brain.write_brains(tmp_path / "brains", 4, spacing=6.0)
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["wild type", "mutated"] * 2
    for row in rows:
        scan, mask = read_scan(table.parent / row["flair"]), read_scan(table.parent / row["mask"])
        assert scan.orientation == "RAS"
        assert scan.spacing == pytest.approx((6.0, 6.0, 6.0))
        assert np.array_equal(scan.affine, mask.affine)
    dataset: Any = regard.check(table, cache_folder=str(tmp_path / "cache"), quiet=True)
    assert "masks from mask" in dataset.source.why
    assert dataset.source.survey.plan.scans == ("t1", "flair")
    again = brain.write_brains(tmp_path / "again", 2, spacing=6.0)
    other = brain.write_brains(tmp_path / "other", 1, spacing=6.0, seed=1)
    first = [read_scan(path.parent / rows[0]["t1"]).array for path in (table, again, other)]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    with pytest.raises(DataError, match="something there already"):
        brain.write_brains(tmp_path / "brains", 1)


def test_without_nilearn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brain, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        brain.read_template(7.0)
    assert error.value.do == "pip install 'regard[brain]'"
