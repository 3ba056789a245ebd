"""Explanations against arithmetic done by hand, and their scores against a model whose cause is known."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.explain import (
    METHODS,
    Case,
    faithfulness,
    grad_cam,
    gradient_rollout,
    integrated_gradients,
    occlusion,
    raw_attention,
    relevance,
    rollout,
)
from regard.geometry import TokenMap
from regard.networks.base import Network
from regard.nn import Tape
from regard.nn.attention import Scoring
from regard.nn.tape import Call
from tests.explain.explained import explain_class
from tests.loading import load_classifier

# Two layers of one head over a class token and two patches; rows sum to one.
FIRST = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]], dtype=torch.float64)
SECOND = torch.tensor([[0.2, 0.2, 0.6], [0.3, 0.4, 0.3], [0.1, 0.6, 0.3]], dtype=torch.float64)


def tape_of(*layers: torch.Tensor, gradients: tuple[torch.Tensor, ...] = ()) -> Tape:
    """A tape whose weights are exactly these: scores log W against the identity. Values that are the identity make
    the gradient of the output the gradient of the weights."""
    tape = Tape(gradients=bool(gradients))
    for number, weights in enumerate(layers):
        q = weights.log() if weights.ndim == 3 else weights.log()[None]
        k = torch.eye(q.shape[-1], dtype=torch.float64).expand_as(q)
        arrived = {0: gradients[number].expand_as(q)[None]} if gradients else {}
        tape._calls.append(Call(f"layer {number}", q[None], k[None], Scoring(scale=1.0), k[None], arrived))
    return tape


CLASSED = TokenMap((1, 2), (4, 4), (4, 8), ("class",))


def test_rollout_matches_hand_arithmetic():
    # A₂A₁ with A = (W + I) / 2; first row, patches only:
    # row = [0.6, 0.1, 0.3]; A₁ = [[.75, .15, .1], [.05, .9, .05], [.125, .125, .75]]
    # patch 1: .6·.15 + .1·.9 + .3·.125 = 0.2175; patch 2: .6·.1 + .1·.05 + .3·.75 = 0.29
    got = rollout(tape_of(FIRST, SECOND), CLASSED)
    torch.testing.assert_close(got, torch.tensor([[0.2175, 0.29]]), atol=1e-6, rtol=0)


def test_rollout_without_identity_is_the_vit_papers():
    # row = [0.2, 0.2, 0.6] · W₁: patch 1: .2·.3 + .2·.8 + .6·.25 = 0.37; patch 2: .2·.2 + .2·.1 + .6·.5 = 0.36
    got = rollout(tape_of(FIRST, SECOND), CLASSED, identity=False)
    torch.testing.assert_close(got, torch.tensor([[0.37, 0.36]]), atol=1e-6, rtol=0)


def test_heads_are_averaged_before_layers_are_multiplied():
    heads = torch.stack([FIRST, SECOND])
    mean = (FIRST + SECOND) / 2
    torch.testing.assert_close(
        rollout(tape_of(heads, FIRST), CLASSED), rollout(tape_of(mean, FIRST), CLASSED), atol=1e-6, rtol=0
    )


# What each weight did for the target; only the class token's row matters in the last layer.
SLOPES = (
    torch.tensor([[1.0, 2.0, -1.0], [0.0, 1.0, 3.0], [2.0, 0.0, -4.0]], dtype=torch.float64),
    torch.tensor([[2.0, -1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64),
)


def test_relevance_matches_hand_arithmetic():
    # Ā₁ = (∇ ⊙ W)⁺ = [[.5, .6, 0], [0, .8, .3], [.5, 0, 0]]; Ā₂ = [[.4, 0, .6], 0, 0]
    # R₁ = I + Ā₁; R₂ = R₁ + Ā₂ R₁, first row: [1.5, .6, 0] + .4·[1.5, .6, 0] + .6·[.5, 0, 1]
    got = relevance(tape_of(FIRST, SECOND, gradients=SLOPES), CLASSED)
    torch.testing.assert_close(got, torch.tensor([[0.84, 0.6]]), atol=1e-6, rtol=0)


def test_gradient_rollout_matches_hand_arithmetic():
    # Rows of (∇ ⊙ W)⁺ summing to one: W₁ = [[5/11, 6/11, 0], [0, 8/11, 3/11], [1, 0, 0]], W₂ = [[.4, 0, .6], e₂, e₃]
    # A = (W + I)/2: A₂'s first row [.7, 0, .3]; A₁: [8/11, 3/11, 0], [0, 19/22, 3/22], [.5, 0, .5]
    got = gradient_rollout(tape_of(FIRST, SECOND, gradients=SLOPES), CLASSED)
    torch.testing.assert_close(got, torch.tensor([[0.7 * 3 / 11, 0.3 * 0.5]]), atol=1e-6, rtol=0)


def test_negative_parts_are_cut_head_by_head():
    heads, slopes = torch.stack([FIRST, SECOND]), torch.stack(SLOPES)
    tape = tape_of(heads, gradients=(slopes,))
    expected = ((FIRST * SLOPES[0]).clamp_min(0) + (SECOND * SLOPES[1]).clamp_min(0)) / 2
    torch.testing.assert_close(relevance(tape, CLASSED)[0], expected[0, 1:].float(), atol=1e-6, rtol=0)


def explained_model(**fields) -> tuple[Network, torch.Tensor, Case]:
    """A small random model, an input, and the score of class 1."""
    torch.manual_seed(0)
    model = regard.create("vit_nano", classes=3, size=(12, 16), patch=4, depth=3, **fields).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    x = torch.randn(1, 3, 12, 16)
    return model, x, Case(model, x, lambda z: model(z).logits[:, 1])


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"pool": "mean"}])
def test_relevance_equals_autograd_through_materialised_attention(fields, monkeypatch):
    """The same model with attention written out, its weights leaves of the graph: no fused kernel, no tape."""
    model, x, case = explained_model(**fields)
    got = relevance(case.gradient_tape(), case.where)
    kept = []

    def written_out(q, k, v, **_):
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        weights.retain_grad()
        kept.append(weights)
        return weights @ v

    monkeypatch.setattr("regard.nn.multihead.attend", written_out)
    model(x).logits[0, 1].backward()
    joint = torch.eye(kept[0].shape[-1])
    for weights in kept:
        joint = joint + (weights * weights.grad).clamp_min(0).mean(1)[0] @ joint
    joint, prefix = joint - torch.eye(len(joint)), len(case.where.prefix)
    rows = joint[0, prefix:] if "pool" not in fields else joint[prefix:, prefix:].mean(0)
    torch.testing.assert_close(got[0], rows.detach(), atol=1e-6, rtol=1e-4)


def test_grad_cam_equals_its_definition():
    model, x, case = explained_model()
    got = grad_cam(case)
    with torch.no_grad():
        tokens = model.embed(x)
        for block in model.blocks[:-1]:
            tokens = block(tokens)
    last = model.blocks[-1]
    entering = last.norm1(tokens).detach().requires_grad_()
    mixed = tokens + last.attention(entering)
    logit = model.head(model.norm(mixed + last.mlp(last.norm2(mixed)))[:, 0])[0, 1]
    logit.backward()
    weights = entering.grad[0, 1:].mean(0)
    torch.testing.assert_close(got[0], (entering[0, 1:] @ weights).detach(), atol=1e-6, rtol=1e-4)


def test_integrated_gradients_against_captum_and_completeness():
    from captum.attr import IntegratedGradients

    model, x, case = explained_model(registers=1)
    expected = IntegratedGradients(lambda z: model(z).logits).attribute(x, target=1, n_steps=32)
    cells = expected.sum(1).reshape(3, 4, 4, 4).sum((1, 3)).flatten()
    got = integrated_gradients(case, steps=32).values
    torch.testing.assert_close(got[0], cells.float(), atol=1e-5, rtol=1e-4)
    difference = model(x).logits[0, 1] - model(torch.zeros_like(x)).logits[0, 1]
    assert got.sum().item() == pytest.approx(difference.item(), rel=1e-2)


def test_integrated_gradients_take_steps_until_they_add_up():
    def sharper(factor: int) -> tuple[float, Case]:
        """A score that bends on the way, and its difference to the mean picture's."""
        model, x, case = explained_model()
        with torch.no_grad():
            for block in model.blocks:
                block.attention.qkv.weight *= factor
            return float(model(x).logits[0, 1] - model(torch.zeros_like(x)).logits[0, 1]), case

    difference, case = sharper(8)
    few, enough = integrated_gradients(case, steps=32), integrated_gradients(case)
    assert (few.steps, enough.steps) == (32, 64)
    assert (few.completeness_error or 0) > 0.05
    assert (enough.completeness_error or 1) <= 0.01
    for made in (few, enough):
        error = abs(float(made.values.sum()) - difference) / abs(difference)
        assert made.completeness_error == pytest.approx(error, abs=1e-4)
    never = integrated_gradients(sharper(16)[1])
    assert never.steps == 256
    assert (never.completeness_error or 0) > 0.05


