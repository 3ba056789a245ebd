"""Every token finds its box, and every map its way back to the input and to the file."""

import math

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


def centres(frame: Frame, axis: int) -> np.ndarray:
    """Where in the file the centres of the input's pixels lie, counted from the centre of its first pixel."""
    (start, length), side = frame.window[axis], frame.input_size[axis]
    return start + (np.arange(side) + 0.5) * length / side - 0.5


@pytest.mark.parametrize(("old", "size"), FITS)
def test_a_frame_says_where_fit_takes_its_pixels(old, size):
    """Pictures whose values are their own coordinates: what `fit` makes of them are the frame's."""
    frame = Frame.fitted(old, size)
    for axis, side in enumerate(old):
        shape = [-1 if a == axis else 1 for a in range(len(old))]
        ramp = torch.arange(side, dtype=torch.float32).reshape(shape)
        there = np.broadcast_to(centres(frame, axis).reshape(shape), size)
        got = fit(ramp.expand(1, *old), size)[0].numpy()
        start, length = frame.window[axis]
        reach = max(1.0, length / size[axis])  # at the border of the part, the filter has one side only
        inner = (there >= start + reach) & (there <= start + length - 1 - reach)
        assert inner.any()
        np.testing.assert_allclose(got[inner], there[inner], atol=0.04 * reach)  # the filter is sampled


@pytest.mark.parametrize(("old", "size"), FITS)
def test_file_to_input_to_file_lands_where_it_began(old, size):
    frame = Frame.fitted(old, size)
    box = [(start + length // 3, start + length // 3 + 2) for start, length in fitting_window(old, size)]
    mask = torch.zeros(old)
    mask[tuple(slice(a, b) for a, b in box)] = 1
    share, seen = frame.mask_to_input(mask), fit(mask[None], size)[0]
    volume = math.prod(length / side for (_, length), side in zip(frame.window, size, strict=True))
    assert float(share.sum()) * volume == pytest.approx(float(mask.sum()), rel=1e-5)  # nothing lost, nothing added
    places = np.stack(np.unravel_index(np.arange(math.prod(size)), size), -1)
    centre, by_fit = (np.average(places, axis=0, weights=x.flatten()) for x in (share, seen))
    there = [
        np.interp(at, np.arange(side), centres(frame, n)) for n, (at, side) in enumerate(zip(centre, size, strict=True))
    ]
    np.testing.assert_allclose(there, [(a + b - 1) / 2 for a, b in box], atol=0.12)  # pixels covered in part
    np.testing.assert_allclose(centre, by_fit, atol=0.3)
    back = frame.map_to_file(share)
    assert back.shape == old
    peak = np.unravel_index(int(back.argmax()), old)
    reach = [length / side + 1 for (_, length), side in zip(frame.window, size, strict=True)]
    assert all(a - r <= at < b + r for (a, b), at, r in zip(box, peak, reach, strict=True))


def test_a_marked_pixel_falls_into_the_input_pixel_that_covers_it():
    frame = Frame.fitted((12, 30), (4, 4))  # columns 9 to 20, three pixels by three to one
    assert frame.cuts
    mask = torch.zeros(12, 30)
    mask[7, 13] = 1
    share = frame.mask_to_input(mask)
    assert share.nonzero().tolist() == [[2, 1]]
    assert share[2, 1] == pytest.approx(1 / 9)
    back = frame.map_to_file(share)
    assert back.nonzero().tolist() == [[row, column] for row in (6, 7, 8) for column in (12, 13, 14)]
    mask = torch.zeros(12, 30)
    mask[7, 2] = 1  # in what is cut off
    assert not frame.mask_to_input(mask).any()


def test_a_resized_file_has_its_maps_at_the_same_place():
    frame = Frame.fitted((12, 30), (4, 4))
    field = torch.zeros(4, 4)
    field[2, 1] = 1
    larger = frame.scaled((24, 60)).map_to_file(field)
    assert torch.equal(larger[::2, ::2], frame.map_to_file(field))
    assert larger.nonzero().amin(0).tolist() == [12, 24]
    assert larger.nonzero().amax(0).tolist() == [17, 29]


def test_slices_of_a_volume_are_found_in_its_file():
    frame = Frame.fitted((20, 12, 30), (5, 4, 4))
    assert [frame.slice_of(n) for n in range(5)] == [3, 6, 9, 12, 15]
    field = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(0))
    whole = frame.map_to_file(field)
    for index in range(5):
        assert torch.allclose(whole[frame.slice_of(index)], frame.plane().map_to_file(field[index]), atol=1e-6)
    assert not Frame.fitted((8, 8), (16, 16)).cuts
