"""Panoptic quality (Kirillov et al., "Panoptic Segmentation", 2019), counted as COCO's evaluator counts.

- A predicted and a true segment of one class match if their IoU is above 0.5: at most one can be.
- Pixels without a true segment (number 0) count for no union. A prediction that lies for more than half of its area on
  them and on the crowd region of its class is left out; a crowd region itself is never missed. Of several crowd regions
  of one class in an image the last counts, as there.
- Areas are counted on the maps. COCO's evaluator takes those of true segments from the JSON; in COCO they are equal.
- Figures are means over classes that occur, predicted or true. Intervals: bootstrap over images.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import DataError
from regard.metrics.classification import Figure, with_percentiles

VOID = 0
"""The number of pixels that belong to no segment."""
PARTS = ("pq", "sq", "rq")
"""Panoptic quality, and its two factors: segmentation quality (mean IoU of matches) and recognition quality (F1)."""

COUNTED: tuple[str, ...] = ("iou", "true_positives", "false_positives", "false_negatives")


@dataclass(frozen=True)
class PanopticSummary:
    """Figures `pq`, `sq`, `rq` of all classes, `pq_things` … and `pq_stuff` …; and the same three of each class."""

    figures: dict[str, Figure]
    per_class: dict[str, dict[str, Figure]]
    counts: dict[str, dict[str, float]]
    """By class: the sum of matches' IoU (`iou`), and true positives, false positives and false negatives."""


def panoptic_counts(
    truth: np.ndarray,
    predicted: np.ndarray,
    true_labels: Mapping[int, int],
    predicted_labels: Mapping[int, int],
    classes: int,
    crowd: Collection[int] = (),
) -> np.ndarray:
    """Of one image and each class: sum of matches' IoU, true positives, false positives, false negatives (classes, 4).

    `truth` and `predicted` (H, W) hold the number of each pixel's segment, 0 for none; labels are the classes of
    segments by number; `crowd` are the numbers of true segments that are crowd regions.

    >>> truth, predicted = np.array([[1, 1, 1, 2]]), np.array([[5, 5, 6, 6]])
    >>> panoptic_counts(truth, predicted, {1: 0, 2: 1}, {5: 0, 6: 1}, classes=2).round(2).tolist()
    [[0.67, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    if truth.shape != predicted.shape:
        raise DataError(f"a predicted map of shape {predicted.shape} does not fit a true one of shape {truth.shape}")
    (true_ids, rows), (own_ids, columns) = (
        np.unique(np.append(ids.ravel(), VOID), return_inverse=True) for ids in (truth, predicted)
    )
    shape = len(true_ids), len(own_ids)
    shared = np.bincount(rows[:-1] * shape[1] + columns[:-1], minlength=shape[0] * shape[1]).reshape(shape)
    true_at, own_at = ({int(own): n for n, own in enumerate(ids)} for ids in (true_ids, own_ids))
    _require_named(true_at, true_labels, "true")
    _require_named(own_at, predicted_labels, "predicted")
    void, true_areas, own_areas = shared[true_at[VOID]], shared.sum(1), shared.sum(0)

    counts, matched, matching = np.zeros((classes, 4)), set[int](), set[int]()
    for true, label in true_labels.items():
        if true in crowd or true not in true_at:
            continue
        for own in own_ids[shared[true_at[true]] > 0].tolist():
            if own == VOID or predicted_labels[own] != label:
                continue
            row, column = true_at[true], own_at[own]
            both = shared[row, column]
            iou = both / (true_areas[row] + own_areas[column] - both - void[column])
            if iou > 0.5:
                counts[label] += iou, 1, 0, 0
                matched.add(true)
                matching.add(own)
    crowds = {label: true_at[true] for true, label in true_labels.items() if true in crowd and true in true_at}
    for true, label in true_labels.items():
        if true not in matched and true not in crowd:
            counts[label, 3] += 1
    for own, label in predicted_labels.items():
        if own in matching or own not in own_at:
            continue
        ignored = void[own_at[own]] + (shared[crowds[label], own_at[own]] if label in crowds else 0)
        if ignored <= 0.5 * own_areas[own_at[own]]:
            counts[label, 2] += 1
    return counts


def _require_named(ids: Mapping[int, int], labels: Mapping[int, int], kind: str) -> None:
    if unknown := ids.keys() - labels.keys() - {VOID}:
        raise DataError(f"a {kind} map has segments of no class: {', '.join(map(str, sorted(unknown)[:5]))}")


def summarise_panoptic(
    counts: np.ndarray, classes: Sequence[str], things: Sequence[bool], seed: int = 0
) -> PanopticSummary:
    """Figures from the counts of each image, (N, classes, 4)."""
    n = len(counts)
    if not n:
        raise DataError("there are no images to count")
    resamples = int(np.clip(10_000_000 // n, 200, 1000))
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    weights = np.vstack([np.ones(n), draws])
    totals = (weights @ counts.reshape(n, -1)).reshape(len(weights), -1, 4)
    qualities = _qualities(totals)
    of_things = np.asarray(things, dtype=bool)
    groups = {"": np.ones_like(of_things), "_things": of_things, "_stuff": ~of_things}
    figures = {
        f"{part}{group}": _mean_figure(qualities[part][:, chosen], n)
        for group, chosen in groups.items()
        for part in PARTS
        if chosen.any()
    }
    occurs = (counts[..., 1:].sum(-1) > 0).sum(0).tolist()
    per_class = {
        name: {part: _figure(qualities[part][:, c], occurs[c]) for part in PARTS} for c, name in enumerate(classes)
    }
    sums = {name: dict(zip(COUNTED, totals[0, c].tolist(), strict=True)) for c, name in enumerate(classes)}
    return PanopticSummary(figures, per_class, sums)


def _qualities(totals: np.ndarray) -> dict[str, np.ndarray]:
    """PQ, SQ and RQ of each class (..., classes) from its counts; NaN of a class that does not occur."""
    iou, right, wrong, missed = np.moveaxis(totals, -1, 0)
    size = right + 0.5 * wrong + 0.5 * missed
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_iou = np.where(right > 0, iou / right, 0.0)
        pq, sq, rq = (np.where(size > 0, part, np.nan) for part in (iou / size, mean_iou, right / size))
    return {"pq": pq, "sq": sq, "rq": rq}


def _mean_figure(values: np.ndarray, n: int) -> Figure:
    """Of all classes that occur: those of resamples are the ones that were drawn."""
    return _figure(np.ma.masked_invalid(values).mean(1).filled(math.nan), n)


def _figure(values: np.ndarray, n: int) -> Figure:
    return with_percentiles(values[0], values[1:], n)
