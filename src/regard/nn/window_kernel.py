"""Attention inside windows of a grid as one Triton kernel, for NVIDIA GPUs. Only `nn.attention` may use it.

Queries, keys and values are read where the projection wrote them, on the grid: windows and shift are arithmetic on
addresses, and nothing is copied. A program takes one head and every n-th window. It keeps the head's bias meanwhile,
and in the backward pass its gradient, so that no two programs add to the same place.

Letters in shapes: B batch, H heads, D channels of a head, M tokens of a window.
"""

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

WARPS = {16: 1, 32: 2, 64: 4}
"""Warps of a program, by the slots of a window: its tokens, rounded up to a power of two."""
FORWARD = {"programs": 528, "num_stages": 4}
BACKWARD = {"programs": 264, "num_stages": 3}
"""`programs` is how many there are about, if there are as many pairs of a window and a head; the rest is Triton's."""

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _locate(window, i, j, rows, columns, down, right, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Where rows i and columns j of a window are: its image, numbers of the tokens in it, and the window's edges.

    Edges are bits: 2 for a window of the last row, 1 for one of the last column.
    """
    across = columns // WIDE
    each = (rows // HIGH) * across
    image = window // each
    top = (window % each) // across * HIGH
    left = (window % each) % across * WIDE
    row = tl.where(top + i + down >= rows, top + i + down - rows, top + i + down)
    column = tl.where(left + j + right >= columns, left + j + right - columns, left + j + right)
    edges = 2 * (top + HIGH >= rows).to(tl.int32) + (left + WIDE >= columns).to(tl.int32)
    return image.to(tl.int64), row * columns + column, edges


@triton.jit
def _slots(down, right, HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Slots of a window: their numbers, whether they hold a token, their rows and columns, and their sides as bits.

    The roll brings tokens from the other end of the grid: rows into windows of the last row, bit 2, and columns into
    those of the last column, bit 1. There, tokens may attend to each other only if they are on the same side. Slots
    without a token repeat the last row, so that each may attend to something.
    """
    slot = tl.arange(0, BLOCK)
    i, j = tl.minimum(slot // WIDE, HIGH - 1), slot % WIDE
    sides = 2 * (i >= HIGH - down).to(tl.int32) + (j >= WIDE - right).to(tl.int32)
    return slot, slot < HIGH * WIDE, i, j, sides


@triton.jit
def _load_bias(bias, head, slot, real, TOKENS: tl.constexpr):
    """One head's bias for exponents of 2: (BLOCK, BLOCK), minus infinity for keys without a token."""
    at = bias + head * TOKENS * TOKENS + slot[:, None] * TOKENS + slot[None, :]
    terms = tl.load(at, mask=real[:, None] & real[None, :], other=0.0) * _LOG2_E
    return tl.where(real[None, :], terms, float("-inf"))


@triton.jit
def _scores(q, k, terms, sides, edges, scale, SHIFTED: tl.constexpr, PRECISION: tl.constexpr):
    """Scores for exponents of 2."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2_E) + terms
    if SHIFTED:
        scores = tl.where(((sides[:, None] ^ sides[None, :]) & edges) == 0, scores, float("-inf"))
    return scores


@triton.jit
def _attend(
    qkv, bias, out, windows, rows, columns, down, right, heads, scale,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, SHIFTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) % heads
    first = tl.program_id(0) // heads
    step = tl.num_programs(0) // heads
    width = heads * HEAD
    slot, real, i, j, sides = _slots(down, right, HIGH, WIDE, BLOCK)
    channel = head * HEAD + tl.arange(0, HEAD)
    terms = _load_bias(bias, head, slot, real, HIGH * WIDE)
    for window in range(first, windows, step):
        image, token, edges = _locate(window, i, j, rows, columns, down, right, HIGH, WIDE)
        at = qkv + image * rows * columns * 3 * width + (token[:, None] * (3 * width) + channel[None, :])
        q = tl.load(at, mask=real[:, None], other=0.0)
        k = tl.load(at + width, mask=real[:, None], other=0.0)
        v = tl.load(at + 2 * width, mask=real[:, None], other=0.0)
        scores = _scores(q, k, terms, sides, edges, scale, SHIFTED, PRECISION)
        weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
        total = tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION) / total[:, None]
        to = out + image * rows * columns * width + (token[:, None] * width + channel[None, :])
        tl.store(to, mixed.to(out.dtype.element_ty), mask=real[:, None])


@triton.jit
def _differentiate(
    qkv, bias, gradient, qkv_gradient, bias_gradient, windows, rows, columns, down, right, heads, scale,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, SHIFTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) % heads
    first = tl.program_id(0) // heads
    step = tl.num_programs(0) // heads
    width = heads * HEAD
    slot, real, i, j, sides = _slots(down, right, HIGH, WIDE, BLOCK)
    channel = head * HEAD + tl.arange(0, HEAD)
    terms = _load_bias(bias, head, slot, real, HIGH * WIDE)
    summed = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for window in range(first, windows, step):
        image, token, edges = _locate(window, i, j, rows, columns, down, right, HIGH, WIDE)
        base = image * rows * columns * 3 * width
        where = token[:, None] * (3 * width) + channel[None, :]
        at = qkv + base + where
        q = tl.load(at, mask=real[:, None], other=0.0)
        k = tl.load(at + width, mask=real[:, None], other=0.0)
        v = tl.load(at + 2 * width, mask=real[:, None], other=0.0)
        of_out = gradient + image * rows * columns * width + (token[:, None] * width + channel[None, :])
        g = tl.load(of_out, mask=real[:, None], other=0.0)
        scores = _scores(q, k, terms, sides, edges, scale, SHIFTED, PRECISION)
        weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
        weights = weights / tl.sum(weights, 1)[:, None]
        of_weights = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        # Slots without a token have no gradient g, so they add nothing to any of the sums below.
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None])
        summed += of_scores
        of_v = tl.dot(tl.trans(weights.to(g.dtype)), g, input_precision=PRECISION)
        of_scores = of_scores.to(q.dtype)
        of_q = tl.dot(of_scores, k, input_precision=PRECISION) * scale
        of_k = tl.dot(tl.trans(of_scores), q, input_precision=PRECISION) * scale
        to = qkv_gradient + base + where
        kind = qkv_gradient.dtype.element_ty
        tl.store(to, of_q.to(kind), mask=real[:, None])
        tl.store(to + width, of_k.to(kind), mask=real[:, None])
        tl.store(to + 2 * width, of_v.to(kind), mask=real[:, None])
    pairs = HIGH * WIDE * HIGH * WIDE
    to = bias_gradient + tl.program_id(0) * pairs + slot[:, None] * (HIGH * WIDE) + slot[None, :]
    tl.store(to, summed, mask=real[:, None] & real[None, :])


def _launch(kernel, tensors: tuple[Tensor, ...], heads: int, window: list[int], shift: list[int], plan: dict[str, int]):
    """Run `kernel` on grids like the first tensor (B, rows, columns, 3 · H · D)."""
    batch, rows, columns, channels = tensors[0].shape
    head = channels // 3 // heads
    windows = batch * (rows // window[0]) * (columns // window[1])
    block = max(16, triton.next_power_of_2(window[0] * window[1]))
    precision = "ieee" if tensors[0].dtype == torch.float32 else "tf32"
    options = {"num_warps": WARPS[block]} | {name: value for name, value in plan.items() if name != "programs"}
    with torch.cuda.device_of(tensors[0]):
        kernel[(_groups(windows, heads, plan) * heads,)](
            *tensors, windows, rows, columns, shift[0], shift[1], heads, head**-0.5,
            HIGH=window[0], WIDE=window[1], HEAD=head, BLOCK=block, SHIFTED=any(shift), PRECISION=precision, **options,
        )  # fmt: skip


def _groups(windows: int, heads: int, plan: dict[str, int]) -> int:
    """Programs of one head. Each takes as many windows as the others, or one less."""
    most = max(1, min(windows, -(-plan["programs"] // heads)))
    return -(-windows // -(-windows // most))


@torch.library.custom_op("regard::window_attention", mutates_args=())
def window_attention(qkv: Tensor, bias: Tensor, heads: int, window: list[int], shift: list[int]) -> Tensor:
    """softmax(q kᵀ/√D + bias) v in each window of a grid of whole windows: (B, rows, columns, H · D).

    qkv (B, rows, columns, 3 · H · D), bias (H, M, M) in float32. Windows are those of the grid rolled back by `shift`.
    """
    qkv, bias = qkv.contiguous(), bias.contiguous()
    out = qkv.new_empty(*qkv.shape[:-1], qkv.shape[-1] // 3)
    _launch(_attend, (qkv, bias, out), heads, window, shift, FORWARD)
    return out


@window_attention.register_fake
def _(qkv: Tensor, bias: Tensor, heads: int, window: list[int], shift: list[int]) -> Tensor:
    return qkv.new_empty(*qkv.shape[:-1], qkv.shape[-1] // 3)


@torch.library.custom_op("regard::window_attention_backward", mutates_args=())
def window_attention_backward(
    gradient: Tensor, qkv: Tensor, bias: Tensor, heads: int, window: list[int], shift: list[int]
) -> tuple[Tensor, Tensor]:
    """Gradients of qkv and bias, from that of the output and from weights computed again."""
    qkv, bias, gradient = qkv.contiguous(), bias.contiguous(), gradient.contiguous()
    windows = qkv.shape[:-1].numel() // (window[0] * window[1])
    parts = bias.new_empty(_groups(windows, heads, BACKWARD), *bias.shape)
    out = torch.empty_like(qkv)
    _launch(_differentiate, (qkv, bias, gradient, out, parts), heads, window, shift, BACKWARD)
    return out, parts.sum(0)


@window_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, bias: Tensor, heads: int, window: list[int], shift: list[int]
) -> tuple[Tensor, Tensor]:
    like = torch.contiguous_format
    return torch.empty_like(qkv, memory_format=like), torch.empty_like(bias, memory_format=like)


def _keep(ctx, inputs, output) -> None:
    qkv, bias, ctx.heads, ctx.window, ctx.shift = inputs
    ctx.save_for_backward(qkv, bias)


def _backward(ctx, gradient: Tensor):
    of_qkv, of_bias = window_attention_backward(gradient, *ctx.saved_tensors, ctx.heads, ctx.window, ctx.shift)
    return of_qkv, of_bias, None, None, None


window_attention.register_autograd(_backward, setup_context=_keep)
