"""What out-of-fold predictions add up to: against the deck's Table 4, scikit-learn and arithmetic by hand."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve

from regard.metrics.classification import weighted_aurocs
from regard.metrics.folds import (
    calibration_line,
    describe_confounders,
    patient_weights,
    permutation_test,
    predict_from,
    spread,
    within_folds,
    youden,
)


@pytest.mark.parametrize(
    ("folds", "mean", "variance"),
    [
        ([0.5568, 0.5646, 0.5744, 0.5892, 0.6071], "0.5784", "0.0004"),  # ResNet-10, T1wCE
        ([0.5967, 0.5634, 0.6137, 0.4000, 0.5855], "0.5519", "0.0075"),  # ResNet-10, FLAIR
        ([0.5583, 0.5810, 0.5000, 0.5100, 0.5963], "0.5491", "0.0018"),  # ViT, all
    ],
)
def test_mean_and_variance_are_those_of_the_decks_table_4(folds, mean, variance):
    made = spread(folds)
    assert (f"{made.mean:.4f}", f"{made.variance:.4f}") == (mean, variance)
    assert made.std == pytest.approx(np.std(folds, ddof=1))


def test_youden_is_the_best_point_of_the_roc_curve():
    draw = np.random.default_rng(0)
    for _ in range(20):
        positive = draw.random(40) < 0.5
        score = np.round(draw.random(40) * 0.6 + 0.3 * positive, 1)
        false, true, _ = roc_curve(positive, score)
        above = score >= youden(score, positive)
        assert above[positive].mean() - above[~positive].mean() == pytest.approx((true - false).max())
    assert youden(np.array([0.2, 0.9]), np.array([True, True])) == 0.5


def test_calibration_is_the_logistic_regression_on_log_odds():
    draw = np.random.default_rng(0)
    logit = draw.normal(size=4000) * 1.5
    positive = draw.random(4000) < 1 / (1 + np.exp(-logit))
    right = calibration_line(1 / (1 + np.exp(-logit)), positive)
    assert right.slope.low < 1 < right.slope.high
    assert right.intercept.low < 0 < right.intercept.high
    sure = calibration_line(1 / (1 + np.exp(-2 * logit - 1)), positive)
    fitted = LogisticRegression(C=np.inf, tol=1e-10).fit((2 * logit + 1)[:, None], positive)
    assert sure.slope.value == pytest.approx(float(fitted.coef_[0, 0]), abs=1e-4)
    assert sure.slope.value == pytest.approx(right.slope.value / 2, abs=1e-4)
    assert sure.intercept.high < 0, "probabilities are too high on average"
    apart = calibration_line(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))
    assert np.isnan(apart.slope.value), "separated classes have no slope"


def test_a_wald_interval_of_the_slope_covers_it():
    covered = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        logit = draw.normal(size=150)
        slope = calibration_line(1 / (1 + np.exp(-logit)), draw.random(150) < 1 / (1 + np.exp(-logit))).slope
        covered += slope.low <= 1 <= slope.high
    assert 0.90 < covered / 200 < 0.99


def test_pairs_within_folds_only_by_hand():
    """In each fold the positive is above, though of other folds it would be below."""
    scores = np.array([[0.0, 0.1], [0.0, 0.2], [0.0, 0.8], [0.0, 0.9]])
    labels, folds = np.array([0, 1, 0, 1]), np.array([1, 1, 2, 2])
    assert within_folds(scores, labels, folds)[1] == 1
    assert within_folds(scores, labels, np.ones(4))[1] == 0.75
    both = within_folds(scores, np.stack([labels, 1 - labels]), folds)
    assert both[:, 1].tolist() == [1, 0]


def test_patients_are_drawn_as_a_whole():
    groups = np.array(["a", "a", "b", "c", "c", "c"])
    weights = patient_weights(groups, 300)
    assert weights[0].tolist() == [1] * 6
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 2, 3]].sum(1) == 3).all()
    positive = np.array([True, True, False, True, True, False])
    assert np.isfinite(weighted_aurocs(weights, np.arange(6.0), positive)).mean() > 0.9


def test_permuted_labels_are_no_better_than_chance_and_right_ones_are():
    draw, small = np.random.default_rng(0), []
    folds = np.repeat(np.arange(5), 12)
    for seed in range(100):
        labels, score = draw.integers(0, 2, 60), draw.random(60)
        small.append(permutation_test(np.c_[1 - score, score], labels, folds, np.arange(60), 99, seed).p)
    assert 0.0 <= np.mean(np.array(small) <= 0.05) < 0.12
    labels = draw.integers(0, 2, 60)
    score = draw.random(60) + labels
    made = permutation_test(np.c_[1 - score, score], labels, folds, np.arange(60), 99)
    assert made.p == 0.01
    assert made.value > 0.9
    assert made.chance == pytest.approx(0.5, abs=0.05)


def test_patients_exchange_labels_as_a_whole():
    """Ten copies of each patient's sample are no more evidence than one."""
    draw = np.random.default_rng(3)
    labels, score = np.tile([0, 1], 6), draw.random(12)
    score[labels == 1] += 0.3
    folds = np.zeros(12)
    once = permutation_test(np.c_[1 - score, score], labels, folds, np.arange(12), 999)
    often = np.repeat(np.arange(12), 10)
    many = permutation_test(np.c_[1 - score, score][often], labels[often], folds[often], often, 999)
    assert many.p == pytest.approx(once.p, abs=0.02)
    assert permutation_test(np.c_[1 - score, score][often], labels[often], folds[often], np.arange(120), 999).p < many.p


def test_a_site_that_gives_the_label_away_is_found_without_looking_at_the_fold():
    draw, folds = np.random.default_rng(0), np.arange(80) % 4
    labels = draw.integers(0, 2, 80)
    site = np.where(draw.random(80) < 0.9, labels, 1 - labels)
    made = predict_from(np.eye(2)[site], np.eye(2)[labels], folds)
    assert made.sum(1) == pytest.approx(np.ones(80))
    assert permutation_test(made, labels, folds, np.arange(80), 199).p < 0.01
    by_chance = predict_from(np.eye(3)[draw.integers(0, 3, 80)], np.eye(2)[labels], folds)
    assert permutation_test(by_chance, labels, folds, np.arange(80), 199).p > 0.05
    changed = labels.copy()
    changed[folds == 0] = 1 - changed[folds == 0]
    again = predict_from(np.eye(2)[site], np.eye(2)[changed], folds)
    assert (again[folds == 0] == made[folds == 0]).all()


@pytest.mark.parametrize(
    ("figure", "little", "much"), [("auroc", 0.54, 0.66), ("c_index", 0.55, 0.7), ("correlation", 0.1, 0.3)]
)
def test_what_tells_only_a_little_of_the_outcome_is_no_warning(figure, little, much):
    """The size of 1,702 photographs of pets has an AUC of 0.54 at p 0.005: no reason to doubt a network."""
    rows = [{"name": "image size", "column": "age", figure: value, "p": 0.001} for value in (little, much)]
    (told,) = describe_confounders(rows, figure)
    assert f"{much:.3f}, p 0.001" in told
    assert not describe_confounders([{"name": "site", "column": "age", figure: 0.9, "p": 0.02}], figure)
