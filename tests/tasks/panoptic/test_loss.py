"""Losses of masks are transformers', of matched queries only, and the same for a batch in pieces."""

from typing import Any

import pytest
import torch
from transformers.loss.loss_for_object_detection import dice_loss, sigmoid_focal_loss

from regard.networks.detr.network import Detection
from regard.tasks.panoptic.loss import PanopticLoss


@pytest.fixture
def batch() -> tuple[Detection, dict[str, torch.Tensor]]:
    """Two images, six queries, up to three objects of three classes, masks of 4 × 5 cells."""
    logits, boxes = torch.randn(2, 2, 6, 4), torch.rand(2, 2, 6, 4)
    masks = torch.randn(2, 6, 4, 5, requires_grad=True)
    empty = torch.zeros(0)
    output = Detection(logits[-1], boxes[-1], logits[:1], boxes[:1], empty, empty, masks)
    labels = torch.tensor([[0, 2, -1], [1, -1, -1]])
    targets = {"boxes": torch.rand(2, 3, 4), "labels": labels, "masks": torch.rand(2, 3, 4, 5) > 0.5}
    return output, targets


def grad(loss: torch.Tensor, of: Any) -> torch.Tensor:
    return torch.autograd.grad(loss, of, retain_graph=True)[0]


def test_focal_and_dice_loss_are_those_of_transformers(batch):
    output, targets = batch
    objective = PanopticLoss()
    queries = objective.terms(output, targets).queries[-1]
    focal, dice = objective.mask_terms(output.masks, queries, targets)
    pairs = [(0, 0), (0, 1), (1, 0)]
    ours = torch.stack([output.masks[b, queries[b, t]].flatten() for b, t in pairs])
    wanted = torch.stack([targets["masks"][b, t].flatten().float() for b, t in pairs])
    torch.testing.assert_close(focal, sigmoid_focal_loss(ours, wanted, 3))
    torch.testing.assert_close(dice, dice_loss(ours, wanted, 3))
    touched = grad(objective.loss(output, targets), output.masks).abs().sum((2, 3)) > 0
    assert {(b, q) for b, q in touched.nonzero().tolist()} == {(b, queries[b, t].item()) for b, t in pairs}


def test_masks_are_added_to_the_loss_or_are_all_of_it(batch):
    output, targets = batch
    focal, dice = PanopticLoss().mask_terms(output.masks, PanopticLoss().terms(output, targets).queries[-1], targets)
    of_boxes = PanopticLoss(mask_weights=(0.0, 0.0)).loss(output, targets)
    torch.testing.assert_close(
        PanopticLoss(mask_weights=(2.0, 3.0)).loss(output, targets), of_boxes + 2 * focal + 3 * dice
    )
    torch.testing.assert_close(PanopticLoss(masks_only=True).loss(output, targets), focal + dice)


def test_a_batch_in_pieces_has_the_same_loss(batch):
    output, targets = batch
    targets["per_image"] = torch.full((2,), 1.5)
    whole = PanopticLoss().loss(output, targets)
    pieces = []
    for n in range(2):
        part = {name: tensor[n : n + 1] for name, tensor in targets.items()}
        own = Detection(
            output.logits[n : n + 1], output.boxes[n : n + 1], output.auxiliary_logits[:, n : n + 1],
            output.auxiliary_boxes[:, n : n + 1], output.features, output.tokens, output.masks[n : n + 1],
        )  # fmt: skip
        pieces.append(PanopticLoss().loss(own, part))
    torch.testing.assert_close(torch.stack(pieces).mean(), whole)
