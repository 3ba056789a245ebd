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
from regard.explain.flow import (
    Flow,
    Start,
    attended,
    reading_step,
    stage_maps,
    starting_shares,
    walk,
)
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.networks.base import Network, Output
from regard.nn import MultiHeadAttention, Tape, capture


@dataclass(frozen=True)
class Case:
    """One input to explain: a prepared input x (1, C, *size), and the function that scores it."""

    model: Network
    x: Tensor
    score: Callable[[Tensor], Tensor]
    """The target's logit (B,) for inputs (B, C, *size), by this model."""
    start: Start | None = None
    """The token that the score is computed from, if not the class token or the mean of all."""
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
        streams = [step for step in self.flow if isinstance(step, AttentionStep) and step.stream != "tokens"]
        # Attention among queries that have not read the input yet is reached by the weights only.
        weights = [p for step in streams for p in self.model.get_submodule(step.layer).parameters() if p.requires_grad]
        with torch.enable_grad(), capture(self.model, gradients=True) as tape:
            torch.autograd.grad(self.score(x).sum(), (x, *weights), allow_unused=True)
        return tape


CPU_NUMBERS = 2**20
"""Numbers of inputs that a CPU is given at once."""


def at_once(x: Tensor, most: int) -> int:
    """Inputs per pass: up to `most`; on a CPU, which gains nothing by it, fewer large ones, so that progress is seen.

    >>> at_once(torch.zeros(1, 3, 32, 32), 64), at_once(torch.zeros(1, 3, 518, 518), 64)
    (64, 1)
    """
    return max(1, min(most, CPU_NUMBERS // x[0].numel())) if x.device.type == "cpu" else most


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
    tape: Tape, where: TokenMap, flow: Flow | None = None, *, layer: int | None = None, head: int | None = None,
    start: Start | None = None,
) -> Tensor:  # fmt: skip
    """Attention of the output token in one layer: (batch, places). Default: the last that reads tokens with places.

    One head, or the mean over heads. Without a class token, the mean over the layer's tokens, each of which attends
    within its window if the layer has windows. `where` is the map of the layer's tokens.
    """
    steps = [step for step in _flow(tape, flow) if isinstance(step, AttentionStep)]
    step = reading_step(steps, layer, "tokens" if start is None else start.stream)
    share, weights = starting_shares(tape, where, [step], start)[step.stream], partial(tape.attention, step.layer, head)
    return _placed(attended(share, step.windows, weights, rescale=True), where)


def rollout(
    tape: Tape, where: TokenMap, flow: Flow | None = None, *, identity: bool = True, start: Start | None = None
) -> Tensor:
    """Attention rollout (Abnar & Zuidema, 2020): attention through all layers to the input, (batch, places).

    Heads are averaged, residual connections count as attention to oneself, A = (W + I) / 2, and the
    layers are multiplied. `identity=False` leaves out I, as in the ViT paper's appendix D.8. Attention to padding has
    no place; the window's tokens share it.

    `flow` is the network's `token_flow`; default: every layer on the tape reads all tokens. `where` is the map of the
    first stage's tokens. From a `start` in another stream, such as an object query, it goes through cross-attention to
    the tokens; the part that stays in that stream is left out.
    """
    half = 0.5 if identity else 0.0
    flow = _flow(tape, flow)
    shares = starting_shares(tape, where, flow, start)

    def weights(layer: str, rows: slice) -> Tensor:
        return tape.attention(layer, rows=rows)

    return _placed(walk(flow, shares, weights, stay=half, move=1 - half, rescale=True)["tokens"], where)


def gradient_rollout(tape: Tape, where: TokenMap, flow: Flow | None = None, *, start: Start | None = None) -> Tensor:
    """Rollout of attention weighted by its gradient for the target: (batch, places).

    W is the mean over heads of (∇A ⊙ A)⁺, with rows normalised to sum to one. A row of zeros becomes attention to
    itself; in cross-attention, where there is no such thing, it stays zero. Then as in `rollout`.
    """
    flow = _flow(tape, flow)
    across = {step.layer for step in flow if isinstance(step, AttentionStep) and step.reads is not None}

    def weights(layer: str, rows: slice) -> Tensor:
        evidence = _positive_evidence(tape, layer, rows)
        total = evidence.sum(-1, keepdim=True)
        if layer in across:
            return evidence / total.clamp_min(1e-30)
        itself = torch.eye(evidence.shape[-1], device=evidence.device)
        return torch.where(total > 0, evidence / total.clamp_min(1e-30), itself)

    return _placed(walk(flow, starting_shares(tape, where, flow, start), weights, rescale=True)["tokens"], where)


def relevance(tape: Tape, where: TokenMap, flow: Flow | None = None, *, start: Start | None = None) -> Tensor:
    """Chefer, Gur & Wolf (ICCV 2021), equations 5 and 6 for self-attention: (batch, places).

    R starts as the identity; each layer adds Ā R, where Ā is the mean over heads of (∇A ⊙ A)⁺. Cross-attention does
    the same, without the normalisation and the factor of the queries' own relevance in the paper's equations 8 to 10.
    """
    flow = _flow(tape, flow)
    shares, weights = starting_shares(tape, where, flow, start), partial(_positive_evidence, tape)
    joint = walk(flow, shares, weights, stay=1.0, move=1.0)["tokens"]
    # Without the initial identity, which only says that every token is itself.
    itself = walk([step for step in flow if isinstance(step, MergeStep)], shares, weights).get("tokens")
    return _placed(joint if itself is None else joint - itself, where)


def grad_cam(case: Case) -> Tensor:
    """Grad-CAM (Selvaraju et al., 2017) on the tokens that enter the last attention: (1, places) of the last stage.

    After that attention only the tokens that the head reads have a gradient, so this is the last layer where every
    patch has one. Without attention it is the original method, on the cells of the last feature map. If another stream
    reads the tokens, such as a decoder's queries, it is on the tokens that it reads.
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
    decoded = any(isinstance(step, AttentionStep) and step.reads == "tokens" for step in case.flow)
    if not modules or decoded:
        for handle in handles:
            handle.remove()
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
    tokens, gradients = (t.flatten(1, -2)[:, placed] for t in (tokens.detach(), gradients))  # some are on a grid
    return (tokens * gradients.mean(1, keepdim=True)).sum(-1)


STEPS, MOST_STEPS, ENOUGH = 32, 256, 0.01
"""Integrated gradients take 32 steps, twice as many and again up to 256, until they add up to within one percent."""


def integrated_gradients(case: Case, *, steps: int | None = None, batch: int | None = None) -> Attribution:
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
        values = _integrated(case, count, batch or at_once(case.x, 16))
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
def occlusion(case: Case, *, window: int = 1, batch: int | None = None) -> Tensor:
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
    covers, falls, batch = covers.flatten(1), [], batch or at_once(case.x, 32)
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


def _placed(shares: Tensor, where: TokenMap) -> Tensor:
    """(batch, places) of shares (batch, 1, tokens)."""
    return shares[:, 0, len(where.prefix) :].float()
