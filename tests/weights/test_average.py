"""The mean of checkpoints, against arithmetic by hand."""

import pytest
import torch

import regard
from regard.errors import RunError
from regard.weights import average
from tests.weights.parity import randomise


def test_the_mean_is_that_of_every_number_and_counts_are_the_last():
    models = [randomise(regard.create("resnet_nano", classes=3), seed) for seed in range(3)]
    states = [model.state_dict() for model in models]
    states[2]["norm.num_batches_tracked"] = torch.tensor(9)
    for state in states[:2]:
        state["norm.num_batches_tracked"] = torch.tensor(4)
    mean = average(states)
    assert list(mean) == list(states[2])
    for name, tensor in mean.items():
        if tensor.is_floating_point():
            expected = (states[0][name] + states[1][name] + states[2][name]) / 3
            torch.testing.assert_close(tensor, expected, atol=1e-6, rtol=1e-5)
    assert mean["norm.num_batches_tracked"] == 9


def test_one_checkpoint_is_its_own_mean_and_none_has_none():
    state = regard.create("transformer_nano", vocabulary=20).state_dict()
    for name, tensor in average([state]).items():
        assert torch.equal(tensor, state[name])
    with pytest.raises(RunError, match="no checkpoints"):
        average([])


def test_checkpoints_of_different_models_are_named():
    one, two = (regard.create("transformer_nano", vocabulary=n).state_dict() for n in (20, 21))
    with pytest.raises(RunError, match=r"embedding\.weight: \(20, 128\) and \(21, 128\)"):
        average([one, two])
    del one["embedding.weight"]
    with pytest.raises(RunError, match=r"embedding\.weight: in only one"):
        average([one, two])