def test_what_does_not_add_up_is_said(run_folder, digit_files):
    predictor = load_classifier(run_folder)
    explained = predictor.explain(digit_files / "3.png")
    assert explained.options["steps"] in (32, 64, 128, 256)
    assert explained.to_json()["completeness_error"] == explained.completeness_error
    wrong = dataclasses.replace(explained, completeness_error=0.2)
    assert "the values miss the score by 20%" in wrong.verdict
    assert not wrong.trusted
    assert predictor.explain(digit_files / "3.png", "rollout").completeness_error is None


@pytest.mark.parametrize("window", [1, 2])
def test_occlusion_against_captum(window):
    from captum.attr import Occlusion

    model, x, case = explained_model()
    shape = (3, 4 * window, 4 * window)
    expected = Occlusion(lambda z: model(z).logits).attribute(
        x, target=1, sliding_window_shapes=shape, strides=(3, 4, 4)
    )
    torch.testing.assert_close(
        occlusion(case, window=window)[0], expected[0, 0, ::4, ::4].flatten(), atol=1e-5, rtol=1e-4
    )


def test_methods_leave_the_model_as_it_was():
    model, _, case = explained_model()
    for method in METHODS.values():
        method(case)
    assert all(p.grad is None for p in model.parameters())
    assert not model.blocks[0].attention._forward_pre_hooks


