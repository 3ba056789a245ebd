"""Products of packed matrices: the same numbers, and only where nothing is learnt."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.evaluation import make_search
from regard.networks.decoding import beam_search
from regard.networks.products import in_int8, packed
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


def changed(model, how):
    other = regard.create("transformer_nano", vocabulary=50)
    if how == "loaded":
        model.load_state_dict(other.state_dict())
    elif how == "assigned":
        model.load_state_dict(other.state_dict(), assign=True)
    elif how == "pointed":
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.data = q.data
    elif how == "moved":
        with torch.no_grad():
            model.decoder[1].cross.qkv.weight.mul_(3)
    else:
        model.bfloat16()


@pytest.mark.parametrize("how", ["loaded", "assigned", "pointed", "moved", "rounded"])
def test_weights_that_have_changed_are_packed_anew(how):
    torch.manual_seed(0)
    model, source = regard.create("transformer_nano", vocabulary=50).eval(), torch.randint(3, 50, (6, 9))
    search = make_search(model, torch.device("cpu"), beams=3, penalty=0.6, constant=6)
    before = search(source)
    assert packed(model) is packed(model)
    changed(model, how)
    with torch.inference_mode():
        found = search(source)
    expected = beam_search(model, source, beams=3, alpha=0.6, constant=6)
    assert torch.equal(found.words, expected.words)
    torch.testing.assert_close(found.scores, expected.scores)
    assert not torch.equal(found.scores, before.scores)


def test_a_packed_model_shares_the_weights_and_goes_when_its_model_does():
    model = regard.create("transformer_nano", vocabulary=50)
    other = packed(model)
    assert other.embedding.weight is model.embedding.weight
    assert other.decoder[0].norm1.weight is model.decoder[0].norm1.weight
    assert other.decoder[0].mlp.up.weight is model.decoder[0].mlp.up.weight
    gone = weakref.ref(other)
    del model, other
    gc.collect()
    assert gone() is None


def test_models_that_something_listens_to_or_that_are_rounded_stay_as_they_are():
    model = regard.create("transformer_nano", vocabulary=50)
    assert packed(model) is not model
    hook = model.decoder[0].mlp.up.register_forward_hook(lambda *_: None)
    assert packed(model) is model
    hook.remove()
    assert packed(model) is not model
    with torch.inference_mode():
        inside = regard.create("transformer_nano", vocabulary=50)
    assert packed(inside) is inside
    rounded = in_int8(model)
    assert packed(rounded) is rounded


def test_a_search_can_be_copied_and_sent_to_another_process():
    model, source = regard.create("transformer_nano", vocabulary=50).eval(), torch.randint(3, 50, (2, 5))
    search = make_search(model, torch.device("cpu"), beams=2, penalty=0.6, constant=4)
    found = search(source)
    assert torch.equal(copy.deepcopy(search)(source).words, found.words)
    assert len(pickle.dumps(search)) < 2 * sum(p.nbytes for p in model.parameters())
