"""Products of packed matrices: the same numbers, and only where nothing is learnt."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.evaluation import make_search
from regard.networks.decoding import beam_search
from regard.networks.rounded import in_int8, packed
from regard.nn.packed import PackedLinear, can_pack

pytestmark = pytest.mark.skipif(not can_pack(nn.Linear(1, 1)), reason="this build of torch cannot pack")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("columns", [5, 1500, 4096, 4097, 6000])
def test_a_packed_product_is_the_ordinary_one(columns, bias):
    """In one piece or in many, in any number of rows, written to a room or not."""
    layer = nn.Linear(24, columns, bias=bias)
    quick = PackedLinear(layer.weight, layer.bias)
    for rows in ((1,), (3, 7), (2, 5, 9)):
        x = torch.randn(*rows, 24)
        expected, room = layer(x), torch.full((x[..., 0].numel(), columns), float("nan"))
        torch.testing.assert_close(quick(x), expected, atol=1e-5, rtol=1e-5)
        written = quick(x, room)
        assert written.data_ptr() == room.data_ptr()
        torch.testing.assert_close(written, expected, atol=1e-5, rtol=1e-5)
    assert len(quick.packed) == (1 if columns <= 4096 else -(-columns // 1024))


def test_what_is_not_plain_fp32_goes_the_ordinary_way():
    layer = nn.Linear(24, 5)
    quick, x = PackedLinear(layer.weight, layer.bias), torch.randn(3, 24)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(quick(x), F.linear(x, layer.weight, layer.bias))
    assert not can_pack(nn.Linear(2, 2).bfloat16())
    assert not can_pack(nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("transformer_nano", {}),
        ("transformer_nano", {"embeddings": "separate", "output_bias": True}),
        ("rnn_nano", {}),
    ],
)
def test_a_search_with_packed_weights_finds_the_same(name, fields):
    torch.manual_seed(0)
    model = regard.create(name, vocabulary=5000, **fields).eval()
    source = torch.randint(3, 5000, (6, 9))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    search = make_search(model, torch.device("cpu"), beams=3, penalty=0.6, constant=6)
    assert any(isinstance(module, PackedLinear) for module in packed(model).modules())
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    expected = beam_search(model, source, beams=3, alpha=0.6, constant=6)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = search(source)
        assert torch.equal(found.words, expected.words)
        torch.testing.assert_close(found.scores, expected.scores)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_weights_that_are_moved_are_packed_anew():
    layer, x = nn.Linear(24, 5), torch.randn(3, 24)
    quick = PackedLinear(layer.weight, layer.bias)
    torch.testing.assert_close(quick(x), layer(x))
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.add_(1)
    torch.testing.assert_close(quick(x), layer(x))
    layer.weight.data, layer.bias.data = torch.randn(5, 24), torch.randn(5)
    torch.testing.assert_close(quick(x), layer(x))
    model = regard.create("transformer_nano", vocabulary=50).eval()
    search = make_search(model, torch.device("cpu"), beams=3, penalty=0.6, constant=6)
    source = torch.randint(3, 50, (6, 9))
    search(source)
    model.load_state_dict(regard.create("transformer_nano", vocabulary=50).state_dict())
    with torch.inference_mode():
        found = search(source)
    assert torch.equal(found.words, beam_search(model, source, beams=3, alpha=0.6, constant=6).words)


def test_what_is_packed_shares_the_other_weights_and_int8_is_left_alone():
    model = regard.create("transformer_nano", vocabulary=50)
    other = packed(model)
    assert other.embedding.weight is model.embedding.weight
    assert other.decoder[0].norm1.weight is model.decoder[0].norm1.weight
    assert other.decoder[0].mlp.up.weight is model.decoder[0].mlp.up.weight
    rounded = in_int8(model)
    assert packed(rounded) is rounded
