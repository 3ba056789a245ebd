"""Images with boxes of objects, as read and checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.console import columns
from regard.data.dataset import listed
from regard.data.scanner import ImageDataset
from regard.errors import DataError, counted, missing

AREAS = {"small": 32.0**2, "medium": 96.0**2, "large": float("inf")}
"""COCO's sizes of objects: their areas in pixels are below these."""
FEW = 0.01
"""Share of the boxes that may be left out because they are no boxes."""
STRATUM = 10
"""Images that a class needs for a stratum of its own, so that each split can get some."""


@dataclass(frozen=True)
class Objects:
    """The n objects of one image: boxes (n, 4) by corners in the file's pixels, pixel 0 being from 0 to 1.

    `labels` (n,) are numbers of classes, `area` (n,) is the annotation's own or else the box's. A `crowd` object (n,),
    many in one box or, in VOC, a difficult one, is no target, and to find it or not is no error.
    """

    boxes: Tensor
    labels: Tensor
    crowd: Tensor
    area: Tensor
    segments: list[Any] | None = None
    """As COCO has them: a list of polygons, or a run-length code, for each object."""

    @classmethod
    def of(
        cls, boxes: Any = (), labels: Any = (), crowd: Any = None, area: Any = None, segments: Any = None
    ) -> Objects:
        """From plain lists.

        >>> Objects.of([[0, 0, 4, 2]], [1]).area
        tensor([8.])
        """
        corners = torch.as_tensor(np.asarray(boxes, dtype=np.float32).reshape(-1, 4))
        own = (corners[:, 2:] - corners[:, :2]).prod(1)
        given = own if area is None else torch.as_tensor(np.asarray(area, dtype=np.float32))
        return cls(
            corners,
            torch.as_tensor(np.asarray(labels, dtype=np.int64)),
            torch.as_tensor(np.asarray([False] * len(corners) if crowd is None else crowd, dtype=bool)),
            torch.where(given > 0, given, own),  # NaN too: not given
            segments,
        )

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def targets(self) -> list[int]:
        """Which of the objects are to be found: all but crowds."""
        return (~self.crowd).nonzero()[:, 0].tolist()

    def digest(self) -> bytes:
        parts = (self.boxes, self.labels, self.crowd, self.area)
        return b"".join(part.numpy().tobytes() for part in parts) + repr(self.segments).encode()


