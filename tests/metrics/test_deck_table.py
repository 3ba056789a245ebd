"""Figures on the slides that do not agree with each other, by arithmetic."""

import statistics

import pytest

# Table 4 of deck C: model, modality, AUC of five folds, the mean and the "± variance" beside them.
ROWS = [
    ("DenseNet-121", "T1wCE", (0.6072, 0.6116, 0.6067, 0.6228, 0.6901), 0.6277, 0.0013),
    ("DenseNet-169", "T1wCE", (0.6155, 0.5813, 0.5568, 0.6857, 0.5944), 0.6067, 0.0024),
    ("DenseNet-201", "T1wCE", (0.5714, 0.5518, 0.5977, 0.6441, 0.5954), 0.5913, 0.0016),
    ("DenseNet-201", "FLAIR", (0.6155, 0.6071, 0.5273, 0.6379, 0.5645), 0.5970, 0.0023),
    ("DenseNet-201", "T2", (0.5955, 0.6128, 0.6469, 0.6108, 0.5880), 0.6108, 0.0005),
    ("ResNet-18", "T1wCE", (0.5845, 0.5610, 0.6124, 0.5713, 0.5858), 0.5830, 0.0004),
    ("EfficientNet-b1", "all", (0.6095, 0.6634, 1.5999, 0.6687, 0.6130), 0.6309, 0.0011),
    ("ViT", "all", (0.5583, 0.5810, 0.5000, 0.5100, 0.5963), 0.5491, 0.0018),
]
WRONG = {("DenseNet-201", "T1wCE"), ("DenseNet-201", "FLAIR"), ("EfficientNet-b1", "all")}


@pytest.mark.parametrize(("model", "modality", "folds", "mean", "variance"), ROWS)
def test_table_4_means_agree_with_their_folds_but_for_three(model, modality, folds, mean, variance):
    agrees = abs(statistics.fmean(folds) - mean) < 6e-5
    assert agrees == ((model, modality) not in WRONG)
    if agrees:
        assert statistics.variance(folds) == pytest.approx(variance, abs=6e-5), "the number after ± is a variance"


def test_mean_plus_minus_variance_is_no_interval():
    """The slide gives [0.5473, 0.5509] for the ViT; a deviation of the folds is 24 times that half-width."""
    folds = ROWS[-1][2]
    mean, variance, deviation = statistics.fmean(folds), statistics.variance(folds), statistics.stdev(folds)
    assert (mean - variance, mean + variance) == pytest.approx((0.5473, 0.5509), abs=1e-4)
    assert deviation / variance == pytest.approx(23.7, abs=0.5)
    half = 2.776 * deviation / 5**0.5  # Student's t with four degrees of freedom: the mean's 95 % interval
    assert (mean - half, mean + half) == pytest.approx((0.497, 0.602), abs=2e-3)


def test_one_fold_of_table_4_is_larger_than_any_auc():
    folds, mean = ROWS[-2][2], ROWS[-2][3]
    rest = [auc for auc in folds if auc <= 1]
    assert 5 * mean - sum(rest) == pytest.approx(0.5999, abs=3e-4)
