"""The set prediction loss is transformers' for DETR, Deformable DETR and RT-DETR."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.loss import loss_deformable_detr, loss_for_object_detection, loss_rt_detr

from regard.data.batch import Batch
from regard.networks.detr.config import configure
from regard.networks.detr.network import Detection
from regard.tasks.objects.loss import SetLoss
from regard.tasks.objects.options import SetOptions

CLASSES = 7
COUNTS = (3, 0, 5)
"""Objects of the images of a batch."""
SETTINGS = SimpleNamespace(
    class_cost=1, bbox_cost=5, giou_cost=2, num_labels=CLASSES, eos_coefficient=0.1, auxiliary_loss=True,
    decoder_layers=4, bbox_loss_coefficient=5, giou_loss_coefficient=2, focal_alpha=0.25,
    matcher_class_cost=1, matcher_bbox_cost=5, matcher_giou_cost=2, use_focal_loss=True, matcher_alpha=0.25,
    matcher_gamma=2.0, weight_loss_vfl=1, weight_loss_bbox=5, weight_loss_giou=2, focal_loss_alpha=0.75,
    focal_loss_gamma=2.0,
)  # fmt: skip


def predicted(images: int, outputs: int, blocks: int = 4, queries: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(blocks, images, queries, outputs, requires_grad=True)
    return logits, torch.rand(blocks, images, queries, 4).mul(0.8).add(0.05).requires_grad_()


def detection(logits: torch.Tensor, boxes: torch.Tensor) -> Any:
    nothing = torch.zeros(0)
    found = Detection(logits[-1], boxes[-1], logits[:-1], boxes[:-1], nothing, nothing)
    return SimpleNamespace(**found._asdict())


def objects(counts: tuple[int, ...]) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Targets as ours, with padding, and as theirs."""
    boxes, labels = torch.zeros(len(counts), 8, 4), torch.full((len(counts), 8), -1)
    theirs = list[dict[str, torch.Tensor]]()
    for n, count in enumerate(counts):
        boxes[n, :count] = torch.rand(count, 4) * 0.5 + 0.1
        labels[n, :count] = torch.randint(CLASSES, (count,))
        theirs.append({"boxes": boxes[n, :count], "class_labels": labels[n, :count]})
    return {"boxes": boxes, "labels": labels}, theirs


def oracle(
    kind: str,
    logits: torch.Tensor,
    boxes: torch.Tensor,
    theirs: list[dict[str, torch.Tensor]],
    settings: Any = SETTINGS,
) -> torch.Tensor:
    if kind == "varifocal":
        found = [{"logits": one, "pred_boxes": box} for one, box in zip(logits, boxes, strict=True)]
        losses = loss_rt_detr.RTDetrLoss(settings)({**found[-1], "auxiliary_outputs": found[:-1]}, theirs)
        return torch.stack(list(losses.values())).sum()
    if kind == "focal":
        function: Any = loss_deformable_detr.DeformableDetrForObjectDetectionLoss
    else:
        function = loss_for_object_detection.ForObjectDetectionLoss
    return function(logits[-1], theirs, "cpu", boxes[-1], settings, logits, boxes)[0]


@pytest.mark.parametrize("counts", [COUNTS, (0, 0), (8,)])
@pytest.mark.parametrize("kind", ["softmax", "focal", "varifocal"])
def test_against_transformers_with_auxiliary_losses(kind, counts):
    logits, boxes = predicted(len(counts), CLASSES + (kind == "softmax"))
    ours, theirs = objects(counts)
    loss = SetLoss(kind).loss(detection(logits, boxes), ours)
    wanted = oracle(kind, logits, boxes, theirs)
    torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(value, (logits, boxes), retain_graph=True) for value in (loss, wanted)]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "published"), [("softmax", 1.0), ("focal", 2.0), ("varifocal", 1.0)])
def test_the_class_term_has_its_published_weight_or_the_one_asked_for(kind, published):
    config, targets = configure("detr_nano", classes=CLASSES, classification=kind), objects(COUNTS)[0]
    found = detection(*predicted(3, config.logits))
    plain, heavy = SetLoss.of(config), SetLoss.of(config, SetOptions(class_weight=12.0))
    assert plain.weights == (published, 5.0, 2.0)
    assert plain.cost == heavy.cost == ((1.0 if kind == "softmax" else 2.0), 5.0, 2.0)
    classes = plain.terms(found, targets).classes.sum()
    torch.testing.assert_close(heavy.loss(found, targets) - plain.loss(found, targets), (12 - published) * classes)


def test_a_heavier_class_term_against_transformers():
    logits, boxes = predicted(3, CLASSES)
    ours, theirs = objects(COUNTS)
    loss = SetLoss.of(configure("detr_nano", classification="varifocal"), SetOptions(class_weight=12.0))
    settings = SimpleNamespace(**vars(SETTINGS) | {"weight_loss_vfl": 12, "matcher_class_cost": 2})
    wanted = oracle("varifocal", logits, boxes, theirs, settings)
    torch.testing.assert_close(loss.loss(detection(logits, boxes), ours), wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "varifocal"])
def test_a_batch_in_pieces_has_the_loss_of_the_whole(kind):
    logits, boxes = predicted(3, CLASSES + (kind == "softmax"))
    targets, _ = objects(COUNTS)
    whole = SetLoss(kind).loss(detection(logits, boxes), targets)
    targets["per_image"] = torch.full((3,), sum(COUNTS) / 3)
    parts, inputs = Batch({"image": torch.zeros(3)}, targets).chunk(3), zip(logits.split(1, 1), boxes.split(1, 1))  # noqa: B905
    losses = [SetLoss(kind).loss(detection(*own), part.targets) for own, part in zip(inputs, parts, strict=True)]
    torch.testing.assert_close(torch.stack(losses).mean(), whole)


