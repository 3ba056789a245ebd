"""The randomisation check: a map must change when the model's weights are random.

Adebayo et al., "Sanity checks for saliency maps" (2018): a method whose map stays the same shows edges of the picture,
not what the model learnt.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from regard.networks.base import Network

TWINS = 2
MAX_CORRELATION = 0.5


@torch.no_grad()
def random_twins(model: Network, count: int = TWINS, seed: int = 0) -> list[Network]:
    """Copies of the model whose weights are random, with the mean and spread of the learnt ones, tensor by tensor."""
    twins = []
    for number in range(count):
        twin = deepcopy(model).eval()
        draw = torch.Generator().manual_seed(seed + number)
        for parameter in twin.parameters():
            if parameter.numel() > 1:
                noise = torch.randn(parameter.shape, generator=draw).to(parameter.device)
                parameter.copy_(parameter.mean() + parameter.std() * noise)
        for module in twin.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        twins.append(twin)
    return twins


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation of two maps, ties ranked by their mean; of a constant map, zero."""
    a, b = (_ranks(t) - (len(t) - 1) / 2 for t in (one, other))
    scale = (a.square().sum() * b.square().sum()).sqrt()
    return float((a * b).sum() / scale) if scale > 0 else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, group, counts = torch.unique(values.double(), return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double() - 1
    return (last - (counts.double() - 1) / 2)[group]
