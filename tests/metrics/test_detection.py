"""Average precision: ours is faster-coco-eval's, and so is the bootstrap."""

import sys

import numpy as np
import pytest

from regard.metrics.detection import (
    SIZES,
    Detections,
    Truth,
    average_precision,
    best_threshold,
    coco_arrays,
    compare_detection,
    encode_masks,
    quick_ap,
    rank,
    summarise_detection,
)

CLASSES = 4


def scenes(images: int, seed: int = 0, scores: int | None = None) -> tuple[list[Truth], list[Detections]]:
    """Objects of all sizes, crowds among them; boxes near them, doubled, of other classes, and anywhere."""
    draw, truths, detections = np.random.default_rng(seed), list[Truth](), list[Detections]()
    for number in range(images):
        n = int(draw.integers(0, 7)) if number else 0
        sides = np.exp(draw.uniform(np.log(8), np.log(200), (n, 2)))
        corner = draw.uniform(0, 300, (n, 2))
        boxes = np.concatenate((corner, corner + sides), 1)
        labels = draw.integers(0, CLASSES - 1, n)  # the last class has no object
        truths.append(Truth(boxes, labels, draw.random(n) < 0.15, sides.prod(1) * draw.uniform(0.6, 1, n)))
        near = np.repeat(boxes, 3, axis=0) + draw.normal(0, 6, (3 * n, 4))
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        other = draw.uniform(0, 300, (5, 2))
        near = np.concatenate((near, np.concatenate((other, other + draw.uniform(5, 150, (5, 2))), 1)))
        theirs = np.concatenate((np.repeat(labels, 3), draw.integers(0, CLASSES, 5)))
        wrong = draw.random(len(theirs)) < 0.2
        theirs = np.where(wrong, draw.integers(0, CLASSES, len(theirs)), theirs)
        own = draw.random(len(theirs)) if scores is None else draw.integers(0, scores, len(theirs)) / scores
        detections.append(Detections(near, theirs, own))
    return truths, detections


@pytest.mark.parametrize("scores", [None, 4])  # few different scores: ties
def test_our_counting_gives_faster_coco_evals_values(scores):
    truths, detections = scenes(40, scores=scores)
    precision, recall = coco_arrays(truths, detections, CLASSES)
    ours = np.zeros(0)
    for place, size in enumerate(SIZES):
        ours, reached = average_precision(rank(truths, detections, CLASSES, size), np.ones(len(truths)))
        np.testing.assert_allclose(ours.T, precision[..., place].mean(1), atol=1e-12)
        np.testing.assert_allclose(reached.T, recall[..., place], atol=1e-12)
    assert np.isnan(ours[-1]).all()


@pytest.mark.parametrize("found", [True, False])
def test_without_faster_coco_eval_the_figures_are_the_same(monkeypatch, found):
    """So a run that has trained does not end without figures where the package is not installed."""
    truths, detections = scenes(30, seed=4)
    if not found:
        none = Detections(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), np.zeros(0))
        detections = [none for _ in truths]
    wanted = coco_arrays(truths, detections, CLASSES)
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    for own, its in zip(coco_arrays(truths, detections, CLASSES), wanted, strict=True):
        np.testing.assert_allclose(own, its, atol=1e-12)


def test_masks_are_measured_as_faster_coco_eval_measures_them():
    """Ellipses in the boxes: their overlaps, and so the values, are not those of the boxes."""
    plain, boxes = scenes(10, seed=3)
    detections = [own._replace(masks=encode_masks(ellipses(own.boxes))) for own in boxes]
    truths = list[Truth]()
    for own in plain:
        masks = ellipses(own.boxes)
        truths.append(own._replace(masks=encode_masks(masks), area=masks.sum((1, 2)).astype(float)))
    precision, recall = coco_arrays(truths, detections, CLASSES)
    for place, size in enumerate(SIZES):
        ours, reached = average_precision(rank(truths, detections, CLASSES, size), np.ones(len(truths)))
        np.testing.assert_allclose(ours.T, precision[..., place].mean(1), atol=1e-12)
        np.testing.assert_allclose(reached.T, recall[..., place], atol=1e-12)
    assert abs(np.nanmean(precision) - np.nanmean(coco_arrays(plain, boxes, CLASSES)[0])) > 1e-3


