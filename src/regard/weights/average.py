"""The mean of several checkpoints of one training, which often translates better than the last of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regard.errors import RunError
from regard.weights.notes import mismatch


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One state dict, each tensor the mean of theirs (Vaswani et al., section 6.1); counts are those of the last.

    >>> average([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}])
    {'w': tensor([2.5000])}
    """
    if not states:
        raise RunError("there are no checkpoints to average", do="give one at least")
    first, last = states[0], states[-1]
    for number, state in enumerate(states[1:], start=1):
        odd = [f"{name}: in only one of them" for name in sorted(set(first) ^ set(state))]
        odd += [
            f"{name}: {tuple(first[name].shape)} and {tuple(state[name].shape)}"
            for name in first
            if name in state and first[name].shape != state[name].shape
        ]
        if odd:
            raise mismatch(odd, f"checkpoints 0 and {number}")
    mean: dict[str, Tensor] = {}
    for name, tensor in last.items():
        if tensor.is_floating_point():
            total = torch.zeros_like(tensor, dtype=torch.float64)
            for state in states:
                total += state[name]
            mean[name] = (total / len(states)).to(tensor.dtype)
        else:
            mean[name] = tensor.clone()
    return mean
