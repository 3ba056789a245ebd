"""A trained panoptic model: images in; boxes, masks and one map of segments out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.console import columns
from regard.data.objects import prepare
from regard.data.objects.panoptic import write_panoptic
from regard.errors import RunError
from regard.tasks.image_predictor import Image
from regard.tasks.objects.decoding import Boxes
from regard.tasks.objects.predictor import Detected, Detector, coco_images
from regard.tasks.panoptic.drawing import Labelled, draw_maps
from regard.tasks.panoptic.merging import THRESHOLD
from regard.tasks.panoptic.segmenting import images_of
from regard.weights import Checkpoint, Run


class Segment(NamedTuple):
    """A segment of a panoptic map: its number there, class, score, whether it is a thing, and its area in pixels."""

    number: int
    label: str
    score: float
    thing: bool
    area: int


@dataclass(frozen=True)
class Segmented(Detected):
    """The things of one image as boxes with masks (n, height, width), and the map of all its segments."""

    masks: Tensor
    panoptic: Tensor
    """(height, width): the number of each pixel's segment, 0 for none."""
    segments: tuple[Segment, ...]

    def above(self, threshold: float) -> Segmented:
        """Boxes and masks with at least this score; the map stays."""
        n = int((self.scores >= threshold).sum())
        boxes, labels, scores, masks = self.boxes[:n], self.labels[:n], self.scores[:n], self.masks[:n]
        return replace(self, boxes=boxes, labels=labels, scores=scores, masks=masks)

    def __str__(self) -> str:
        return ", ".join(f"{segment.label} {segment.score:.0%}" for segment in self.segments)


class Segmenter(Detector):
    """What `regard.load` gives for a run of panoptic segmentation."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        super().__init__(checkpoint, device)
        held = checkpoint.details.get("things", [True] * len(self.classes))
        if not isinstance(held, list) or len(held) != len(self.classes) or not self.model.config.masks:
            raise RunError("the checkpoint is damaged: it does not say which classes are things, or has no mask head")
        self.things = tuple(map(bool, held))
        try:
            self.map_threshold = float(checkpoint.progress.get("val_map_threshold", THRESHOLD))
        except (TypeError, ValueError):
            raise RunError("the checkpoint is damaged: its threshold is no number") from None

    def predict(self, image: Image, threshold: float | None = None) -> Segmented:
        """Boxes, masks and segments of one image: a path, a Pillow image, or pixels (height, width, 3)."""
        return next(self.predict_many([image], threshold=threshold))

    def predict_many(self, *given: Any, draw: str | Path | None = None, **options: Any) -> Iterator[Segmented]:
        """As of boxes, in the order of the images; `draw` is a folder for pictures of the maps."""
        folder = None if draw is None else Run.create(Path(draw)).path
        for number, (made, pixels) in enumerate(self.with_pixels(*given, **options), start=1):
            assert isinstance(made, Segmented)
            if folder:
                labels = {own.number: self.classes.index(own.label) for own in made.segments}
                shown = Labelled("segments", made.panoptic.numpy(), labels)
                draw_maps(folder / f"{number:04d}-{Path(made.name).stem}.png", pixels, [shown], self.classes)
            yield made

    def detected(self, items: Sequence[tuple[str, Any]]) -> Iterator[Segmented]:
        images = torch.stack([item.image for _, item in items]).to(self.device)
        filled = torch.tensor([item.filled for _, item in items], device=self.device)
        x, mask = prepare(images, filled, self.preparation.mean, self.preparation.std)
        sizes = [item.size for _, item in items]
        made = images_of(self.model(x, mask), mask, sizes, self.model.config.classification, self.things)
        for (name, _), image in zip(items, made, strict=True):
            merged = image.merged(self.things, self.map_threshold)
            segments = tuple(
                Segment(n, self.classes[label], score, self.things[label], int((merged.ids == n).sum()))
                for n, (label, score) in enumerate(zip(merged.labels, merged.scores, strict=True), start=1)
            )
            labels = tuple(self.classes[n] for n in image.labels.tolist())
            yield Segmented(
                name, image.size, image.boxes, labels, image.scores.cpu(), image.outlines().cpu(), merged.ids.cpu(),
                segments,
            )  # fmt: skip

    def detections(self, output: Any) -> Boxes:
        """Those of things, as in the predictions."""
        every = super().detections(output)
        kept = torch.tensor(self.things, device=every.labels.device)[every.labels[0]]
        return Boxes(*(part[:, kept] for part in every))

    def show(
        self, predictions: Iterable[Any], threshold: float | None = None, draw: Any = None, ids: Any = None
    ) -> None:
        """A line per segment."""
        rows = list[tuple[Any, ...]]()
        for made in predictions:
            for own in made.segments:
                kind = "thing" if own.thing else "stuff"
                rows.append(
                    (made.title, own.label, kind, f"{own.score:.3f}", f"{own.area / made.panoptic.numel():.1%}")
                )
            rows += [] if made.segments else [(made.title, "–", "", "", "")]
        if rows:
            print(columns(("image", "segment", "kind", "score", "share of the image"), rows))

    def save(self, predictions: Iterable[Any], path: Path) -> Path:
        """COCO's panoptic .json, with a folder of PNGs beside it; or a .csv with a row per box of a thing."""
        made = list(predictions)
        if path.suffix != ".json":
            return super().save(made, path)
        ids = dict(zip(self.classes, self.class_ids, strict=True))
        images = []
        for words, own in zip(coco_images(made), made, strict=True):
            segments = [
                {"id": s.number, "category_id": ids[s.label], "iscrowd": 0, "score": round(s.score, 6)}
                for s in own.segments
            ]
            images.append((words, own.panoptic.numpy(), segments))
        categories = [
            {"id": ids[name], "name": name, "isthing": int(thing)}
            for name, thing in zip(self.classes, self.things, strict=True)
        ]
        return write_panoptic(path, images, categories)
