"""Seven explanation methods, each giving one value per token for one score: the target's logit.

- Four use the recorded attention and its gradients only. Three of them follow it to the input (`flow.py`).
- Three (Grad-CAM, integrated gradients, occlusion) also suit networks without attention.
- None needs a layer name or a reshape function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.explain.flow import Flow, attended, stage_maps, unwindowed, walk
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.networks.base import Network, Output
from regard.nn import MultiHeadAttention, Tape, capture
from regard.nn.attention import exact_dtype


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
    def size(self) -> tuple[int, ...]:
        return tuple(self.x.shape[2:])

    @property
    def where(self) -> TokenMap:
        """The last stage's tokens."""
        return self.model.token_map(self.size)

    @property
    def first(self) -> TokenMap:
        """The first stage's tokens."""
        return self.model.input_map(self.size)

    @property
    def flow(self) -> Flow:
        return self.model.token_flow(self.size)

    @property
    def stages(self) -> list[TokenMap]:
        """The map of each layer of attention."""
        return list(stage_maps(self.flow, self.first).values())

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


def raw_attention(
    tape: Tape, where: TokenMap, flow: Flow | None = None, *, layer: int = -1, head: int | None = None
) -> Tensor:
    """Attention of the output token in one layer (default: the last): (batch, places).

    One head, or the mean over heads. Without a class token, the mean over the layer's tokens, each of which attends
    within its window if the layer has windows. `where` is the map of the layer's tokens.
    """
    tape.shape(layer)  # an error if there is no such layer
    steps = [step for step in _flow(tape, flow) if isinstance(step, AttentionStep)]
    step = steps[layer]
    start, weights = _start(tape, where, [step]), partial(tape.attention, step.layer, head)
    return _placed(attended(start, step.windows, weights, rescale=True), where)


def rollout(tape: Tape, where: TokenMap, flow: Flow | None = None, *, identity: bool = True) -> Tensor:
    """Attention rollout (Abnar & Zuidema, 2020): attention through all layers to the input, (batch, places).

    Heads are averaged, residual connections count as attention to oneself, A = (W + I) / 2, and the
    layers are multiplied. `identity=False` leaves out I, as in the ViT paper's appendix D.8. Attention to padding has
    no place; the window's tokens share it.

    `flow` is the network's `token_flow`; default: every layer on the tape reads all tokens. `where` is the map of the
    first stage's tokens.
    """
    half = 0.5 if identity else 0.0
    flow = _flow(tape, flow)
    shares = {"tokens": _start(tape, where, flow)}

    def weights(layer: str, rows: slice) -> Tensor:
        return tape.attention(layer, rows=rows)

    return _placed(walk(flow, shares, weights, stay=half, move=1 - half, rescale=True)["tokens"], where)


def gradient_rollout(tape: Tape, where: TokenMap, flow: Flow | None = None) -> Tensor:
    """Rollout of attention weighted by its gradient for the target: (batch, places).

    W is the mean over heads of (∇A ⊙ A)⁺, with rows normalised to sum to one. A row of zeros becomes attention to
    itself. Then as in `rollout`.
    """

    def weights(layer: str, rows: slice) -> Tensor:
        evidence = _positive_evidence(tape, layer, rows)
        total, itself = evidence.sum(-1, keepdim=True), torch.eye(evidence.shape[-1], device=evidence.device)
        return torch.where(total > 0, evidence / total.clamp_min(1e-30), itself)

    flow = _flow(tape, flow)
    return _placed(walk(flow, {"tokens": _start(tape, where, flow)}, weights, rescale=True)["tokens"], where)


def relevance(tape: Tape, where: TokenMap, flow: Flow | None = None) -> Tensor:
    """Chefer, Gur & Wolf (ICCV 2021), equations 5 and 6 for self-attention: (batch, places).

    R starts as the identity; each layer adds Ā R, where Ā is the mean over heads of (∇A ⊙ A)⁺.
    """
    flow = _flow(tape, flow)
    shares, weights = {"tokens": _start(tape, where, flow)}, partial(_positive_evidence, tape)
    joint = walk(flow, shares, weights, stay=1.0, move=1.0)["tokens"]
    # Without the initial identity, which only says that every token is itself.
    itself = walk([step for step in flow if isinstance(step, MergeStep)], shares, weights)["tokens"]
    return _placed(joint - itself, where)


def grad_cam(case: Case) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) on the tokens that enter the last attention: (1, places) of the last stage.

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
    windows = next((step.windows for step in reversed(case.flow) if isinstance(step, AttentionStep)), None)
    if windows is not None:
        tokens, gradients = unwindowed(tokens, windows), unwindowed(gradients, windows)
    placed = slice(len(case.where.prefix), None)
    tokens, gradients = tokens[:, placed].detach(), gradients[:, placed]
    return (tokens * gradients.mean(1, keepdim=True)).sum(-1)


STEPS, MOST_STEPS, ENOUGH = 32, 256, 0.01
"""Integrated gradients take 32 steps, twice as many and again up to 256, until they add up to within one percent."""


def integrated_gradients(case: Case, *, steps: int | None = None, batch: int = 16) -> Attribution:
    """Integrated gradients (Sundararajan et al., 2017) from the mean picture to the input.

    Gauss–Legendre in `steps` points, or as many as are needed. Summed over the pixels and channels of each token of the
    first stage; all together they add up to the score's difference between the input and the mean picture
    (completeness).
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
    return case.first.collect((total * case.x).sum(1))


@torch.inference_mode()
def occlusion(case: Case, *, window: int = 1, batch: int = 32) -> Tensor:
    """The drop of the score when a place is replaced by the mean colour (Zeiler & Fergus, 2014): (1, places).

    A window of `window` tokens per axis is moved by one token at a time. A token gets the mean over the windows
    that cover it. Tokens are those of the last stage, which has the fewest: each costs a forward pass.
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


def _positive_evidence(tape: Tape, layer: str, rows: slice) -> Tensor:
    """The mean over heads of (∇A ⊙ A)⁺: attention that supports the target."""
    heads = tape.heads(layer)
    total = (tape.gradient(layer, 0, rows) * tape.attention(layer, 0, rows)).clamp_min(0)
    for head in range(1, heads):
        total += (tape.gradient(layer, head, rows) * tape.attention(layer, head, rows)).clamp_min(0)
    return total / heads


def _flow(tape: Tape, flow: Flow | None) -> Flow:
    return [AttentionStep(name) for name in tape.names] if flow is None else flow


def _start(tape: Tape, where: TokenMap, flow: Flow) -> Tensor:
    """What the head reads, as shares (batch, 1, tokens) of the last stage: the class token, or all placed tokens."""
    device = tape.device
    tokens = [where.tokens, *(len(step.children) for step in flow if isinstance(step, MergeStep))][-1]
    layer = next(step for step in flow if isinstance(step, AttentionStep))
    batch = tape.shape(layer.layer)[0] // (1 if layer.windows is None else len(layer.windows))
    shares = torch.zeros(batch, 1, tokens, dtype=exact_dtype(device), device=device)
    if where.prefix[:1] == ("class",):
        shares[..., 0] = 1.0
    else:
        shares[..., len(where.prefix) :] = 1 / (tokens - len(where.prefix))
    return shares


def _placed(shares: Tensor, where: TokenMap) -> Tensor:
    """(batch, places) of shares (batch, 1, tokens)."""
    return shares[:, 0, len(where.prefix) :].float()
