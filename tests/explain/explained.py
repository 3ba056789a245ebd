"""An explanation of a network's first class, without a checkpoint around the network."""

import torch

from regard.explain import Explanation, explain
from regard.explain.explanation import Checks
from regard.networks.base import Network
from regard.tasks.classification.loss import probabilities
from regard.tasks.classification.predictor import Prediction


def explain_class(model: Network, x: torch.Tensor, method: str, checks: Checks = "all") -> Explanation:
    return explain(
        model, x, x[0], prediction=Prediction("x", "a", {"a": 1.0}), target="a", method=method, checks=checks,
        score=lambda output: output.logits[:, 0], answer=lambda output: probabilities(output)[:, 0],
    )  # fmt: skip
