"""Seven explanation methods, each giving one value per token for one score: the target's logit.

- Four use the recorded attention and its gradients only.
- Three (Grad-CAM, integrated gradients, occlusion) also suit networks without attention.
- None needs a layer name or a reshape function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.geometry import TokenMap
from regard.networks.base import Network, Output
from regard.nn import MultiHeadAttention, Tape, capture


@dataclass(frozen=True)
class Case:
    """One input to explain: a prepared input x (1, C, *size), and the function that scores it."""

    model: Network
    x: Tensor
    score: Callable[[Tensor], Tensor]
    """The target's logit (B,) for inputs (B, C, *size), by this model."""
    say: Callable[[str], None] = lambda text: None
    """Told how far the work has come."""

    @property
    def where(self) -> TokenMap:
        return self.model.token_map(tuple(self.x.shape[2:]))

    def tape(self) -> Tape:
        """The attention of one forward pass."""
        with torch.inference_mode(), capture(self.model) as tape:
            self.score(self.x)
        return tape

    def gradient_tape(self) -> Tape:
        """The attention of one forward pass, and the score's gradient with respect to it."""
        x = self.x.detach().clone().requires_grad_()
        with torch.enable_grad(), capture(self.model, gradients=True) as tape:
            torch.autograd.grad(self.score(x).sum(), x)
        return tape


class Attribution(NamedTuple):
    """One value per placed token, (1, places); of integrated gradients, also how well they add up."""

    values: Tensor
    steps: int | None = None
    """Points on the path."""
    completeness_error: float | None = None
    """How far the values' sum is from the score's difference between input and mean picture, as a share of it."""


def require_gradients(model: Network) -> None:
    """An error for a model whose weights torch has barred from gradients."""
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ConfigError(
            "the model was made inside torch.inference_mode, where weights take no gradients",
            do="make or load it outside; explain and visualise themselves may be called inside",
        )


def raw_attention(tape: Tape, where: TokenMap, *, layer: int = -1, head: int | None = None) -> Tensor:
    """Attention of the output token in one layer (default: the last): (batch, places).

    One head, or the mean over heads.
    """
    return _read(tape.attention(layer, head), where)


def rollout(tape: Tape, where: TokenMap, *, identity: bool = True) -> Tensor:
    """Attention rollout (Abnar & Zuidema, 2020): attention through all layers to the input, (batch, places).

    Heads are averaged, residual connections count as attention to oneself, A = (W + I) / 2, and the
    layers are multiplied. `identity=False` leaves out I, as in the ViT paper's appendix D.8.
    """
    return _read(_rolled(tape, tape.attention, identity), where)


def gradient_rollout(tape: Tape, where: TokenMap) -> Tensor:
    """Rollout of attention weighted by its gradient for the target: (batch, places).

    W is the mean over heads of (∇A ⊙ A)⁺, with rows normalised to sum to one. A row of zeros becomes attention to
    itself. Then as in `rollout`.
    """

    def weights(layer: int) -> Tensor:
        evidence = _positive_evidence(tape, layer)
        total, itself = evidence.sum(-1, keepdim=True), torch.eye(evidence.shape[-1], device=evidence.device)
        return torch.where(total > 0, evidence / total.clamp_min(1e-30), itself)

    return _read(_rolled(tape, weights), where)


def relevance(tape: Tape, where: TokenMap) -> Tensor:
    """Chefer, Gur & Wolf (ICCV 2021), equations 5 and 6 for self-attention: (batch, places).

    R starts as the identity; each layer adds Ā R, where Ā is the mean over heads of (∇A ⊙ A)⁺.
    """
    joint: Tensor | None = None
    for layer in range(len(tape)):
        evidence = _positive_evidence(tape, layer)
        if joint is None:
            joint = torch.eye(evidence.shape[-1], device=evidence.device).expand_as(evidence)
        joint = joint + evidence @ joint
    joint = _require_layers(joint, tape)
    # Without the initial identity, which only says that every token is itself.
    return _read(joint - torch.eye(joint.shape[-1], device=joint.device), where)


