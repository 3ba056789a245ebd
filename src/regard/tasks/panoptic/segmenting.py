"""From a network's masks to masks and panoptic maps in pixels of the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.tasks.objects.decoding import decode, to_file
from regard.tasks.objects.loss import scores
from regard.tasks.panoptic.merging import Merged, merge_masks, nearest


class Image(NamedTuple):
    """One image of a batch: masks (Q, height, width) as logits on its part of the input, the score and class (Q,) of
    each query; and its surest boxes of things: corners in pixels of the file, labels, scores, and which query's."""

    masks: Tensor
    query_scores: Tensor
    query_labels: Tensor
    boxes: Tensor
    labels: Tensor
    scores: Tensor
    queries: Tensor
    size: tuple[int, int]
    """Height and width of the file."""

    def merged(self, things: Sequence[bool], threshold: float) -> Merged:
        """The panoptic map of the file."""
        return merge_masks(self.masks, self.query_scores, self.query_labels, things, self.size, threshold)

    def outlines(self, some: Tensor | slice = slice(None)) -> Tensor:
        """The mask of each box (n, height, width) in pixels of the file, true inside; or of `some` of them."""
        inside = self.masks[self.queries[some]] > 0
        if not len(inside):
            return torch.zeros(0, *self.size, dtype=torch.bool)
        return torch.stack([nearest(mask, self.size) for mask in inside])


def images_of(
    output: Any, mask: Tensor, sizes: Sequence[tuple[int, ...]], classification: str, things: Sequence[bool]
) -> list[Image]:
    """The images of a batch, whose files have these sizes; mask (B, H, W) is true where the input shows an image."""
    result, best = decode(output, classification), scores(output.logits, classification).max(-1)
    is_thing = torch.tensor(things, device=mask.device)
    heights, widths = mask.any(2).sum(1).tolist(), mask.any(1).sum(1).tolist()
    made = list[Image]()
    for row, (size, height, width) in enumerate(zip(sizes, heights, widths, strict=True)):
        whole = F.interpolate(output.masks[row][None].float(), mask.shape[1:], mode="bilinear")[0]
        kept = is_thing[result.labels[row]]
        boxes, labels, sure, queries = (part[row][kept] for part in result)
        file_size = (int(size[0]), int(size[1]))
        made.append(Image(
            whole[:, :height, :width], best.values[row], best.indices[row], to_file(boxes.cpu(), file_size),
            labels, sure, queries, file_size,
        ))  # fmt: skip
    return made
