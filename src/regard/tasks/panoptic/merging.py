"""Masks of queries merged into one map, each pixel belonging to at most one segment (Carion et al., 2020, section 4.4).

- Queries below the score threshold are left out; a pixel belongs to the query whose mask is strongest there.
- Masks of one stuff class are one segment. In the authors' code, the pixels of such a mask, but of the first one, are
  given to whatever mask is the next strongest; here, as in the paper, the masks are collapsed.
- Segments of up to four pixels are left out, their pixels divided among the others, until there are none.
- Without classes of stuff nothing covers the background: there, a pixel where no mask is above one half has no segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

THRESHOLD = 0.85
SMALLEST = 4
"""Pixels up to which a segment is left out."""


class Merged(NamedTuple):
    """`ids` (H, W) counts segments from 1, 0 where there is none. Of each segment: its class, score, and queries."""

    ids: Tensor
    labels: list[int]
    scores: list[float]
    queries: list[list[int]]


@torch.no_grad()
def merge_masks(
    masks: Tensor,
    scores: Tensor,
    labels: Tensor,
    things: Sequence[bool],
    size: tuple[int, int] | None = None,
    threshold: float = THRESHOLD,
    smallest: int = SMALLEST,
) -> Merged:
    """One map of `size`, or that of the masks, from masks (Q, height, width) as logits, scores (Q,), labels (Q,).

    `things` says of each class whether it is one. The score of several merged masks is the highest.

    >>> masks = torch.zeros(2, 4, 4)
    >>> masks[0, :, :2], masks[1, :, 2:] = 1.0, 1.0
    >>> merge_masks(masks, torch.tensor([0.9, 0.95]), torch.tensor([3, 1]), [True] * 4).ids[0].tolist()
    [1, 1, 2, 2]
    """
    size = size or (masks.shape[1], masks.shape[2])
    kept = (scores > threshold).nonzero()[:, 0].tolist()
    first = dict[int, int]()
    owner = {query: query for query in kept}
    open_ground = all(things)
    for query, label in zip(kept, labels[kept].tolist(), strict=True):
        if not things[label]:
            owner[query] = first.setdefault(label, query)
    while kept:
        strongest = masks[kept].argmax(0)
        owners = torch.tensor([owner[query] for query in kept], device=masks.device)
        strongest_owners = owners[strongest]
        if open_ground:
            strongest_owners = torch.where(masks[kept].amax(0) > 0, strongest_owners, len(masks))
        map_of_owners = nearest(strongest_owners, size)
        areas = {own: int((map_of_owners == own).sum()) for own in dict.fromkeys(owners.tolist())}
        segments = [own for own, area in areas.items() if area > smallest]
        if len(segments) == len(areas):
            queries = [[query for query in kept if owner[query] == own] for own in segments]
            numbers = torch.zeros(len(masks) + 1, dtype=torch.int64, device=masks.device)
            numbers[segments] = torch.arange(1, len(segments) + 1, device=masks.device)
            best = [float(scores[own].max()) for own in queries]
            return Merged(numbers[map_of_owners], labels[segments].tolist(), best, queries)
        kept = [query for query in kept if owner[query] in segments]
    return Merged(torch.zeros(size, dtype=torch.int64, device=masks.device), [], [], [])


def nearest(ids: Tensor, size: tuple[int, int]) -> Tensor:
    """A map (height, width) at another size, each pixel from the one at its centre; in whole numbers, so exact.

    >>> nearest(torch.tensor([[1, 2]]), (1, 5)).tolist()
    [[1, 1, 2, 2, 2]]
    """
    rows, columns = (
        (2 * torch.arange(new, device=ids.device) + 1) * old // (2 * new)
        for old, new in zip(ids.shape, size, strict=True)
    )
    return ids[rows][:, columns]
