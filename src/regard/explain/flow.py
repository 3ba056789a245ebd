"""Shares followed backward through a network, from its last tokens to its first, along `Network.token_flow`.

Rollout and relevance are this walk with different weights. What is followed is a vector over the tokens of a stage per
target, so windows, merges and cross-attention need no token × token matrix of the whole network.

Letters in shapes: B batch, T targets, N tokens, W windows, S slots of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.geometry import AttentionStep, MergeStep, TokenMap
from regard.nn import Tape
from regard.nn.tape import exact_dtype

Flow = Sequence[AttentionStep | MergeStep]
AT_ONCE = 2**23
"""Weights of a layer that are computed at a time, if it has several windows or samples."""


class Start(NamedTuple):
    """A token that attention is followed from: its stream in the network's token flow, and its number there."""

    stream: str
    token: int


def walk(
    flow: Flow,
    shares: dict[str, Tensor],
    weights: Callable[[str, slice], Tensor],
    *,
    stay: float = 0.5,
    move: float = 0.5,
    rescale: bool = False,
) -> dict[str, Tensor]:
    """Shares (B, T, N) of the last tokens, by stream, as shares of the first tokens.

    In a layer of attention, `move` of a token's share goes to the tokens that it reads, by their weights, and `stay`
    remains with it, as through a residual connection. A merged token's share is divided evenly among the tokens it was
    made of. What goes to padding has no place and is dropped, or, with `rescale`, goes to the tokens beside it.
    Steps of streams that have no share yet, because nothing that is followed reads them, are passed over.

    `weights` gives (B · W, queries, keys) of a layer by its name, for a part of its first axis.
    """
    shares = dict(shares)
    for step in reversed(flow):
        if step.stream not in shares:
            continue
        share = shares[step.stream]
        if isinstance(step, MergeStep):
            children = step.children.to(share.device)
            each = share / (children >= 0).sum(-1)
            shares[step.stream] = _scatter(each[..., None].expand(-1, -1, *children.shape), children)
        else:
            moved = move * attended(share, step.windows, partial(weights, step.layer), rescale)
            shares[step.stream] = stay * share
            read = step.reads or step.stream
            shares[read] = shares[read] + moved if read in shares else moved
    return shares


def attended(
    share: Tensor, windows: Tensor | None, weights: Callable[[slice], Tensor], rescale: bool = False
) -> Tensor:
    """Shares (B, T, N) after one layer of attention: `share` times its weights, window by window."""
    if windows is None:
        slots = share[:, None]
    else:
        windows = windows.to(share.device)
        slots = F.pad(share, (0, 1))[..., windows].transpose(1, 2)  # slot -1, padding, reads the zero at the end
    rows, parts = slots.flatten(0, 1), []  # (B · W, T, S)
    count = max(1, AT_ONCE // rows.shape[-1] ** 2)
    for some in torch.arange(len(rows)).split(count):
        part = weights(slice(int(some[0]), int(some[-1]) + 1)).to(rows)
        if windows is not None and rescale:
            part = _over_tokens(part, windows[some % len(windows)] >= 0)
        parts.append(rows[some] @ part)
    moved = torch.cat(parts).unflatten(0, slots.shape[:2])
    return moved[:, 0] if windows is None else _scatter(moved.transpose(1, 2), windows)


def _over_tokens(weights: Tensor, real: Tensor) -> Tensor:
    """Weights (W, S, S) rescaled to sum to one over the slots (W, S) with tokens; a row of zeros is all for itself."""
    weights = weights * real[:, None]
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp_min(1e-30), torch.eye(weights.shape[-1]).to(weights))


def _scatter(values: Tensor, index: Tensor) -> Tensor:
    """Values (B, T, *index.shape) added up by token, (B, T, N); those of index -1 are dropped."""
    tokens = int(index.max()) + 1
    target = torch.where(index < 0, tokens, index).flatten()
    return values.new_zeros(*values.shape[:2], tokens + 1).index_add_(-1, target, values.flatten(2))[..., :tokens]


def stage_maps(flow: Flow, first: TokenMap) -> dict[str, TokenMap]:
    """By name, the map of the tokens in each layer of attention; `first` is that of the first stage."""
    maps, where = dict[str, TokenMap](), first
    for step in flow:
        if isinstance(step, MergeStep):
            where = where.merged()
        else:
            maps[step.layer] = where
    return maps


def reading_step(steps: list[AttentionStep], layer: int | None, stream: str) -> AttentionStep:
    """The layer that was asked for, or the last, in which this stream reads tokens that have places."""
    fitting = [step for step in steps if step.stream == stream and (step.reads or stream) == "tokens"]
    if layer is None:
        return fitting[-1]
    if not -len(steps) <= layer < len(steps):
        raise ConfigError(f"the network has layers 0 to {len(steps) - 1} of attention; there is no layer {layer}")
    if steps[layer] not in fitting:
        numbers = [str(steps.index(step)) for step in fitting]
        raise ConfigError(
            f"in layer {layer}, {steps[layer].layer}, {stream} do not read the input", do=f"use {' or '.join(numbers)}"
        )
    return steps[layer]


def starting_shares(tape: Tape, where: TokenMap, flow: Flow, start: Start | None) -> dict[str, Tensor]:
    """By stream, the shares (batch, 1, tokens) of the last stage's tokens that attention is followed from.

    Those of `start`, or of what the heads read: the class token (and the distillation token), or all placed tokens.
    """
    device, stream = tape.device, "tokens" if start is None else start.stream
    layers = [step for step in flow if isinstance(step, AttentionStep)]
    layer = next(step for step in layers if step.stream == stream)
    batch = tape.shape(layer.layer)[0] // (1 if layer.windows is None else len(layer.windows))
    if stream == "tokens":
        tokens = [where.tokens, *(len(step.children) for step in flow if isinstance(step, MergeStep))][-1]
    else:
        tokens = tape.shape(layer.layer)[1]
    shares = torch.zeros(batch, 1, tokens, dtype=exact_dtype(device), device=device)
    if start is not None:
        if not 0 <= start.token < tokens:
            raise ConfigError(f"there is no token {start.token} among the {tokens} {stream}")
        shares[..., start.token] = 1.0
    elif where.prefix[:1] == ("class",):
        read = 2 if "distillation" in where.prefix else 1
        shares[..., :read] = 1 / read
    else:
        shares[..., len(where.prefix) :] = 1 / (tokens - len(where.prefix))
    return {stream: shares}
