"""Explanations of object queries: attention followed through decoder and encoder, against full matrices."""

import math

import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.explain import METHODS, Case, Start, explain, grad_cam, gradient_rollout, raw_attention, relevance, rollout
from regard.networks.detr.config import configure
from regard.networks.detr.network import DETR
from regard.tasks.classification.predictor import Prediction
from tests.weights.parity import scene, spread

QUERY, LABEL = 3, 2
MODERN = {"two_stage": True, "refine": True, "box_bias": True, "norm": "pre", "classification": "focal"}
MASK = torch.ones(2, 48, 80, dtype=torch.bool)
MASK[1, :, 40:] = False


def network(**changes) -> tuple[DETR, Tensor, Case]:
    """A random detector in double precision, two images, the second padded, and the score of a query's class."""
    sizes = {"queries": 6, "width": 32, "mlp": 32, "backbone_width": 8, "blocks": (1, 1, 1, 1)}
    model = spread(DETR(configure("detr_nano", classes=4, **sizes, **changes))).double()
    x = scene(48, 80).double()
    return model, x, Case(model, x, lambda z: model(z, MASK).logits[:, QUERY, LABEL], Start("queries", QUERY))


def written_out(model: DETR, x: Tensor, monkeypatch) -> list[Tensor]:
    """The weights (B, heads, queries, keys) of every layer with their gradients: no fused kernel, no tape."""
    kept = []

    def attend(q, k, v, *, mask=None, bias=None, **_):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if bias is None else scores + bias
        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        weights = scores.softmax(-1)
        weights.retain_grad()
        kept.append(weights)
        return weights @ v

    with monkeypatch.context() as patch:
        patch.setattr("regard.nn.multihead.attend", attend)
        model(x, MASK).logits[:, QUERY, LABEL].sum().backward()
    return kept


def brute_force(model: DETR, kept: list[Tensor], method: str, sample: int) -> Tensor:
    """The query's row of the product of all layers, each a matrix over tokens and queries together."""
    tokens, queries = 15, 6
    itself = torch.eye(tokens + queries, dtype=torch.float64)
    joint, first, last = itself, slice(0, tokens), slice(tokens, None)
    sides = [(first, first)] * len(model.encoder) + [(last, last), (last, first)] * len(model.decoder)
    for (asks, read), layer in zip(sides, kept, strict=True):
        assert layer.grad is not None
        weights = layer.detach()[sample].mean(0)
        if method != "rollout":
            weights = (layer.grad * layer).detach()[sample].clamp_min(0).mean(0)
        rows = torch.zeros_like(itself)
        rows[asks, read] = weights
        if method == "gradient_rollout":
            total = rows.sum(1, keepdim=True)
            rows = torch.where(total > 0, rows / total.clamp_min(1e-300), 0.0)
            if asks == read:  # a row without evidence is all for itself
                rows += torch.diag((total[:, 0] == 0) & (itself[asks].sum(0) > 0)).double()
        if method == "relevance":
            step = itself + rows
        else:
            step = itself.clone()
            step[asks] = (itself + rows)[asks] / 2
        joint = step @ joint
    return joint[tokens + QUERY, :tokens]


@pytest.mark.parametrize("changes", [{}, MODERN])
def test_a_query_is_followed_as_full_matrices_multiplied_say(changes, monkeypatch):
    model, x, case = network(**changes)
    kept = written_out(model, x, monkeypatch)
    tape = case.gradient_tape()
    assert [tape.shape(layer) for layer in range(len(tape))] == [(2, *w.shape[2:]) for w in kept]
    for name, method in (("rollout", rollout), ("gradient_rollout", gradient_rollout), ("relevance", relevance)):
        values = method(tape, case.first, case.flow, start=case.start)
        for sample in range(2):
            expected = brute_force(model, kept, name, sample)
            scale = expected.abs().max()
            assert expected.std() > 0.05 * expected.mean() > 0, "even maps would agree with anything"
            torch.testing.assert_close(values[sample].double() / scale, expected / scale, atol=1e-6, rtol=0)
        padded = values[1].unflatten(0, (3, 5))[:, 3:]
        assert not padded.any(), "padding is not read"
    cross = raw_attention(tape, case.where, case.flow, start=case.start)
    torch.testing.assert_close(cross.double(), kept[-1].detach().mean(1)[:, QUERY], atol=1e-6, rtol=0)
    head = raw_attention(tape, case.where, case.flow, start=case.start, layer=3, head=5)
    torch.testing.assert_close(head.double(), kept[3].detach()[:, 5, QUERY], atol=1e-6, rtol=0)


