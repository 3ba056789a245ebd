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


def test_a_prefix_has_no_box():
    with pytest.raises(ConfigError, match="no place"):
        TokenMap((2, 2), (4, 4), (8, 8), ("class",)).box(0)


@pytest.mark.parametrize("value", [0, (4, 4, 4), (4, -1), (4, 2.5), 4.0])
def test_sizes_that_do_not_fit_are_refused(value):
    with pytest.raises(ConfigError, match="patch"):
        per_axis(value, 2, "patch")
