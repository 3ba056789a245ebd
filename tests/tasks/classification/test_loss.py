"""Losses are their formulas."""

from types import SimpleNamespace

import torch

from regard.tasks.classification.loss import CrossEntropy

LOGITS, TARGETS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]]), torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]])


def test_binary_cross_entropy_asks_for_each_class_by_itself():
    for smoothing in (0.0, 0.3):
        total = 0.0
        for row, goal in zip(LOGITS, TARGETS, strict=True):
            for logit, share in zip(row, goal, strict=True):
                p, t = torch.sigmoid(logit), share * (1 - smoothing) + smoothing / 3
                total -= t * torch.log(p) + (1 - t) * torch.log(1 - p)
        loss = CrossEntropy(smoothing, "bce").loss(SimpleNamespace(logits=LOGITS), {"probabilities": TARGETS})
        torch.testing.assert_close(loss, total / 6)


def test_cross_entropy_is_over_all_classes():
    by_hand = -(TARGETS * LOGITS.log_softmax(1)).sum() / 2
    loss = CrossEntropy().loss(SimpleNamespace(logits=LOGITS), {"probabilities": TARGETS})
    torch.testing.assert_close(loss, by_hand)