def ellipses(boxes: np.ndarray, side: int = 520) -> np.ndarray:
    y, x = np.mgrid[:side, :side] + 0.5
    left, top, right, bottom = (column[:, None, None] for column in boxes.T)
    return ((2 * x - left - right) / (right - left)) ** 2 + ((2 * y - top - bottom) / (bottom - top)) ** 2 <= 1


def test_a_resample_counts_images_as_often_as_they_were_drawn():
    truths, detections = scenes(12, seed=1)
    drawn = np.random.default_rng(0).integers(0, 12, 12)
    weights = np.bincount(drawn, minlength=12).astype(float)
    ours = average_precision(rank(truths, detections, CLASSES), weights)[0]
    copies = coco_arrays([truths[n] for n in drawn], [detections[n] for n in drawn], CLASSES)[0]
    np.testing.assert_allclose(ours.T, copies[..., 0].mean(1), atol=1e-12)


def test_the_summary_has_values_of_the_referee_inside_their_intervals():
    truths, detections = scenes(60, seed=2)
    made = summarise_detection(truths, detections, ["a", "b", "c", "none"], most=100)
    precision, recall = coco_arrays(truths, detections, CLASSES)
    wanted = {
        "ap": np.nanmean(precision[..., 0]),
        "ap50": np.nanmean(precision[0, ..., 0]),
        "ar": np.nanmean(recall[..., 0]),
    }
    for name, value in wanted.items():
        assert made.figures[name].value == pytest.approx(value)
    assert {"ap75", "ap_small", "ap_medium", "ap_large", "ar_small"} <= made.figures.keys()
    for figure in made.figures.values():
        assert figure.low < figure.value < figure.high
        assert figure.n == 60
    assert made.per_class["a"]["ap"].n == sum(int(((t.labels == 0) & ~t.crowd).sum()) for t in truths)
    assert np.isnan(made.per_class["none"]["ap"].value)
    assert made.curves.shape == (CLASSES, 101)
    quick = quick_ap(truths, detections, CLASSES)
    assert quick["ap"] == pytest.approx(made.figures["ap"].value)
    assert quick["ap50"] == pytest.approx(made.figures["ap50"].value)


def test_nothing_found_is_zero_and_nothing_to_find_is_no_figure():
    truths, detections = scenes(6)
    none = [Detections(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), np.zeros(0)) for _ in detections]
    made = summarise_detection(truths, none, ["a", "b", "c", "none"], most=100)
    assert made.figures["ap"].value == made.figures["ap"].high == 0
    empty = [
        Truth(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool), np.zeros(0)) for _ in detections
    ]
    assert not summarise_detection(empty, detections, ["a", "b", "c", "none"], most=100).figures
    assert quick_ap(empty, detections, CLASSES) == {"ap": 0.0, "ap50": 0.0, "threshold": 0.5}


def test_the_best_threshold_has_the_highest_f1():
    box = np.array([[0.0, 0, 10, 10]])
    truths = [Truth(box, np.array([0]), np.array([False]), np.array([100.0]))] * 3
    detections = [Detections(box, np.array([0]), np.array([score])) for score in (0.9, 0.6)]
    detections.append(Detections(box + 50, np.array([0]), np.array([0.3])))
    assert best_threshold(rank(truths, detections, 1)) == 0.6


def test_a_better_detector_is_ahead_and_a_twin_is_not():
    truths, detections = scenes(40, seed=3)
    right = [Detections(t.boxes, t.labels, np.full(len(t.labels), 0.9)) for t in truths]
    ahead = compare_detection(truths, detections, right, CLASSES, most=200)["ap"]
    assert ahead.difference.low > 0.2
    assert ahead.verdict().startswith("better")
    same = compare_detection(truths, detections, detections, CLASSES, most=200)["ap50"]
    assert (same.difference.value, same.difference.low, same.difference.high) == (0, 0, 0)
