"""Attention, softmax(q kᵀ · scale) v (Vaswani et al., "Attention Is All You Need", equation 1).

- `attend` runs the fused kernel. Inside `capture` it also records queries and keys.
- `attend_windows` runs a kernel of its own, where `fuses_windows` says so, and never inside `capture`.
- `Tape` computes the exact weights of any layer and head from the record.
- No other module computes softmax(q kᵀ), but the kernel's, which only this module uses.

Letters in shapes: B batch, H heads, Q queries, K keys, D dimensions of a query and key, E of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from traceback import walk_stack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError, did_you_mean

_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}
_TAPES: ContextVar[tuple[Tape, ...]] = ContextVar("regard_tapes", default=())


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
    scoring, alone = _Scoring(scale, mask, bias, causal), mask is None and bias is None
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
    scoring = _Scoring(mask=mask, vector=vector)
    out = _softmax(q, k, scoring) @ v
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
    scoring = _Scoring(scale, mask, bias, causal, joint=joint)
    weights = _softmax(q, k, scoring)
    _record(q, k, None, weights, scoring)
    return weights


class _Scoring(NamedTuple):
    """Everything that decides the scores: the arguments of `attend`, or the vector of `attend_additive`."""

    scale: float | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    vector: Tensor | None = None
    joint: bool = False


def _limits(q: Tensor, k: Tensor, scoring: _Scoring) -> Tensor | None:
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


def _softmax(q: Tensor, k: Tensor, scoring: _Scoring) -> Tensor:
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


def _record(q: Tensor, k: Tensor, v: Tensor | None, out: Tensor, scoring: _Scoring, step: int = 0) -> None:
    # A ContextVar cannot be traced, so compiled and exported graphs must not reach it; `capture`
    # makes compiled models run eagerly instead.
    if torch.compiler.is_compiling():
        return
    for tape in _TAPES.get():
        if not tape._running:
            continue
        if step:
            call = tape._calls[-1]
            call = tape._calls[-1] = call._replace(q=torch.cat([call.q, q.detach()], dim=-2))
        else:
            # Cloned because q, k and v are usually views of one projection, which would stay in memory.
            values = v.detach().clone() if tape._gradients and v is not None else None
            parts: list[Any] = [part.detach() if isinstance(part, Tensor) else part for part in scoring]
            detached = _Scoring(*parts)
            call = _Call(tape._name, q.detach().clone(), k.detach().clone(), detached, values, {})
            tape._calls.append(call)
        if tape._gradients and out.requires_grad:
            out.register_hook(lambda gradient, call=call: call.gradients.update({step: gradient.detach()}))


def recording() -> bool:
    """Whether a tape is recording. Always false in compiled code, which does not run inside `capture`."""
    return not torch.compiler.is_compiling() and bool(_TAPES.get())


class _Call(NamedTuple):
    name: str
    q: Tensor
    k: Tensor
    scoring: _Scoring
    v: Tensor | None
    gradients: dict[int, Tensor]
    """The gradient of the output of each step, from the latest backward pass that reached it."""

    def gradient(self) -> Tensor:
        """The gradient of the output of all queries; zero for steps that nothing depends on."""
        one = next(iter(self.gradients.values()))
        steps = range(self.q.shape[-2] // one.shape[-2])
        return torch.cat([self.gradients.get(step, torch.zeros_like(one)) for step in steps], dim=-2)

    def part(self, rows: slice) -> _Call:
        """The call on a part of its batch."""
        if self.q.ndim < 4 or rows == slice(None):
            return self
        numbers = torch.arange(len(self.q))[rows]

        def limit(t: Tensor | None) -> Tensor | None:
            """Masks and biases may have no batch axis, or fewer entries, which repeat."""
            return t if t is None or t.ndim < 4 else t[numbers.to(t.device) % len(t)]

        scoring = self.scoring._replace(mask=limit(self.scoring.mask), bias=limit(self.scoring.bias))
        gradients = {key: t[rows] for key, t in self.gradients.items()}
        v = None if self.v is None else self.v[rows]
        return self._replace(q=self.q[rows], k=self.k[rows], v=v, scoring=scoring, gradients=gradients)


class Tape:
    """The queries and keys of a model's latest forward pass, from which it computes the exact weights of any head.

    Layers are numbered in the order they ran. `names` has the module name of each. A layer is chosen by its number or
    its name ("decoder.3.cross"). Only queries and keys are kept (with gradients also values and output gradients). So
    a tape costs as much memory as two (four) activations per layer, and never a token × token matrix.
    """

    def __init__(self, gradients: bool = False) -> None:
        self._calls: list[_Call] = []
        self._gradients = gradients
        self._running = False
        self._with_graph = False
        """Whether the recorded pass is one that a backward pass can start from."""
        self._modules = 0
        """Number of modules of the model that can be recorded."""
        self._name = ""

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def names(self) -> list[str]:
        return [call.name for call in self._calls]

    @property
    def nbytes(self) -> int:
        """Memory of the tape, in bytes."""
        held = (t for call in self._calls for t in (*call[:3], call.v, *call.scoring, *call.gradients.values()))
        return sum(t.nbytes for t in held if isinstance(t, Tensor))

    def heads(self, layer: int | str) -> int:
        """Number of heads of a layer."""
        q = self._call(layer).q
        return q.shape[-3] if q.ndim > 2 else 1

    def shape(self, layer: int | str) -> tuple[int, int, int]:
        """(batch, queries, keys) of a layer's weights; windows of attention count as samples of the batch."""
        q, k = self._call(layer).q, self._call(layer).k
        return (len(q) if q.ndim > 3 else 1), q.shape[-2], k.shape[-2]

    @property
    def device(self) -> torch.device:
        return self._call(0).q.device

    def attention(self, layer: int | str, head: int | None = None, rows: slice = slice(None)) -> Tensor:
        """The exact weights (batch, queries, keys) of one head; without `head`, the mean over heads.

        Computed in double precision, one head at a time, and returned as float32. `rows` chooses a part of the batch,
        for layers with many windows.
        """
        return self._of_head(self._weights, layer, head, rows)

    def gradient(self, layer: int | str, head: int | None = None, rows: slice = slice(None)) -> Tensor:
        """The gradient of each weight of one head: (batch, queries, keys).

        For a tape made with `gradients=True`, after a backward pass. The fused kernel never stores the
        weights A. But its output is A v, so ∂/∂A = ∂/∂(A v) vᵀ, exactly.
        """
        if not self._gradients:
            raise RegardError("the tape keeps no gradients", do="use `regard.capture(model, gradients=True)`")
        if not self._call(layer).gradients:
            raise RegardError(
                f"no gradient has reached layer {layer}",
                do="inside the capture block, run the model with gradients on, then call backward on a scalar",
            )
        return self._of_head(self._weight_gradients, layer, head, rows)

    def _of_head(
        self, compute: Callable[[_Call, int], Tensor], layer: int | str, head: int | None, rows: slice
    ) -> Tensor:
        """One head, or the mean over heads computed one at a time."""
        call, heads = self._call(layer).part(rows), self.heads(layer)
        if head is None:
            total = compute(call, 0)
            for other in range(1, heads):
                total += compute(call, other)
            return (total / heads).float()
        if not -heads <= head < heads:
            raise RegardError(f"layer {layer} has {heads} heads; there is no head {head}")
        return compute(call, head % heads).float()

    def _call(self, layer: int | str) -> _Call:
        if not self._calls and not self._modules:
            raise RegardError(
                "the tape is empty: only regard.nn's attention modules and regard.nn.attend are recorded, "
                "and the model has none of them",
                do="for a model of another library, load its weights: regard.create(weights=FILE)",
            )
        if not self._calls:
            raise RegardError(
                "the tape is empty: no attention ran inside the capture block",
                do="call the model itself inside `with regard.capture(model)`, not an exported copy of it",
            )
        if isinstance(layer, str):
            if layer not in self.names:
                raise RegardError(f"the tape has no layer {layer!r}", do=did_you_mean(layer, self.names))
            layer = self.names.index(layer)
        if not -len(self) <= layer < len(self):
            raise RegardError(f"the tape has layers 0 to {len(self) - 1}; there is no layer {layer}")
        return self._calls[layer]

    @staticmethod
    def _weights(call: _Call, head: int) -> Tensor:
        def pick(t: Tensor | None) -> Tensor | None:
            if t is None or t.ndim < 3:
                return t
            return t.select(-3, head if t.shape[-3] > 1 else 0)

        rule = call.scoring
        if rule.joint:
            dtype = exact_dtype(call.q.device)
            weights = _softmax(call.q.to(dtype), call.k.to(dtype), rule).select(-3, head)
            return weights if weights.ndim > 2 else weights[None]
        q, k = (_precise(t, head) for t in (call.q, call.k))
        vector = None if rule.vector is None else rule.vector.to(q.dtype)
        weights = _softmax(q, k, rule._replace(mask=pick(rule.mask), bias=pick(rule.bias), vector=vector))
        return weights if weights.ndim > 2 else weights[None]

    @staticmethod
    def _weight_gradients(call: _Call, head: int) -> Tensor:
        gradients = _precise(call.gradient(), head)
        if call.v is not None:
            gradients = gradients @ _precise(call.v, head).transpose(-2, -1)
        return gradients if gradients.ndim > 2 else gradients[None]


