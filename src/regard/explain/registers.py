"""Test-time registers: outlier activations are moved from patch tokens to added tokens, without training.

Jiang et al., "Vision Transformers Don't Need Trained Registers" (2025): in networks that have outlier
tokens, a few neurons of the MLPs make them. Their activation is moved to a token that was added for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explain.inspect import TokenNorms, blocks, hooked, outlier_threshold, token_norms
from regard.networks.base import Network
from regard.networks.vit.network import ViT


class RegisterNeuron(NamedTuple):
    """A hidden neuron of a block's MLP, and its mean absolute activation at outlier tokens."""

    layer: int
    neuron: int
    activation: float


@torch.inference_mode()
def find_register_neurons(model: Network, x: Tensor, top: int = 10) -> list[RegisterNeuron]:
    """The `top` neurons with the largest activation, after the activation function, at outlier tokens.

    The paper's algorithm 1: the mean of |activation| over an image's outliers, then over the images that
    have any, in the layers up to the one where outliers appear. Here that is the first block after which
    the outliers' median norm exceeds that block's own threshold. Without outliers the list is empty.
    """
    _require_vit(model)
    norms = token_norms(model, x)
    marked = norms.outliers.any(1)
    if not marked.any():
        return []
    first, last = len(norms.where.prefix), appears(norms)
    outliers, means = norms.outliers[marked].to(x.device), []

    def keep(_module: nn.Module, _args: object, hidden: Tensor) -> None:
        at = outliers[..., None]
        means.append(((hidden[:, first:].abs() * at).sum(1) / at.sum(1)).mean(0))

    with hooked([(block.mlp.act, keep) for block in blocks(model)[: last + 1]]):
        model(x[marked.to(x.device)])
    ranked = [(value, layer, neuron) for layer, row in enumerate(means) for neuron, value in enumerate(row.tolist())]
    ranked.sort(key=lambda entry: -entry[0])
    return [RegisterNeuron(layer, neuron, value) for value, layer, neuron in ranked[:top]]


def appears(norms: TokenNorms) -> int:
    """The first layer after which most of the final outliers are outliers already."""
    for layer, placed in enumerate(norms.placed):
        if placed[norms.outliers].median() > outlier_threshold(placed):
            return layer
    return len(norms.norms) - 1


def with_test_time_registers(model: Network, neurons: Sequence[RegisterNeuron], count: int = 1) -> ViT:
    """A copy of a ViT with `count` more registers of zeros, to which the activations of the given neurons are moved.

    For each neuron, every added register gets the largest activation that any placed token has, and the
    placed tokens get zero. Class token and trained registers keep theirs. An added register takes part in
    attention like any token, so even without neurons each query gives it some weight and the output differs
    slightly from the original. With count=0 and no neurons it is the same.

    >>> import regard
    >>> model = regard.create("vit_nano", classes=3, size=16)
    >>> changed = with_test_time_registers(model, find_register_neurons(model, torch.rand(2, 3, 16, 16)), count=2)
    >>> changed.token_map().prefix
    ('class', 'register 0', 'register 1')
    """
    model = _require_vit(model)
    if count < 0 or (neurons and not count):
        raise ConfigError(f"{count} registers cannot take what {len(neurons)} neurons do", do="add at least one")
    copy, old = deepcopy(model), model.config.registers
    copy.config = replace(model.config, registers=old + count)
    if count:
        zeros = model.norm.weight.new_zeros(count, model.config.width)
        copy.registers = nn.Parameter(zeros if model.registers is None else torch.cat([model.registers, zeros]))
        if model.rope is not None:
            copy.rope = copy.rope_on(copy.positions.grid).to(model.rope)
    first = model.config.prefix + old
    spare = slice(first, first + count)
    for layer in sorted({neuron.layer for neuron in neurons}):
        moved = [neuron.neuron for neuron in neurons if neuron.layer == layer]
        blocks(copy)[layer].mlp.act.register_forward_hook(_mover(moved, spare))
    return copy


def _require_vit(model: Network) -> ViT:
    if not isinstance(model, ViT):
        raise ConfigError(f"test-time registers are for ViT, not for {type(model).__name__}")
    return model


def _mover(neurons: list[int], spare: slice) -> Callable[..., Tensor]:
    def move(_module: nn.Module, _args: object, hidden: Tensor) -> Tensor:
        if hidden.shape[1] <= spare.stop:  # class_token_only: what the head reads, which stays unchanged
            return hidden
        hidden = hidden.clone()
        hidden[:, spare, neurons] = hidden[:, spare.stop :, neurons].amax(1, keepdim=True)
        hidden[:, spare.stop :, neurons] = 0
        return hidden

    return move
