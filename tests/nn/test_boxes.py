"""Conversions and overlaps of boxes against arithmetic by hand, and against pixels that are counted one by one."""

import numpy as np
import pytest
import torch

from regard.nn.boxes import area, overlaps, to_centred, to_corners


def test_conversions_match_hand_arithmetic_and_undo_each_other():
    centred = torch.tensor([[[5.0, 7.0, 4.0, 6.0], [0.5, 0.25, 1.0, 0.5]]])
    corners = torch.tensor([[[3.0, 4.0, 7.0, 10.0], [0.0, 0.0, 1.0, 0.5]]])
    assert to_corners(centred).tolist() == corners.tolist()
    assert to_centred(corners).tolist() == centred.tolist()
    assert area(corners).tolist() == [[24.0, 0.5]]
    assert area(torch.tensor([7.0, 4.0, 3.0, 10.0])) == 0, "the right edge comes first"


HAND = {
    "half of each shared": ([0, 0, 2, 2], [1, 0, 3, 2], 1 / 3, 1 / 3),
    "a corner shared": ([0, 0, 2, 2], [1, 1, 3, 3], 1 / 7, 1 / 7 - 2 / 9),
    "one inside the other": ([0, 0, 4, 4], [1, 1, 3, 2], 1 / 8, 1 / 8),
    "the same": ([1, 2, 3, 5], [1, 2, 3, 5], 1.0, 1.0),
    "apart by a gap as wide as each": ([0, 0, 1, 1], [2, 0, 3, 1], 0.0, -1 / 3),
    "a common edge": ([0, 0, 1, 1], [1, 0, 2, 1], 0.0, 0.0),
    "both empty": ([1, 1, 1, 1], [1, 1, 1, 1], 0.0, 0.0),
}


@pytest.mark.parametrize("case", HAND)
def test_overlaps_match_hand_arithmetic(case):
    first, second, iou, generalised = HAND[case]
    for one, other in ((first, second), (second, first)):
        made = overlaps(torch.tensor(one).float(), torch.tensor(other).float())
        torch.testing.assert_close(torch.stack(made), torch.tensor([iou, generalised]))


def test_overlaps_of_all_pairs_match_counted_pixels():
    """Boxes on whole pixels of a grid, drawn at random."""
    draw, side = np.random.default_rng(0), 12
    low = draw.integers(0, side - 1, (20, 2))
    boxes = np.concatenate([low, [draw.integers(at + 1, side + 1) for at in low]], axis=1)
    masks = np.zeros((len(boxes), side, side), dtype=bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes, strict=True):
        mask[top:bottom, left:right] = True
    expected = np.zeros((2, len(boxes), len(boxes)), dtype=np.float32)
    for i, one in enumerate(masks):
        for j, other in enumerate(masks):
            union = one | other
            rows, columns = (np.flatnonzero(union.any(axis)) for axis in (1, 0))
            hull = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
            iou = (one & other).sum() / union.sum()
            expected[:, i, j] = iou, iou - (hull - union.sum()) / hull
    assert (expected[0] == 0).any()
    assert ((expected[0] > 0) & (expected[0] < 1)).any()
    given = torch.from_numpy(boxes).float()
    torch.testing.assert_close(torch.stack(overlaps(given[:, None], given[None])), torch.from_numpy(expected))
