"""Modern mode of DETR: every field trains, and does what its paper says; none changes plain mode."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import ConfigError
from regard.networks.detr.config import DETRConfig, configure
from regard.networks.detr.modern import Memory, Proposals, best_boxes, cell_centres, edge_offsets, fuse
from regard.networks.detr.network import DETR, Detection
from tests.weights.parity import scene, spread

EVERYTHING = {
    "norm": "pre", "fused_stages": 3, "stride": 16, "classification": "varifocal", "two_stage": True, "refine": True,
    "box_bias": True, "denoising": 2,
}  # fmt: skip
EACH = [{name: value} for name, value in EVERYTHING.items() if name != "stride"]
FIELDS = [*EACH, {"classification": "focal"}, {"fused_stages": 2, "dilated": False}, EVERYTHING]
BOXES = torch.tensor([[[0.3, 0.4, 0.2, 0.3], [0.7, 0.6, 0.3, 0.2], [0, 0, 0, 0]], [[0.5, 0.5, 0.4, 0.4]] * 3])
LABELS = torch.tensor([[3, 0, -1], [1, 4, 2]])
MASK = torch.ones(2, 64, 80, dtype=torch.bool)
MASK[0, 50:], MASK[0, :, 60:] = False, False


def small(**changes) -> DETR:
    torch.manual_seed(0)
    sizes = {"queries": 6, "width": 32, "mlp": 32, "backbone_width": 8, "blocks": (1, 1, 1, 1)}
    return DETR(configure("detr_nano", classes=5, **sizes | changes))


def tensors(output: tuple) -> list[Tensor]:
    parts = [tensors(part) if isinstance(part, tuple) else [part] for part in output if part is not None]
    return list(itertools.chain(*parts))


def objects(model: DETR) -> dict[str, Tensor]:
    return {"boxes": BOXES, "labels": LABELS} if model.config.denoising else {}


def error(output: Detection) -> Tensor:
    """Something of every output that has a gradient."""
    kept = [part.float().square().mean() for part in tensors(output) if part.is_floating_point() and part.requires_grad]
    return torch.stack(kept).sum()


@pytest.mark.parametrize("changes", FIELDS, ids=lambda fields: "+".join(f"{k}={v}" for k, v in fields.items()))
def test_a_field_keeps_shapes_and_all_its_parameters_learn(changes):
    model = small(**changes)
    out, where = model.eval()(scene(64, 80), MASK), model.token_map((64, 80))
    logits = 5 + (model.config.classification == "softmax")
    assert out.logits.shape == (2, 6, logits)
    assert out.auxiliary_logits.shape == (1, 2, 6, logits)
    assert out.boxes.shape == (2, 6, 4)
    assert out.tokens.shape == (2, where.places, 32)
    assert 0 <= out.boxes.min() <= out.boxes.max() <= 1
    assert out.denoising is None
    spread(model).train()
    out = model(scene(64, 80), MASK, **objects(model))
    if model.config.denoising:
        assert out.denoising is not None
        assert out.denoising.logits.shape == (2, 2, 2 * 2 * 3, logits)
    error(out).backward()
    learned = dict(model.named_parameters())
    if changes == {"norm": "pre"}:
        del learned["decoder.0.norm1.weight"]  # as in DETR, the first block's queries are zeros
    assert not [name for name, p in learned.items() if p.grad is None or not p.grad.any()]
    assert not [name for name, p in learned.items() if p.grad is not None and not p.grad.isfinite().all()]


def test_plain_mode_has_none_of_it():
    plain = small()
    assert plain.anchors is None
    assert not [name for name in plain.state_dict() if name.startswith(("anchors", "laterals", "encoder_norm"))]
    modern = small(**EVERYTHING)
    assert set(plain.state_dict()) < set(modern.state_dict())
    assert not DETRConfig().anchored
    assert plain.eval()(scene(64, 64))[7:] == (None, None, None)


def test_compiled_as_one_graph_equals_eager():
    model = spread(small(**EVERYTHING, frozen_norms=True, dropout=0.0, depth=1)).train()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    results = []
    for run in (model, compiled):
        torch.manual_seed(3)
        results.append(tensors(run(scene(64, 80), MASK, **objects(model))))
    for eager, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager, atol=1e-4, rtol=1e-4)


def test_checkpointed_blocks_give_the_same_gradients():
    grads = []
    for checkpointing in (False, True):
        model = spread(small(**EVERYTHING, dropout=0.0)).train()
        model.checkpointing = checkpointing
        torch.manual_seed(3)
        error(model(scene(64, 80), MASK, **objects(model))).backward()
        grads.append(model.queries.weight.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("changes", [{"refine": True, "box_bias": True}, EVERYTHING])
def test_a_padded_map_answers_as_it_does_alone(changes):
    """From the feature map on; the fourth row of the second image ends within a cell."""
    model = spread(small(**changes)).double()
    cells, seen = torch.randn(2, 32, 5, 7).double(), torch.zeros(2, 5, 7, dtype=torch.bool)
    seen[0], seen[1, :4, :4] = True, True
    extents = torch.tensor([[7.0, 5.0], [4.0, 3.5]])
    with torch.no_grad():
        together = model.detect(cells, seen, extents)
        alone = model.detect(cells[1:, :, :4, :4], extents=extents[1:])
    torch.testing.assert_close(together.logits[1], alone.logits[0])
    torch.testing.assert_close(together.boxes[1], alone.boxes[0])


def memory(rows: int, columns: int, extents: Tensor) -> Memory:
    seen = torch.ones(len(extents), rows, columns, dtype=torch.bool)
    nothing = torch.zeros(0, dtype=torch.float64)
    return Memory(nothing, nothing, None, seen, extents)


def test_the_box_bias_is_that_of_each_cell_and_box_by_itself():
    model = spread(small(box_bias=True)).double()
    bias: Any = model.decoder[0].get_submodule("box_bias")
    boxes, extents = torch.rand(2, 3, 4).double(), torch.tensor([[6.0, 4.0], [5.5, 3.25]]).double()
    result = bias(*edge_offsets(boxes, memory(4, 6, extents)))
    assert result.shape == (2, 8, 3, 24)
    for image, query, row, column in itertools.product(range(2), range(3), range(4), range(6)):
        x, y, width, height = boxes[image, query].tolist()
        columns, rows = extents[image].tolist()
        parts = []
        for at, centre, side, length in ((column, x, width, columns), (row, y, height, rows)):
            cells = [(centre + sign * side / 2) * length - (at + 0.5) for sign in (-1, 1)]
            parts.append(torch.tensor([math.copysign(math.log2(1 + abs(each)), each) for each in cells]).double())
        expected = bias.across(parts[0]) + bias.down(parts[1])
        # The positions are single precision.
        torch.testing.assert_close(result[image, :, query, row * 6 + column], expected, atol=1e-5, rtol=1e-5)


def test_the_box_bias_is_in_the_recorded_attention():
    model = spread(small(box_bias=True, two_stage=True))
    with torch.no_grad():
        with regard.capture(model) as tape:
            expected = model(scene(64, 80), MASK)
        biased = tape.attention("decoder.1.cross")
        for axis in ("down", "across"):
            model.get_parameter(f"decoder.1.box_bias.{axis}.2.weight").zero_()
        with regard.capture(model) as tape:
            model(scene(64, 80), MASK)
    assert tape.names == [step.layer for step in model.token_flow()]
    assert (biased - tape.attention("decoder.1.cross")).abs().max() > 0.01
    torch.testing.assert_close(biased.sum(-1), torch.ones(2, 6))
    assert expected.boxes.isfinite().all()


def test_boxes_are_refined_from_block_to_block():
    """By a head that moves every box to the right, on the scale of the inverse sigmoid."""
    for refine in (False, True):
        model = small(refine=refine, box_bias=not refine, decoder_depth=3)
        with torch.no_grad():
            model.get_parameter("boxes.4.bias")[0] = 0.5
        out = model.eval()(scene(64, 80))
        boxes = torch.cat((out.auxiliary_boxes, out.boxes[None]))
        assert model.anchors is not None
        learned = model.anchors.learned
        assert learned is not None
        start = learned.weight.sigmoid()
        for number, each in enumerate(boxes, start=1):
            steps = number if refine else 1
            torch.testing.assert_close(each[0, :, 0], (learned.weight[:, 0] + 0.5 * steps).sigmoid())
            torch.testing.assert_close(each[0, :, 1:], start[:, 1:])


def test_proposals_start_on_their_cells_and_the_best_become_anchors():
    model = small(two_stage=True, refine=True).eval()
    out = model(scene(64, 80), MASK)
    assert out.proposals is not None
    assert out.anchors is not None
    first = out.proposals.boxes[0].unflatten(0, (4, 5))
    # The image spans 60 columns and 50 rows of pixels, a cell 16.
    torch.testing.assert_close(first[1, 2], torch.tensor([40 / 60, 24 / 50, 0.1, 0.1]))
    assert out.proposals.valid[0].unflatten(0, (4, 5)).sum(0).tolist() == [4, 4, 4, 4, 0]
    torch.testing.assert_close(out.anchors, best_boxes(out.proposals, 6, no_object=True))
    kept = model(scene(64, 80), MASK, anchors=out.anchors)
    assert torch.equal(kept.boxes, out.boxes)
    moved = model(scene(64, 80), MASK, anchors=out.anchors.roll(1, 1))
    assert torch.equal(moved.boxes[:, 0, :2].sub(out.boxes[:, 5, :2]).abs() < 1e-4, torch.ones(2, 2).bool())


def test_the_best_boxes_are_taken_again_where_there_are_too_few():
    logits = torch.tensor([[[0.1, 5.0], [3.0, 0.0], [2.0, 1.0], [9.0, 9.0]]])
    boxes = torch.arange(4.0)[None, :, None].expand(1, 4, 4)
    valid = torch.tensor([[True, True, True, False]])
    best = best_boxes(Proposals(logits, boxes, valid), 5, no_object=False)
    assert best[0, :, 0].tolist() == [0, 1, 2, 0, 1]
    # With a last class for no object, the second leads: 95 % and 73 % and 1 %.
    best = best_boxes(Proposals(logits, boxes, valid), 2, no_object=True)
    assert best[0, :, 0].tolist() == [1, 2]


def test_centres_of_cells_are_shares_of_the_image():
    centres = cell_centres(memory(2, 3, torch.tensor([[2.5, 2.0]])))
    expected = [(x / 2.5, y / 2.0) for y in (0.5, 1.5) for x in (0.5, 1.5, 2.5)]
    torch.testing.assert_close(centres[0], torch.tensor(expected))


def test_fused_maps_by_hand():
    coarse, middle, fine = (
        torch.tensor([[[[1.0, 2.0]]]]),
        torch.tensor([[[[10.0, 20.0, 30.0]]]]),
        torch.ones(1, 1, 1, 5),
    )
    fine = fine * torch.tensor([100.0, 300.0, 500.0, 500.0, 700.0])
    at_16 = fuse([fine, middle, coarse], (8, 16, 32), 16)
    assert at_16.tolist() == [[[[10 + 200 + 1, 20 + 500 + 1, 30 + 700 + 2]]]]
    at_8 = fuse([fine, middle, coarse], (8, 16, 32), 8)
    assert at_8.tolist() == [[[[111, 311, 521, 521, 732]]]]


def denoised(model: DETR, boxes: Tensor, labels: Tensor) -> Detection:
    torch.manual_seed(5)
    return model(scene(64, 80), MASK, boxes=boxes, labels=labels)


def test_groups_of_denoising_queries_see_neither_each_other_nor_the_queries():
    model = spread(small(**EVERYTHING, dropout=0.0, frozen_norms=True)).train()
    assert model.anchors is not None
    assert model.anchors.denoiser is not None
    first, noise = denoised(model, BOXES, LABELS), model.anchors.denoiser.forward

    def change_second_group(boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        contents, anchors = (part.unflatten(1, (2, 6)).clone() for part in noise(boxes, labels))
        contents[:, 1] += 1
        anchors[:, 1] = 0.5
        return contents.flatten(1, 2), anchors.flatten(1, 2)

    model.anchors.denoiser.forward = change_second_group
    second = denoised(model, BOXES, LABELS)
    assert first.denoising is not None
    assert second.denoising is not None
    before, after = (out.denoising.logits.unflatten(2, (2, 6)) for out in (first, second) if out.denoising)
    torch.testing.assert_close(before[:, :, 0], after[:, :, 0], atol=1e-6, rtol=0)
    assert (before[:, :, 1] - after[:, :, 1]).abs().max() > 0.1
    for one, other in ((first.logits, second.logits), (first.auxiliary_boxes, second.auxiliary_boxes)):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    # Other queries do not matter to the groups either, and the answers are those of a model without denoising.
    with torch.no_grad():
        model.queries.weight *= torch.linspace(-1, 1, 32)
    third = denoised(model, BOXES, LABELS)
    assert third.denoising is not None
    torch.testing.assert_close(second.denoising.logits, third.denoising.logits, atol=1e-6, rtol=0)
    assert (second.logits - third.logits).abs().max() > 0.1
    torch.testing.assert_close(model(scene(64, 80), MASK).logits, third.logits, atol=1e-6, rtol=0)


def test_padded_objects_do_not_matter_to_other_denoising_queries():
    model = spread(small(**EVERYTHING, dropout=0.0, frozen_norms=True)).train()
    other = BOXES.clone()
    other[0, 2] = 0.5
    results = [denoised(model, boxes, LABELS).denoising for boxes in (BOXES, other)]
    first, second = (each.logits.unflatten(2, (2, 2, 3)) for each in results if each is not None)
    torch.testing.assert_close(first[:, 0, ..., :2, :], second[:, 0, ..., :2, :], atol=1e-6, rtol=0)
    assert results[0] is not None
    assert results[0].targets[0].tolist() == [0, 1, -1, -1, -1, -1] * 2
    assert results[0].used[0].tolist() == [True, True, False] * 4
    assert results[0].targets[1].tolist() == [0, 1, 2, -1, -1, -1] * 2


def test_noise_is_within_its_bounds_and_drawn_anew_from_torchs_generator():
    model = small(denoising=50).train()
    assert model.anchors is not None
    denoiser = model.anchors.denoiser
    assert denoiser is not None
    boxes = torch.tensor([[[0.5, 0.5, 0.2, 0.4]]])
    torch.manual_seed(0)
    contents, anchors = denoiser(boxes, torch.tensor([[2]]))
    near, far = anchors.unflatten(1, (50, 2)).unbind(2)
    corners = [torch.cat((b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2), -1) for b in (near, far, boxes)]
    halves = torch.tensor([0.1, 0.2, 0.1, 0.2])
    assert ((corners[0] - corners[2]).abs() <= halves + 1e-6).all()
    assert (far[..., 2:] >= 0).all()
    assert ((corners[1] - corners[2]).abs() > 0.99 * halves).any(-1).all()
    same = (contents == denoiser.labels.weight[2]).all(-1).float().mean()
    assert 0.6 < same < 0.95  # a quarter is drawn anew, and a fifth of that is the same
    torch.manual_seed(0)
    assert torch.equal(denoiser(boxes, torch.tensor([[2]]))[1], anchors)
    assert not torch.equal(denoiser(boxes, torch.tensor([[2]]))[1], anchors)


def test_sigmoid_heads_begin_with_rare_classes():
    model = small(classification="focal", two_stage=True)
    for head in ("head", "anchors.proposer.head"):
        torch.testing.assert_close(model.get_parameter(f"{head}.bias").sigmoid(), torch.full((5,), 0.01))


def test_wrong_fields_and_inputs_are_refused():
    for changes, words in (
        ({"fused_stages": 5}, "does not fit a ResNet of 4 stages"),
        ({"stride": 8}, "stride=8 is none of the feature maps"),
        ({"denoising": -1}, "no number of groups"),
        ({"classification": "hinge"}, "cannot be 'hinge'"),
    ):
        with pytest.raises(ConfigError, match=words):
            small(**changes)
    with pytest.raises(ConfigError, match="both, are for the denoising queries"):
        small(denoising=1).eval()(scene(64, 80), boxes=BOXES, labels=LABELS)
    with pytest.raises(ConfigError, match="both, are for the denoising queries"):
        small(refine=True).train()(scene(64, 80), boxes=BOXES, labels=LABELS)
    with pytest.raises(ConfigError, match="both, are for the denoising queries"):
        small(denoising=1).train()(scene(64, 80), labels=LABELS)
    with pytest.raises(ConfigError, match="anchors are for two_stage=True"):
        small(refine=True)(scene(64, 80), anchors=torch.rand(2, 6, 4))
