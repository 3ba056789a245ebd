"""A trained detector: images in, boxes with labels and scores out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.console import columns
from regard.data.fitting import with_channels
from regard.data.objects import bucket_of, choose_buckets, place, prepare
from regard.data.objects.ids import ImageIds, Listed, relative_names
from regard.errors import ConfigError, DataError, RunError
from regard.tasks.image_predictor import Image
from regard.tasks.objects.decoding import decode, to_file
from regard.tasks.objects.drawing import draw_boxes
from regard.tasks.objects.explaining import BoxExplainer
from regard.weights import Checkpoint, Run, to_csv, write_text


@dataclass(frozen=True)
class Detected:
    """The objects of one image: boxes (n, 4) as left, top, right, bottom in pixels of the file; surest first."""

    name: str
    size: tuple[int, ...]
    """Height and width of the file."""
    boxes: Tensor
    labels: tuple[str, ...]
    scores: Tensor
    listed: Listed | None = field(default=None, kw_only=True)
    """The image in the COCO file that was asked for ids."""

    def __len__(self) -> int:
        return len(self.labels)

    def above(self, threshold: float) -> Detected:
        """Those with at least this score."""
        count = int((self.scores >= threshold).sum())
        boxes, labels, scores = self.boxes[:count], self.labels[:count], self.scores[:count]
        return replace(self, boxes=boxes, labels=labels, scores=scores)

    @property
    def title(self) -> str:
        return f"{self.name} (id {self.listed.id})" if self.listed else self.name

    def __str__(self) -> str:
        return ", ".join(f"{label} {score:.0%}" for label, score in zip(self.labels, self.scores.tolist(), strict=True))


class _Placed(NamedTuple):
    """An image on its input, and the size of its file."""

    image: Tensor
    filled: tuple[int, int]
    bucket: int
    size: tuple[int, ...]
    pixels: Tensor


class Detector(BoxExplainer):
    """What `regard.load` gives for a run of detection, or for a public DETR."""

    predicts: ClassVar[str] = "boxes"

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        super().__init__(checkpoint, device)
        details, count = checkpoint.details, len(self.classes)
        try:
            self.class_ids = [int(n) for n in details.get("class_ids", range(count))]
            self.buckets = tuple((int(h), int(w)) for h, w in details.get("buckets", ()))
            self.threshold = float(checkpoint.progress.get("val_threshold", 0.5))
        except (TypeError, ValueError):
            raise RunError("the checkpoint is damaged: it does not say its inputs' sizes or its classes' ids") from None
        if len(self.class_ids) != count:
            raise RunError(f"the checkpoint is damaged: {len(self.class_ids)} ids for {count} classes")
        if not self.buckets:  # others' weights: lying, standing and square pictures of the usual size
            low, high = sorted(self.preparation.size)
            self.buckets = choose_buckets([(3, 4), (4, 3), (1, 1)], (low, high))

    def require_answers(self) -> None:
        if self.headless:
            raise ConfigError("the weights have no trained head", do="fine-tune them by `regard train DATA --from`")

    def predict(self, image: Image, threshold: float | None = None) -> Detected:
        """The boxes of one image: a path, a Pillow image, or pixels (height, width, 3)."""
        return next(self.predict_many([image], threshold=threshold))

    @torch.inference_mode()
    def predict_many(
        self,
        images: Iterable[Image],
        batch_size: int = 16,
        failed: list[DataError] | None = None,
        threshold: float | None = None,
        draw: str | Path | None = None,
        ids: str | Path | None = None,
    ) -> Iterator[Detected]:
        """Boxes with at least the `threshold`'s score, in the order of the images; `draw` is a folder for pictures.

        `ids` is a COCO file that lists the images. An image that cannot be read is an error; given a list `failed`, the
        error goes there and the rest continues.
        """
        folder = None if draw is None else Run.create(Path(draw)).path
        every = self.with_pixels(images, batch_size, failed, threshold, ids)
        for number, (made, pixels) in enumerate(every, start=1):
            if folder:
                detections = (made.boxes, made.labels, made.scores)
                draw_boxes(folder / f"{number:04d}-{Path(made.name).stem}.png", pixels, detections=detections)
            yield made

    @torch.inference_mode()
    def with_pixels(
        self,
        images: Iterable[Image],
        batch_size: int = 16,
        failed: list[DataError] | None = None,
        threshold: float | None = None,
        ids: str | Path | None = None,
    ) -> Iterator[tuple[Detected, Tensor]]:
        """The same predictions, each with its image's pixels."""
        least = self.threshold if threshold is None else threshold
        known, seen = None if ids is None else ImageIds(ids), set[Any]()
        for made, pixels in super().predict_many(images, batch_size, failed):
            try:
                listed = known.find(made.name, made.size) if known else None
                if listed and listed.id in seen:
                    raise DataError(f"another image is also {listed.file_name} of the file of ids", where=made.name)
            except DataError as error:
                if failed is None:
                    raise
                failed.append(error)
                continue
            seen |= {listed.id} if listed else set()
            yield replace(made.above(least), listed=listed), pixels

    def prepared(self, pixels: Tensor) -> _Placed:
        size = tuple(pixels.shape[1:])
        if len(size) != 2:
            raise DataError(f"an input of {len(size)} axes is no picture", do="give pictures")
        bucket = bucket_of(size, self.buckets)
        image, frame = place(with_channels(pixels, self.preparation.channels), self.buckets[bucket])
        (_, height), (_, width) = frame.filled
        return _Placed(image, (int(height), int(width)), bucket, size, pixels)

    def answered(self, waiting: Sequence[tuple[str, _Placed]]) -> Iterator[tuple[Detected, Tensor]]:
        made: dict[int, Detected] = {}
        for bucket in {item.bucket for _, item in waiting}:
            own = [n for n, (_, item) in enumerate(waiting) if item.bucket == bucket]
            for kind in {waiting[n][1].image.dtype for n in own}:
                some = [n for n in own if waiting[n][1].image.dtype == kind]
                made |= dict(zip(some, self.detected([waiting[n] for n in some]), strict=True))
        for number, (_, item) in enumerate(waiting):
            yield made[number], item.pixels

    def detected(self, items: Sequence[tuple[str, _Placed]]) -> Iterator[Detected]:
        """The predictions of images on inputs of one size."""
        images = torch.stack([item.image for _, item in items]).to(self.device)
        filled = torch.tensor([item.filled for _, item in items], device=self.device)
        x, mask = prepare(images, filled, self.preparation.mean, self.preparation.std)
        result = decode(self.model(x, mask), self.model.config.classification)
        for row, (name, item) in enumerate(items):
            labels = tuple(self.classes[n] for n in result.labels[row].tolist())
            yield Detected(
                name, item.size, to_file(result.boxes[row].cpu(), item.size), labels, result.scores[row].cpu()
            )

    def show(
        self, predictions: Iterable[Detected], threshold: float | None = None, draw: Any = None, ids: Any = None
    ) -> None:
        """A line per box."""
        rows = list[tuple[str, ...]]()
        for made in predictions:
            detections = zip(made.labels, made.scores.tolist(), made.boxes.tolist(), strict=True)
            for number, (label, score, box) in enumerate(detections):
                rows.append((made.title, f"{number}", label, f"{score:.3f}", " ".join(f"{side:.1f}" for side in box)))
            rows += [] if len(made) else [(made.title, "–", "", "", "")]
        if rows:
            print(columns(("image", "box", "object", "score", "left top right bottom"), rows))

    def save(self, predictions: Iterable[Detected], path: Path) -> Path:
        """A .csv with a row per box, or COCO's .json, whose annotations have scores."""
        made = list(predictions)
        text = self._coco(made) if path.suffix == ".json" else to_csv(_csv_rows(made))
        write_text(path, text)
        return path

    def _coco(self, made: Sequence[Detected]) -> str:
        ids, annotations = dict(zip(self.classes, self.class_ids, strict=True)), list[dict[str, Any]]()
        images = coco_images(made)
        for image, own in zip(images, made, strict=True):
            for label, score, box in zip(own.labels, own.scores.tolist(), own.boxes.tolist(), strict=True):
                left, top, right, bottom = (round(side, 2) for side in box)
                sides = [left, top, round(right - left, 2), round(bottom - top, 2)]
                annotations.append({
                    "id": len(annotations) + 1, "image_id": image["id"], "category_id": ids[label], "bbox": sides,
                    "area": round(sides[2] * sides[3], 2), "iscrowd": 0, "score": round(score, 6),
                })  # fmt: skip
        categories = [{"id": ids[name], "name": name} for name in self.classes]
        return json.dumps({"images": images, "annotations": annotations, "categories": categories}) + "\n"


def coco_images(made: Sequence[Detected]) -> list[dict[str, Any]]:
    """COCO's words for each image: id and name as the file of ids has them, else counted from 1."""
    names = relative_names([own.name for own in made])
    listed = [own.listed or Listed(n, name, own.size) for n, (own, name) in enumerate(zip(made, names, strict=True), 1)]
    return [
        {"id": entry.id, "file_name": entry.file_name, "height": own.size[0], "width": own.size[1]}
        for entry, own in zip(listed, made, strict=True)
    ]


def _csv_rows(made: Sequence[Detected]) -> list[dict[str, Any]]:
    names = ("left", "top", "right", "bottom")
    rounded = partial(round, ndigits=2)
    return [
        {"name": own.name, "label": label, "score": round(score, 6)} | dict(zip(names, map(rounded, box), strict=True))
        for own in made
        for label, score, box in zip(own.labels, own.scores.tolist(), own.boxes.tolist(), strict=True)
    ]
