"""From recorded attention to one number a token: how much each place had to do with the output."""

import torch
from torch import Tensor

from regard.geometry import TokenMap
from regard.nn import Tape


def raw_attention(tape: Tape, where: TokenMap, *, layer: int = -1, head: int | None = None) -> Tensor:
    """Where the output token looked in one layer (the last, if not said): (batch, places).

    One head, or the mean over heads.
    """
    return _read(tape.attention(layer, head), where)


def rollout(tape: Tape, where: TokenMap, *, identity: bool = True) -> Tensor:
    """Attention rollout (Abnar & Zuidema, 2020): attention through all layers to the input, (batch, places).

    Heads are averaged, residual connections are counted as looking at oneself, A = (W + I) / 2, and the
    layers are multiplied. `identity=False` leaves the I out, as the ViT paper's appendix D.8 describes.
    """
    joint: Tensor | None = None
    for layer in range(len(tape)):
        weights = tape.attention(layer)
        if identity:
            weights = (weights + torch.eye(weights.shape[-1], device=weights.device)) / 2
        joint = weights if joint is None else weights @ joint
    return _read(tape.attention(0) if joint is None else joint, where)


def _read(weights: Tensor, where: TokenMap) -> Tensor:
    """The row that the prediction is read from, over the tokens that have a place.

    That is the class token's; without one, the mean over the rows that are pooled.
    """
    placed = slice(len(where.prefix), None)
    if where.prefix[:1] == ("class",):
        return weights[:, 0, placed]
    return weights[:, placed, placed].mean(dim=1)
