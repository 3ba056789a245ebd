"""`capture` records the attention of a model on a `Tape`, which computes the exact weights of any layer and head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from traceback import walk_stack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import RegardError, did_you_mean
from regard.nn.attention import TAPES, Attention, Scoring, softmax_scores

_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}


class Call(NamedTuple):
    name: str
    q: Tensor
    k: Tensor
    scoring: Scoring
    v: Tensor | None
    gradients: dict[int, Tensor]
    """The gradient of the output of each step, from the latest backward pass that reached it."""

    def gradient(self) -> Tensor:
        """The gradient of the output of all queries; zero for steps that nothing depends on."""
        one = next(iter(self.gradients.values()))
        steps = range(self.q.shape[-2] // one.shape[-2])
        return torch.cat([self.gradients.get(step, torch.zeros_like(one)) for step in steps], dim=-2)

    def part(self, rows: slice) -> Call:
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
        self._calls: list[Call] = []
        self._gradients = gradients
        self._running = False
        self._with_graph = False
        """Whether the recorded pass is one that a backward pass can start from."""
        self._modules = 0
        """Number of modules of the model that can be recorded."""
        self._name = ""

    def record(self, q: Tensor, k: Tensor, v: Tensor | None, out: Tensor, scoring: Scoring, step: int) -> None:
        """Keep what the weights, and their gradients, can be computed from; later steps belong to the same layer."""
        if not self._running:
            return
        if step:
            call = self._calls[-1]
            call = self._calls[-1] = call._replace(q=torch.cat([call.q, q.detach()], dim=-2))
        else:
            # Cloned because q, k and v are usually views of one projection, which would stay in memory.
            values = v.detach().clone() if self._gradients and v is not None else None
            parts: list[Any] = [part.detach() if isinstance(part, Tensor) else part for part in scoring]
            call = Call(self._name, q.detach().clone(), k.detach().clone(), Scoring(*parts), values, {})
            self._calls.append(call)
        if self._gradients and out.requires_grad:
            out.register_hook(lambda gradient: call.gradients.update({step: gradient.detach()}))

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
        self, compute: Callable[[Call, int], Tensor], layer: int | str, head: int | None, rows: slice
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

    def _call(self, layer: int | str) -> Call:
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
    def _weights(call: Call, head: int) -> Tensor:
        def pick(t: Tensor | None) -> Tensor | None:
            if t is None or t.ndim < 3:
                return t
            return t.select(-3, head if t.shape[-3] > 1 else 0)

        rule = call.scoring
        if rule.joint:
            dtype = exact_dtype(call.q.device)
            weights = softmax_scores(call.q.to(dtype), call.k.to(dtype), rule).select(-3, head)
            return weights if weights.ndim > 2 else weights[None]
        q, k = (_precise(t, head) for t in (call.q, call.k))
        vector = None if rule.vector is None else rule.vector.to(q.dtype)
        weights = softmax_scores(q, k, rule._replace(mask=pick(rule.mask), bias=pick(rule.bias), vector=vector))
        return weights if weights.ndim > 2 else weights[None]

    @staticmethod
    def _weight_gradients(call: Call, head: int) -> Tensor:
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
        return tape in TAPES.get()

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
    TAPES.set((*TAPES.get(), tape))
    try:
        with _force_eager():
            yield tape
    finally:
        for handle in handles:
            handle.remove()
        TAPES.set(tuple(other for other in TAPES.get() if other is not tape))


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
