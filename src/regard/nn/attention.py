"""Attention, softmax(q kᵀ · scale) v (Vaswani et al., "Attention Is All You Need", equation 1).

- `attend` runs the fused kernel. Inside `capture` it also records queries and keys.
- `attend_windows` runs a kernel of its own, where `fuses_windows` says so, and never inside `capture`.
- `Tape` (tape.py) computes the exact weights of any layer and head from the record.
- No other module computes softmax(q kᵀ), but the kernel's, which only this module uses.

Letters in shapes: B batch, H heads, Q queries, K keys, D dimensions of a query and key, E of a value.
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from regard.nn.tape import Tape

TAPES: ContextVar[tuple[Tape, ...]] = ContextVar("regard_tapes", default=())
"""Those of the `capture` blocks that this thread is in."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    step: int = 0,
) -> Tensor:
    """Scaled dot-product attention of queries (B, H, Q, D), keys (B, H, K, D) and values (B, H, K, E): (B, H, Q, E).

    `scale` is 1/√D unless given. `mask` is true where a query may attend. `bias` is added to the scaled
    scores. Both broadcast to (B, H, Q, K); fewer than B entries of the batch repeat, as windows of each image do.
    `causal` lets query i attend to keys 0 to i, itself included. A query with no allowed key gives zeros.
    Runs the fused kernel; see `capture` for the weights. A network that asks the same keys again and again numbers its
    calls by `step`: a tape has the queries of all steps as those of one layer.

    >>> q, k = torch.tensor([[0.2, 0.9, 0.0]]), torch.tensor([[0.1, 0.0, 0.8], [0.1, 0.9, 0.0]])
    >>> attend(q, k, k, scale=1.0)
    tensor([[0.1000, 0.6229, 0.2463]])
    """
    scoring, alone = Scoring(scale, mask, bias, causal), mask is None and bias is None
    limits = None if alone else _limits(q, k, scoring)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=limits, is_causal=causal and alone, scale=scale)
    _record(q, k, v, out, scoring, step)
    return out


MOST_FUSED = 64
"""Tokens of a window up to which the kernel keeps all pairs of them in registers."""


def attend_windows(qkv: Tensor, bias: Tensor, heads: int, window: tuple[int, ...], shift: tuple[int, ...]) -> Tensor:
    """Attention inside windows of a grid (B, rows, columns, 3 · H · D), without a copy: (B, rows, columns, H · D).

    The same as `attend` on the windows of `to_windows`, with the mask of `shift_mask`. `bias` (H, M, M) is added to the
    scaled scores. The grid has whole windows, and `fuses_windows` has said yes.
    """
    return torch.ops.regard.window_attention(qkv, bias.float(), heads, list(window), list(shift))


def fuses_windows(x: Tensor, window: tuple[int, ...], head: int) -> bool:
    """Whether `attend_windows` takes projections of `x` for heads of `head` channels: bf16 or fp16, on an NVIDIA GPU.

    Not inside `capture`, which `attend` records, and not for export: such a program runs without this package.
    """
    if len(window) != 2 or window[0] * window[1] > MOST_FUSED or head not in (16, 32, 64):
        return False
    if recording() or not _has_kernel(x.device):
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype in (torch.bfloat16, torch.float16)


@torch.compiler.assume_constant_result
def _has_kernel(device: torch.device) -> bool:
    """Whether a device runs Triton's kernels, now. This imports them, which a graph that is being compiled could not.

    It is not traced: for traced code, torch before 2.13 says of every compilation that it is an export.
    """
    if (
        torch.compiler.is_exporting()
        or device.type != "cuda"
        or torch.version.cuda is None
        or find_spec("triton") is None
    ):
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    import_module("regard.nn.window_kernel")
    return True


def attend_additive(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor, *, mask: Tensor | None = None, step: int = 0
) -> Tensor:
    """softmax(vectorᵀ tanh(q + k)) v, the attention of Bahdanau et al. (2015), appendix A.1.2; shapes as in `attend`.

    There is no fused kernel for it: each pair of query and key needs D values, not one score.

    >>> q, k = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    >>> attend_additive(q, k, k, torch.tensor([1.0, 1.0]))
    tensor([[ 0.5000, -0.5000]])
    """
    scoring = Scoring(mask=mask, vector=vector)
    out = softmax_scores(q, k, scoring) @ v
    _record(q, k, v, out, scoring, step)
    return out


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    joint: bool = False,
) -> Tensor:
    """The weights (B, H, Q, K), for models that use them as features. Arguments as in `attend`.

    With `joint` a query's weights add up to 1 over all heads and keys together, else in each head.
    """
    scoring = Scoring(scale, mask, bias, causal, joint=joint)
    weights = softmax_scores(q, k, scoring)
    _record(q, k, None, weights, scoring)
    return weights


class Scoring(NamedTuple):
    """Everything that decides the scores: the arguments of `attend`, or the vector of `attend_additive`."""

    scale: float | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    vector: Tensor | None = None
    joint: bool = False


def _limits(q: Tensor, k: Tensor, scoring: Scoring) -> Tensor | None:
    """Mask, bias and causal mask as one tensor: bool (true: allowed) without a bias, else a term of the scores."""
    mask, bias = scoring.mask, scoring.bias
    if bias is not None:
        bias = bias.to(q.dtype)  # before anything repeats
    if scoring.causal:
        past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = past if mask is None else mask & past
    if bias is None or mask is None:
        limits = mask if bias is None else bias
    else:
        limits = bias.masked_fill(~mask, float("-inf"))
    if limits is None or limits.ndim < q.ndim or limits.shape[0] in (1, q.shape[0]):
        return limits
    return limits.repeat(q.shape[0] // limits.shape[0], *[1] * (limits.ndim - 1))


def softmax_scores(q: Tensor, k: Tensor, scoring: Scoring) -> Tensor:
    """The weights, all of them in memory."""
    if scoring.vector is None:
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale)
    else:
        scores = (q.unsqueeze(-2) + k.unsqueeze(-3)).tanh() @ scoring.vector
    limits = _limits(q, k, scoring)
    if limits is not None and limits.dtype == torch.bool:
        scores = scores.masked_fill(~limits, float("-inf"))
    elif limits is not None:
        scores = scores + limits
    if scoring.joint:
        heads = scores.shape[-3]
        scores = scores.movedim(-3, -2).flatten(-2)  # (…, Q, H · K)
        return _softmax_or_zeros(scores, limits).unflatten(-1, (heads, -1)).movedim(-2, -3)
    return _softmax_or_zeros(scores, limits)


def _softmax_or_zeros(scores: Tensor, limits: Tensor | None) -> Tensor:
    """Over the last axis; zeros where nothing is allowed."""
    if limits is None:
        return scores.softmax(-1)
    blind = scores.isneginf().all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _record(q: Tensor, k: Tensor, v: Tensor | None, out: Tensor, scoring: Scoring, step: int = 0) -> None:
    # A ContextVar cannot be traced, so compiled and exported graphs must not reach it; `capture`
    # makes compiled models run eagerly instead.
    if not torch.compiler.is_compiling():
        for tape in TAPES.get():
            tape.record(q, k, v, out, scoring, step)


def recording() -> bool:
    """Whether a tape is recording. Always false in compiled code, which does not run inside `capture`."""
    return not torch.compiler.is_compiling() and bool(TAPES.get())


class Attention(nn.Module):
    """Base class of modules that call `attend`: `capture` records their names."""
