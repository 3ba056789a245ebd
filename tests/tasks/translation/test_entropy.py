"""Cross-entropy over words: torch's own is the oracle, in every precision and in any number of pieces."""

import pytest
import torch
from torch.nn import functional as F

from regard.tasks.translation import entropy
from regard.tasks.translation.entropy import cross_entropy

WANTED = torch.tensor([3, 0, 6, 6, 1, 0, 2, 5, 4])


def scores(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (4 * torch.randn(9, 7)).to(dtype).requires_grad_()


@pytest.mark.parametrize("at_once", [1, 20, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_torchs_own_with_its_gradient(monkeypatch, at_once, smoothing):
    monkeypatch.setitem(entropy.AT_ONCE, "cpu", at_once)
    x = scores()
    expected = F.cross_entropy(x, WANTED, ignore_index=0, label_smoothing=smoothing, reduction="sum")
    (gradient,) = torch.autograd.grad(3 * expected, x)
    found = cross_entropy(x, WANTED, ignored=0, smoothing=smoothing)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(3 * found, x)[0], gradient, atol=1e-12, rtol=1e-12)
    assert not gradient[WANTED == 0].any()


def test_half_precision_is_summed_in_single():
    x = scores(torch.bfloat16)
    expected = F.cross_entropy(x.float(), WANTED, ignore_index=0, label_smoothing=0.1, reduction="sum")
    (gradient,) = torch.autograd.grad(expected, x)
    found = cross_entropy(x * 1.0, WANTED, ignored=0, smoothing=0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, x)[0], gradient)


def test_a_word_that_cannot_be_costs_nothing():
    x = torch.tensor([[1.0, float("-inf"), 2.0]], requires_grad=True)
    loss = cross_entropy(x, torch.tensor([2]), ignored=0)
    torch.testing.assert_close(loss, F.cross_entropy(x, torch.tensor([2])))
    loss.backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.0, 0.0, -1.0]]) / (1 + torch.e))
    assert x[0, 2] == 2  # the user's own scores stay


def test_scores_that_are_spent_are_not_taken_for_scores_again():
    x = scores()
    loss = cross_entropy(x * 1.0, WANTED, ignored=0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
