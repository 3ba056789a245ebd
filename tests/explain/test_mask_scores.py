"""Maps against masks: the table's figures from hand arithmetic, and against scipy where it has the test."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from regard.explain import Explanation
from regard.explain.explanation import locate, peak_of
from regard.explain.mask_scores import at_least, mask_rows, score_masks, score_table
from regard.geometry import TokenMap

WHERE = TokenMap(grid=(4, 4, 4), cell=(2, 2, 2), size=(8, 8, 8))


def explained(n: int, token: int, masked: int, weight: float = 3.0) -> Explanation:
    """A map of ones with one heavier token, and a mask of one token."""
    values = torch.ones(64)
    values[token] = weight
    painted = WHERE.paint(values)
    mask = WHERE.paint(torch.nn.functional.one_hot(torch.tensor(masked), 64)) > 0
    prediction: Any = SimpleNamespace(name=f"s{n}")
    painted = painted / painted.sum()
    return Explanation(
        map=painted, tokens=values, method="occlusion", options={}, target="a", prediction=prediction, scores=None,
        random_correlation=None, completeness_error=None, picture=torch.zeros(1, 8, 8, 8), where=WHERE, mask=mask,
        location=locate(painted, mask),
    )  # fmt: skip


def test_scores_by_hand():
    made = [explained(n, token=n, masked=n if n < 6 else n + 1) for n in range(8)]
    (score,) = score_masks(made)
    assert [row.hit for row in mask_rows(made)] == [True] * 6 + [False] * 2
    assert score.share.value == pytest.approx((6 * 3 + 2 * 1) / 8 / 66)
    assert (score.hits.value, score.hits.n, score.chance) == (0.75, 8, pytest.approx(1 / 64))
    assert score.hits_p == pytest.approx(binom.sf(5, 8, 1 / 64))
    # Of the 56 pairs of different subjects one hits: subject 7's map lies where subject 6's mask is.
    assert score.others_share == pytest.approx((55 * 1 + 1 * 3) / 56 / 66)
    assert score.others_p is not None
    assert score.others_p < 0.01
    header, rows = score_table([score])
    assert len(header) == len(rows[0])
    assert rows[0][:3] == ("occlusion", "8", "3.8%")


def test_maps_that_only_know_the_usual_place_fail_the_permutation():
    """All masks and maps in one place: far above chance, and the same with every other subject's mask."""
    (score,) = score_masks([explained(n, token=5, masked=5) for n in range(8)])
    assert score.hits_p < 1e-10
    assert score.others_p == 1.0
    assert score.others_share == pytest.approx(score.share.value)


def test_few_subjects_are_not_permuted_and_none_gives_nothing():
    (score,) = score_masks([explained(0, 1, 1)])
    assert (score.others_p, score.share.n) == (None, 1)
    assert np.isnan(score.share.low)
    assert score_masks([]) == []


def test_chances_of_each_subject_are_summed_exactly():
    chances = [0.1, 0.2, 0.7]
    exactly_two = 0.1 * 0.2 * 0.3 + 0.1 * 0.8 * 0.7 + 0.9 * 0.2 * 0.7
    assert at_least(chances, 2) == pytest.approx(exactly_two + 0.1 * 0.2 * 0.7)
    assert at_least(chances, 0) == pytest.approx(1)


def test_the_peak_of_a_map_of_tokens_is_the_middle_of_its_token():
    painted = WHERE.paint(torch.nn.functional.one_hot(torch.tensor(21), 64).float())
    assert peak_of(painted) == (3, 3, 3)
    mask = torch.zeros(8, 8, 8, dtype=torch.bool)
    mask[3, 3, 3] = True
    assert locate(painted, mask).pointing
    within = torch.zeros(8, 8, 8, dtype=torch.bool)
    within[:4] = True
    assert locate(painted, mask, within).area == pytest.approx(1 / 256)