@dataclass
class ObjectDataset(ImageDataset):
    """A scanned dataset whose images have boxes. `source.classes` are the names of the classes."""

    objects: list[Objects] = field(default_factory=list, repr=False)
    """Of each sample."""
    class_ids: tuple[int, ...] = ()
    """The number of each class in the files."""
    left_out: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """Boxes that are left out, by reason."""
    notes: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """What else was seen in the annotations, by its title."""
    errors: list[tuple[str, str]] = field(default_factory=list)
    """What makes the annotations unusable, and what to do."""

    @property
    def tested(self) -> bool:
        return True

    @property
    def num_boxes(self) -> int:
        return sum(map(len, self.objects))

    @property
    def has_masks(self) -> bool:
        """Whether every object to be found has an outline."""
        annotated = [item for item in self.objects if item.targets]
        return bool(annotated) and all(
            item.segments and all(item.segments[n] for n in item.targets) for item in annotated
        )

    def outlines(self, number: int) -> Tensor:
        """The pixels of each object of a sample, (n, height, width) of its file, true inside."""
        item, shape = self.objects[number], self.shapes[number]
        assert shape is not None
        height, width = shape
        if not len(item):
            return torch.zeros(0, height, width, dtype=torch.bool)
        if not item.segments:
            raise DataError("the objects have boxes, and no outlines", where=self.key(number))
        return torch.stack([torch.from_numpy(_decoded(s, height, width, self.key(number))) for s in item.segments])

    @cached_property
    def _strata(self) -> list[int]:
        """The rarest class of an image, of those in enough images; or one more stratum, for all others."""
        held = [set(item.labels.tolist()) for item in self.objects]
        images = Counter(label for labels in held for label in labels)
        common, rest = {label for label, n in images.items() if n >= STRATUM}, len(self.source.classes)
        strata = [min(own & common, key=lambda c: (images[c], c), default=rest) for own in held]
        sizes = Counter(strata)
        largest = max(sizes, key=lambda s: (sizes[s], -s), default=rest)
        return [stratum if sizes[stratum] >= STRATUM else largest for stratum in strata]

    def strata(self) -> list[int]:
        return self._strata

    def stratum_name(self, stratum: int) -> str:
        return f"class {self.source.classes[stratum]!r}" if stratum < len(self.source.classes) else "the data"

    def require_trainable(self, splits: Sequence[str]) -> None:
        """There must be objects to learn. Classes without examples are said, not refused: lists of classes are long."""
        if not any(item.targets for item, name in zip(self.objects, splits, strict=True) if name == "train"):
            raise DataError("no training image has a box", where=self.name, do="annotate some, or check the splits")

    def require_usable(self, share: float = 0.0) -> None:
        super().require_usable(share)
        for what, do in self.errors:
            raise DataError(what, where=self.name, do=do)
        lost = sum(map(len, self.left_out.values()))
        if lost > max(share, FEW) * (lost + self.num_boxes):
            lines = [f"{why}: {len(own)}, such as {own[0]}" for why, own in self.left_out.items()]
            raise DataError(
                f"{lost} of {lost + self.num_boxes} boxes cannot be used:\n" + "\n".join(listed(lines)),
                where=self.name,
                do="correct or remove them; `regard check` lists them",
            )

    def conflicting(self) -> list[list[int]]:
        """Equal images with different boxes."""
        return [group for group in self.duplicates() if len({self.objects[i].digest() for i in group}) > 1]

    def fingerprint(self) -> str:
        total = hashlib.sha256(super().fingerprint().encode())
        for item in self.objects:
            total.update(item.digest())
        return total.hexdigest()

    def summary(self) -> str:
        classes, boxes = counted(len(self.source.classes), "classes"), f"{self.num_boxes:,} boxes"
        return f"{self.source.kind} ({self.source.why}), {counted(len(self), 'images')}, {boxes}, {classes}"

    def counts_of(self, splits: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
        """Per split and class: images that have it, and boxes."""
        images, boxes = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for item, split in zip(self.objects, splits, strict=True):
            labels = item.labels.tolist()
            images.update((split, label) for label in set(labels))
            boxes.update((split, label) for label in labels)
        order = [name for name in ("train", "val", "test", "all") if name in splits]
        order += sorted(set(splits) - set(order))
        return {
            split: {name: (images[split, n], boxes[split, n]) for n, name in enumerate(self.source.classes)}
            for split in order
        }

    def counts_table(self) -> str:
        splits = [split or "all" for split in self.given_splits()]
        counts = self.counts_of(splits)
        rows = [
            (name, self.class_ids[n], *(number for split in counts for number in counts[split][name]))
            for n, name in enumerate(self.source.classes)
        ]
        total = [
            number
            for split in counts
            for number in (splits.count(split), sum(boxes for _, boxes in counts[split].values()))
        ]
        heads = [f"{split} {word}" for split in counts for word in ("images", "boxes")]
        return columns(("class", "id", *heads), [*rows, ("total", "", *total)])

    def describe(self) -> str:
        lines = [*self.lines([split or "train" for split in self.given_splits()]), *self._details()]
        wrong = [f"not usable: {what}; {do}" for what, do in self.errors]
        return "\n".join([super().describe(), "", *wrong, *lines])

    def _details(self) -> list[str]:
        lines = []
        for title, own in [
            *((f"boxes left out: {why}", own) for why, own in self.left_out.items()),
            *self.notes.items(),
        ]:
            lines += [f"{title}: {len(own)}", *listed(own)]
        return lines

    def lines(self, splits: Sequence[str]) -> list[str]:
        """What is to be known of the boxes, in sentences."""
        areas = torch.cat([item.area for item in self.objects]) if self.objects else torch.zeros(0)
        shares, low = [], 0.0
        for name, high in AREAS.items():
            share = float(((areas >= low) & (areas < high)).float().mean()) if len(areas) else 0.0
            shares.append(f"{name} {share:.0%}")
            low = high
        numbers = [len(item) for item in self.objects] or [0]
        crowds = sum(int(item.crowd.sum()) for item in self.objects)
        lines = [
            f"class ids in the files: {self._ids()}",
            f"boxes per image: {min(numbers)} to {max(numbers)}, median {np.median(numbers):g}",
            f"box sizes: {', '.join(shares)} (areas below 32², below 96², and larger, in pixels of the files)",
        ]
        lines += [f"crowds or difficult objects, neither trained nor counted as missed: {crowds}"] if crowds else []
        return lines + self._absent(splits)

    def _ids(self) -> str:
        if self.source.kind == "VOC" or not self.class_ids:
            return "none; here they count from 0 in the order of their names"
        low, high = min(self.class_ids), max(self.class_ids)
        gaps = high - low + 1 - len(self.class_ids)
        kind = f"{low} to {high}" + (f" with {counted(gaps, 'gaps')}" if gaps else "")
        return f"{kind}; here they count from 0 to {len(self.class_ids) - 1}" if low or gaps else kind

    def _absent(self, splits: Sequence[str]) -> list[str]:
        counts, classes = self.counts_of(splits), self.source.classes
        lacking = {split: [name for name in classes if not own[name][1]] for split, own in counts.items()}
        never = [name for name in classes if all(name in own for own in lacking.values())]
        lines = [f"classes without an example: {', '.join(never)}"] if never else []
        for split, names in lacking.items():
            own = [name for name in names if name not in never]
            lines += [f"classes without an example in {split}: {', '.join(own)}"] if own else []
        return lines

    def warnings(self, splits: Sequence[str]) -> list[str]:
        own = {f"boxes left out: {why}": lines for why, lines in self.left_out.items()} | self.notes
        lines = [f"{title}: {len(lines):,} (data.json lists them)" for title, lines in own.items()]
        return [*super().warnings(splits), *lines, *self._absent(splits)]

    def findings(self, splits: list[str]) -> list[str]:
        titles = [f"{title}: {len(own)}." for title, own in self.notes.items()]
        left = [f"Boxes left out: {why}: {len(own)}." for why, own in self.left_out.items()]
        return [*super().findings(splits), *(f"{line}." for line in self.lines(splits)), *left, *titles]

    def split_rows(self, splits: Sequence[str]) -> list[dict[str, Any]]:
        classes = self.source.classes
        held = [Counter(classes[n] for n in item.labels.tolist()) for item in self.objects]
        words = [", ".join(f"{n} {name}" for name, n in sorted(own.items())) for own in held]
        return [row | {"label": text} for row, text in zip(super().split_rows(splits), words, strict=True)]

    def to_json(self, splits: list[str], note: str) -> dict[str, Any]:
        counts = {
            split: {name: {"images": images, "boxes": boxes} for name, (images, boxes) in own.items()}
            for split, own in self.counts_of(splits).items()
        }
        return super().to_json(splits, note) | {
            "counts": {split: {"images": splits.count(split)} for split in counts},
            "objects": counts,
            "class_ids": dict(zip(self.source.classes, self.class_ids, strict=True)),
            "boxes_left_out": self.left_out,
            "notes": self.notes,
        }


def _decoded(segment: Any, height: int, width: int, where: str) -> np.ndarray:
    try:
        from faster_coco_eval import mask
    except ImportError:
        raise missing("faster-coco-eval", "detect") from None
    try:
        code: Any = segment
        if isinstance(segment, list):
            code = mask.merge(mask.frPyObjects(segment, height, width))  # pyright: ignore[reportArgumentType]
        elif isinstance(segment["counts"], list):
            code = mask.frPyObjects(segment, *segment["size"])
        pixels = mask.decode(code).astype(bool)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"an outline cannot be read: {error}", where=where) from None
    if pixels.shape != (height, width):
        raise DataError(f"an outline is of {pixels.shape} pixels, the image of {(height, width)}", where=where)
    return pixels
