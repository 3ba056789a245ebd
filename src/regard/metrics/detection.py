"""Average precision and recall of boxes as COCO defines them, with intervals over images.

- faster-coco-eval computes the values of boxes; where it is not installed, our own count, which tests hold equal to it.
- For the intervals, images are drawn with replacement. Which box finds which object does not depend on the draw: it is
  matched once, and only precision and recall are counted anew. On all images that gives faster-coco-eval's values.
- Boxes are corners (left, top, right, bottom) in pixels, pixel 0 being from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from regard.errors import missing
from regard.metrics.classification import Figure, with_percentiles
from regard.metrics.paired import Comparison

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""Of intersection over union, from which on a box has found an object."""
RECALLS = np.linspace(0.0, 1.0, 101)
SIZES = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Areas of objects in pixels."""
MOST = 100
"""Boxes per image and class that count, the surest ones."""
WORK = 3e8
"""Matches that all resamples together may count."""


class Truth(NamedTuple):
    """The objects of an image: boxes (n, 4), labels (n,), whether each is a crowd (n,), areas (n,).

    A crowd is a region of many objects: a box in it is neither right nor wrong. With `masks`, COCO's run-length codes
    of all objects, masks are measured in place of boxes.
    """

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    area: np.ndarray
    masks: Sequence[Any] | None = None


class Detections(NamedTuple):
    """What was predicted for an image: boxes (m, 4), labels (m,), scores (m,); masks as in `Truth`, if measured."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    masks: Sequence[Any] | None = None


@dataclass(frozen=True)
class DetectionSummary:
    """All figures of one evaluation."""

    figures: dict[str, Figure]
    per_class: dict[str, dict[str, Figure]]
    curves: np.ndarray
    """Precision (classes, 101) at recall 0, 0.01, … 1, where an overlap of one half is enough; NaN without objects."""


class Ranked(NamedTuple):
    """The boxes of one class, surest first, matched with its objects at each threshold."""

    scores: np.ndarray
    image: np.ndarray
    hit: np.ndarray
    """(thresholds, boxes): whether each has found an object."""
    ignored: np.ndarray
    """(thresholds, boxes): whether it counts neither way."""
    objects: np.ndarray
    """(images,): number of objects to be found."""


def ious(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray | None = None) -> np.ndarray:
    """Intersection over union of all pairs (m, n); with a crowd, the share of the box that lies in it.

    >>> ious(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2], [0, 0, 9, 9]]), np.array([False, True])).round(3)
    array([[0.333, 1.   ]])
    """
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (high - low).clip(0).prod(-1)
    own, theirs = (np.asarray(b[:, 2:] - b[:, :2]).clip(0).prod(-1) for b in (boxes, others))
    union = own[:, None] + theirs - shared
    if crowd is not None:
        union = np.where(crowd, own[:, None], union)
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def rank(truths: Sequence[Truth], detections: Sequence[Detections], classes: int, size: str = "all") -> list[Ranked]:
    """By class: every box of all images and what it has found; the objects of one size, the others being ignored."""
    parts: list[list[tuple[np.ndarray, ...]]] = [[] for _ in range(classes)]
    objects = np.zeros((classes, len(truths)), dtype=np.int64)
    low, high = SIZES[size]
    for number, (truth, own) in enumerate(zip(truths, detections, strict=True)):
        outside = truth.crowd | (truth.area < low) | (truth.area > high)
        np.add.at(objects[:, number], truth.labels[~outside], 1)
        for label in np.unique(own.labels):
            mine, theirs = own.labels == label, truth.labels == label
            order = np.argsort(-own.scores[mine], kind="stable")[:MOST]
            crowd, ignored = truth.crowd[theirs], outside[theirs]
            overlap, area = _overlaps(own, truth, np.flatnonzero(mine)[order], theirs)
            hit, passed = _matched(overlap, crowd, ignored)
            passed |= ~hit & ((area < low) | (area > high))
            where = np.full(len(order), number)
            parts[label].append((own.scores[mine][order], where, (hit & ~passed).T, passed.T))
    return [_ranked(own, count) for own, count in zip(parts, objects, strict=True)]