def test_denoising_queries_have_rt_detrs_loss_and_padding_counts_nothing():
    targets, theirs = objects((4, 4))
    logits, boxes = predicted(2, CLASSES)
    noisy_logits, noisy_boxes = predicted(2, CLASSES, queries=16)  # two groups of four objects and four of noise
    numbers = torch.tensor([0, 1, 2, 3, -1, -1, -1, -1] * 2).expand(2, -1)
    known = SimpleNamespace(
        logits=noisy_logits, boxes=noisy_boxes, targets=numbers, used=torch.ones(2, 16, dtype=torch.bool)
    )
    found, loss = detection(logits, boxes), SetLoss("varifocal")
    plain, found.denoising = loss.loss(found, targets), known
    each = [{"logits": one, "pred_boxes": box} for one, box in zip(noisy_logits, noisy_boxes, strict=True)]
    where = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])
    about = {"dn_num_group": 2, "dn_positive_idx": (where, where)}
    made = {"logits": logits[-1], "pred_boxes": boxes[-1], "dn_auxiliary_outputs": each, "denoising_meta_values": about}
    losses = loss_rt_detr.RTDetrLoss(SETTINGS)(made, theirs)
    wanted = sum(value for name, value in losses.items() if "_dn_" in name)
    torch.testing.assert_close(loss.loss(found, targets) - plain, wanted, atol=1e-4, rtol=1e-5)
    known.used = numbers < 0
    known.targets = torch.full_like(numbers, -1)
    assert loss.loss(found, targets) - plain < wanted
    known.used = torch.zeros_like(known.used)
    torch.testing.assert_close(loss.loss(found, targets), plain)


def test_denoising_with_softmax_is_the_weighted_mean_over_queries_that_count():
    targets, _ = objects((2, 1))
    logits, boxes = predicted(2, CLASSES + 1, blocks=1, queries=16)
    numbers = torch.cat((torch.arange(8), torch.full((8,), -1))).expand(2, -1)
    used = (targets["labels"] >= 0).repeat(1, 2)
    known = SimpleNamespace(logits=logits, boxes=boxes, targets=torch.where(used, numbers, -1), used=used)
    found, loss = detection(*predicted(2, CLASSES + 1)), SetLoss(weights=(1.0, 0.0, 0.0))
    plain, found.denoising = loss.loss(found, targets), known
    wanted = torch.cat((targets["labels"], torch.full((2, 8), CLASSES)), dim=1)[used]
    weight = torch.ones(CLASSES + 1)
    weight[-1] = 0.1
    expected = torch.nn.functional.cross_entropy(logits[0][used], wanted, weight)
    torch.testing.assert_close(loss.loss(found, targets) - plain, expected)


def test_proposals_are_the_tokens_of_least_cost_and_each_has_one_object():
    targets, _ = objects((2,))
    targets["boxes"][0, :2] = torch.tensor([[0.2, 0.2, 0.2, 0.2], [0.7, 0.7, 0.2, 0.2]])
    logits, boxes = torch.zeros(1, 1, 6, CLASSES), torch.full((1, 1, 6, 4), 0.2)
    boxes[0, 0, 2:5, :2], boxes[0, 0, 5, :2] = 0.7, 0.45
    loss = SetLoss("focal", many=2)
    boxes[0, 0, 4, 2:] = 0.3  # farther than the other two
    owners = loss._nearest(loss.costs(logits, boxes, targets), targets["labels"] >= 0)
    assert owners.tolist() == [[[0, 0, 1, 1, -1, -1]]]
    found = detection(*predicted(1, CLASSES))
    valid = torch.ones(1, 6, dtype=torch.bool)
    plain, found.proposals = loss.loss(found, targets), SimpleNamespace(logits=logits[0], boxes=boxes[0], valid=valid)
    assert loss.loss(found, targets) > plain
    padded = SimpleNamespace(
        logits=torch.cat((logits[0], torch.full((1, 2, CLASSES), 5.0)), dim=1),
        boxes=torch.cat((boxes[0], targets["boxes"][:, :2]), dim=1),  # at the objects, but padding
        valid=torch.tensor([[True] * 6 + [False] * 2]),
    )
    expected, found.proposals = loss.loss(found, targets), padded
    torch.testing.assert_close(loss.loss(found, targets), expected)
    none = {"boxes": targets["boxes"], "labels": torch.full((1, 8), -1)}
    assert torch.isfinite(loss.loss(found, none))


def test_a_network_that_diverged_has_a_loss_that_is_no_number():
    logits, boxes = predicted(3, CLASSES + 1)
    loss = SetLoss().loss(detection(logits * torch.nan, boxes), objects(COUNTS)[0])
    assert not torch.isfinite(loss)


def test_the_network_gets_the_targets_only_for_denoising():
    seen = list[tuple[Any, ...]]()
    batch = Batch({"image": torch.zeros(3), "mask": torch.zeros(3)}, objects(COUNTS)[0])
    for denoising in (False, True):
        SetLoss(denoising=denoising).forward(lambda *given, **named: seen.append((len(given), *named)), batch)
    assert seen == [(2,), (2, "boxes", "labels")]


def test_the_backward_pass_has_no_operation_that_waits_for_a_gpu():
    """A CUDA graph could not record one: the backward pass of `prod` looks for zeros on the host."""
    logits, boxes = predicted(len(COUNTS), CLASSES + 1)
    seen, left = set[Any](), [SetLoss().loss(detection(logits, boxes), objects(COUNTS)[0]).grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [parent for parent, _ in node.next_functions]
    names = {node.name() for node in seen}
    assert "MulBackward0" in names
    assert not {name for name in names if name.startswith(("Prod", "MaskedSelect", "IndexBackward", "Nonzero"))}
