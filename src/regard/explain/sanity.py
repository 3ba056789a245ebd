"""The randomisation check: a map must change when the model's weights are random.

Adebayo et al., "Sanity checks for saliency maps" (2018): a method whose map stays the same shows edges of the picture,
not what the model learnt.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from regard.networks.base import Network

MAX_CORRELATION = 0.5
TWINS = 2
"""Networks with random weights that a map is compared with."""


@torch.no_grad()
def random_twins(model: Network, count: int = TWINS, seed: int = 0) -> list[Network]:
    """Copies of the model with random weights that have the mean and standard deviation of each trained tensor."""
    twins = []
    for number in range(count):
        twin = deepcopy(model).eval()
        draw = torch.Generator().manual_seed(seed + number)
        for parameter in twin.parameters():
            if parameter.numel() > 1:
                noise = torch.randn(parameter.shape, generator=draw).to(parameter.device)
                parameter.copy_(parameter.mean() + parameter.std() * noise)
        for module in twin.modules():
            if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
                module.reset_running_stats()
        twins.append(twin)
    return twins


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation of two maps, with mean ranks for ties; zero if a map is constant."""
    from scipy.stats import spearmanr

    if one.min() == one.max() or other.min() == other.max():
        return 0.0
    result: Any = spearmanr(one.numpy(), other.numpy())
    return float(result.statistic)