def _overlaps(own: Detections, truth: Truth, mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """IoU (m, n) of these predictions with these objects, and the predictions' areas (m,): of masks, if given."""
    if own.masks is None or truth.masks is None:
        boxes = own.boxes[mine]
        return ious(boxes, truth.boxes[theirs], truth.crowd[theirs]), (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    codes = [own.masks[n] for n in mine.tolist()]
    others = [truth.masks[n] for n in np.flatnonzero(theirs).tolist()]
    tools = mask_tools()
    overlap = np.zeros((len(codes), 0))
    if others:
        overlap = np.asarray(tools.iou(codes, others, truth.crowd[theirs].astype(np.uint8))).reshape(len(codes), -1)
    return overlap, np.asarray(tools.area(codes), dtype=np.float64)


def mask_tools() -> Any:
    """faster-coco-eval's functions of run-length codes."""
    try:
        from faster_coco_eval import mask
    except ImportError:
        raise missing("faster-coco-eval", "detect") from None
    return mask


def encode_masks(masks: np.ndarray) -> list[Any]:
    """COCO's run-length codes of masks (n, height, width)."""
    return list(mask_tools().encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))) if len(masks) else []


def _ranked(parts: list[tuple[np.ndarray, ...]], objects: np.ndarray) -> Ranked:
    if not parts:
        none = np.zeros((len(THRESHOLDS), 0), dtype=bool)
        return Ranked(np.zeros(0), np.zeros(0, dtype=np.int64), none, none, objects)
    scores, image, hit, ignored = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(-scores, kind="stable")
    return Ranked(scores[order], image[order], hit[order].T, ignored[order].T, objects)


