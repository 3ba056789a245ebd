"""DeLong's variance and tests against R's pROC, brute-force placements, scikit-learn and simulation."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from regard.metrics.classification import auroc
from regard.metrics.delong import auc_delong, compare_areas, delong, holm, placements

# pROC's example, aSAH: 41 patients with a poor outcome, then 72 with a good one: WFNS grades, and S100B by order.
GRADES = (
    "32455552521254425552525245441442255225555",
    "111151221221112121134141551124112212122111121211324214115422111312244111",
)
WFNS = np.array([*map(int, "".join(GRADES))])
S100B = np.array([
    13, 9, 19, 12, 36, 42, 40, 3, 29, 7, 3, 34, 32, 39, 42, 24, 42, 42, 42, 3, 42, 26, 0, 7, 22, 42, 24, 42, 5, 24, 13,
    9, 11, 22, 42, 15, 42, 27, 42, 42, 36,
    13, 15, 9, 1, 37, 21, 9, 9, 1, 5, 1, 7, 11, 3, 21, 3, 11, 13, 21, 1, 19, 15, 31, 7, 41, 37, 19, 3, 35, 37, 11, 5, 7,
    5, 1, 13, 9, 15, 17, 1, 1, 7, 1, 7, 5, 19, 7, 5, 29, 11, 25, 3, 9, 27, 3, 1, 23, 33, 9, 17, 5, 15, 9, 3, 1, 21, 17,
    37, 21, 17, 41, 39,
])  # fmt: skip
POOR = np.arange(113) < 41


def drawn(n: int = 60, seed: int = 0, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Two correlated scores (2, n), and which samples are positive."""
    draw = np.random.default_rng(seed)
    positive = draw.random(n) < 0.4
    shared = draw.normal(size=n) + positive
    scores = np.stack([shared + draw.normal(size=n), shared + 0.5 * draw.normal(size=n)])
    return (np.round(scores) if ties else scores), positive


def test_the_published_example_of_proc():
    """Its tests give AUC, variance, and statistic, p value and interval of the paired test."""
    areas = delong(np.stack([S100B, WFNS]), POOR)
    assert areas.values == pytest.approx([0.731368563685637, 0.823678861788618], abs=1e-12)
    assert np.diag(areas.covariance) == pytest.approx([0.00266868245717244, 0.00146991470882363], abs=1e-12)
    made = compare_areas(S100B, WFNS, POOR)
    assert made.tests["DeLong"] == pytest.approx(0.0271757822291882, abs=1e-9)
    assert (made.difference.low, made.difference.high) == pytest.approx((0.0104061769564846, 0.174214419249478), 1e-6)


@pytest.mark.parametrize("ties", [False, True])
def test_midranks_equal_brute_force_placements(ties):
    scores, positive = drawn(ties=ties)
    held = []
    for score in scores:
        wins = (score[positive][:, None] > score[~positive]) + 0.5 * (score[positive][:, None] == score[~positive])
        below, above = placements(score, positive)
        assert below == pytest.approx(wins.mean(1))
        assert above == pytest.approx(wins.mean(0))
        held.append((wins.mean(1), wins.mean(0)))
    ups, downs = (np.cov([pair[side] for pair in held]) for side in (0, 1))
    areas = delong(scores, positive)
    assert areas.covariance == pytest.approx(ups / positive.sum() + downs / (~positive).sum())
    assert areas.values == pytest.approx([roc_auc_score(positive, score) for score in scores])


def test_two_samples_per_patient_that_say_the_same_are_worth_one():
    scores, positive = drawn()
    once, groups = delong(scores, positive), np.r_[np.arange(60), np.arange(60)]
    doubled, signs = np.concatenate([scores, scores], axis=1), np.r_[positive, positive]
    assert delong(doubled, signs, groups).covariance == pytest.approx(once.covariance)
    assert delong(doubled, signs).covariance[0, 0] < 0.6 * once.covariance[0, 0], "what ignoring patients would claim"


def test_patients_with_both_classes_have_the_variance_of_the_bootstrap():
    """Obuchowski's, where a patient has a positive and a negative sample that depend on each other."""
    draw = np.random.default_rng(1)
    patient = np.repeat(np.arange(150), 2)
    positive = np.tile([True, False], 150)
    score = draw.normal(size=150)[patient] + 0.8 * positive + draw.normal(size=300)
    own = delong(score, positive, patient).covariance[0, 0]
    values = []
    for _ in range(400):
        chosen = draw.integers(150, size=150)
        index = np.stack([2 * chosen, 2 * chosen + 1], axis=1).ravel()
        values.append(roc_auc_score(positive[index], score[index]))
    assert own == pytest.approx(np.var(values), rel=0.2)
    assert delong(score, positive).covariance[0, 0] > 1.3 * own


def test_a_perfect_ranking_is_not_called_certain():
    positive = np.arange(20) < 8
    figure = auc_delong(positive.astype(float), positive)
    assert figure == auroc(positive.astype(float), positive)
    assert figure.low < 0.95
    assert np.isnan(auc_delong(np.ones(5), np.ones(5, bool)).value), "one class has no AUC"


def test_the_interval_covers_and_the_test_rejects_as_often_as_it_should():
    covered, rejected, runs = 0, 0, 300
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        positive = np.arange(120) < 50
        shared = draw.normal(size=120) + positive
        first, second = (shared + draw.normal(size=120) for _ in range(2))
        figure = auc_delong(first, positive)
        covered += figure.low <= 0.6915 <= figure.high  # Φ(1 / √(2 · 2)), the AUC of N(1, 2) against N(0, 2)
        rejected += compare_areas(first, second, positive).tests["DeLong"] < 0.05
    assert 0.92 < covered / runs < 0.98
    assert 0.02 < rejected / runs < 0.09


def test_equal_scores_do_not_differ():
    scores, positive = drawn()
    made = compare_areas(scores[0], scores[0], positive)
    assert (made.difference.value, made.tests["DeLong"]) == (0, 1)


def test_holm_by_hand():
    """0.01 · 4, then max(0.04, 0.02 · 3), max(0.06, 0.03 · 2), 0.5."""
    assert holm([0.5, 0.02, 0.01, 0.03]) == pytest.approx([0.5, 0.06, 0.04, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]), "a larger p never becomes the smaller"
    assert holm([]) == []
