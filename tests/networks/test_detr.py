"""DETR: published counts, shapes, padding, recorded attention, compiled and exported answers."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import regard
from regard.errors import ConfigError
from regard.networks.detr.config import VARIANTS, configure
from regard.networks.detr.network import DETR, sine_positions
from regard.networks.resnet.network import BatchNorm, FrozenNorm
from regard.registry import MODELS
from tests.weights.parity import assert_close, picture, scene, spread

# With frozen norms, which are buffers: parameters in all, and those that train (without stem and first stage).
PUBLISHED = {
    "detr_r50": (41_524_768, 41_302_368),
    "detr_r50_dc5": (41_524_768, 41_302_368),
    "detr_r101": (60_464_672, 60_242_272),
    "detr_r50_panoptic": (42_899_288, 42_676_888),
}


def count(model: nn.Module, trained: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


def small(**changes) -> DETR:
    return spread(DETR(configure("detr_nano", classes=5, **changes)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    with torch.device("meta"):
        frozen = regard.create(name, frozen_norms=True)
        live = regard.create(name)
    assert (count(frozen), count(frozen, trained=True)) == PUBLISHED[name]
    norms = sum(2 * m.num_features for m in live.modules() if isinstance(m, BatchNorm))
    assert count(live) == count(live, trained=True) == PUBLISHED[name][0] + norms == MODELS[name].parameters


def test_every_variant_is_a_model():
    assert {name for name, entry in MODELS.items() if entry.family == "detr"} == set(VARIANTS)


@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (64, 96), (33, 71), (8, 130)])
def test_shapes_and_the_places_of_tokens(size, dilated):
    model = small(dilated=dilated)
    out, where = model(scene(*size)), model.token_map(size)
    assert where.cell == ((16, 16) if dilated else (32, 32))
    assert out.logits.shape == (2, 20, 6)
    assert out.boxes.shape == (2, 20, 4)
    assert out.auxiliary_logits.shape == (1, 2, 20, 6)
    assert out.auxiliary_boxes.shape == (1, 2, 20, 4)
    assert out.features.shape == (2, 20, 64)
    assert out.tokens.shape == (2, where.tokens, 64)
    assert 0 <= out.boxes.min() < out.boxes.max() <= 1


@pytest.mark.parametrize("size", [(64, 96), (33, 71)])
def test_masks_are_on_the_grid_of_the_first_stage(size):
    model = small(masks=True)
    masks = model(scene(*size)).masks
    assert masks is not None
    assert masks.shape == (2, 20, *(-(-side // 4) for side in size))
    assert small()(scene(*size)).masks is None


def test_the_mask_heads_attention_is_recorded_over_heads_and_cells_together():
    model = small(masks=True)
    mask = torch.ones(2, 48, 80, dtype=torch.bool)
    mask[1, :, 32:] = False
    with torch.no_grad(), regard.capture(model) as tape:
        model(scene(48, 80), mask)
    assert tape.names[-1] == "masks.attention"
    heads = torch.stack([tape.attention("masks.attention", head=n) for n in range(8)])
    torch.testing.assert_close(heads.sum((0, -1)), torch.ones(2, 20))
    assert heads[:, 1].unflatten(-1, (3, 5))[..., 2:].abs().max() == 0


@pytest.mark.parametrize("valid", [((4, 6), (4, 6)), ((4, 6), (3, 2))])
def test_positions_are_those_of_transformers(valid):
    mask = torch.zeros(2, 4, 6, dtype=torch.bool)
    for image, (rows, columns) in zip(mask, valid, strict=True):
        image[:rows, :columns] = True
    theirs = transformers.models.detr.modeling_detr.DetrSinePositionEmbedding(16, normalize=True)
    expected = theirs(torch.Size([2, 3, 4, 6]), torch.device("cpu"), torch.float32, mask=mask)
    assert_close(sine_positions(mask, 32), expected.flatten(2).transpose(1, 2))


def test_a_padded_map_answers_as_it_does_alone():
    """From the feature map on; before it, convolutions see the padding, in the authors' code as in ours."""
    model = small().double()
    cells, mask = picture(5, 7, channels=64).double(), torch.zeros(2, 5, 7, dtype=torch.bool)
    mask[0] = True
    mask[1, :3, :4] = True
    with torch.no_grad():
        together, unmasked = model.detect(cells, mask), model.detect(cells)
        whole, cut = model.detect(cells[:1]), model.detect(cells[1:, :, :3, :4])
    for number, alone in enumerate((whole, cut)):
        assert_close(together.logits[number], alone.logits[0])
        assert_close(together.boxes[number], alone.boxes[0])
        assert_close(together.auxiliary_boxes[:, number], alone.auxiliary_boxes[:, 0])
    grid = together.tokens[1].unflatten(0, (5, 7))[:3, :4]
    assert_close(grid.flatten(0, 1), cut.tokens[0])
    assert (unmasked.boxes[1] - together.boxes[1]).abs().max() > 1e-3