def _matched(overlap: np.ndarray, crowd: np.ndarray, ignored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of an image's boxes of a class found an object, and which one to be ignored: (thresholds, boxes) each.

    The surest box chooses first: the object it overlaps most, and one to be ignored only if there is no other. A crowd
    can be chosen again.
    """
    hit = np.zeros((len(THRESHOLDS), len(overlap)), dtype=bool)
    passed, free = hit.copy(), np.ones((len(THRESHOLDS), len(crowd)), dtype=bool)
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    for place in np.flatnonzero((overlap >= THRESHOLDS[0]).any(1)) if len(crowd) else ():
        able = (overlap[place] >= least) & free
        proper = able & ~ignored
        able = np.where(proper.any(1, keepdims=True), proper, able)
        # Of equal overlaps the last one is chosen, as COCO's code does.
        best = len(crowd) - 1 - np.where(able, overlap[place], -1)[:, ::-1].argmax(1)
        chosen = able.any(1)
        hit[chosen, place], passed[chosen, place] = True, ignored[best[chosen]]
        free[np.flatnonzero(chosen), best[chosen]] = crowd[best[chosen]]
    return hit, passed


def count(ranked: Ranked, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision (thresholds, 101) at each recall and final recall (thresholds,); `weights` (images,) is how often each
    image counts. NaN without objects."""
    objects = float(ranked.objects @ weights)
    if not objects:
        return np.full((len(THRESHOLDS), len(RECALLS)), np.nan), np.full(len(THRESHOLDS), np.nan)
    if not ranked.hit.size:
        return np.zeros((len(THRESHOLDS), len(RECALLS))), np.zeros(len(THRESHOLDS))
    each = weights[ranked.image]
    right = np.cumsum(np.where(ranked.hit, each, 0.0), axis=1)
    wrong = np.cumsum(np.where(ranked.hit | ranked.ignored, 0.0, each), axis=1)
    precision, recall = right / (right + wrong + np.spacing(1)), right / objects
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    at = np.zeros((len(THRESHOLDS), len(RECALLS)))
    for own, values, reached in zip(at, precision, recall, strict=True):
        place = np.searchsorted(reached, RECALLS)
        there = place < len(values)
        own[there] = values[place[there]]
    return at, right[:, -1] / objects


def average_precision(ranked: Sequence[Ranked], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average precision and final recall (classes, thresholds); NaN for a class without objects."""
    made = [count(own, weights) for own in ranked]
    return np.stack([precision.mean(1) for precision, _ in made]), np.stack([recall for _, recall in made])


def best_threshold(ranked: Sequence[Ranked]) -> float:
    """The score from which on boxes are best taken for objects: the highest F1 over all classes, at half overlap."""
    scores = np.concatenate([own.scores[~own.ignored[0]] for own in ranked])
    hits = np.concatenate([own.hit[0][~own.ignored[0]] for own in ranked])
    if not hits.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    f1 = 2 * np.cumsum(hits[order]) / (np.arange(1, len(order) + 1) + sum(own.objects.sum() for own in ranked))
    return float(scores[order][f1.argmax()])


def quick_ap(truths: Sequence[Truth], detections: Sequence[Detections], classes: int) -> dict[str, float]:
    """What the training loop chooses by: AP and AP50 without intervals, and the best threshold of the score."""
    ranked = rank(truths, detections, classes)
    precision, _ = average_precision(ranked, np.ones(len(truths)))
    ap, ap50 = (_mean(part) for part in (precision, precision[:, 0]))
    return {"ap": ap if ap == ap else 0.0, "ap50": ap50 if ap50 == ap50 else 0.0, "threshold": best_threshold(ranked)}


def summarise_detection(
    truths: Sequence[Truth], detections: Sequence[Detections], classes: Sequence[str], most: int = 1000, seed: int = 0
) -> DetectionSummary:
    """AP, AP50, AP75 and recall (AR, 100 boxes per image), and by size and class; with up to `most` resamples."""
    precision, recall = coco_arrays(truths, detections, len(classes))
    values, n = dict[str, float](), len(truths)
    sizes = [rank(truths, detections, len(classes), size) for size in SIZES]
    for place, size in enumerate(SIZES):
        suffix = "" if size == "all" else f"_{size}"
        own = precision[:, :, :, place]
        values |= {f"ap{suffix}": _mean(own), f"ar{suffix}": _mean(recall[:, :, place])}
        values |= {"ap50": _mean(own[0]), "ap75": _mean(own[5])} if size == "all" else {}
    drawn = _resampled(sizes, n, most, seed)
    names = ["ap", "ap50", "ap75", "ar", *(f"{kind}_{size}" for kind in ("ap", "ar") for size in list(SIZES)[1:])]
    figures = {name: with_percentiles(values[name], drawn[name], n) for name in names if not math.isnan(values[name])}
    per_class = dict[str, dict[str, Figure]]()
    for k, name in enumerate(classes):
        own = {"ap": precision[:, :, k, 0], "ap50": precision[0, :, k, 0], "ar": recall[:, k, 0]}
        objects = int(sizes[0][k].objects.sum())
        per_class[name] = {
            measure: with_percentiles(_mean(part), drawn[f"class_{measure}"][:, k], objects)
            for measure, part in own.items()
        }
    curves = precision[0, :, :, 0].T
    return DetectionSummary(figures, per_class, curves)


def _resampled(sizes: Sequence[Sequence[Ranked]], n: int, most: int, seed: int) -> dict[str, np.ndarray]:
    """Each figure on images drawn with replacement."""
    sizes = [[_to_last_hit(own) for own in ranked] for ranked in sizes]
    work = sum(own.hit.size + 1000 for ranked in sizes for own in ranked)
    resamples, draw = min(most, max(100, int(WORK // work))), np.random.default_rng(seed)
    made = dict[str, list[Any]]()
    for _ in range(resamples):
        weights = draw.multinomial(n, np.full(n, 1 / n)).astype(np.float64)
        for size, ranked in zip(SIZES, sizes, strict=True):
            precision, recall = average_precision(ranked, weights)
            suffix = "" if size == "all" else f"_{size}"
            own: dict[str, Any] = {f"ap{suffix}": _mean(precision), f"ar{suffix}": _mean(recall)}
            if size == "all":
                own |= {"ap50": _mean(precision[:, 0]), "ap75": _mean(precision[:, 5])}
                own |= {"class_ap": precision.mean(1), "class_ap50": precision[:, 0], "class_ar": recall.mean(1)}
            for name, value in own.items():
                made.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in made.items()}


def _to_last_hit(ranked: Ranked) -> Ranked:
    """Without the boxes after the last that is right at any threshold: these change neither precision nor recall."""
    hits = np.flatnonzero(ranked.hit.any(0))
    end = int(hits[-1]) + 1 if len(hits) else 0
    scores, image, hit, ignored = (part[..., :end] for part in ranked[:4])
    return Ranked(scores, image, hit, ignored, ranked.objects)


def _mean(values: np.ndarray) -> float:
    """Without what is not there."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else math.nan


def coco_arrays(
    truths: Sequence[Truth], detections: Sequence[Detections], classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Precision (thresholds, recalls, classes, sizes) and recall (thresholds, classes, sizes), by faster-coco-eval."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError:
        return counted_arrays(truths, detections, classes)
    images = [{"id": n, "width": 1, "height": 1} for n in range(1, len(truths) + 1)]
    objects = [
        {"id": 0, "image_id": n, "category_id": int(label) + 1, "bbox": _xywh(box), "iscrowd": int(crowd), "area": area}
        for n, truth in enumerate(truths, start=1)
        for box, label, crowd, area in zip(truth.boxes, truth.labels, truth.crowd, truth.area.tolist(), strict=True)
    ]
    guesses = [
        {"image_id": n, "category_id": int(label) + 1, "bbox": _xywh(box), "score": float(score)}
        for n, own in enumerate(detections, start=1)
        for box, label, score in zip(own.boxes, own.labels, own.scores, strict=True)
    ]
    for number, entry in enumerate(objects, start=1):
        entry["id"] = number
    kind = "bbox"
    if all(own.masks is not None for own in (*truths, *detections)):
        kind = "segm"
        for entries, owners in ((objects, truths), (guesses, detections)):
            codes = [code for own in owners for code in own.masks or ()]
            for entry, code in zip(entries, codes, strict=True):
                entry["segmentation"] = code
        for entry in guesses:
            del entry["bbox"]
    names = [{"id": k + 1, "name": str(k)} for k in range(classes)]
    truth = COCO({"images": images, "annotations": objects, "categories": names})
    shape = (len(THRESHOLDS), len(RECALLS), classes, len(SIZES))
    if guesses:
        judge = COCOeval_faster(truth, truth.loadRes(guesses), kind, print_function=_quiet)
        judge.evaluate()
        judge.accumulate()
        precision, recall = (judge.eval[name][..., -1] for name in ("precision", "recall"))
        precision, recall = precision.reshape(shape), recall.reshape(shape[:1] + shape[2:])
        return np.where(precision < 0, np.nan, precision), np.where(recall < 0, np.nan, recall)
    return counted_arrays(truths, detections, classes)


def counted_arrays(
    truths: Sequence[Truth], detections: Sequence[Detections], classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same by our own count."""
    once = np.ones(len(truths))
    made = [[count(own, once) for own in rank(truths, detections, classes, size)] for size in SIZES]
    precision, recall = (np.array([[pair[n] for pair in row] for row in made]) for n in (0, 1))
    return precision.transpose(2, 3, 1, 0), recall.transpose(2, 1, 0)


def _quiet(*_: object) -> None:
    """In place of print."""


def _xywh(box: np.ndarray) -> list[float]:
    left, top, right, bottom = box.tolist()
    return [left, top, right - left, bottom - top]


def compare_detection(
    truths: Sequence[Truth],
    first: Sequence[Detections],
    second: Sequence[Detections],
    classes: int,
    most: int = 2000,
    seed: int = 0,
) -> dict[str, Comparison]:
    """How far the second's AP and AP50 are ahead of the first's: the paired bootstrap over images."""
    ranked = [[_to_last_hit(own) for own in rank(truths, detections, classes)] for detections in (first, second)]
    n, draw = len(truths), np.random.default_rng(seed)
    resamples = min(most, max(200, int(WORK // sum(own.hit.size + 1000 for both in ranked for own in both))))
    weights = [np.ones(n), *draw.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)]
    pairs = [[average_precision(own, weight)[0] for own in ranked] for weight in weights]
    parts: dict[str, Callable[[np.ndarray], np.ndarray]] = {"ap": lambda p: p, "ap50": lambda p: p[:, 0]}
    made = dict[str, Comparison]()
    for name, part in parts.items():
        differences = np.array([_mean(part(other)) - _mean(part(one)) for one, other in pairs])
        drawn = differences[1:][~np.isnan(differences[1:])]
        side = min((drawn <= 0).sum(), (drawn >= 0).sum())
        p = min(1.0, 2 * (int(side) + 1) / (len(drawn) + 1))
        made[name] = Comparison(with_percentiles(differences[0], drawn, n), {"paired bootstrap": p})
    return made
