"""Kinds of errors, on scenes whose errors are known."""

import numpy as np
import pytest

from regard.metrics.detection import Detections, Truth, average_precision, rank
from regard.metrics.detection_errors import ERRORS, confusion, error_breakdown
from tests.metrics.test_detection import CLASSES, scenes

AT = {"here": [0.0, 0, 100, 100], "half": [0.0, 0, 100, 60], "near": [0.0, 0, 100, 30], "far": [300.0, 300, 400, 400]}


def truth(*labels: int, crowd: bool = False) -> Truth:
    n = len(labels)
    boxes = np.array([[150.0 * i, 0, 150 * i + 100, 100] for i in range(n)]).reshape(n, 4)
    return Truth(boxes, np.array(labels, dtype=np.int64), np.full(n, crowd), np.full(n, 1e4))


def detections(*boxes: tuple[str, int, float]) -> Detections:
    places, labels, scores = zip(*boxes, strict=True) if boxes else ((), (), ())
    made = np.array([AT[place] for place in places], dtype=float).reshape(len(boxes), 4)
    return Detections(made, np.array(labels, dtype=np.int64), np.array(scores, dtype=float))


@pytest.mark.parametrize(
    ("boxes", "wrong"),
    [
        ([("here", 0, 0.9)], {}),
        ([("here", 1, 0.9)], {"class": 1}),
        ([("half", 1, 0.9)], {"class": 1}),
        ([("half", 0, 0.9)], {}),
        ([("near", 0, 0.9)], {"location": 1}),
        ([("near", 1, 0.9)], {"both": 1, "missed": 1}),
        ([("here", 0, 0.9), ("here", 0, 0.8)], {"duplicate": 1}),
        ([("here", 0, 0.9), ("far", 0, 0.8)], {"background": 1}),
        ([("far", 0, 0.9)], {"background": 1, "missed": 1}),
        ([], {"missed": 1}),
        ([("here", 0, 0.2)], {"missed": 1}),
    ],
)
def test_each_kind_of_error_is_named(boxes, wrong):
    made = error_breakdown([truth(0)], [detections(*boxes)], 2, threshold=0.5)
    assert {kind: error.count for kind, error in made.items() if error.count} == wrong


def test_a_box_in_a_crowd_is_neither_right_nor_wrong():
    made = error_breakdown([truth(0, crowd=True)], [detections(("here", 0, 0.9))], 2, threshold=0.5)
    assert not any(error.count for error in made.values())
    assert not confusion([truth(0, crowd=True)], [detections(("here", 0, 0.9))], 2, 0.5).any()


def test_a_gain_is_the_ap50_that_putting_it_right_brings():
    """Two images with an object of class 0; in the second, the box has the wrong class."""
    truths, guesses = [truth(0), truth(0)], [detections(("here", 0, 0.9)), detections(("here", 1, 0.8))]
    made = error_breakdown(truths, guesses, 2, threshold=0.5)
    half = 51 / 101  # recalls 0 to 0.5
    assert made["class"].gain == pytest.approx(1 - half)
    assert all(made[kind].gain == 0 for kind in ERRORS.keys() - {"class"})
    guesses[1] = detections()
    assert error_breakdown(truths, guesses, 2, 0.5)["missed"].gain == pytest.approx(1 - half)
    guesses[1] = detections(("far", 0, 0.95), ("here", 0, 0.8))
    before = average_precision(rank(truths, guesses, 2), np.ones(2))[0][0, 0]
    assert error_breakdown(truths, guesses, 2, 0.5)["background"].gain == pytest.approx(1 - before)


def test_every_wrong_box_has_one_kind_and_no_gain_is_negative():
    truths, guesses = scenes(30, seed=5)
    made = error_breakdown(truths, guesses, CLASSES, threshold=0.0)
    ranked = rank(truths, guesses, CLASSES)
    wrong = sum(int((~own.hit[0] & ~own.ignored[0]).sum()) for own in ranked)
    assert sum(error.count for kind, error in made.items() if kind != "missed") == wrong
    assert all(error.gain > -1e-9 for error in made.values())


def test_the_confusion_matrix_has_background_on_both_sides():
    truths = [truth(0, 1, 1)]
    guesses = [detections(("here", 1, 0.9), ("far", 0, 0.8), ("here", 0, 0.7), ("far", 1, 0.1))]
    counts = confusion(truths, guesses, 2, threshold=0.5)
    assert counts.tolist() == [[0, 1, 0], [0, 0, 2], [2, 0, 0]]
