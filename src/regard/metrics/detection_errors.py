"""Why boxes are wrong: the error types of TIDE (Bolya et al., 2020), and a confusion matrix with background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.metrics.detection import MOST, RECALLS, Detections, Truth, ious

FOREGROUND, BACKGROUND = 0.5, 0.1
"""Overlaps from which a box has found an object, and below which it is not about one (TIDE's t_f and t_b)."""
ERRORS = {
    "class": "the right place, the wrong class",
    "location": "the right class, but overlapping less than half",
    "both": "the wrong class, overlapping less than half",
    "duplicate": "an object that a surer box has found already",
    "background": "no object there",
    "missed": "an object that no box is near to",
}


@dataclass(frozen=True)
class Error:
    """`count` of boxes with at least the threshold's score, or of objects; `gain` is the AP50 without that error."""

    count: int
    gain: float


@dataclass
class _Box:
    """A predicted box, what is wrong with it ("" if nothing), and the object that it found or was about."""

    label: int
    score: float
    kind: str
    object: tuple[int, int] | None = None
    """Image and number."""


def error_breakdown(
    truths: Sequence[Truth], detections: Sequence[Detections], classes: int, threshold: float
) -> dict[str, Error]:
    """Each kind of error: how often, and how much AP50 would rise if it alone were put right (TIDE, section 2.2).

    Boxes of a class error get the right class and those of a location error the right place, unless a surer one has
    found that object; other wrong boxes and missed objects are left out.
    """
    boxes, objects = list[_Box](), dict[tuple[int, int], int]()
    for number, (truth, own) in enumerate(zip(truths, detections, strict=True)):
        boxes += _judged(number, truth, own)
        objects |= {(number, place): int(truth.labels[place]) for place in np.flatnonzero(~truth.crowd).tolist()}
    boxes.sort(key=lambda box: -box.score)
    matched = {box.object for box in boxes if not box.kind}
    near = {box.object for box in boxes if box.kind in ("class", "location") and box.score >= threshold}
    sure = {box.object for box in boxes if not box.kind and box.score >= threshold}
    plain, made = _ap50(boxes, objects, classes), dict[str, Error]()
    for kind in ERRORS:
        if kind == "missed":
            count = len(objects.keys() - sure - near)
            about = {box.object for box in boxes if box.kind in ("class", "location")}
            rest = {where: label for where, label in objects.items() if where in matched or where in about}
            made[kind] = Error(count, _ap50(boxes, rest, classes) - plain)
        else:
            count = sum(box.kind == kind and box.score >= threshold for box in boxes)
            made[kind] = Error(count, _ap50(_corrected(boxes, objects, matched, kind), objects, classes) - plain)
    return made


def _judged(number: int, truth: Truth, detections: Detections) -> list[_Box]:
    """The boxes of an image, each with its error; those in a crowd are left out."""
    order = np.argsort(-detections.scores, kind="stable")[:MOST]
    overlap, taken, made = ious(detections.boxes, truth.boxes, truth.crowd), set[int](), list[_Box]()
    for n in order:
        label, score, row = int(detections.labels[n]), float(detections.scores[n]), overlap[n]
        same = np.where((truth.labels == label) & ~truth.crowd, row, -1.0)
        other = np.where((truth.labels != label) & ~truth.crowd, row, -1.0)
        free = np.where(np.isin(np.arange(len(row)), list(taken)), -1.0, same)
        best, nearest, stranger = (int(part.argmax()) if len(row) else -1 for part in (free, same, other))
        if best >= 0 and free[best] >= FOREGROUND:
            taken.add(best)
            made.append(_Box(label, score, "", (number, best)))
        elif (row[truth.crowd & (truth.labels == label)] >= FOREGROUND).any():
            continue
        elif nearest >= 0 and BACKGROUND <= same[nearest] < FOREGROUND:
            made.append(_Box(label, score, "location", (number, nearest)))
        elif stranger >= 0 and other[stranger] >= FOREGROUND:
            made.append(_Box(label, score, "class", (number, stranger)))
        elif nearest >= 0 and same[nearest] >= FOREGROUND:
            made.append(_Box(label, score, "duplicate"))
        elif stranger >= 0 and other[stranger] >= BACKGROUND:
            made.append(_Box(label, score, "both"))
        else:
            made.append(_Box(label, score, "background"))
    return made


def _corrected(
    boxes: list[_Box], objects: dict[tuple[int, int], int], matched: set[tuple[int, int] | None], kind: str
) -> list[_Box]:
    """The same boxes, surest first, without one kind of error."""
    made, taken = list[_Box](), set(matched)
    for box in boxes:
        if box.kind != kind:
            made.append(box)
        elif box.object in objects and box.object not in taken:
            taken.add(box.object)
            made.append(_Box(objects[box.object], box.score, "", box.object))
    return made


def _ap50(boxes: list[_Box], objects: dict[tuple[int, int], int], classes: int) -> float:
    """The mean over classes of the average precision, boxes being surest first."""
    labels, right = np.array([box.label for box in boxes]), np.array([not box.kind for box in boxes])
    each, total = list[float](), np.bincount(np.array(list(objects.values()), dtype=np.int64), minlength=classes)
    for label in np.flatnonzero(total):
        hits = np.cumsum(right[labels == label]) if len(boxes) else np.zeros(0)
        precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
        place = np.searchsorted(hits / total[label], RECALLS)
        each.append(float(np.append(precision, 0.0)[place].mean()))
    return float(np.mean(each)) if each else 0.0


def confusion(truths: Sequence[Truth], detections: Sequence[Detections], classes: int, threshold: float) -> np.ndarray:
    """Counts (classes + 1, classes + 1): rows true, columns predicted, the last of each being background.

    Boxes with at least the threshold's score, the surest first, each take the object that they overlap most, of any
    class and by at least half. What is left are background taken for an object, and objects taken for background.
    """
    counts = np.zeros((classes + 1, classes + 1), dtype=np.int64)
    for truth, own in zip(truths, detections, strict=True):
        free, overlap = ~truth.crowd, ious(own.boxes, truth.boxes, truth.crowd)
        for n in np.argsort(-own.scores, kind="stable"):
            if own.scores[n] < threshold:
                break
            able = np.where(free, overlap[n], -1.0)
            best = int(able.argmax()) if len(able) else -1
            if best >= 0 and able[best] >= FOREGROUND:
                free[best] = False
                counts[truth.labels[best], own.labels[n]] += 1
            elif not (overlap[n][truth.crowd] >= FOREGROUND).any():
                counts[classes, own.labels[n]] += 1
        np.add.at(counts[:, classes], truth.labels[free], 1)
    return counts
