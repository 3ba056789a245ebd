"""Figures against torchmetrics and scikit-learn; intervals against what they promise."""

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as theirs
from sklearn.metrics import (
    balanced_accuracy_score,
    brier_score_loss,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from regard.metrics import auroc, summarise, wilson


def predictions(classes: int, n: int = 300, seed: int = 0):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, n)
    logits = draw.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    logits = np.round(logits, 1)  # so that ties occur
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, labels


@pytest.mark.parametrize("classes", [2, 4, 12])
def test_values_against_torchmetrics_and_sklearn(classes):
    probs, labels = predictions(classes)
    names = tuple(str(n) for n in range(classes))
    summary = summarise(probs, labels, names)
    got = {name: figure.value for name, figure in summary.figures.items()}
    p, y = torch.from_numpy(probs), torch.from_numpy(labels)
    predicted = probs.argmax(1)
    assert got["accuracy"] == pytest.approx(theirs.multiclass_accuracy(p, y, classes, average="micro").item())
    assert got["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    other = theirs.binary_auroc(p[:, 1], y) if classes == 2 else theirs.multiclass_auroc(p, y, classes)
    assert got["auroc"] == pytest.approx(other.item(), abs=1e-6)
    expected = roc_auc_score(labels, probs[:, 1] if classes == 2 else probs, multi_class="ovr")
    assert got["auroc"] == pytest.approx(expected)
    assert got["calibration_error"] == pytest.approx(
        theirs.multiclass_calibration_error(p, y, classes, n_bins=15).item(), abs=1e-6
    )
    assert got["log_loss"] == pytest.approx(log_loss(labels, probs))
    assert got["brier"] == pytest.approx(((probs - np.eye(classes)[labels]) ** 2).sum(1).mean())
    if classes == 2:
        assert got["brier"] == pytest.approx(2 * brier_score_loss(labels, probs[:, 1]))
    if classes > 5:
        top5 = theirs.multiclass_accuracy(p, y, classes, average="micro", top_k=5).item()
        assert got["top5_accuracy"] == pytest.approx(top5)
    else:
        assert "top5_accuracy" not in got
    assert np.array_equal(summary.confusion, theirs.multiclass_confusion_matrix(p, y, classes).numpy())
    recalls = [row["recall"].value for row in summary.per_class.values()]
    precisions = [row["precision"].value for row in summary.per_class.values()]
    each: Any = None  # its stub knows names alone
    np.testing.assert_allclose(recalls, recall_score(labels, predicted, average=each))
    np.testing.assert_allclose(precisions, precision_score(labels, predicted, average=each))


def test_intervals_hold_the_value_and_shrink_with_n():
    small, large = (summarise(*predictions(4, n), ("a", "b", "c", "d")).figures for n in (60, 3000))
    for name in small:
        assert small[name].low <= small[name].value <= small[name].high
        assert large[name].high - large[name].low < small[name].high - small[name].low
        assert small[name].n == 60


def test_bootstrap_intervals_cover_the_truth_about_as_often_as_they_say():
    probs, labels = predictions(3, 40_000, 100)
    truth = roc_auc_score(labels, probs, multi_class="ovr")
    inside = 0
    for seed in range(60):
        figure = summarise(*predictions(3, 150, seed), ("a", "b", "c")).figures["auroc"]
        inside += figure.low <= truth <= figure.high
    assert 50 <= inside <= 60


def test_wilson_against_published_values():
    """Newcombe (1998), table I: 81/263, 15/148, 0/20, 1/29."""
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        figure = wilson(hits, n)
        assert (figure.low, figure.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_a_class_that_does_not_occur_does_not_break_anything():
    probs, labels = predictions(3)
    labels = np.where(labels == 2, 0, labels)
    summary = summarise(probs, labels, ("a", "b", "c"))
    assert np.isnan(summary.per_class["c"]["auroc"].value)
    assert np.isfinite(summary.figures["auroc"].value)
    assert np.isfinite(summary.figures["balanced_accuracy"].value)


def test_perfect_predictions_are_not_certainty():
    labels = np.arange(12) % 2
    figures = summarise(np.eye(2)[labels] * 0.98 + 0.01, labels, ("a", "b")).figures
    for name in ("accuracy", "balanced_accuracy", "auroc"):
        assert figures[name].value == figures[name].high == 1
        assert 0.4 < figures[name].low < 0.9, name


def test_a_class_auroc_interval_covers():
    """It holds the value, and covers the truth about as often as it says."""
    score, positive = np.r_[np.zeros(51), np.ones(58)], np.r_[np.zeros(51), np.ones(58)] > 0
    score[:11] = 2.0  # negatives above every positive: θ = 40/51
    figure = auroc(score, positive)
    assert figure.value == pytest.approx(40 / 51)
    assert 0.66 < figure.low < figure.value < figure.high < 0.87
    draw, inside = np.random.default_rng(0), 0
    truth = 0.760250  # P(N(1, 1) > N(0, 1)) = Φ(1/√2)
    for _ in range(200):
        sample = auroc(np.r_[draw.normal(0, 1, 40), draw.normal(1, 1, 40)], np.arange(80) >= 40)
        inside += sample.low <= truth <= sample.high
    assert 182 <= inside <= 199


def test_balanced_accuracy_intervals_cover():
    draw, inside = np.random.default_rng(0), 0
    recalls = np.array([0.95, 0.7, 0.85])
    for _ in range(120):
        labels = np.repeat(np.arange(3), (60, 20, 30))
        hit = draw.random(110) < recalls[labels]
        predicted = np.where(hit, labels, (labels + 1) % 3)
        figure = summarise(np.eye(3)[predicted], labels, ("a", "b", "c")).figures["balanced_accuracy"]
        inside += figure.low <= recalls.mean() <= figure.high
    assert 109 <= inside <= 119


@pytest.mark.parametrize(
    ("draws", "chance", "truth"),
    [
        (lambda draw: draw.uniform(0.5, 1, 300), lambda p: p, 0.0),
        (lambda draw: draw.uniform(0.85, 0.9, 60), lambda p: p, 0.0),
        (lambda draw: draw.uniform(0.7, 1, 300), lambda p: p - 0.02, 0.02),
        (lambda draw: draw.uniform(0.7, 1, 300), lambda p: p - 0.15, 0.15),
        (lambda draw: draw.uniform(0.95, 1, 300), lambda p: p**0, 0.025),
    ],
)
def test_intervals_of_the_calibration_error_hold_the_truth(draws, chance, truth):
    """Of 40 simulated sets, 95 % of them: also where the truth is 0, and every set's value lies far above it."""
    draw, inside, above = np.random.default_rng(0), 0, 0
    for _ in range(40):
        p = draws(draw)
        labels = (draw.random(len(p)) >= chance(p)).astype(int)
        figure = summarise(np.c_[p, 1 - p], labels, ("a", "b")).figures["calibration_error"]
        inside += figure.low <= truth <= figure.high
        above += figure.low > 0
    assert inside >= 36
    assert truth < 0.1 or above == 40, "a large error is seen as one"


def test_two_classes_have_one_auroc_with_one_interval():
    summary = summarise(*predictions(2, 80), ("a", "b"))
    assert summary.figures["auroc"] == summary.per_class["b"]["auroc"]
    assert summary.per_class["a"]["auroc"] == pytest.approx(summary.per_class["b"]["auroc"])


def test_a_small_calibration_error_keeps_room_above():
    """Where confidence and accuracy agree, or every answer is right, the error is not known to be so small."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        p = draw.uniform(0.6, 0.98, 400)
        labels = (draw.random(400) >= p).astype(int)
        figure = summarise(np.c_[p, 1 - p], labels, ("a", "b")).figures["calibration_error"]
        assert figure.low < figure.value < figure.high - 0.01
    perfect = summarise(np.tile([1.0, 0.0], (300, 1)), np.zeros(300, int), ("a", "b")).figures["calibration_error"]
    assert perfect.low == perfect.value == 0
    assert 3 / 300 < perfect.high < 4 / 300
