"""Token maps: every token finds its box, and every map its way back to the input."""

import pytest
import torch

from regard.errors import ConfigError
from regard.geometry import TokenMap, grid_of, per_axis


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


def test_smooth_painting_keeps_the_size_and_the_middle():
    where = TokenMap((2, 2), (4, 4), (7, 8))
    smooth = where.paint(torch.tensor([0.0, 1.0, 0.0, 1.0]), smooth=True)
    assert smooth.shape == (7, 8)
    assert (smooth.diff(dim=1) >= 0).all()


def test_share_is_the_covered_part_of_each_box():
    where = TokenMap((2, 2), (4, 4), (6, 8))
    mask = torch.zeros(6, 8)
    mask[2:6, 0:4] = 1
    torch.testing.assert_close(where.share(mask), torch.tensor([0.5, 0.0, 1.0, 0.0]))


def test_a_prefix_has_no_box():
    with pytest.raises(ConfigError, match="no place"):
        TokenMap((2, 2), (4, 4), (8, 8), ("class",)).box(0)


@pytest.mark.parametrize("value", [0, (4, 4, 4), (4, -1), (4, 2.5)])
def test_sizes_that_do_not_fit_are_refused(value):
    with pytest.raises(ConfigError, match="patch"):
        per_axis(value, 2, "patch")
