"""Panoptic maps, masks and boxes of a whole split, and the figures they add up to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.console import columns, with_interval
from regard.data.batch import Batch
from regard.data.objects import ObjectDataset
from regard.data.objects.panoptic_dataset import PanopticDataset
from regard.evaluation import whole_json
from regard.metrics import Comparison, Figure, paired_bootstrap
from regard.metrics.detection import (
    Detections,
    DetectionSummary,
    Truth,
    average_precision,
    encode_masks,
    rank,
    summarise_detection,
)
from regard.metrics.panoptic import PARTS, PanopticSummary, panoptic_counts, summarise_panoptic
from regard.tasks.objects.evaluation import DetectionEvaluation, Rows, compare_detectors, truths_of
from regard.tasks.panoptic.merging import THRESHOLD
from regard.tasks.panoptic.segmenting import images_of

THRESHOLDS = (0.1, 0.2, 0.3, 0.5, 0.7, THRESHOLD)
"""Scores from which on queries may be merged into a map; the best on validation images is used."""


class Gathered:
    """What the outputs of a network add up to, image by image: masks of things, and counts of segments."""

    def __init__(
        self,
        dataset: ObjectDataset,
        classes: Sequence[str],
        things: Sequence[bool],
        classification: str,
        thresholds: Sequence[float],
    ):
        self.dataset, self.classes, self.things = dataset, classes, things
        self.classification, self.thresholds = classification, thresholds
        self.index, self.detections, self.truths = list[int](), list[Detections](), list[Truth]()
        self.counts: dict[float, list[np.ndarray]] = {threshold: [] for threshold in thresholds}

    def __call__(self, output: Any, batch: Batch) -> None:
        sizes = [self.dataset.shapes[n] or (0, 0) for n in batch.numbers]
        made = images_of(output, batch.inputs["mask"], sizes, self.classification, self.things)
        for number, image in zip(batch.numbers, made, strict=True):
            self.index.append(number)
            boxes, labels = image.boxes.double().numpy(), image.labels.cpu().numpy()
            codes = encode_masks(image.outlines().cpu().numpy())
            self.detections.append(Detections(boxes, labels, image.scores.double().cpu().numpy(), codes))
            self.truths.append(self._truth(number))
            if isinstance(self.dataset, PanopticDataset):
                for threshold in self.thresholds:
                    merged = image.merged(self.things, threshold)
                    labels = dict(enumerate(merged.labels, start=1))
                    counts = map_counts(self.dataset, number, self.classes, merged.ids.cpu().numpy(), labels)
                    self.counts[threshold].append(counts)

    def _truth(self, number: int) -> Truth:
        """The things of an image, with masks."""
        (whole,) = truths_of(self.dataset, [number], self.classes)
        kept = np.array(self.things)[whole.labels]
        masks = self.dataset.outlines(number).numpy()[kept]
        boxes, labels, crowd, area = (part[kept] for part in whole[:4])
        return Truth(boxes, labels, crowd, area, encode_masks(masks))


def map_counts(
    dataset: PanopticDataset, number: int, classes: Sequence[str], ids: np.ndarray, labels: Mapping[int, int]
) -> np.ndarray:
    """Of one image, `panoptic_counts` of a predicted map with the classes of its segments."""
    item, own = dataset.objects[number], dataset.segment_ids(number)
    names = [classes.index(dataset.source.classes[n]) for n in item.labels.tolist()]
    crowd = {n for n, is_crowd in zip(own, item.crowd.tolist(), strict=True) if is_crowd}
    true_labels = dict(zip(own, names, strict=True))
    return panoptic_counts(dataset.ids(number), ids, true_labels, labels, len(classes), crowd)


def quick_figures(gathered: Gathered) -> dict[str, float]:
    """What the training loop chooses by, without intervals: PQ at the best threshold, or AP of masks."""
    ones = np.ones(len(gathered.truths))
    masks = average_precision(rank(gathered.truths, gathered.detections, len(gathered.classes)), ones)[0]
    there = masks[~np.isnan(masks)]
    figures = {"mask_ap": float(there.mean()) if there.size else 0.0}
    quality = {threshold: _quality(np.stack(own)) for threshold, own in gathered.counts.items() if own}
    if quality:
        best = max(quality, key=lambda threshold: (quality[threshold], threshold))
        figures |= {"pq": quality[best], "map_threshold": best}
    return figures


@dataclass(frozen=True)
class PanopticEvaluation:
    """Figures with intervals: panoptic quality of maps, if the data has any, AP of masks and of boxes of things."""

    boxes: DetectionEvaluation
    masks: DetectionSummary
    things: tuple[bool, ...]
    counts: np.ndarray | None
    """Of each image and class: `panoptic_counts`."""
    map_threshold: float
    mask_truths: list[Truth]
    mask_detections: list[Detections]
    quality: PanopticSummary | None
    whole: PanopticEvaluation | None = None
    """With the samples that the model has seen, where these are left out."""

    @staticmethod
    def of(
        boxes: DetectionEvaluation, things: tuple[bool, ...], counts: np.ndarray | None, map_threshold: float,
        truths: list[Truth], detections: list[Detections],
    ) -> PanopticEvaluation:  # fmt: skip
        quality = None if counts is None else summarise_panoptic(counts, boxes.classes, things)
        masks = summarise_detection(truths, detections, boxes.classes)
        return PanopticEvaluation(boxes, masks, things, counts, map_threshold, truths, detections, quality)

    def without(self, seen: set[int]) -> PanopticEvaluation:
        """The same without these samples of the dataset."""
        kept = np.flatnonzero(~np.isin(self.boxes.index, list(seen))).tolist()
        counts = None if self.counts is None else self.counts[kept]
        truths, detections = [self.mask_truths[n] for n in kept], [self.mask_detections[n] for n in kept]
        boxes = replace(self.boxes.without(seen), whole=None)
        return replace(self.of(boxes, self.things, counts, self.map_threshold, truths, detections), whole=self)

    @property
    def keys(self) -> list[str]:
        return self.boxes.keys

    @property
    def index(self) -> np.ndarray:
        return self.boxes.index

    @property
    def figures(self) -> dict[str, Figure]:
        masks = {f"mask_{name}": figure for name, figure in self.masks.figures.items() if "_" not in name}
        return (self.quality.figures if self.quality else {}) | masks | self.boxes.figures

    def predictions(self) -> list[dict[str, Any]]:
        """As of boxes; and of maps, per class that occurs, the sum of matches' IoU, and right, wrong and missed."""
        rows = self.boxes.predictions()
        if self.counts is None:
            return rows
        return [row | {"segments": self._counts_text(own)} for row, own in zip(rows, self.counts, strict=True)]

    def _counts_text(self, counts: np.ndarray) -> str:
        named = zip(self.boxes.classes, counts.tolist(), strict=True)
        return json.dumps({name: [round(row[0], 6), *map(int, row[1:])] for name, row in named if any(row)})

    def worst(self) -> list[int]:
        """Images by their panoptic quality, lowest first; without maps, by the number of wrong boxes."""
        if self.counts is None:
            return self.boxes.worst()
        iou, right, wrong, missed = self.counts.sum(1).T
        quality = iou / np.maximum(right + 0.5 * wrong + 0.5 * missed, 0.5)
        return np.argsort(quality, kind="stable").tolist()

    def describe(self) -> str:
        text = ""
        if self.quality:
            rows = [
                (
                    name,
                    "thing" if thing else "stuff",
                    *(with_interval(self.quality.per_class[name][part]._asdict()) for part in PARTS),
                )
                for name, thing in zip(self.boxes.classes, self.things, strict=True)
            ]
            text = columns(("class", "kind", *(part.upper() for part in PARTS)), rows) + "\n\nboxes of things\n"
        return text + self.boxes.describe()

    def to_json(self) -> dict[str, Any]:
        made = self.boxes.to_json() | {"figures": {name: figure._asdict() for name, figure in self.figures.items()}}
        made["things"] = dict(zip(self.boxes.classes, self.things, strict=True))
        made["masks_per_class"] = {
            name: {measure: figure._asdict() for measure, figure in row.items()}
            for name, row in self.masks.per_class.items()
        }
        if self.quality:
            made["map_threshold"] = self.map_threshold
            made["panoptic"] = {
                name: {part: figure._asdict() for part, figure in row.items()} | self.quality.counts[name]
                for name, row in self.quality.per_class.items()
            }
        return made | ({"whole": whole_json(self.whole, len(self.keys))} if self.whole else {})


def compare_panoptic(first: Rows, second: Rows, classes: Sequence[str]) -> dict[str, Comparison]:
    """How far the second's PQ and AP of boxes are ahead, from the rows of two predictions.csv: paired bootstraps."""
    made = compare_detectors(first, second, classes)
    if not all(rows and "segments" in rows[0] for rows in (first, second)):
        return made
    counts = [np.stack([_parsed(row["segments"], classes) for row in rows]) for rows in (first, second)]

    def ahead(index: np.ndarray) -> float:
        one, other = (_quality(own[index]) for own in counts)
        return other - one

    difference, p = paired_bootstrap(len(first), ahead)
    return {"pq": Comparison(difference, {"paired bootstrap": p})} | made


def _parsed(text: str, classes: Sequence[str]) -> np.ndarray:
    held = json.loads(text)
    return np.array([held.get(name, (0.0, 0, 0, 0)) for name in classes], dtype=np.float64)


def _quality(counts: np.ndarray) -> float:
    iou, right, wrong, missed = counts.sum(0).T
    size = right + 0.5 * wrong + 0.5 * missed
    return float((iou / np.maximum(size, 0.5))[size > 0].mean()) if size.any() else 0.0
