"""Attention followed through windows and merges, against full token × token matrices multiplied out."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import regard
from regard.explain import METHODS, Case, flow, grad_cam, gradient_rollout, raw_attention, relevance, rollout
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.networks.base import Network
from tests.explain.explained import explain_class

# Grids of 11 × 15 and 6 × 8 in windows of 4; of 6 × 5 × 7 and 3 × 3 × 4: padded and shifted in both stages, or
# smaller than a window along some axis.
CASES = [("swin_nano", (24, 24)), ("swin_nano", (21, 30)), ("swin3d_nano", (24, 20, 28))]


def network(name: str, size: tuple[int, ...]) -> tuple[Network, Tensor, Case]:
    """A small random network in double precision with uneven attention, two inputs, and the score of class 1."""
    torch.manual_seed(0)
    model = regard.create(name, classes=3, size=size).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, model.config.channels, *size, dtype=torch.float64)
    return model, x, Case(model, x, lambda z: model(z).logits[:, 1])


def written_out(model: Network, x: Tensor, monkeypatch) -> list[Tensor]:
    """The weights of every layer, (windows, heads, slots, slots), with their gradients: no fused kernel, no tape."""
    kept = []

    def attend(q, k, v, *, mask=None, bias=None, **_):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if bias is None else scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask.repeat(len(q) // len(mask), 1, 1, 1), -math.inf)
        weights = scores.softmax(-1)
        weights.retain_grad()
        kept.append(weights)
        return weights @ v

    with monkeypatch.context() as patch:
        patch.setattr("regard.nn.multihead.attend", attend)
        model(x).logits[:, 1].sum().backward()
    return kept


def places(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, grid)))


def slot(place: tuple[int, ...], grid: tuple[int, ...], window: tuple[int, ...], shift: tuple[int, ...]):
    """Number of the window of a token, and of its slot there."""
    number, inside = 0, 0
    for at, side, each, by in zip(place, grid, window, shift, strict=True):
        count = math.ceil(side / each)
        moved = (at - by) % (count * each)
        number, inside = number * count + moved // each, inside * each + moved % each
    return number, inside


def cut(model: Network, block: int, grid: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Window and shift, from the paper: windows of M tokens, moved by M / 2 in every second block, if there are several
    along that axis."""
    window = tuple(min(side, each) for side, each in zip(grid, model.config.window, strict=True))
    shift = tuple(each // 2 if block % 2 and side > each else 0 for side, each in zip(grid, window, strict=True))
    return window, shift


def full(weights: Tensor, grid, window, shift) -> Tensor:
    """(tokens, tokens) from the windows (windows, slots, slots) of one sample, pair by pair."""
    slots = [slot(place, grid, window, shift) for place in places(grid)]
    matrix = torch.zeros(len(slots), len(slots), dtype=torch.float64)
    for i, (number, query) in enumerate(slots):
        for j, (other, key) in enumerate(slots):
            if number == other:
                matrix[i, j] = weights[number, query, key]
    return matrix


def of_one(matrix: Tensor) -> Tensor:
    """Rows of one: what went to padding is shared out; a row of zeros becomes attention to itself."""
    total = matrix.sum(1, keepdim=True)
    return torch.where(total > 0, matrix / total, torch.eye(len(matrix)).double())


def merge_matrix(grid: tuple[int, ...]) -> Tensor:
    """(tokens after, tokens before), rows of one."""
    before, after = places(grid), places(tuple(math.ceil(side / 2) for side in grid))
    matrix = torch.zeros(len(after), len(before), dtype=torch.float64)
    for j, place in enumerate(before):
        matrix[after.index(tuple(at // 2 for at in place)), j] = 1.0
    return matrix / matrix.sum(1, keepdim=True)


def brute_force(model: Network, kept: list[Tensor], method: str, sample: int) -> Tensor:
    """The mean row of the product of all layers' matrices."""
    grid = model.input_map().grid
    joint = even = torch.eye(math.prod(grid), dtype=torch.float64)
    layers = iter(kept)
    for stage, depth in enumerate(model.config.depths):
        for block in range(depth):
            window, shift = cut(model, block, grid)
            weights = next(layers)
            count = len(weights) // 2
            mine = slice(sample * count, (sample + 1) * count)
            if method.startswith("rollout"):
                weights = weights.detach()[mine].mean(1)
            else:
                assert weights.grad is not None
                weights = (weights.grad * weights).detach()[mine].clamp_min(0).mean(1)
            if method == "gradient_rollout":
                total = weights.sum(-1, keepdim=True)
                weights = torch.where(total > 0, weights / total, torch.eye(weights.shape[-1]).double())
            matrix, itself = full(weights, grid, window, shift), torch.eye(math.prod(grid)).double()
            if method != "relevance":
                matrix = of_one(matrix)
            if method == "relevance":
                step = itself + matrix
            elif method == "rollout without identity":
                step = matrix
            else:
                step = (itself + matrix) / 2
            joint = step @ joint
        if stage < len(model.config.depths) - 1:
            joint, even = merge_matrix(grid) @ joint, merge_matrix(grid) @ even
            grid = tuple(math.ceil(side / 2) for side in grid)
    return (joint - even if method == "relevance" else joint).mean(0)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_followed_shares_equal_full_matrices_multiplied(name, size, monkeypatch):
    monkeypatch.setattr(flow, "AT_ONCE", 1000)  # several parts of windows per layer
    model, x, case = network(name, size)
    kept = written_out(model, x, monkeypatch)
    tape = case.gradient_tape()
    assert [tape.shape(layer)[0] for layer in range(len(tape))] == [len(weights) for weights in kept]
    got = {
        "rollout": rollout(tape, case.first, case.flow),
        "rollout without identity": rollout(tape, case.first, case.flow, identity=False),
        "gradient_rollout": gradient_rollout(tape, case.first, case.flow),
        "relevance": relevance(tape, case.first, case.flow),
    }
    for method, values in got.items():
        for sample in range(2):
            expected = brute_force(model, kept, method, sample)
            scale = expected.abs().max()
            assert scale > 0
            assert expected.std() > 0.05 * expected.abs().mean(), "even maps would agree with anything"
            torch.testing.assert_close(values[sample].double() / scale, expected / scale, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_masked_pairs_have_exactly_zero_weight(name, size):
    """The shift brings tokens into one window that are no neighbours on the grid."""
    _, _, case = network(name, size)
    tape, maps, masked = case.tape(), flow.stage_maps(case.flow, case.first), 0
    for step in case.flow:
        if not isinstance(step, AttentionStep) or step.windows is None:
            continue
        at = torch.tensor(places(maps[step.layer].grid))[step.windows]  # (windows, slots, axes)
        apart = (at[:, :, None] - at[:, None]).abs().amax(-1) >= case.model.config.window[0]
        real = step.windows >= 0
        apart &= real[:, :, None] & real[:, None]
        masked += int(apart.sum())
        for head in range(tape.heads(step.layer)):
            weights = tape.attention(step.layer, head).unflatten(0, (2, -1))
            assert (weights[:, apart] == 0).all()
            assert (weights[:, ~apart & real[:, :, None] & real[:, None]] > 0).any()
    assert masked > 0


@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_maps_of_the_stages_are_the_networks_own(name, size):
    model, _, case = network(name, size)
    assert case.stages[0] == model.input_map(size)
    assert case.stages[-1] == model.token_map(size)
    for step, where in zip([s for s in case.flow if isinstance(s, AttentionStep)], case.stages, strict=True):
        assert step.windows is not None
        assert sorted(step.windows[step.windows >= 0].tolist()) == list(range(where.places))


@pytest.mark.parametrize(("layer", "block"), [(0, 0), (1, 1), (-1, 3)])
def test_raw_attention_is_the_mean_over_queries_on_the_layers_own_grid(layer, block, monkeypatch):
    model, x, case = network("swin_nano", (21, 30))
    kept = written_out(model, x, monkeypatch)
    where = METHODS["attention"].where(case, {"layer": layer})
    got = raw_attention(case.tape(), where, case.flow, layer=layer, head=1)
    matrix = full(kept[layer][: len(kept[layer]) // 2, 1].detach(), where.grid, *cut(model, block, where.grid))
    torch.testing.assert_close(got[0].double(), of_one(matrix).mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_grad_cam_takes_the_last_stages_tokens_in_their_places(name, size):
    model, x, case = network(name, size)
    block, entering = model.stages[-1].blocks[-1], []

    def leaf(_module, _inputs, tokens):
        entering.append(tokens.detach().requires_grad_())
        return entering[0]

    handle = block.norm1.register_forward_hook(leaf)
    model(x[:1]).logits[0, 1].backward()
    handle.remove()
    (tokens,) = entering  # (1, *grid, width)
    assert tokens.shape[1:-1] == model.token_map().grid
    weights = tokens.grad.flatten(1, -2).mean(1)
    expected = (tokens.detach().flatten(1, -2) * weights).sum(-1)
    got = grad_cam(Case(model, x[:1], case.score))
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-9)


def test_a_part_of_a_layer_is_that_part():
    _, _, case = network("swin_nano", (21, 30))
    tape = case.gradient_tape()
    for layer in range(len(tape)):
        rows = slice(1, tape.shape(layer)[0] - 1)
        for head in (None, 1):
            assert tape.attention(layer, head, rows).equal(tape.attention(layer, head)[rows])
            assert tape.gradient(layer, head, rows).equal(tape.gradient(layer, head)[rows])


def test_merges_and_padding_by_hand():
    # Five tokens in windows of two, the last one with padding; then pairs merge, the last alone.
    windows = torch.tensor([[0, 1], [2, 3], [4, -1]])
    steps = [AttentionStep("a", windows=windows), MergeStep(torch.tensor([[0, 1], [2, 3], [4, -1]]))]
    weights = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.0, 1.0], [0.0, 1.0]], [[0.25, 0.75], [0.5, 0.5]]])
    start = {"tokens": torch.tensor([[[0.2, 0.4, 0.4]]])}
    # Merge: .1, .1, .2, .2, .4. Attention: .09 + .05, .01 + .05, 0, .4, .1 (.3 goes to padding)
    moved = flow.walk(steps, start, lambda _, rows: weights[rows], stay=0.0, move=1.0)["tokens"]
    torch.testing.assert_close(moved, torch.tensor([[[0.14, 0.06, 0.0, 0.4, 0.1]]]))
    kept = flow.walk(steps, start, lambda _, rows: weights[rows], stay=0.0, move=1.0, rescale=True)["tokens"]
    torch.testing.assert_close(kept, torch.tensor([[[0.14, 0.06, 0.0, 0.4, 0.4]]]))
    half = flow.walk(steps, start, lambda _, rows: weights[rows])["tokens"]
    torch.testing.assert_close(half, (moved + torch.tensor([0.1, 0.1, 0.2, 0.2, 0.4])) / 2)


@pytest.mark.parametrize("method", METHODS)
def test_every_map_of_swin_is_painted_and_scored(method):
    model, x, _ = network("swin_nano", (24, 24))
    explained = explain_class(model.float(), x[:1].float(), method)
    assert explained.map.shape == (24, 24)
    assert explained.tokens.shape == (explained.where.places,)
    coarse = method in ("attention", "grad_cam", "occlusion")
    assert explained.where == (model.token_map() if coarse else model.input_map())
    if explained.scores is not None:
        assert len(explained.scores.insertion_curve) > 2
        assert explained.random_correlation is not None
    else:
        assert explained.says_nothing


def test_a_layer_of_the_first_stage_is_painted_on_its_grid():
    model, x, _ = network("swin_nano", (24, 24))
    case = Case(model, x[:1], lambda z: model(z).logits[:, 0])
    assert METHODS["attention"].where(case, {"layer": 0}) == TokenMap((12, 12), (2, 2), (24, 24))
    assert len(METHODS["attention"](case, layer=0).values) == 144
    with pytest.raises(regard.RegardError, match="layers 0 to 5"):
        METHODS["attention"](case, layer=6)
