"""Patches, positions and their resampling, in one, two and three dimensions."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.nn import (
    ConditionalPositions,
    GridPositions,
    PatchEmbed,
    apply_rope,
    patchify,
    resample_grid,
    rope_table,
    sinusoid,
    sinusoid_grid,
)


@pytest.mark.parametrize(
    ("patch", "size", "conv"),
    [((4,), (20,), nn.Conv1d), ((4, 2), (12, 10), nn.Conv2d), ((2, 4, 3), (6, 8, 9), nn.Conv3d)],
)
def test_patch_embedding_is_a_convolution_with_its_stride(patch, size, conv):
    ours, theirs = PatchEmbed(patch, 3, 8), conv(3, 8, patch, stride=patch)
    with torch.no_grad():
        theirs.weight.copy_(ours.project.weight.reshape(theirs.weight.shape))
        theirs.bias.copy_(ours.project.bias)
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(ours(x), theirs(x).flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_sizes_that_do_not_divide_are_padded_with_zeros():
    x = torch.randn(1, 2, 5, 7)
    torch.testing.assert_close(patchify(x, (4, 4)), patchify(F.pad(x, (0, 1, 0, 3)), (4, 4)))


def test_sinusoids_side_by_side_know_each_axis():
    table = sinusoid_grid((3, 4), 16).reshape(3, 4, 16)
    torch.testing.assert_close(table[2, 1, :8], sinusoid(torch.tensor([2]), 8)[0])
    torch.testing.assert_close(table[2, 1, 8:], sinusoid(torch.tensor([1]), 8)[0])
    odd = sinusoid_grid((2, 2, 2), 64)
    assert odd.shape == (8, 64)
    assert odd[:, 60:].abs().max() == 0
    assert len(odd.unique(dim=0)) == 8


def test_resampling_keeps_constants_and_gradients_of_the_field():
    flat = torch.full((12, 5), 3.0)
    torch.testing.assert_close(resample_grid(flat, (3, 4), (7, 5)), torch.full((35, 5), 3.0))
    ramp = torch.arange(16.0).repeat_interleave(16)[:, None]
    up = resample_grid(ramp, (16, 16), (32, 32)).reshape(32, 32)
    assert (up.diff(dim=0) > 0)[2:-2].all()
    torch.testing.assert_close(up[:, :1].expand(32, 32), up, atol=1e-4, rtol=0)
    assert resample_grid(torch.randn(8, 3), (2, 2, 2), (3, 4, 5)).shape == (60, 3)
    assert resample_grid(torch.randn(8, 3), (8,), (5,)).shape == (5, 3)


def test_resampling_against_interpolate():
    table = torch.randn(6 * 6, 4)
    expected = F.interpolate(table.T.reshape(1, 4, 6, 6), size=(9, 5), mode="bicubic", antialias=True)
    torch.testing.assert_close(resample_grid(table, (6, 6), (9, 5)), expected[0].flatten(1).T)


@pytest.mark.parametrize("kind", ["learned", "axial", "sinusoidal", "none"])
@pytest.mark.parametrize("grid", [(6,), (2, 3), (2, 2, 3)])
def test_positions_of_every_kind_meet_other_grids(kind, grid):
    positions, other = GridPositions(kind, grid, 12, prefix=1), tuple(n + 2 for n in grid)
    count = 1 + math.prod(other)
    tokens = torch.zeros(2, count, 12)
    out = positions(tokens, other)
    assert out.shape == tokens.shape
    distinct = len(out[0, 1:].unique(dim=0))
    assert distinct == (1 if kind == "none" else count - 1)


def test_axial_positions_are_one_table_per_axis_side_by_side():
    positions = GridPositions("axial", (2, 3), 8, prefix=0)
    out = positions(torch.zeros(1, 6, 8), (2, 3)).reshape(2, 3, 8)
    torch.testing.assert_close(out[1, 2], torch.cat([positions.axes[0][1], positions.axes[1][2]]))


def test_unknown_positions_are_refused():
    with pytest.raises(ConfigError, match="positions"):
        GridPositions("rope", (2, 2), 8, 0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("grid", "conv"), [((7,), nn.Conv1d), ((3, 5), nn.Conv2d), ((2, 3, 4), nn.Conv3d)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_conditional_positions_are_a_depthwise_convolution_of_the_grid(grid, conv, prefix):
    ours, theirs = ConditionalPositions(len(grid), 6), conv(6, 6, 3, padding=1, groups=6)
    with torch.no_grad():
        theirs.weight.copy_(ours.kernel)
        theirs.bias.copy_(nn.init.normal_(ours.bias))
    front, field = torch.randn(2, prefix, 6), torch.randn(2, 6, *grid)
    tokens = torch.cat([front, field.flatten(2).transpose(1, 2)], dim=1)
    expected = torch.cat([front, (field + theirs(field)).flatten(2).transpose(1, 2)], dim=1)
    torch.testing.assert_close(ours(tokens, grid), expected)


@pytest.mark.parametrize("prefix", [0, 2])
def test_turning_against_transformers(prefix):
    from transformers.models.dinov3_vit.modeling_dinov3_vit import apply_rotary_pos_emb

    q, k, rope = torch.randn(2, 3, prefix + 15, 8), torch.randn(2, 3, prefix + 15, 8), rope_table((3, 5), 8, prefix)
    expected = apply_rotary_pos_emb(q, k, *rope[:, prefix:, 4:].repeat(1, 1, 2))
    torch.testing.assert_close((apply_rope(q, rope), apply_rope(k, rope)), expected)
    torch.testing.assert_close(apply_rope(q[:, :, :4], rope), expected[0][:, :, :4])  # the first few alone


def test_turning_on_one_axis_against_transformers_llama():
    """Rates and all: there the base is a setting."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    settings = {"rope_theta": 100.0, "rope_type": "default"}
    config = LlamaConfig(hidden_size=24, num_attention_heads=2, head_dim=12, rope_parameters=settings)
    q, k = torch.randn(2, 2, 7, 12), torch.randn(2, 2, 7, 12)
    cosine, sine = LlamaRotaryEmbedding(config)(q, torch.arange(7)[None])
    expected = apply_rotary_pos_emb(q, k, cosine, sine)
    torch.testing.assert_close((apply_rope(q, rope_table((7,), 12)), apply_rope(k, rope_table((7,), 12))), expected)


@pytest.mark.parametrize(("grid", "step"), [((7,), (2,)), ((4, 5), (1, 2)), ((3, 4, 3), (1, 1, 1))])
def test_the_product_of_two_turned_tells_how_far_apart_they_stand(grid, step):
    """For one query and one key put everywhere: moved together they match as before, moved apart they do not."""
    q, k = torch.randn(2, 1, 1, 1, 14).expand(-1, -1, -1, torch.Size(grid).numel(), -1)
    rope = rope_table(grid, 14)
    scores = (apply_rope(q, rope) @ apply_rope(k, rope).mT).reshape(*grid, *grid)
    a, b = [0] * len(grid), [n - 1 - s for n, s in zip(grid, step, strict=True)]
    moved = [[n + s for n, s in zip(place, step, strict=True)] for place in (a, b)]
    torch.testing.assert_close(scores[*moved[0], *moved[1]], scores[*a, *b])
    assert (scores[*moved[0], *b] - scores[*a, *b]).abs() > 0.01


def test_turning_keeps_double_precision():
    x = torch.randn(1, 1, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: apply_rope(x, rope_table((2, 3), 8)), x)
    assert apply_rope(x.bfloat16(), rope_table((2, 3), 8)).dtype == torch.bfloat16
