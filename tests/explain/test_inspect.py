"""What `regard inspect` measures, against arithmetic done by hand."""

import math
import shutil

import numpy as np
import pytest
import torch

import regard
from regard.errors import ConfigError, DataError
from regard.explain.inspect import (
    attention_distance,
    bias_tables,
    distances,
    filters,
    outlier_threshold,
    position_similarity,
    token_norms,
    uniform_distance,
)
from regard.explain.inspection import inspect_model, own_pictures
from regard.explain.registers import find_register_neurons
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.nn.windows import relative_rows
from tests.explain.test_methods import tape_of
from tests.loading import load_classifier


def test_filters_are_the_directions_in_which_embeddings_differ():
    """Weights made of two known patterns, one three times as strong: these come back, in that order."""
    model = regard.create("vit_nano", classes=2, size=8, channels=1, width=16, heads=2)
    strong, weak = torch.zeros(4, 4), torch.zeros(4, 4)
    strong[:, :2], weak[0] = 1.0, torch.tensor([0.0, 0.0, 1.0, 1.0])
    signs = torch.tensor([1.0, -1.0]).repeat(8)
    shares = torch.stack([3 * signs / strong.norm(), signs.repeat_interleave(2)[:16] / weak.norm()], 1)
    with torch.no_grad():
        model.patches.project.weight.copy_(7 + shares @ torch.stack([strong.flatten(), weak.flatten()]))
    found = filters(model, count=4)
    assert found.source == "patch embedding"
    torch.testing.assert_close(found.shares[:2], torch.tensor([0.9, 0.1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.pictures[0, 0], strong, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.pictures[1, 0], weak, atol=1e-5, rtol=0)


def test_filters_of_other_stems_and_volumes():
    found = filters(regard.create("vit_nano", classes=2, stem="conv"))
    assert found.source == "first convolution"
    assert found.pictures.shape == (27, 3, 3, 3)
    assert filters(regard.create("vit3d_nano", classes=2)).pictures.shape == (28, 1, 8, 8, 8)
    with pytest.raises(ConfigError, match="neither a patch embedding nor a convolution"):
        filters(torch.nn.Linear(2, 2))


def test_position_similarity_is_the_cosine_of_table_rows():
    model = regard.create("vit_nano", classes=2, size=(8, 12), registers=2)
    table = model.positions.table.detach()[1:]  # the first row is the class token's
    got = position_similarity(model)
    assert got is not None
    assert got.shape == (2, 3, 2, 3)
    expected = torch.cosine_similarity(table[4], table[2], dim=0)
    torch.testing.assert_close(got[1, 1, 0, 2], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["axial", "sinusoidal"])
def test_positions_that_are_no_table_are_compared_too(kind):
    got = position_similarity(regard.create("vit_nano", classes=2, size=16, positions=kind, pool="mean"))
    assert got is not None
    torch.testing.assert_close(got.reshape(16, 16).diagonal(), torch.ones(16))
    if kind == "sinusoidal":
        assert got[0, 0, 0, 1] > got[0, 0, 0, 3], "neighbours are more alike"


def test_no_positions_have_no_similarity():
    assert position_similarity(regard.create("vit_nano", classes=2, size=16, positions="none")) is None


def test_attention_distance_matches_hand_arithmetic():
    """Two heads over a class token and a 1 × 3 row of patches 4 pixels wide."""
    where = TokenMap((1, 3), (4, 4), (4, 12), ("class",))
    one = torch.tensor([
        [0.25, 0.25, 0.25, 0.25],  # the class token's row counts for nothing
        [0.5, 0.25, 0.0, 0.25],    # renormalised (0.5, 0, 0.5): 0.5 · 8 = 4
        [0.0, 0.2, 0.6, 0.2],      # 0.4 · 4 = 1.6
        [0.6, 0.1, 0.1, 0.2],      # renormalised (0.25, 0.25, 0.5): 0.25 · 8 + 0.25 · 4 = 3
    ], dtype=torch.float64)  # fmt: skip
    itself = torch.eye(4, dtype=torch.float64)
    tape = tape_of(torch.stack([one, itself]).clamp_min(1e-30))
    expected = torch.tensor([[(4 + 1.6 + 3) / 3, 0.0]])
    torch.testing.assert_close(torch.stack(attention_distance(tape, where)), expected, atol=1e-5, rtol=0)


def test_uniform_attention_has_the_uniform_distance():
    where = TokenMap((2, 3), (4, 8), (8, 24))
    even = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    assert distances(where)[0, 0, 5] == math.hypot(4, 16)
    (reach,) = attention_distance(tape_of(even), where)
    torch.testing.assert_close(reach, distances(where).mean().float().reshape(1), atol=1e-5, rtol=0)


def test_attention_distance_in_windows_matches_hand_arithmetic():
    """A row of five tokens 4 pixels wide in windows of three, the last one padded; then merged."""
    where = TokenMap((1, 5), (4, 4), (4, 20))
    flow = (
        AttentionStep("a", windows=torch.tensor([[0, 1, 2], [3, 4, -1]])),
        MergeStep(torch.tensor([[0, 1], [2, 3], [4, -1]])),
        AttentionStep("b", windows=torch.tensor([[0, 1, 2]])),
    )
    near = torch.tensor([
        [[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]],   # 2, 2, 0 pixels
        [[0.25, 0.25, 0.5], [0.1, 0.3, 0.6], [0.2, 0.3, 0.5]],   # without padding (0.5, 0.5): 2, (0.25, 0.75): 1
    ], dtype=torch.float64)  # fmt: skip
    far = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64)  # 8 and 16, 8 and 8, 16 and 8 pixels
    tape = tape_of(near.clamp_min(1e-30), far)
    # Its heads are windows here.
    tape._calls = [call._replace(q=call.q.transpose(0, 1), k=call.k.transpose(0, 1)) for call in tape._calls]
    first, second = attention_distance(tape, where, flow)
    assert first.tolist() == pytest.approx([(2 + 2 + 0 + 2 + 1) / 5])
    assert second.tolist() == pytest.approx([(24 + 16 + 24) / 9])
    # Pairs of a window, padding left out: 9 of the first, 4 of the second.
    assert uniform_distance(where, flow) == pytest.approx([(4 * 4 + 2 * 8 + 2 * 4) / 13, 64 / 9])


def test_bias_tables_are_by_offset():
    """Query minus key: of a query one row below its key, one above the middle is not it, one below is."""
    model = regard.create("swin_nano", classes=2, size=(16, 24), window=(2, 3), width=8)
    tables = bias_tables(model)
    assert [table.shape for table in tables] == [(2, 3, 5)] * 2 + [(4, 3, 5)] * 4
    bias = model.stages[0].blocks[0].attention.positions(relative_rows((2, 3), (2, 3)))[0]
    torch.testing.assert_close(bias[1, 4, 0], tables[0][1, 2, 3])  # from place (1, 1) to place (0, 0)
    assert bias_tables(regard.create("vit_nano", classes=2)) == ()


@pytest.mark.parametrize(
    ("name", "size"), [("swin_nano", (16, 24)), ("swin_nano", (13, 9)), ("swin3d_nano", (16, 24, 13))]
)
def test_swin_is_inspected_stage_by_stage(name, size, tmp_path, monkeypatch):
    model = regard.create(name, classes=2, size=size)
    images = torch.rand(3, model.config.channels, *size)
    found = inspect_model(model, images)
    assert found.distance is not None
    assert found.norms is not None
    stage = [n for n, depth in enumerate(model.config.depths) for _ in range(depth)]
    assert [len(layer) for layer in found.distance] == [model.config.heads[n] for n in stage]
    tokens = [math.prod(grid) for grid in model.config.grids()]
    assert [layer.shape[1] for layer in found.norms.norms] == [tokens[n] for n in stage]
    diagonal = math.hypot(*(w * c for w, c in zip(model.config.window, model.token_map().cell, strict=True)))
    assert all(0 < float(layer.max()) < diagonal for layer in found.distance), "nobody looks out of its window"
    assert "uniform" in found.describe()
    assert found.save(tmp_path / "a.png").stat().st_size > 5000
    drawn = []
    monkeypatch.setattr("regard.explain.inspect_draw.save", lambda figure, path: drawn.append(figure))
    found.save(tmp_path / "b.png")
    assert_bias_tables_are_drawn(drawn[0], found.biases)


def assert_bias_tables_are_drawn(figure, tables):
    """One tile per layer and head, with the numbers of the table; of volumes the middle plane of offsets."""
    (ax,) = (ax for ax in figure.axes if ax.get_title().startswith("relative position bias"))
    picture = np.ma.filled(ax.images[0].get_array(), np.nan)
    heads, (height, width) = max(map(len, tables)), tables[0].shape[-2:]
    for layer, table in enumerate(tables):
        planes = table if table.ndim == 3 else table[:, table.shape[1] // 2]
        rows = picture[layer * (height + 1) :][:height]
        for head in range(heads):
            tile = rows[:, head * (width + 1) :][:, :width]
            if head < len(planes):
                np.testing.assert_allclose(tile, planes[head].numpy())
            else:
                assert np.isnan(tile).all()
    assert picture.shape == (len(tables) * (height + 1) - 1, heads * (width + 1) - 1)


def test_test_time_registers_are_refused_for_swin():
    with pytest.raises(ConfigError, match="test-time registers are for ViT"):
        find_register_neurons(regard.create("swin_nano", classes=2), torch.rand(1, 3, 32, 32))


def test_a_map_that_does_not_fit_the_tape_is_named():
    with pytest.raises(ConfigError, match="looks from 3 tokens at 3, the map has 7"):
        attention_distance(tape_of(torch.full((3, 3), 1 / 3)), TokenMap((2, 3), (4, 4), (8, 12), ("class",)))


def test_norms_are_those_of_the_tokens_after_each_block():
    model = regard.create("vit_nano", classes=2, size=16, depth=2).eval()
    x = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        after_one = model.blocks[0](model.embed(x))
        after_two = model.blocks[1](after_one)
    found = token_norms(model, x)
    torch.testing.assert_close(found.norms, (after_one.norm(dim=-1), after_two.norm(dim=-1)))
    assert not model.blocks[0]._forward_hooks


def test_outliers_are_found_whatever_the_scale_and_not_where_there_are_none():
    draw = torch.Generator().manual_seed(0)
    for scale in (0.01, 1.0, 1000.0):
        ordinary = scale * (40 + 5 * torch.randn(32, 196, generator=draw))
        assert not (ordinary > outlier_threshold(ordinary)).any()
        ordinary[:, :4] = scale * 300
        assert ((ordinary > outlier_threshold(ordinary)).sum(1) == 4).all()
    # Norms that hardly differ: the largest is 50 deviations off and still no outlier.
    assert outlier_threshold(torch.tensor([10.0, 10.0, 10.01, 10.01, 10.5])) > 10.5


def test_an_inspection_over_batches_is_that_of_one_batch(tmp_path):
    model = regard.create("vit_nano", classes=2, size=16, depth=2).eval()
    x = torch.rand(11, 3, 16, 16)
    done: list[int] = []
    found = inspect_model(model, x, tick=done.append)
    assert done == [8, 11]
    with regard.capture(model) as tape:
        model(x)
    torch.testing.assert_close(found.distance, attention_distance(tape, model.token_map()), atol=1e-5, rtol=0)
    assert found.norms is not None
    assert found.distance is not None
    torch.testing.assert_close(found.norms.norms, token_norms(model, x).norms)
    last = found.describe().splitlines()[-1].split()
    assert last[0] == "1"
    assert float(last[2]) == pytest.approx(found.distance[1].mean().item(), abs=0.06)
    for name in ("a.png", "a.svg", "a.pdf"):
        assert found.save(tmp_path / name).stat().st_size > 5000


@pytest.mark.parametrize("settings", [
    {"name": "vit3d_nano", "size": (16, 24, 16), "images": (2, 1, 16, 24, 16)},
    {"name": "vit_nano", "size": (20, 30), "stem": "conv", "positions": "none", "images": (1, 3, 20, 30)},
    {"name": "vit_nano", "size": 16, "images": (0, 3, 16, 16)},
])  # fmt: skip
def test_every_kind_of_network_is_drawn(tmp_path, settings):
    name, images = settings.pop("name"), torch.rand(settings.pop("images"))
    found = inspect_model(regard.create(name, classes=2, **settings), images)
    assert found.save(tmp_path / "a.png").stat().st_size > 5000


@pytest.mark.parametrize(("name", "fields", "panels"), [
    ("vit_nano", {}, ["embedding", "position similarity", "attention distance"]),
    ("vit_nano", {"positions": "conditional", "rope": True, "pool": "mean"}, ["embedding", "attention distance"]),
    ("resnet_nano", {}, ["convolution"]),
])  # fmt: skip
def test_what_a_network_does_not_have_has_no_panel(tmp_path, monkeypatch, name, fields, panels):
    drawn = []
    monkeypatch.setattr("regard.explain.inspect_draw.save", lambda figure, path: drawn.append(figure) or path)
    inspect_model(regard.create(name, classes=2, size=16, **fields), torch.rand(1, 3, 16, 16)).save(tmp_path / "a.png")
    titles = [ax.get_title() for ax in drawn[0].subfigs[0].axes if ax.get_title()]
    assert len(titles) == len(panels)
    assert all(panel in title for panel, title in zip(panels, titles, strict=True)), titles


def test_own_pictures_are_test_images_of_the_run(run_folder, tmp_path):
    predictor = load_classifier(run_folder)
    pictures = own_pictures(run_folder, predictor.preparation, most=5)
    assert pictures.shape == (5, 1, 8, 8)
    assert pictures.max() <= 1
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    (copy / "splits.csv").write_text((copy / "splits.csv").read_text().replace("digit-", "other-"))
    with pytest.raises(DataError, match="not what it was"):
        own_pictures(copy, predictor.preparation)
    (copy / "config.json").write_text((copy / "config.json").read_text().replace('"data": "digits"', '"data": "gone"'))
    with pytest.raises(DataError, match="gone"):
        own_pictures(copy, predictor.preparation)
    with pytest.raises(DataError, match="knows no images"):
        own_pictures(run_folder / "checkpoints" / "best.safetensors", predictor.preparation)
