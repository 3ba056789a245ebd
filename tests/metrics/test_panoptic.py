"""Panoptic quality is torchmetrics', and COCO's where crowds and void pixels are."""

import numpy as np
import pytest
import torch
from torchmetrics.detection import PanopticQuality

from regard.errors import DataError
from regard.metrics.panoptic import panoptic_counts, summarise_panoptic

CLASSES, THINGS = ("cat", "dog", "sky", "road"), (True, True, False, False)


def blocks(draw: np.random.Generator, side: int = 24) -> tuple[np.ndarray, dict[int, int]]:
    """Stuff everywhere, one segment per class, and rectangles of things on it."""
    ids = np.where(np.arange(side)[:, None] + 0 * np.arange(side) < draw.integers(4, side - 4), 1, 2)
    labels = {1: 2, 2: 3}
    for number in range(3, 3 + int(draw.integers(1, 5))):
        y, x, h, w = draw.integers([0, 0, 4, 4], [side - 6, side - 6, 12, 12])
        ids[y : y + h, x : x + w] = number
        labels[number] = int(draw.integers(2))
    here = set(np.unique(ids).tolist())
    return ids, {own: label for own, label in labels.items() if own in here}


def moved(ids: np.ndarray, labels: dict[int, int], draw: np.random.Generator) -> tuple[np.ndarray, dict[int, int]]:
    """The same, moved a little, with some things' classes changed."""
    ids = np.roll(ids, draw.integers(-2, 3, 2), (0, 1))
    return ids, {own: 1 - label if label < 2 and draw.random() < 0.3 else label for own, label in labels.items()}


def painted(ids: np.ndarray, labels: dict[int, int]) -> torch.Tensor:
    """As torchmetrics wants it: class and number of each pixel; of stuff the number counts for nothing. 9: void."""
    kinds = np.vectorize(lambda own: labels.get(own, 9))(ids)
    return torch.from_numpy(np.stack([kinds, np.where(kinds < 2, ids, 0)], -1))[None]


@pytest.mark.parametrize("void", [False, True])
def test_figures_of_drawn_maps_are_those_of_torchmetrics(void):
    draw = np.random.default_rng(0)
    metric = PanopticQuality({0, 1}, {2, 3}, return_sq_and_rq=True)
    each = PanopticQuality({0, 1}, {2, 3}, return_per_class=True)
    counts = []
    for _ in range(20):
        truth, labels = blocks(draw)
        predicted, guessed = moved(truth, labels, draw)
        if void:
            truth = truth.copy()
            truth[:, draw.integers(10, 20) :] = 0
            labels = {own: label for own, label in labels.items() if (truth == own).any()}
        counts.append(panoptic_counts(truth, predicted, labels, guessed, 4))
        for theirs in (metric, each):
            theirs.update(painted(predicted, guessed), painted(truth, labels))
    made = summarise_panoptic(np.stack(counts), CLASSES, THINGS)
    assert [made.figures[part].value for part in ("pq", "sq", "rq")] == pytest.approx(metric.compute().tolist())
    assert [row["pq"].value for row in made.per_class.values()] == pytest.approx(each.compute().flatten().tolist())
    for part in ("pq", "sq", "rq"):
        for group, names in (("things", CLASSES[:2]), ("stuff", CLASSES[2:])):
            mean = np.mean([made.per_class[name][part].value for name in names])
            assert made.figures[f"{part}_{group}"].value == pytest.approx(mean)
        assert made.figures[part].low < made.figures[part].value < made.figures[part].high
    assert made.figures["pq"].n == 20


def test_crowds_and_void_excuse_a_wrong_segment_but_not_a_missed_one():
    truth = np.repeat([[1, 1, 1, 1, 2, 2, 0, 0, 0, 3]], 2, axis=0)
    labels, crowd = {1: 0, 2: 0, 3: 1}, {1}
    predicted = np.array([[4, 4, 4, 5, 5, 6, 6, 6, 7, 7], [4, 4, 4, 5, 5, 6, 6, 6, 7, 8]])
    # 4 lies on the crowd; 5 half on it, half on 2: no more than half; 6 and 7 are two thirds void; 8 is half of 3, and
    # an IoU of one half is no match.
    guessed = {4: 0, 5: 0, 6: 0, 7: 0, 8: 1}
    assert panoptic_counts(truth, predicted, labels, guessed, 2, crowd).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    # Of another class than a segment's, the crowd excuses nothing; void does.
    swapped = guessed | {4: 1, 7: 1, 8: 0}
    assert panoptic_counts(truth, predicted, labels, swapped, 2, crowd).tolist() == [[0, 0, 2, 1], [0, 0, 1, 1]]


def test_a_segment_half_on_void_still_matches_what_is_below_the_rest():
    truth, predicted = np.array([[1, 1, 0, 0, 0]]), np.array([[2, 2, 2, 2, 2]])
    assert panoptic_counts(truth, predicted, {1: 0}, {2: 0}, 1).tolist() == [[1.0, 1, 0, 0]]


def test_a_class_that_does_not_occur_counts_in_no_mean():
    counts = np.zeros((2, 4, 4))
    counts[:, 0] = 0.8, 1, 0, 0
    counts[:, 2] = 0, 0, 1, 0
    made = summarise_panoptic(counts, CLASSES, THINGS)
    assert made.figures["pq_things"].value == pytest.approx(0.8)
    assert (made.figures["pq_stuff"].value, made.figures["sq_stuff"].value) == (0, 0)
    assert made.figures["pq"].value == pytest.approx(0.4)
    assert np.isnan(made.per_class["dog"]["pq"].value)
    assert made.counts["sky"] == {"iou": 0, "true_positives": 0, "false_positives": 2, "false_negatives": 0}


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="does not fit"):
        panoptic_counts(np.zeros((2, 3), int), np.zeros((3, 2), int), {}, {}, 1)
    with pytest.raises(DataError, match="a predicted map has segments of no class: 7"):
        panoptic_counts(np.zeros((1, 2), int), np.array([[0, 7]]), {}, {}, 1)