def test_a_model_without_attention_is_told_what_makes_sense():
    class Plain(Network):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(12, 2)

        def forward(self, x, class_token_only=False):
            return SimpleNamespace(logits=self.layer(x.flatten(1)))

        def token_map(self, size=None):
            return TokenMap((1, 2), (2, 3), (2, 6))

    model, x = Plain(), torch.randn(1, 1, 2, 6)
    for name in METHODS:
        if name in ("integrated_gradients", "occlusion"):
            assert explain_class(model, x, method=name).map.shape == (2, 6)
        else:
            with pytest.raises(ConfigError, match=r"Plain has none\n.*use integrated_gradients or occlusion"):
                explain_class(model, x, method=name)


def test_raw_attention_picks_layer_and_head():
    heads = torch.stack([FIRST, SECOND])
    tape = tape_of(FIRST, heads)
    torch.testing.assert_close(raw_attention(tape, CLASSED), torch.tensor([[0.25, 0.4]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(raw_attention(tape, CLASSED, head=1), torch.tensor([[0.2, 0.6]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(raw_attention(tape, CLASSED, layer=0), torch.tensor([[0.3, 0.2]]), atol=1e-6, rtol=0)


def test_registers_have_no_place_and_mean_pooling_reads_all_rows():
    registered = TokenMap((1, 1), (4, 4), (4, 4), ("class", "register 0"))
    torch.testing.assert_close(raw_attention(tape_of(FIRST), registered), torch.tensor([[0.2]]), atol=1e-6, rtol=0)
    pooled = TokenMap((1, 3), (4, 4), (4, 12))
    torch.testing.assert_close(raw_attention(tape_of(FIRST), pooled), FIRST.mean(0)[None].float(), atol=1e-6, rtol=0)


def test_rollout_rows_of_a_real_model_sum_to_one():
    model = regard.create("vit_nano", classes=3, size=16, registers=2, pool="mean")
    with regard.capture(model) as tape:
        model(torch.randn(2, 3, 16, 16))
    where = model.token_map()
    everything = rollout(tape, TokenMap((1, where.tokens), (1, 1), (1, where.tokens)))
    torch.testing.assert_close(everything.sum(1), torch.ones(2), atol=1e-5, rtol=0)


WHERE = TokenMap((4, 4), (4, 4), (16, 16), ("class",))


def only_patch_5(x: torch.Tensor) -> torch.Tensor:
    """A "model" whose probability is the mean of one patch: row 1, column 1."""
    return x[:, 0, 4:8, 4:8].mean((1, 2))


def test_scores_know_the_cause_of_a_model_that_looks_at_one_patch():
    x = torch.ones(1, 1, 16, 16)
    right, wrong = torch.zeros(16), torch.zeros(16)
    right[5] = 1.0
    wrong[5] = -1.0
    good, bad = (faithfulness(only_patch_5, x, values, WHERE, maps=200) for values in (right, wrong))
    # Steps of one patch: insertion is 0 at the first point and 1 at the 16 others; trapezoid: 15.5/16.
    assert good.insertion == pytest.approx(15.5 / 16)
    assert good.deletion == pytest.approx(0.5 / 16)
    assert (bad.insertion, bad.deletion) == (pytest.approx(0.5 / 16), pytest.approx(15.5 / 16))
    assert good.insertion_curve[0] == 0
    assert good.insertion_curve[1] == good.insertion_curve[-1] == 1
    assert good.deletion_curve[0] == 1
    assert good.deletion_curve[1] == 0
    assert good.random == pytest.approx(0.5, abs=0.06)
    assert good.beaten > 0.8
    assert "better than" in good.verdict
    assert bad.beaten == 0
    assert bad.verdict == "do not rely on it: better than 0 of 200 random maps only"


def test_random_maps_score_at_chance():
    x, draw = torch.ones(1, 1, 16, 16), torch.Generator().manual_seed(3)
    gains = [faithfulness(only_patch_5, x, torch.rand(16, generator=draw), WHERE, maps=2).gain for _ in range(300)]
    mean = sum(gains) / len(gains)
    assert abs(mean) < 0.1


def test_a_map_is_a_distribution_over_the_picture(run_folder, digit_files):
    explained = load_classifier(run_folder).explain(digit_files / "3.png", method="attention", layer=0, head=2)
    assert explained.map.shape == (8, 8)
    assert explained.map.sum().item() == pytest.approx(1, abs=1e-5)
    assert explained.map.min() >= 0
    assert explained.options == {"layer": 0, "head": 2}
    assert explained.prediction.is_right(explained.target)


@pytest.mark.parametrize("method", METHODS)
def test_a_target_changes_the_scores_and_of_methods_that_ask_for_it_the_map(run_folder, digit_files, method):
    predictor = load_classifier(run_folder)
    own, other = (predictor.explain(digit_files / "3.png", method, target) for target in (None, "7"))
    assert torch.equal(own.map, other.map) == (method in ("attention", "rollout"))
    assert other.target == "7"
    assert own.scores != other.scores


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "rolout"}, "did you mean rollout"),
        ({"target": "dog"}, "no class called 'dog'"),
        ({"method": "rollout", "head": 1}, "rollout has no option 'head'"),
        ({"method": "attention", "layer": 9}, "layers 0 to 3"),
    ],
)
def test_wrong_requests_are_named(run_folder, digit_files, arguments, words):
    with pytest.raises(regard.RegardError, match=words):
        load_classifier(run_folder).explain(digit_files / "3.png", **arguments)


def test_unknown_methods_are_config_errors(run_folder, digit_files):
    with pytest.raises(ConfigError):
        load_classifier(run_folder).explain(digit_files / "3.png", method="")


def test_threads_explain_the_same_model_side_by_side():
    model, _, _ = explained_model()
    inputs = [torch.randn(1, 3, 12, 16) for _ in range(6)]

    def explained(x):
        case = Case(model, x, lambda z: model(z).logits[:, 1])
        return [METHODS[name](case) for name in ("grad_cam", "chefer", "rollout")]

    alone = [explained(x) for x in inputs]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(explained, inputs * 3))
    for n, maps in enumerate(together):
        for one, other in zip(maps, alone[n % 6], strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_explaining_inside_inference_mode_changes_nothing(method, run_folder, digit_files):
    """Also an image that was made there, and a model that was loaded there."""
    outside = load_classifier(run_folder).explain(digit_files / "3.png", method)
    with torch.inference_mode():
        predictor = load_classifier(run_folder)
        inside = predictor.explain(digit_files / "3.png", method)
        assert predictor.explain(torch.rand(1, 8, 8), method).map.isfinite().all()
    torch.testing.assert_close(inside.map, outside.map)
    assert inside.scores == outside.scores


def test_a_model_made_inside_inference_mode_is_refused_with_the_reason():
    with torch.inference_mode():
        model = regard.create("vit_nano", classes=2, size=16)
    with pytest.raises(ConfigError, match=r"made inside torch\.inference_mode(.|\n)*outside"):
        explain_class(model, torch.rand(1, 3, 16, 16), "integrated_gradients")
