"""From a network's output to boxes with labels and scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.metrics.detection import MOST
from regard.nn.boxes import to_corners
from regard.tasks.objects.loss import scores


class Boxes(NamedTuple):
    """boxes (B, K, 4) by corners, as shares of the image without its padding; labels (B, K); scores (B, K), falling;
    queries (B, K), which query gave each."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    queries: Tensor


def decode(output: Any, classification: str) -> Boxes:
    """The surest boxes: with a softmax one per query, of its likeliest class; else up to 100 of all classes."""
    probabilities = scores(output.logits, classification)
    count, classes = probabilities.shape[1:]
    if classification == "softmax":
        best, labels = probabilities.max(-1)
        order = best.argsort(dim=1, descending=True, stable=True)
        queries, labels = order, labels.gather(1, order)
        best = best.gather(1, order)
    else:
        best, place = probabilities.flatten(1).topk(min(MOST, count * classes), dim=1)
        queries, labels = place // classes, place % classes
    corners = to_corners(output.boxes.float().gather(1, queries[..., None].expand(-1, -1, 4)))
    return Boxes(corners.clamp(0, 1), labels, best, queries)


def to_file(boxes: Tensor, size: tuple[int, ...]) -> Tensor:
    """Shares of an image as pixels of its file, whose height and width `size` is."""
    height, width = size
    return boxes * torch.tensor([width, height, width, height], dtype=boxes.dtype)
