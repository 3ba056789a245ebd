"""The loss around trained weights, along filter-normalised random directions (Li et al. 2018, "Visualizing the Loss
Landscape of Neural Nets", section 4).

A random direction is scaled filter by filter to the norm of the weights there, so that networks whose weights are
scaled differently can be compared. Biases, norms and all else with one axis keep their values, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.task import Objective

Weights = dict[str, Tensor]


def filter_normalised(weights: Mapping[str, Tensor], seed: int) -> Weights:
    """A random direction for every weight: each filter has the norm of the weights' own.

    A filter is what makes one output: a row of a matrix, a kernel of a convolution. Of tensors with one row only, such
    as position embeddings (1, tokens, width), it is what belongs to one token. Those with one axis get zeros.

    >>> weights = {"layer.weight": torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "layer.bias": torch.ones(2)}
    >>> direction = filter_normalised(weights, seed=0)
    >>> direction["layer.weight"].norm(dim=1).tolist(), direction["layer.bias"].tolist()
    ([5.0, 0.0], [0.0, 0.0])
    """
    draw, made = torch.Generator().manual_seed(seed), {}
    for name, weight in weights.items():
        drawn = torch.randn(weight.shape, generator=draw).to(weight)  # on the CPU: the same on every device
        if weight.ndim < 2:
            made[name] = torch.zeros_like(weight)
            continue
        rows = weight.shape[: max(1, weight.ndim - 1)] if weight.shape[0] == 1 else weight.shape[:1]
        flat = drawn.reshape(*rows, -1), weight.detach().reshape(*rows, -1)
        norms = [part.norm(dim=-1, keepdim=True) for part in flat]
        made[name] = (flat[0] * norms[1] / norms[0].clamp_min(1e-30)).reshape(weight.shape)
    return made


class Landscape:
    """The loss of a model at points around its weights; a `with` block puts these back.

    The model is in evaluation mode: no dropout, and norms with the statistics they have learnt. What a forward pass
    draws, such as the patches that a masked autoencoder hides, is the same at every point.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, batches: Sequence[Batch], directions: Sequence[Weights],
        seed: int = 0,
    ):  # fmt: skip
        self.model, self.objective, self.batches, self.directions = model, objective, batches, directions
        self.seed = seed
        self.centre = {name: p.detach().clone() for name, p in model.named_parameters()}

    def __enter__(self) -> Landscape:
        self.was_training = self.model.training
        self.model.eval()
        return self

    def __exit__(self, *error: object) -> None:
        self.move([0.0] * len(self.directions))
        self.model.train(self.was_training)

    @torch.no_grad()
    def move(self, steps: Sequence[float]) -> None:
        """Set the weights to the centre plus so much of each direction."""
        for name, parameter in self.model.named_parameters():
            there = self.centre[name].clone()
            for step, direction in zip(steps, self.directions, strict=True):
                there += step * direction[name]
            parameter.copy_(there)

    @torch.no_grad()
    def loss(self, steps: Sequence[float]) -> float:
        """The mean loss over the batches there, each by its number of targets."""
        self.move(steps)
        total = count = 0.0
        with torch.random.fork_rng(devices=[] if not torch.cuda.is_available() else None):
            for number, batch in enumerate(self.batches):
                torch.manual_seed((self.seed << 32) + number)
                loss = self.objective.loss(self.objective.forward(self.model, batch), batch.targets)
                weight = float(self.objective.num_targets(batch.targets))
                total, count = total + float(loss) * weight, count + weight
        return total / max(count, 1e-30)


def grid(points: int, span: float, axes: int) -> tuple[np.ndarray, list[tuple[float, ...]]]:
    """Where the loss is computed: the steps along one axis, and all points, the one in the middle first.

    >>> steps, places = grid(3, 0.5, 2)
    >>> steps.tolist(), places[0], len(places)
    ([-0.5, 0.0, 0.5], (0.0, 0.0), 9)
    """
    steps = np.linspace(-span, span, points)
    places = [tuple(float(n) for n in place) for place in np.array(np.meshgrid(*[steps] * axes)).reshape(axes, -1).T]
    return steps, sorted(places, key=lambda place: max(map(abs, place)))


def fill(
    landscape: Landscape, places: Sequence[tuple[float, ...]], known: dict[tuple[float, ...], float],
    after: Callable[[int], bool],
) -> dict[tuple[float, ...], float]:  # fmt: skip
    """The loss at every place that is not known yet; stops where `after`, told how many there are, says so."""
    with landscape:
        for place in places:
            if place not in known:
                known[place] = landscape.loss(place)
                if after(len(known)):
                    break
    return known
