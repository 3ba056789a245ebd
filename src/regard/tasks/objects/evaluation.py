"""Predicted boxes of a whole split, and the figures they add up to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from regard.console import columns, with_interval
from regard.data.batch import Batch
from regard.data.objects import ObjectDataset, ObjectFeed
from regard.errors import ConfigError
from regard.evaluation import left_out_words, whole_json
from regard.metrics import Comparison, Figure
from regard.metrics.detection import Detections, DetectionSummary, Truth, compare_detection, summarise_detection
from regard.metrics.detection_errors import ERRORS, Error, confusion, error_breakdown
from regard.nn.boxes import overlaps, to_corners
from regard.tasks.objects.decoding import decode, to_file

Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Spread:
    """How far queries tell images and places apart: what shows that they have collapsed."""

    same_place: float
    """Mean overlap of two queries' boxes of one image."""
    same_answer: float
    """Mean overlap of one query's boxes of two images."""
    best_score: float
    """Mean score of an image's surest box, over images with objects."""


@dataclass(frozen=True)
class DetectionEvaluation:
    """Figures with intervals, and every box behind them, in pixels of the files."""

    classes: tuple[str, ...]
    keys: list[str]
    index: np.ndarray
    truths: list[Truth]
    detections: list[Detections]
    threshold: float
    """The score from which on a box counts, where boxes are counted one by one."""
    spread: Spread
    summary: DetectionSummary
    errors: dict[str, Error]
    confusion: np.ndarray
    whole: DetectionEvaluation | None = None
    """With the samples that the model has seen, where these are left out."""

    @staticmethod
    def of(
        classes: tuple[str, ...], keys: list[str], index: np.ndarray, truths: list[Truth], detections: list[Detections],
        threshold: float, spread: Spread,
    ) -> DetectionEvaluation:  # fmt: skip
        count = len(classes)
        summary = summarise_detection(truths, detections, classes)
        errors = error_breakdown(truths, detections, count, threshold)
        confused = confusion(truths, detections, count, threshold)
        return DetectionEvaluation(
            classes, keys, index, truths, detections, threshold, spread, summary, errors, confused
        )

    def without(self, seen: set[int]) -> DetectionEvaluation:
        """The same without these samples of the dataset."""
        kept = np.flatnonzero(~np.isin(self.index, list(seen))).tolist()
        keys = [self.keys[n] for n in kept]
        truths, detections = [self.truths[n] for n in kept], [self.detections[n] for n in kept]
        made = self.of(self.classes, keys, self.index[kept], truths, detections, self.threshold, self.spread)
        return replace(made, whole=self)

    @property
    def figures(self) -> dict[str, Figure]:
        return self.summary.figures

    def predictions(self) -> list[dict[str, Any]]:
        """One row per image: its objects and the predicted boxes, as JSON; corners in pixels of the file."""
        return [
            {
                "name": key,
                "objects": _objects_text(truth, self.classes),
                "predicted": _found_text(detections, self.classes),
            }
            for key, truth, detections in zip(self.keys, self.truths, self.detections, strict=True)
        ]

    def worst(self) -> list[int]:
        """Images by the number of their errors, most first."""
        totals = [
            confusion([truth], [detections], len(self.classes), self.threshold)
            for truth, detections in zip(self.truths, self.detections, strict=True)
        ]
        wrong = np.array([counts.sum() - np.trace(counts[:-1, :-1]) for counts in totals])
        return np.argsort(-wrong, kind="stable").tolist()

    def describe(self) -> str:
        text = ""
        if self.whole:
            ap = with_interval(self.whole.figures["ap"]._asdict(), ".4f")
            text = left_out_words(self.whole, len(self.keys), f"ap {ap}", "images") + "\n\n"
        measures = ("ap", "ap50", "ar")
        text += columns(("class", "objects", *measures), [
            (name, row["ap"].n, *(with_interval(row[m]._asdict()) for m in measures))
            for name, row in self.summary.per_class.items()
        ])  # fmt: skip
        text += f"\n\nerrors of boxes with a score of at least {self.threshold:.2f}\n"
        rows = [(kind, e.count, f"{e.gain:+.4f}", ERRORS[kind]) for kind, e in self.errors.items()]
        text += columns(("error", "count", "ap50 without", ""), rows)
        if len(self.classes) <= 20:
            names = (*self.classes, "background")
            rows = [(name, *row) for name, row in zip(names, self.confusion, strict=True)]
            text += "\n\nconfusion (rows true, columns predicted)\n" + columns(("", *names), rows)
        return text

    def to_json(self) -> dict[str, Any]:
        per_class = {
            name: {measure: figure._asdict() for measure, figure in row.items()}
            for name, row in self.summary.per_class.items()
        }
        return {
            "figures": {name: figure._asdict() for name, figure in self.figures.items()},
            "per_class": per_class,
            "curves": [[None if p != p else round(p, 4) for p in row] for row in self.summary.curves.tolist()],
            "threshold": round(self.threshold, 4),
            "errors": {kind: asdict(error) for kind, error in self.errors.items()},
            "confusion": self.confusion.tolist(),
            "spread": asdict(self.spread),
            **({"whole": whole_json(self.whole, len(self.keys))} if self.whole else {}),
        }


