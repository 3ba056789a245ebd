"""The Swin Transformer against arithmetic on whole grids, against itself compiled and exported, and its token flow."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import ConfigError
from regard.geometry import AttentionStep, MergeStep
from regard.networks.swin.config import VARIANTS, SwinConfig
from regard.networks.swin.network import Swin
from regard.nn import capture
from regard.nn.windows import (
    WindowBlock,
    WindowBlockConfig,
    Windows,
    from_windows,
    merge_neighbours,
    relative_rows,
    shift_mask,
    to_windows,
)
from regard.registry import MODELS
from tests.weights.parity import gradients, randomise

# With 1000 classes at 224 pixels: the design's table.
PUBLISHED = {"swin_t": 28_288_354, "swin_s": 49_606_258, "swin_b": 87_768_224, "swin_l": 196_532_476}
RECORDED = 1.150475
"""Loss after three steps of the test below; it changes only when the arithmetic does."""
# (grid, window, shift): whole windows; padded; rectangles; a volume; a signal.
CUTS = [
    ((8, 8), (4, 4), (2, 2)),
    ((7, 10), (4, 4), (2, 2)),
    ((5, 6), (2, 3), (1, 1)),
    ((3, 9), (3, 4), (0, 2)),
    ((4, 5, 6), (2, 3, 4), (1, 1, 2)),
    ((11,), (4,), (2,)),
]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    with torch.device("meta"):
        assert count(regard.create(name)) == MODELS[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", VARIANTS)
def test_counts_follow_from_the_shape(name):
    """Added up by hand: patches and their norm, blocks, merges, last norm, head."""
    with torch.device("meta"):
        c = regard.create(name).config
    total, d = c.channels * math.prod(c.patch) * c.width + 3 * c.width, c.width
    for stage, (depth, heads) in enumerate(zip(c.depths, c.heads, strict=True)):
        d, table = c.width * 2**stage, math.prod(2 * side - 1 for side in c.window) * heads
        m = int(c.mlp_ratio * d)
        total += depth * (4 * d + (3 * d * d + 3 * d) + (d * d + d) + table + (d * m + m) + (m * d + d))
        if stage < len(c.depths) - 1:
            inputs = 2 ** len(c.size) * d
            total += 2 * inputs + inputs * 2 * d
    assert MODELS[name].parameters == total + 2 * d + 1000 * d + 1000


def small(**changes: Any) -> Swin:
    fields = {"size": (32, 48), "width": 8, "depths": (2, 3), "heads": (2, 4), "window": (4, 4), "classes": 5}
    return randomise(Swin(SwinConfig(**fields | changes)))


@pytest.mark.parametrize("size", [(32, 48), (33, 17), (8, 8), (5, 70), (1, 1)])
@pytest.mark.parametrize("rule", ["axis", "shortest", "pad"])
def test_tokens_stand_where_the_map_says(size, rule):
    model = small(depths=(2, 1, 2), heads=(1, 2, 4), small_grid=rule)
    out, where = model(torch.randn(2, 3, *size)), model.token_map(size)
    assert out.logits.shape == (2, 5)
    assert out.tokens.shape == (2, where.tokens, 32)
    assert (where.cell, model.input_map(size).cell) == ((16, 16), (4, 4))
    torch.testing.assert_close(out.features, out.tokens.mean(1))


@pytest.mark.parametrize(("size", "patch", "window"), [((40,), (2,), (4,)), ((16, 20, 13), (4, 2, 3), (2, 3, 4))])
def test_signals_and_volumes(size, patch, window):
    model = small(size=size, patch=patch, window=window, channels=2)
    out = model(torch.randn(2, 2, *size))
    assert out.logits.shape == (2, 5)
    assert out.tokens.shape[1] == model.token_map().tokens


def test_a_token_sees_its_own_cell_most():
    model = small(size=(32, 32), patch=(2, 2), depths=(1, 1), window=(2, 2))
    x = torch.randn(1, 3, 32, 32, requires_grad=True)
    where = model.token_map()
    slopes = torch.autograd.grad(model(x).tokens[0, 3 * 8 + 5].square().sum(), x)[0].abs().sum((0, 1))
    (top, bottom), (left, right) = where.box(3 * 8 + 5)
    assert slopes[top:bottom, left:right].mean() > 2 * slopes.mean()


@pytest.mark.parametrize(("grid", "window", "shift"), CUTS, ids=str)
def test_windows_are_undone(grid, window, shift):
    x = torch.randn(2, *grid, 3)
    cut = to_windows(x, window, shift)
    assert cut.shape == (2 * math.prod(-(-g // w) for g, w in zip(grid, window, strict=True)), math.prod(window), 3)
    assert torch.equal(from_windows(cut, grid, window, shift), x)


def whole_grid_attention(block: Any, x: torch.Tensor, window, shift) -> torch.Tensor:
    """The same by one token × token matrix per picture, in double precision, written down from the definition.

    Two tokens attend to each other if they are in the same cell of the shifted partition of the padded grid, which
    cuts at shift, shift + window, … and is not cyclic.
    """
    attention, grid = block.attention, tuple(x.shape[1:-1])
    padded = [-(-g // w) * w for g, w in zip(grid, window, strict=True)]
    y = torch.zeros(len(x), *padded, x.shape[-1], dtype=torch.float64)
    y[(slice(None), *(slice(g) for g in grid))] = block.norm1(x)
    places = list(itertools.product(*(range(p) for p in padded)))
    cells = [tuple((at - s) // w for at, s, w in zip(place, shift, window, strict=True)) for place in places]
    q, k, v = (
        part.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        for part in attention.qkv(y.flatten(1, -2)).chunk(3, -1)
    )
    scores = q @ k.mT / q.shape[-1] ** 0.5
    table = attention.positions.table.unflatten(0, tuple(2 * w - 1 for w in attention.positions.window))
    for a, b in itertools.product(range(len(places)), repeat=2):
        if cells[a] == cells[b]:
            offset = (i - j + w - 1 for i, j, w in zip(places[a], places[b], attention.positions.window, strict=True))
            scores[:, :, a, b] += table[tuple(offset)]
        else:
            scores[:, :, a, b] = -torch.inf
    mixed = attention.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)).unflatten(1, padded)
    x = x + mixed[(slice(None), *(slice(g) for g in grid))]
    return x + block.mlp(block.norm2(x))


@pytest.mark.parametrize(("grid", "window", "shift"), CUTS, ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_a_block_is_attention_on_the_whole_grid_with_most_pairs_left_out(grid, window, shift, shifted):
    shift = shift if shifted else (0,) * len(grid)
    block = randomise(WindowBlock(WindowBlockConfig(8, 2, 16, window=window))).double()
    x = torch.randn(2, *grid, 8, dtype=torch.float64)
    windows = Windows(window, shift, relative_rows(window, window), shift_mask(grid, window, shift))
    with torch.no_grad():
        torch.testing.assert_close(block(x, windows), whole_grid_attention(block, x, window, shift))


def test_a_smaller_window_uses_the_inner_part_of_the_table():
    """Offsets keep their bias, whatever the window."""
    large, part = relative_rows((5, 5), (5, 5)), relative_rows((2, 3), (5, 5))
    places = [5 * row + column for row in range(2) for column in range(3)]
    assert torch.equal(part, large[places][:, places])


@pytest.mark.parametrize(
    ("rule", "grid", "expected"),
    [
        ("axis", (8, 12), ((4, 4), (2, 2))),
        ("axis", (4, 12), ((4, 4), (0, 2))),
        ("axis", (3, 12), ((3, 4), (0, 2))),
        ("shortest", (3, 12), ((3, 3), (0, 0))),
        ("shortest", (4, 12), ((4, 4), (0, 0))),
        ("pad", (3, 12), ((4, 4), (0, 2))),
    ],
)
def test_windows_on_small_grids(rule, grid, expected):
    assert SwinConfig(size=(32, 32), window=(4, 4), small_grid=rule).fit_window(grid) == expected


def test_neighbours_merge_in_the_authors_order():
    """Rows first: (0, 0), (1, 0), (0, 1), (1, 1); an odd last row is padded with zeros."""
    x = torch.arange(1.0, 7).reshape(1, 3, 2, 1)
    assert merge_neighbours(x)[0].tolist() == [[[1, 3, 2, 4]], [[5, 0, 6, 0]]]
    volume = torch.arange(8.0).reshape(1, 2, 2, 2, 1)
    assert merge_neighbours(volume).flatten().tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


@pytest.mark.parametrize("fields", [{}, {"size": (16, 20, 12), "patch": (2, 2, 2), "window": (3, 2, 4)}], ids=str)
def test_captured_attention_is_exact_and_masked_pairs_weigh_nothing(fields):
    """Against a plain softmax in double precision; the output with and without the tape is the same."""
    model = small(**fields)
    axes = len(model.config.size)
    size = (37, 26, 14)[:axes]
    x, kept = torch.randn(2, 3, *size), {}
    for name, module in model.named_modules():
        if name.endswith("attention"):
            module.register_forward_pre_hook(lambda _m, args, name=name: kept.update({name: args}))
    with torch.no_grad():
        plain = model(x).logits
        with capture(model) as tape:
            assert torch.equal(model(x).logits, plain)
    flow = [step for step in model.token_flow(size) if isinstance(step, AttentionStep)]
    assert [step.layer for step in flow] == tape.names
    masked = 0
    for layer, name in enumerate(tape.names):
        tokens, windows = kept[name]
        attention: Any = model.get_submodule(name)
        q, k, _ = (part.double() for part in attention.project(to_windows(tokens, windows.window, windows.shift)))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + attention.positions(windows.rows).double()
        barred = None
        if windows.mask is not None:
            barred = ~windows.mask.expand(-1, attention.heads, -1, -1).repeat(2, 1, 1, 1)
            scores = scores.masked_fill(barred, -torch.inf)
            masked += int(barred.sum())
        for head in range(attention.heads):
            weights = tape.attention(layer, head)
            torch.testing.assert_close(weights, scores[:, head].softmax(-1).float(), atol=1e-6, rtol=1e-5)
            if barred is not None:
                assert weights[barred[:, head]].abs().max() == 0
            slots = flow[layer].windows
            assert slots is not None
            assert weights.shape == (2 * len(slots), slots.shape[1], slots.shape[1])
    assert masked


@pytest.mark.parametrize("size", [(32, 48), (37, 26)])
def test_the_token_flow_is_the_networks(size):
    """What attention sees in each slot, and what merges, followed by the numbers of the tokens themselves."""
    model = small(depths=(2, 2, 2), heads=(1, 2, 4))
    tokens, seen = [], []
    block: Any
    for block in model.repeated():
        block.register_forward_pre_hook(lambda _m, args, _kw: tokens.append(args[0]), with_kwargs=True)
        block.norm1 = nn.Identity()
        block.attention.qkv.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    with torch.no_grad():
        model(torch.randn(1, 3, *size))
    steps = model.token_flow(size)
    attention = [step for step in steps if isinstance(step, AttentionStep)]
    for step, flat, slots in zip(attention, (t.flatten(1, -2)[0] for t in tokens), seen, strict=True):
        assert step.windows is not None
        padded = torch.cat([flat, torch.zeros(1, flat.shape[1])])  # -1 is the last row
        assert torch.equal(slots, padded[step.windows])
        assert torch.equal(step.windows[step.windows >= 0].sort().values, torch.arange(len(flat)))
    merges = [step for step in steps if isinstance(step, MergeStep)]
    assert [type(step).__name__ for step in steps] == ["AttentionStep"] * 2 + (
        ["MergeStep"] + ["AttentionStep"] * 2
    ) * 2
    grids = model.config.grids(size)
    for step, before, after in zip(merges, grids, grids[1:], strict=False):
        field = torch.randn(1, *before, 3)
        flat = torch.cat([field.flatten(1, -2)[0], torch.zeros(1, 3)])
        assert step.children.shape == (math.prod(after), 4)
        assert torch.equal(flat[step.children].flatten(1), merge_neighbours(field).flatten(1, -2)[0])


def test_a_size_gives_the_same_answer_whether_built_for_it_or_met():
    met, built = small(), small(size=(50, 22))
    built.load_state_dict(met.state_dict())
    x = torch.randn(2, 3, 50, 22)
    assert torch.equal(met(x).logits, built(x).logits)


def test_gradient_checkpointing_changes_nothing_but_memory():
    x, grads = torch.randn(2, 3, 32, 48), []
    for on in (False, True):
        model = small().train()
        model.checkpointing = on
        model(x).logits.square().sum().backward()
        grads.append(gradients(model))
    torch.testing.assert_close(grads[0], grads[1])


def test_overfits_one_batch():
    model = regard.create("swin_nano", classes=8, size=16)
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = torch.tensor(torch.inf)
    for _ in range(60):
        loss = F.cross_entropy(model(x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_one_training_step_gives_the_recorded_loss():
    model = regard.create("swin_nano", classes=4, size=20)
    x, y = torch.randn(6, 3, 20, 20), torch.arange(6) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(x).logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(4), abs=1e-6)
    assert losses[3] == pytest.approx(RECORDED, abs=2e-4)


@pytest.mark.parametrize("size", [(32, 48), (37, 26)])
def test_compiled_equals_eager(size):
    """Gradients too, of the tables among others; at a size whose masks are made on the way as well."""
    model, x = small(depths=(2, 1)), torch.randn(2, 3, *size)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    results = []
    for run in (model, compiled):
        model.zero_grad()
        logits = run(x).logits
        logits.square().sum().backward()
        results.append((logits, gradients(model)))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("size", "strict"), [((32, 48), False), ((37, 26), False), ((37, 26), True)])
def test_exported_equals_eager(size, strict):
    model, x = small(depths=(2, 1)), torch.randn(2, 3, *size)
    program = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x).logits, model(x).logits, atol=1e-6, rtol=1e-5)


def test_few_graphs_are_compiled_and_all_are_kept():
    """Of two sizes, as in a run with low_res: torch gives up on a forward that needs more than eight."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    model = small(depths=(2, 1, 7, 1), heads=(1, 2, 4, 8), size=(64, 128), drop_path=0.2).train()
    torch.compiler.reset()
    for part in model.compiled():
        part.compile(backend=keep, dynamic=False)
    for _ in range(2):
        for size in ((64, 128), (48, 96)):
            model(torch.randn(2, 3, *size))
    # Three stages; shifted and other blocks of the deep one, and its merge; the last norm.
    assert len(graphs) == 2 * (3 + 3 + 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": (2,)}, "different numbers of stages"),
        ({"heads": (3, 4)}, "does not divide into 3 heads"),
        ({"depths": (2, 0)}, "depths must be at least 1"),
        ({"window": (4, 4, 4)}, "1, 2 or 3 axes"),
        ({"window": (0, 4)}, "window"),
        ({"mlp_ratio": 0.0}, "mlp_ratio"),
        ({"drop_path": 1.0}, "drop_path"),
        ({"eps": 0.0}, "eps"),
        ({"window": (65, 64)}, "a window of 4,160 tokens is too large"),
        ({"size": (10**6, 10**6)}, "too large: 1,000,000,000,000 pairs"),
    ],
)
def test_shapes_that_make_no_model_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        small(**fields)


def test_input_of_the_wrong_shape_is_named():
    with pytest.raises(ConfigError, match="3 channels"):
        small()(torch.randn(1, 1, 32, 48))
    with pytest.raises(ConfigError, match="2 axes"):
        small()(torch.randn(1, 3, 32, 48, 8))
