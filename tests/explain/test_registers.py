"""Test-time registers on networks in which one neuron was made to write a huge vector into one token."""

from typing import Any

import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.explain.inspect import token_norms
from regard.explain.inspection import inspect_model
from regard.explain.registers import RegisterNeuron, appears, find_register_neurons, with_test_time_registers

LAYER, NEURON, PLACE = 1, 7, 20


def planted(**fields):
    """A ViT whose neuron 7 of layer 1 fires where the position is that of place 20, and shouts."""
    torch.manual_seed(0)
    model = regard.create("vit_nano", classes=5, size=(32, 48), **fields).eval()
    with torch.no_grad():
        here = model.positions.table[model.positions.prefix + PLACE]
        mlp = model.blocks[LAYER].mlp
        mlp.up.weight[NEURON], mlp.up.bias[NEURON] = 6 * here / here.norm(), -6.0
        mlp.down.weight[:, NEURON] = 4 * torch.randn(64)
        torch.nn.init.normal_(model.head.weight)
    return model


@pytest.fixture(params=[{}, {"registers": 2}, {"pool": "mean"}], ids=["class", "registers", "mean"])
def model(request):
    return planted(**request.param)


X = torch.rand(4, 3, 32, 48, generator=torch.Generator().manual_seed(1))


def test_the_planted_neuron_is_found(model):
    norms = token_norms(model, X)
    assert norms.outliers.nonzero().tolist() == [[n, PLACE] for n in range(4)]
    assert appears(norms) == LAYER
    found = find_register_neurons(model, X, top=3)
    assert (found[0].layer, found[0].neuron) == (LAYER, NEURON)
    assert found[0].activation > 2 * found[1].activation
    hidden = []
    model.blocks[LAYER].mlp.act.register_forward_hook(lambda *parts: hidden.append(parts[-1]))
    model(X)
    at = hidden[0][:, len(norms.where.prefix) + PLACE, NEURON]
    assert found[0].activation == pytest.approx(at.mean().item(), rel=1e-5)


def test_the_outlier_moves_from_the_picture_into_the_register(model):
    changed = with_test_time_registers(model, find_register_neurons(model, X, top=1), count=1)
    before, after = token_norms(model, X), token_norms(changed, X)
    assert not (after.placed[-1] > before.threshold).any()
    assert after.where.prefix[-1] == f"register {model.config.registers}"
    assert (after.norms[-1][:, len(after.where.prefix) - 1] > before.threshold).all()
    assert changed(X).logits.shape == (4, 5)
    assert model.config.registers == changed.config.registers - 1, "the original stays as it was"
    assert not model.blocks[LAYER].mlp.act._forward_hooks


def test_nothing_added_and_nothing_moved_is_the_original(model):
    same = with_test_time_registers(model, [], count=0)
    assert torch.equal(same(X).logits, model(X).logits)
    assert same is not model


def test_an_added_register_only_takes_its_share_of_attention(model):
    """In the first layer: the same weights between the other tokens, but for a factor per row."""
    more = with_test_time_registers(model, [], count=1)
    with regard.capture(model) as one, regard.capture(more) as two:
        model(X)
        more(X)
    old, new = one.attention(0, 1), two.attention(0, 1)
    added = len(more.token_map().prefix) - 1
    kept = [n for n in range(new.shape[-1]) if n != added]
    rest = new[:, kept][:, :, kept]
    assert (new[:, kept, added] > 0).all()
    torch.testing.assert_close(rest / rest.sum(-1, keepdim=True), old, atol=1e-5, rtol=1e-4)


def test_registers_can_be_added_where_queries_and_keys_are_turned():
    """They are not, nor do they change how the patches are."""
    model = planted(rope=True)
    more = with_test_time_registers(model, [RegisterNeuron(0, 3, 0.0)], count=2)
    assert more(X).logits.shape == (4, 5)
    assert more.rope is not None
    assert torch.equal(more.rope[:, 3:], model.rope[:, 1:])
    assert (more.rope[0, :3] == 1).all()


def test_the_largest_activation_is_what_moves():
    model = planted(registers=1)
    seen = []
    neurons = [RegisterNeuron(0, 3, 0.0), RegisterNeuron(0, 9, 0.0)]
    changed: Any = with_test_time_registers(model, neurons, count=2)
    model.blocks[0].mlp.act.register_forward_hook(lambda *parts: seen.append(parts[-1]))
    changed.blocks[0].mlp.act.register_forward_hook(lambda *parts: seen.append(parts[-1]))
    with torch.no_grad():
        changed.blocks[0].attention.out.weight.zero_()  # without attention, tokens of both stay the same
        model.blocks[0].attention.out.weight.zero_()
        model(X)
        changed(X)
    plain, moved = seen
    for register in (2, 3):
        torch.testing.assert_close(moved[:, register, [3, 9]], plain[:, 2:, [3, 9]].amax(1))
    assert (moved[:, 4:, [3, 9]] == 0).all()
    torch.testing.assert_close(moved[:, :2], plain[:, :2])  # class token and trained register keep theirs
    torch.testing.assert_close(moved[:, 4:, 10:], plain[:, 2:, 10:])


def test_an_inspection_shows_norms_before_and_after(tmp_path):
    found = inspect_model(planted(), X, registers=2)
    assert found.norms is not None
    assert found.registered is not None
    assert found.norms.outliers.sum() == 4
    assert found.registered.outliers.sum() == 0
    assert found.registered.threshold == found.norms.threshold
    assert found.save(tmp_path / "a.png").stat().st_size > 5000


def test_without_outliers_there_is_nothing_to_move():
    model = regard.create("vit_nano", classes=5, size=16)
    assert find_register_neurons(model, torch.rand(2, 3, 16, 16)) == []
    assert inspect_model(model, torch.rand(2, 3, 16, 16), registers=1).registered is None


def test_wrong_requests_are_named():
    with pytest.raises(ConfigError, match="for ViT, not for Linear"):
        with_test_time_registers(torch.nn.Linear(2, 2), [])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="0 registers cannot take what 1 neurons do"):
        with_test_time_registers(planted(), [RegisterNeuron(0, 0, 1.0)], count=0)


def test_class_token_only_with_registers_gives_the_same_logits():
    """The last block then computes the class token alone, whose activity is never moved."""
    model = regard.create("vit_nano", classes=3, size=16).eval()
    torch.nn.init.normal_(model.head.weight)
    changed = with_test_time_registers(model, [RegisterNeuron(n, 5, 1.0) for n in range(4)])
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(changed(x, class_token_only=True).logits, changed(x).logits)