def _objects_text(truth: Truth, classes: Sequence[str]) -> str:
    rows = zip(truth.labels.tolist(), truth.boxes.tolist(), truth.area.tolist(), truth.crowd.tolist(), strict=True)
    return json.dumps([[classes[n], *_short(box), round(area, 2), int(crowd)] for n, box, area, crowd in rows])


def _found_text(detections: Detections, classes: Sequence[str]) -> str:
    rows = zip(detections.labels.tolist(), detections.scores.tolist(), detections.boxes.tolist(), strict=True)
    return json.dumps([[classes[n], round(score, 6), *_short(box)] for n, score, box in rows])


def _short(box: Iterable[float]) -> list[float]:
    return [round(side, 2) for side in box]


def truths_of(dataset: ObjectDataset, index: Iterable[int], classes: Sequence[str]) -> list[Truth]:
    """The objects of samples, their classes numbered as `classes` are."""
    numbers = np.array([classes.index(name) for name in dataset.source.classes], dtype=np.int64)
    made = list[Truth]()
    for n in index:
        item = dataset.objects[n]
        boxes, area = item.boxes.double().numpy(), item.area.double().numpy()
        made.append(Truth(boxes, numbers[item.labels.numpy()], item.crowd.numpy(), area))
    return made


def sure_boxes(result: DetectionEvaluation) -> list[int]:
    """Images with boxes that count, by the surest: of every class the first, then of every class the second."""
    best = {
        n: int(detections.scores.argmax()) for n, detections in enumerate(result.detections) if len(detections.scores)
    }
    ranked = sorted(best, key=lambda n: -result.detections[n].scores[best[n]])
    turns, counts = dict[int, int](), Counter[int]()
    for n in ranked:
        if result.detections[n].scores[best[n]] >= result.threshold:
            label = int(result.detections[n].labels[best[n]])
            turns[n] = counts[label]
            counts[label] += 1
    return sorted(turns, key=lambda n: turns[n])


@torch.inference_mode()
def detect(
    model: Any,
    feed: ObjectFeed,
    shapes: Sequence[tuple[int, ...] | None],
    tick: Callable[..., None],
    objective: Any,
    watch: Callable[[Any, Batch], None] = lambda output, batch: None,
) -> tuple[list[int], list[Detections], float, Spread]:
    """Over everything the feed gives: sample numbers, boxes in pixels of the files, the mean loss, and the spread.

    `watch` sees every output and its batch.
    """
    training, config = model.training, model.config
    model.eval()
    index, detections, lost, scores = list[int](), list[Detections](), 0.0, list[float]()
    places, answers = list[float](), list[float]()
    try:
        for number, batch in enumerate(feed.epoch(0, 0, iter), start=1):
            output = model(batch.inputs["image"], batch.inputs["mask"])
            lost += float(objective.loss(output, batch.targets)) * len(batch)
            watch(output, batch)
            result = decode(output, config.classification)
            for row, sample in enumerate(batch.numbers):
                shape = shapes[sample]
                assert shape is not None
                boxes = to_file(result.boxes[row].cpu(), shape).double().numpy()
                detections.append(
                    Detections(boxes, result.labels[row].cpu().numpy(), result.scores[row].double().cpu().numpy())
                )
            index += batch.numbers
            some = (batch.targets["labels"] >= 0).any(1)
            scores += result.scores[:, 0][some].tolist()
            corners = to_corners(output.boxes.float())
            places += overlaps(corners[:, :, None], corners[:, None])[0].mean((1, 2)).tolist()
            answers += overlaps(corners[1:], corners[:-1])[0].mean(1).tolist()
            tick(number, "")
    finally:
        model.train(training)
    spread = Spread(*(float(np.mean(part)) if part else 0.0 for part in (places, answers, scores)))
    return index, detections, lost / max(len(index), 1), spread


def compare_detectors(first: Rows, second: Rows, classes: Sequence[str]) -> dict[str, Comparison]:
    """How far the second's AP and AP50 are ahead, from the rows of two predictions.csv."""
    if [row["objects"] for row in first] != [row["objects"] for row in second]:
        raise ConfigError("the runs were tested on the same images with other objects", do="test them on the same data")
    read = [[json.loads(row["predicted"]) for row in rows] for rows in (first, second)]
    names = list(dict.fromkeys([*classes, *(box[0] for rows in read for row in rows for box in row)]))
    objects = [json.loads(row["objects"]) for row in first]
    truths = [
        Truth(
            _array(row, 1, 5).reshape(-1, 4),
            _labels(row, names),
            _array(row, 6, 7).ravel() > 0,
            _array(row, 5, 6).ravel(),
        )
        for row in objects
    ]
    detections = [
        [Detections(_array(row, 2, 6).reshape(-1, 4), _labels(row, names), _array(row, 1, 2).ravel()) for row in rows]
        for rows in read
    ]
    return compare_detection(truths, detections[0], detections[1], len(names))


def _array(rows: list[list[Any]], first: int, last: int) -> np.ndarray:
    return np.array([row[first:last] for row in rows], dtype=np.float64).reshape(len(rows), last - first)


def _labels(rows: list[list[Any]], names: Sequence[str]) -> np.ndarray:
    return np.array([names.index(row[0]) for row in rows], dtype=np.int64)