def grad_cam(case: Case) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) on the tokens that enter the last attention: (1, places).

    After that attention only the tokens that the head reads have a gradient, so this is the last layer where every
    patch has one. Without attention it is the original method, on the cells of the last feature map.
    Channels are weighted by their mean gradient over the patch tokens. Negative values are evidence against
    the target; a map leaves them out, which is Grad-CAM's ReLU.
    """
    entered: list[Tensor] = []
    modules, here = [m for m in case.model.modules() if isinstance(m, MultiHeadAttention)], get_ident()

    def keep(_: object, inputs: tuple[Tensor, ...]) -> None:
        if get_ident() == here:  # other threads may run the model too
            entered[:] = inputs[:1]

    def keep_tokens(_: object, inputs: object, output: Output) -> None:
        if get_ident() == here:
            entered[:] = [output.tokens]

    handles = [m.register_forward_pre_hook(keep) for m in modules]
    if not modules:
        handles = [case.model.register_forward_hook(keep_tokens)]
    try:
        x = case.x.detach().clone().requires_grad_()
        with torch.enable_grad():
            score = case.score(x).sum()
    finally:
        for handle in handles:
            handle.remove()
    (tokens,) = entered
    gradients = torch.autograd.grad(score, tokens)[0]
    placed = slice(len(case.where.prefix), None)
    tokens, gradients = tokens[:, placed].detach(), gradients[:, placed]
    return (tokens * gradients.mean(1, keepdim=True)).sum(-1)


STEPS, MOST_STEPS, ENOUGH = 32, 256, 0.01
"""Integrated gradients take 32 steps, twice as many and again up to 256, until they add up to within one percent."""


def integrated_gradients(case: Case, *, steps: int | None = None, batch: int = 16) -> Attribution:
    """Integrated gradients (Sundararajan et al., 2017) from the mean picture to the input.

    Gauss–Legendre in `steps` points, or as many as are needed. Summed over each token's pixels and channels; all
    together they add up to the score's difference between the input and the mean picture (completeness).
    """
    if steps is not None and steps < 1:
        raise ConfigError(f"steps={steps} is too few", do="give at least 1")
    with torch.inference_mode():
        difference = float(case.score(case.x) - case.score(torch.zeros_like(case.x)))
    count = steps or STEPS
    while True:
        values = _integrated(case, count, batch)
        error = abs(float(values.sum()) - difference) / max(abs(difference), 1e-6)
        if steps is not None or error <= ENOUGH or count >= MOST_STEPS:
            return Attribution(values, count, error)
        count *= 2


def _integrated(case: Case, steps: int, batch: int) -> Tensor:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    points = torch.as_tensor((nodes + 1) / 2, dtype=case.x.dtype, device=case.x.device)
    weights = torch.as_tensor(weights / 2, dtype=case.x.dtype, device=case.x.device)
    total = torch.zeros_like(case.x)
    shape = (-1, *[1] * (case.x.ndim - 1))
    for number, (point, weight) in enumerate(zip(points.split(batch), weights.split(batch), strict=True)):
        case.say(f"gradient {number * batch} of {steps}")
        with torch.enable_grad():
            way = (case.x.detach() * point.reshape(shape)).requires_grad_()
            gradients = torch.autograd.grad(case.score(way).sum(), way)[0]
        total += (gradients * weight.reshape(shape)).sum(0, keepdim=True)
    return case.where.collect((total * case.x).sum(1))


@torch.inference_mode()
def occlusion(case: Case, *, window: int = 1, batch: int = 32) -> Tensor:
    """The drop of the score when a place is replaced by the mean colour (Zeiler & Fergus, 2014): (1, places).

    A window of `window` tokens per axis is moved by one token at a time. A token gets the mean over the windows
    that cover it.
    """
    where = case.where
    if not 1 <= window <= min(where.grid):
        raise ConfigError(f"window={window} does not fit", do=f"give 1 to {min(where.grid)}")
    starts = [range(side - window + 1) for side in where.grid]
    corners = torch.cartesian_prod(*(torch.tensor(list(s)) for s in starts)).reshape(-1, len(where.grid))
    covers = torch.zeros(len(corners), *where.grid)
    for cover, corner in zip(covers, corners.tolist(), strict=True):
        cover[tuple(slice(c, c + window) for c in corner)] = 1.0
    covers, falls = covers.flatten(1), []
    whole = case.score(case.x)
    for part in covers.split(batch):
        case.say(f"window {batch * len(falls)} of {len(covers)}")
        kept = where.paint(1 - part)[:, None].to(case.x.device, case.x.dtype)
        falls.append((whole - case.score(case.x * kept)).float().cpu())
    return ((torch.cat(falls) @ covers) / covers.sum(0))[None]


def _rolled(tape: Tape, weights: Callable[[int], Tensor], identity: bool = True) -> Tensor:
    """The product of the layers' weights, later layers from the left, each averaged with the identity if asked for."""
    joint: Tensor | None = None
    for layer in range(len(tape)):
        step = weights(layer)
        if identity:
            step = (step + torch.eye(step.shape[-1], device=step.device)) / 2
        joint = step if joint is None else step @ joint
    return _require_layers(joint, tape)


def _positive_evidence(tape: Tape, layer: int) -> Tensor:
    """The mean over heads of (∇A ⊙ A)⁺: attention that supports the target."""
    heads = tape.heads(layer)
    total = (tape.gradient(layer, 0) * tape.attention(layer, 0)).clamp_min(0)
    for head in range(1, heads):
        total += (tape.gradient(layer, head) * tape.attention(layer, head)).clamp_min(0)
    return total / heads


def _require_layers(joint: Tensor | None, tape: Tape) -> Tensor:
    """The product; an error if the tape is empty."""
    return tape.attention(0) if joint is None else joint


def _read(weights: Tensor, where: TokenMap) -> Tensor:
    """The row of the class token, over the patch tokens; without a class token, the mean over the pooled rows."""
    placed = slice(len(where.prefix), None)
    if where.prefix[:1] == ("class",):
        return weights[:, 0, placed]
    return weights[:, placed, placed].mean(dim=1)