def test_the_encoder_looks_from_a_point(monkeypatch):
    model, x, case = network()
    kept, tape, point = written_out(model, x, monkeypatch), case.tape(), Start("tokens", 7)
    for layer, number in ((None, 1), (0, 0), (1, 1)):
        values = raw_attention(tape, case.where, case.flow, start=point, layer=layer)
        torch.testing.assert_close(values.double(), kept[number].detach().mean(1)[:, 7], atol=1e-6, rtol=0)
    first, second = ((torch.eye(15) + kept[n].detach().mean(1)) / 2 for n in (0, 1))
    values = rollout(tape, case.first, case.flow, start=point)
    torch.testing.assert_close(values.double(), (second @ first)[:, 7], atol=1e-6, rtol=0)


def test_layers_that_do_not_lead_from_the_start_to_the_image_are_refused():
    _, _, case = network()
    tape = case.tape()
    for layer, start in ((2, Start("queries", 0)), (0, Start("queries", 0)), (3, Start("tokens", 0))):
        with pytest.raises(ConfigError, match="do not read the input"):
            raw_attention(tape, case.where, case.flow, start=start, layer=layer)
    with pytest.raises(ConfigError, match="no token 6 among the 6 queries"):
        rollout(tape, case.first, case.flow, start=Start("queries", 6))
    with pytest.raises(ConfigError, match="layers 0 to 5"):
        raw_attention(tape, case.where, case.flow, start=case.start, layer=9)


@pytest.mark.parametrize("changes", [{}, MODERN])
def test_grad_cam_is_on_the_tokens_that_the_decoder_reads(changes):
    model, x, _ = network(**changes)
    x, mask = x[1:], MASK[1:]
    out = model(x, mask)
    gradient = torch.autograd.grad(out.logits[0, QUERY, LABEL], out.tokens)[0]
    expected = (out.tokens * gradient.mean(1, keepdim=True)).sum(-1).detach()
    got = grad_cam(Case(model, x, lambda z: model(z, mask).logits[:, QUERY, LABEL]))
    torch.testing.assert_close(got, expected)
    assert expected.std() > 0


@pytest.mark.parametrize("method", METHODS)
def test_every_map_of_a_box_is_painted_and_scored(method):
    model, x, _ = network(**MODERN)
    x, mask, model = x[1:].float(), MASK[1:], model.float()
    anchors = model(x, mask).anchors
    assert anchors is not None

    def run(network, z):
        return network(z, mask.expand(len(z), -1, -1), anchors=anchors.detach().expand(len(z), -1, -1))

    explained = explain(
        model, x, x[0].clamp(0, 1), prediction=Prediction("x", "a", {"a": 1.0}), target="c", method=method, run=run,
        score=lambda out: out.logits[:, QUERY, LABEL], answer=lambda out: out.logits[:, QUERY, LABEL].sigmoid(),
        start=Start("queries", QUERY),
    )  # fmt: skip
    assert explained.map.shape == (48, 80)
    assert (explained.scores is None) == (explained.random_correlation is None) == explained.says_nothing
    assert explained.says_nothing == (method == "grad_cam"), "all of its evidence is against this class"
    assert explained.tokens.any()
