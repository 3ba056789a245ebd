"""Every token finds its box, and every map its way back to the input and to the file."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from regard.data import fit
from regard.errors import ConfigError
from regard.geometry import Frame, TokenMap, fitting_window, grid_of, per_axis


@pytest.mark.parametrize(("size", "cell"), [((10,), (4,)), ((8, 12), (4, 4)), ((9, 7), (4, 2)), ((5, 6, 7), (2, 3, 4))])
def test_painting_fills_exactly_the_boxes(size, cell):
    where = TokenMap(grid_of(size, cell), cell, size, ("class", "register 0"))
    values = torch.arange(1.0, where.places + 1)
    painted = where.paint(values[None])[0]
    assert painted.shape == size
    expected = torch.zeros(size)
    for token in range(2, where.tokens):
        expected[tuple(slice(a, b) for a, b in where.box(token))] += values[token - 2]
    assert torch.equal(painted, expected)


def test_a_prefix_has_no_box():
    with pytest.raises(ConfigError, match="no place"):
        TokenMap((2, 2), (4, 4), (8, 8), ("class",)).box(0)


@pytest.mark.parametrize("value", [0, (4, 4, 4), (4, -1), (4, 2.5), 4.0])
def test_sizes_that_do_not_fit_are_refused(value):
    with pytest.raises(ConfigError, match="patch"):
        per_axis(value, 2, "patch")


FITS = [
    ((37, 23), (16, 16)),  # odd, downscaled
    ((9, 14), (31, 20)),  # upscaled, other proportions
    ((40, 17), (8, 12)),  # more rows cut off
    ((15, 12), (15, 12)),
    ((21, 13, 18), (7, 8, 6)),
    ((5, 6, 7), (9, 8, 11)),
]


def to_file(frame: Frame, points: Any) -> np.ndarray:
    """Points (..., axes) of the input, as indices of the file: index 0 is the centre of the first pixel."""
    start, length = np.array(frame.window).T
    return (np.asarray(points) + 0.5) * length / frame.input_size + start - 0.5


@pytest.mark.parametrize(("old", "size"), FITS)
def test_a_frame_says_where_fit_takes_its_pixels(old, size):
    """Pictures whose values are their own coordinates: what `fit` makes of them are the frame's."""
    frame = Frame.fitted(old, size)
    index = np.stack(np.meshgrid(*[np.arange(n) for n in size], indexing="ij"), -1)
    there = to_file(frame, index)
    for axis, side in enumerate(old):
        ramp = torch.arange(side, dtype=torch.float32).reshape([-1 if a == axis else 1 for a in range(len(old))])
        got = fit(ramp.expand(1, *old), size)[0].numpy()
        start, length = fitting_window(old, size)[axis]
        reach = max(1.0, length / size[axis])  # at the border of the part, the filter has one side only
        inner = (there[..., axis] >= start + reach) & (there[..., axis] <= start + length - 1 - reach)
        assert inner.any()
        np.testing.assert_allclose(got[inner], there[..., axis][inner], atol=0.04 * reach)  # the filter is sampled


@pytest.mark.parametrize(("old", "size"), FITS)
def test_file_to_input_to_file_lands_where_it_began(old, size):
    frame = Frame.fitted(old, size)
    window = fitting_window(old, size)
    box = [start + length // 3 for start, length in window] + [start + length // 3 + 2 for start, length in window]
    mask = torch.zeros(old)
    mask[tuple(slice(a, b) for a, b in zip(box[: len(old)], box[len(old) :], strict=True))] = 1
    share, seen = frame.mask_to_input(mask), fit(mask[None], size)[0]
    volume = math.prod(length / side for (_, length), side in zip(window, size, strict=True))
    assert float(share.sum()) * volume == pytest.approx(float(mask.sum()), rel=1e-5)  # nothing lost, nothing added
    places = [np.stack(np.unravel_index(np.arange(x.numel()), size), -1) for x in (share, seen)]
    centre, by_fit = (np.average(p, axis=0, weights=x.flatten()) for p, x in zip(places, (share, seen), strict=True))
    expected = [(a + b - 1) / 2 for a, b in zip(box[: len(old)], box[len(old) :], strict=True)]
    np.testing.assert_allclose(to_file(frame, centre), expected, atol=0.12)  # pixels covered in part
    np.testing.assert_allclose(centre, by_fit, atol=0.3)
    back = frame.map_to_file(share)
    assert back.shape == old
    peak = np.unravel_index(int(back.argmax()), old)
    reach = [length / side + 1 for (_, length), side in zip(window, size, strict=True)]
    assert all(a - r <= at < b + r for a, at, b, r in zip(box[: len(old)], peak, box[len(old) :], reach, strict=True))


def test_a_marked_pixel_falls_into_the_input_pixel_that_covers_it():
    frame = Frame.fitted((12, 30), (4, 4))  # columns 9 to 20, three pixels by three to one
    mask = torch.zeros(12, 30)
    mask[7, 13] = 1
    share = frame.mask_to_input(mask)
    assert share.nonzero().tolist() == [[2, 1]]
    assert share[2, 1] == pytest.approx(1 / 9)
    assert to_file(frame, [2, 1]).tolist() == [7, 13]
    back = frame.map_to_file(share)
    assert back.nonzero().tolist() == [[row, column] for row in (6, 7, 8) for column in (12, 13, 14)]
    mask = torch.zeros(12, 30)
    mask[7, 2] = 1  # in what is cut off
    assert not frame.mask_to_input(mask).any()