def _precise(t: Tensor, head: int) -> Tensor:
    """One head of (…, H, N, D), in `exact_dtype`."""
    return (t.select(-3, head) if t.ndim > 2 else t).to(exact_dtype(t.device))


def exact_dtype(device: torch.device) -> torch.dtype:
    """Double precision, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def capture(model: nn.Module, *, gradients: bool = False) -> Iterator[Tape]:
    """Record the attention of every layer of `model`, exactly, while the model runs as usual.

    With `gradients`, also record what `Tape.gradient` needs after a backward pass.

    - The tape holds the latest forward pass of this model, not of other models, copies of it or other threads.
    - The recomputation of checkpointed activations is not recorded twice.
    - A compiled model runs eagerly inside the block, so the tape is never empty.
    - Only the attention modules of `regard.nn` and `regard.nn.attend` are recorded, not those of other libraries.

    >>> import regard
    >>> model = regard.create("vit_nano", classes=3, size=16)
    >>> with regard.capture(model) as tape:
    ...     _ = model(torch.rand(2, 3, 16, 16))
    >>> tape.attention(layer=1, head=2).shape, tape.names[1]
    (torch.Size([2, 17, 17]), 'blocks.1.attention')
    """
    tape = Tape(gradients)
    root = getattr(model, "_orig_mod", model)

    def mine() -> bool:  # hooks belong to the model, which other threads may run too
        return tape in _TAPES.get()

    def start() -> None:
        recomputed = tape._calls and tape._with_graph and _in_backward()  # by a checkpoint around the model
        if mine() and not recomputed:
            tape._calls.clear()
            tape._running, tape._with_graph = True, torch.is_grad_enabled()

    def stop() -> None:
        if mine():
            tape._running = False

    def name(label: str) -> _Hook:
        def set_name() -> None:
            if mine():
                tape._name = label

        return _Hook(set_name)

    handles = [root.register_forward_pre_hook(_Hook(start)), root.register_forward_hook(_Hook(stop), always_call=True)]
    for label, module in root.named_modules():
        if isinstance(module, Attention):
            tape._modules += 1
            handles.append(module.register_forward_pre_hook(name(label)))
            handles.append(module.register_forward_hook(name("")))
    _TAPES.set((*_TAPES.get(), tape))
    try:
        with _force_eager():
            yield tape
    finally:
        for handle in handles:
            handle.remove()
        _TAPES.set(tuple(other for other in _TAPES.get() if other is not tape))


class _Hook:
    """A hook that a copy of its module, or a pickle of it, does not have: there it does nothing."""

    def __init__(self, run: Callable[[], None] | None = None) -> None:
        self._run = run

    def __call__(self, *_: object) -> None:
        if self._run is not None:
            self._run()

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def _in_backward() -> bool:
    """Whether one of torch's functions for a backward pass has called this, directly or not.

    torch has no public function that tells. On a GPU the backward pass has its own threads, which have no tape.
    """
    return any(frame.f_code in _BACKWARD for frame, _ in walk_stack(None))


_EAGER_LOCK = Lock()
_EAGER: list[Any] = []


@contextmanager
def _force_eager() -> Iterator[None]:
    """Run compiled models eagerly. The stance is global, so the first entry sets it and the last exit resets it."""
    with _EAGER_LOCK:
        if not _EAGER:
            _EAGER.append(torch.compiler.set_stance("force_eager"))  # takes effect at once
        _EAGER.append(None)
    try:
        yield
    finally:
        with _EAGER_LOCK:
            _EAGER.pop()
            if len(_EAGER) == 1:
                _EAGER.pop().__exit__(None, None, None)


class Attention(nn.Module):
    """Base class of modules that call `attend`: `capture` records their names."""
