"""The fully connected baseline against arithmetic done by hand."""

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.errors import ConfigError
from tests.weights.parity import randomise


def test_against_plain_matrices():
    model = randomise(regard.create("mlp_nano", size=(4, 6), channels=1, classes=3, width=8, depth=2))
    x = torch.randn(5, 1, 4, 6)
    first, second = (layer.linear for layer in model.layers)
    hidden = F.relu(x.reshape(5, 24) @ first.weight.T + first.bias)
    hidden = F.relu(hidden @ second.weight.T + second.bias)
    out = model(x)
    torch.testing.assert_close(out.features, hidden)
    torch.testing.assert_close(out.logits, hidden @ model.head.weight.T + model.head.bias)
    assert out.tokens.shape == (5, 1, 8)


@pytest.mark.parametrize(("size", "grid"), [((8, 8), (8, 8)), ((32, 20), (16, 10)), ((33, 16), (11, 16))])
def test_explanations_are_painted_on_at_most_16_places_a_side(size, grid):
    with torch.device("meta"):
        assert regard.create("mlp_nano", size=size).token_map().grid == grid


def test_shuffled_pixels_are_as_good_as_ordered_ones():
    """What makes it the baseline: a permutation of pixels is undone by one of the first layer's columns."""
    model, x, order = (
        randomise(regard.create("mlp_nano", size=4, classes=3)).double(),
        torch.randn(2, 3, 4, 4, dtype=torch.float64),
        torch.randperm(48),
    )
    expected = model(x).logits
    with torch.no_grad():
        model.layers[0].linear.weight.copy_(model.layers[0].linear.weight[:, order])
    shuffled = x.flatten(1)[:, order].reshape_as(x)
    torch.testing.assert_close(model(shuffled).logits, expected)


def test_another_size_is_refused():
    with pytest.raises(ConfigError, match="no other size"):
        regard.create("mlp_nano", size=8)(torch.randn(1, 3, 9, 8))