def test_captured_attention_is_what_the_fused_kernel_used():
    model, x = small(), scene(48, 80)
    mask = torch.ones(2, 48, 80, dtype=torch.bool)
    mask[1, :, 32:] = False
    with torch.no_grad():
        expected = model(x, mask)
        with regard.capture(model) as tape:
            out = model(x, mask)
    assert torch.equal(out.logits, expected.logits)
    assert tape.names == [step.layer for step in model.token_flow()]
    assert tape.shape("decoder.1.cross") == (2, 20, 15)
    cross = tape.attention("decoder.1.cross")
    torch.testing.assert_close(cross.sum(-1), torch.ones(2, 20))
    assert cross[1].unflatten(-1, (3, 5))[..., 2:].abs().max() == 0
    for name, queries, keys in (("encoder.0.attention", 15, 15), ("decoder.0.attention", 20, 20)):
        assert tape.attention(name, head=3).shape == (2, queries, keys)


def test_captured_weights_are_a_float64_softmax_of_queries_and_keys():
    model, x = small().double(), scene(48, 48).double()
    seen = {}
    block: Any = model.encoder[0]
    block.register_forward_pre_hook(lambda _, inputs: seen.update(x=inputs[0], positions=inputs[1]))
    with torch.no_grad(), regard.capture(model) as tape:
        model(x)
    located = seen["x"] + seen["positions"]
    q, k, _ = block.attention.qkv(located).unflatten(-1, (3, 8, 8)).permute(2, 0, 3, 1, 4)
    expected = (q[:, 5] @ k[:, 5].mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(tape.attention(0, head=5), expected.float())


def test_the_flow_reads_cells_from_queries():
    steps = small().token_flow((64, 64))
    assert [(s.stream, s.reads) for s in steps[:3]] == [("tokens", None), ("tokens", None), ("queries", None)]
    assert (steps[3].layer, steps[3].stream, steps[3].reads) == ("decoder.0.cross", "queries", "tokens")


@pytest.mark.parametrize("masked", [False, True])
def test_compiled_and_exported_equal_eager(masked):
    model, x = small(frozen_norms=True, masks=True, depth=1, blocks=(1, 1, 1, 1)), scene(64, 48)
    mask = torch.ones(2, 64, 48, dtype=torch.bool)
    mask[0, 20:] = False
    inputs = (x, mask) if masked else (x,)
    expected = model(*inputs)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    exported = torch.export.export(model, inputs).module()
    for run in (compiled, exported):
        for mine, eager in zip(run(*inputs), expected, strict=True):
            assert (mine is None) == (eager is None)
            if eager is not None:
                torch.testing.assert_close(mine, eager, atol=1e-4, rtol=1e-4)


def test_frozen_norms_do_not_move_and_live_ones_do():
    for frozen in (True, False):
        model = small(frozen_norms=frozen).train()
        before = {name: t.clone() for name, t in model.state_dict().items()}
        out = model(picture(64, 64))
        (out.logits.mean() + out.boxes.mean() + out.auxiliary_logits.mean() + out.auxiliary_boxes.mean()).backward()
        moved = [name for name, t in model.state_dict().items() if not torch.equal(t, before[name])]
        assert bool(moved) != frozen
        still = [name for name, p in model.named_parameters() if p.grad is None]
        assert all(name.startswith(("backbone.root.", "backbone.stages.0.")) for name in still)
        assert bool(still) == frozen
        assert any(isinstance(m, FrozenNorm) for m in model.modules()) == frozen


def test_checkpointed_blocks_give_the_same_gradients():
    grads = []
    for checkpointing in (False, True):
        model = small(dropout=0.0).train()
        model.checkpointing = checkpointing
        model(picture(48, 48)).boxes.sum().backward()
        grads.append(model.queries.weight.grad)
    torch.testing.assert_close(*grads)


def test_wrong_inputs_and_fields_are_refused():
    with pytest.raises(ConfigError, match="does not fit"):
        small()(torch.randn(2, 1, 32, 32))
    with pytest.raises(ConfigError, match="mask of shape"):
        small()(picture(32, 32), torch.ones(2, 16, 16, dtype=torch.bool))
    with pytest.raises(ConfigError, match="size="):
        regard.create("detr_nano", size=(8, 8, 8))
    with pytest.raises(ConfigError, match="does not divide into 7 heads"):
        regard.create("detr_nano", heads=7)
    with pytest.raises(ConfigError, match="masks=True does not go with"):
        regard.create("detr_nano", masks=True, blocks=(2, 2, 2))
    with pytest.raises(ConfigError, match="queries"):
        regard.create("detr_nano", queries=0)
    with pytest.raises(ConfigError, match="at least 1 block"):
        regard.create("detr_r50", blocks=(3, 0))
    with pytest.raises(ConfigError, match="DETRConfig has no field 'patch'"):
        regard.create("detr_nano", patch=4)
