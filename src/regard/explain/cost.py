"""How long an explanation takes: the number of forward passes is known before it begins."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch

from regard.explain.explanation import DEFAULT, METHODS
from regard.explain.faithfulness import check_passes
from regard.explain.methods import MOST_STEPS, STEPS, Case
from regard.explain.sanity import TWINS
from regard.networks.base import Network

GRADIENT = 3
"""A pass forward and backward takes about as long as this many forward passes."""


class Passes(NamedTuple):
    """Forward passes of one explanation: the prediction and the map at least and at most, and the checks of the map."""

    least: int
    most: int
    checks: int


def passes(model: Network, method: str = DEFAULT, **options: Any) -> Passes:
    """What a method needs of a network, for an input of its own size; a pass with gradients counts as three."""
    config = model.config
    case = Case(model, torch.zeros(1, config.channels, *config.size), lambda z: model(z).logits[:, 0])
    least = most = twin = 1 if METHODS[method].reads == "attention" else GRADIENT
    if method == "occlusion":
        window = options.get("window") or 1
        least = most = twin = 1 + math.prod(side - window + 1 for side in case.where.grid)
    if method == "integrated_gradients":
        steps = options.get("steps") or STEPS
        least = twin = 2 + GRADIENT * steps
        doubled = 0 if options.get("steps") else 2 * MOST_STEPS - 2 * STEPS  # 64 + 128 + 256
        most = least + GRADIENT * doubled
    places = METHODS[method].where(case, {"layer": -1} | options).places
    return Passes(1 + least, 1 + most, check_passes(places) + TWINS * twin)


@torch.inference_mode()
def pass_seconds(model: Network) -> float:
    """Seconds of one forward pass of one input; the first one, which also sets things up, does not count."""
    config = model.config
    x = torch.zeros(1, config.channels, *config.size, device=next(model.parameters()).device)
    model(x)
    begun = time.monotonic()
    model(x)
    return time.monotonic() - begun
