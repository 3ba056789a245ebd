"""AdamW for the weights, a warmed-up cosine for its rate, and a moving average of where they went."""

import math

import torch
from torch import nn

# Single vectors and tokens are not weight matrices: decaying them only moves the origin.
_UNDECAYED = ("class_token", "registers", "positions")


def make_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrix = parameter.ndim > 1 and not any(part in _UNDECAYED for part in name.split("."))
            (decayed if matrix else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    # A second moment over 100 steps, not 1,000: many runs here are only a few thousand steps long.
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=(0.9, 0.99), fused=True)


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Linear from 0 over the first `warmup` share of steps, then half a cosine down to 0.

    >>> [round(learning_rate(s, 100, 1.0, 0.1), 3) for s in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    rise = round(warmup * steps)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1)))


class Average:
    """An exponential moving average of a model's weights; young averages forget faster."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self.source = [t for t in model.state_dict().values() if t.is_floating_point()]
        self.shadow = [t.detach().clone() for t in self.source]

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 10))
        torch._foreach_lerp_(self.shadow, self.source, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with the average; a second call undoes it."""
        for live, mean in zip(self.source, self.shadow, strict=True):
            held = live.clone()
            live.copy_(mean)
            mean.copy_(held)
