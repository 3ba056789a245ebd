"""Explanations against arithmetic done by hand, and their scores against a model whose cause is known."""

import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.explain import faithfulness, raw_attention, rollout
from regard.geometry import TokenMap
from regard.nn import Tape
from regard.nn.attention import _Call

# Two layers of one head over a class token and two patches; rows sum to one.
FIRST = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]], dtype=torch.float64)
SECOND = torch.tensor([[0.2, 0.2, 0.6], [0.3, 0.4, 0.3], [0.1, 0.6, 0.3]], dtype=torch.float64)


def tape_of(*layers: torch.Tensor) -> Tape:
    """A tape whose weights are exactly these: scores log W against the identity."""
    tape = Tape()
    for weights in layers:
        q = weights.log() if weights.ndim == 3 else weights.log()[None]
        k = torch.eye(q.shape[-1], dtype=torch.float64).expand_as(q)
        tape._calls.append(_Call("", q[None], k[None], 1.0, None, None, False))
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
    assert bad.verdict == "better than 0 of 200 random maps: no better than chance, do not rely on it"


def test_random_maps_score_at_chance():
    x, draw = torch.ones(1, 1, 16, 16), torch.Generator().manual_seed(3)
    gains = [faithfulness(only_patch_5, x, torch.rand(16, generator=draw), WHERE, maps=2).gain for _ in range(300)]
    mean = sum(gains) / len(gains)
    assert abs(mean) < 0.1


def test_a_map_is_a_distribution_over_the_picture(run_folder, digit_files):
    explained = regard.load(run_folder).explain(digit_files / "3.png", method="attention", layer=0, head=2)
    assert explained.map.shape == (8, 8)
    assert explained.map.sum().item() == pytest.approx(1, abs=1e-5)
    assert explained.map.min() >= 0
    assert explained.options == {"layer": 0, "head": 2}
    assert explained.target == explained.prediction.label


def test_a_target_changes_the_scores_not_the_map(run_folder, digit_files):
    predictor = regard.load(run_folder)
    own, other = predictor.explain(digit_files / "3.png"), predictor.explain(digit_files / "3.png", target="7")
    assert torch.equal(own.map, other.map)
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
        regard.load(run_folder).explain(digit_files / "3.png", **arguments)


def test_unknown_methods_are_config_errors(run_folder, digit_files):
    with pytest.raises(ConfigError):
        regard.load(run_folder).explain(digit_files / "3.png", method="")
