"""Cost of layers by sequence length: the decks' complexity table (Vaswani et al., Table 1) and measurements.

- All layers map (batch, length, width) to the same shape; forward and backward are timed.
- Attention is measured without projections, as the table counts it.
- The fused kernel never stores the weights; one more row that does shows the memory this saves.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.nn import attend, attention_weights
from regard.study.keep import cached


@dataclass(frozen=True)
class Sizes:
    """The letters of the table: d, and h heads of it; k of the convolution; r of restricted attention."""

    width: int = 128
    heads: int = 2
    kernel: int = 3
    neighbours: int = 64
    batch: int = 1
    rounds: int = 5
    """Measurements of each layer per length; times are medians."""


class Layer(NamedTuple):
    """A row of the table."""

    operations: str
    sequential: str
    path: str
    power: int
    """Exponent of the length in the number of operations."""


LAYERS = {
    "self-attention": Layer("n²·d", "1", "1", 2),
    "self-attention, weights kept": Layer("n²·d", "1", "1", 2),
    "recurrent (LSTM)": Layer("n·d²", "n", "n", 1),
    "convolutional": Layer("k·n·d²", "1", "logₖ n", 1),
    "self-attention, restricted": Layer("r·n·d", "1", "n/r", 1),
}


class Cost(NamedTuple):
    """One layer at one length."""

    layer: str
    length: int
    seconds: float
    bytes: int
    """Peak of allocated memory, without weights and input."""


@dataclass(frozen=True)
class Costs:
    """The results of this part."""

    sizes: Sizes
    device: str
    threads: int
    measured: list[Cost]

    def column(self, layer: str, what: str) -> tuple[list[int], list[float]]:
        """Lengths, and seconds or bytes at each."""
        rows = sorted((row for row in self.measured if row.layer == layer), key=lambda row: row.length)
        return [row.length for row in rows], [getattr(row, what) for row in rows]

    def power(self, layer: str, what: str) -> float:
        """Exponent of the length in seconds or bytes, over the longer half of lengths, where constant costs matter
        least."""
        lengths, values = self.column(layer, what)
        some = max(2, math.ceil(len(lengths) / 2))
        return exponent(lengths[-some:], values[-some:])

    def rows(self) -> list[dict[str, Any]]:
        return [row._asdict() for row in self.measured]

    def summary(self) -> list[str]:
        lengths, attention = self.column("self-attention", "seconds")
        lines = [
            f"{name}: time grows with n^{self.power(name, 'seconds'):.2f} (the table's operations: n^{layer.power}), "
            f"memory with n^{self.power(name, 'bytes'):.2f}."
            for name, layer in LAYERS.items()
        ]
        _, recurrent = self.column("recurrent (LSTM)", "seconds")
        ratios = [b / a for a, b in zip(attention, recurrent, strict=True)]
        lines.append(
            f"The LSTM takes {ratios[0]:.1f} times as long as self-attention at {lengths[0]} words and "
            f"{ratios[-1]:.1f} times at {lengths[-1]:,}, at a width of {self.sizes.width}."
        )
        _, kept_ = self.column("self-attention, weights kept", "bytes")
        _, fused = self.column("self-attention", "bytes")
        lines.append(
            f"Keeping the weights takes {kept_[-1] / fused[-1]:.0f} times the memory at {lengths[-1]:,} words."
        )
        return lines

    def table(self) -> str:
        lines = [
            "| layer | operations | sequential | longest path | time ∝ n^ | memory ∝ n^ | time at "
            f"{max(row.length for row in self.measured):,} words, self-attention = 1 | memory |",
            "|---" * 8 + "|",
        ]
        base = {what: self.column("self-attention", what)[1][-1] for what in ("seconds", "bytes")}
        for name, layer in LAYERS.items():
            powers = " | ".join(f"{self.power(name, what):.2f}" for what in ("seconds", "bytes"))
            ratios = " | ".join(f"{self.column(name, what)[1][-1] / base[what]:.2f}" for what in ("seconds", "bytes"))
            lines.append(f"| {name} | {layer.operations} | {layer.sequential} | {layer.path} | {powers} | {ratios} |")
        s, threads = self.sizes, f"{self.threads} thread{'s' * (self.threads > 1)}"
        lines += ["", (
            f"Left: the decks' table. Right: measured on {self.device} ({threads}), forward and "
            f"backward, batch {s.batch}, d = {s.width} in {s.heads} heads, k = {s.kernel}, r = {s.neighbours}; "
            "powers are slopes on log axes over the longer half of the lengths."
        )]  # fmt: skip
        return "\n".join(lines)


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a line through log values over log lengths, by least squares.

    >>> round(exponent([10, 20, 40], [3e-3, 12e-3, 48e-3]), 6)
    2.0
    """
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def costs(
    lengths: Sequence[int] = (128, 256, 512, 1024, 2048, 4096),
    *,
    sizes: Sizes | None = None,
    device: str = "cpu",
    keep: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Time and memory of every layer at every length. At each length the layers are measured alternately.

    >>> result = costs((8, 16), sizes=Sizes(width=8, neighbours=4, rounds=1))
    >>> len(result.measured), result.power("convolutional", "bytes") > 0.5
    (10, True)
    """
    sizes = sizes or Sizes()
    if len(set(lengths)) < 2 or min(lengths) < 1:
        raise ConfigError(f"lengths={tuple(lengths)} show no growth", do="give at least two, such as 128,256,512")
    if not device.startswith(("cpu", "cuda")):
        raise ConfigError(f"memory cannot be counted on {device}", do="give device cpu or cuda")
    measured = list[Cost]()
    settings = asdict(sizes) | {"device": device, "threads": torch.get_num_threads()}
    for length in sorted(set(lengths)):
        path = None if keep is None else keep / f"{length}.json"
        cell = cached(path, settings, lambda length=length: _measured(length, sizes, device))
        measured += [Cost(layer, length, *both) for layer, both in cell.items()]
        say(f"costs at {length:,} words: self-attention {1e3 * cell['self-attention'][0]:.1f} ms")
    return Costs(sizes, device, torch.get_num_threads(), measured)


def _measured(length: int, sizes: Sizes, device: str) -> dict[str, tuple[float, int]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = layers_of(sizes, device)
        x = torch.randn(sizes.batch, length, sizes.width, device=device, requires_grad=True)
    works = {name: _pass(layer, x) for name, layer in layers.items()}
    most = {name: peak_memory(work, device) for name, work in works.items()}  # and a first, unmeasured call
    calls = max(1, 1024 // length)
    rounds = [{name: timed(work, calls, device) for name, work in works.items()} for _ in range(sizes.rounds)]
    return {name: (statistics.median(times[name] for times in rounds), most[name]) for name in works}


def _pass(layer: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    weights = list(layer.parameters()) if isinstance(layer, nn.Module) else []
    along = torch.ones_like(x, requires_grad=False)

    def work() -> object:
        return torch.autograd.grad(layer(x), [x, *weights], along)

    return work


def timed(work: Callable[[], object], calls: int, device: str) -> float:
    """Seconds per call, over `calls` of them."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - start) / calls


def peak_memory(work: Callable[[], object], device: str = "cpu") -> int:
    """Peak memory of the tensors created by `work`, in bytes.

    On a GPU it is read from the allocator. On a CPU the profiler lists all allocations of PyTorch's allocator, also
    inside operators, but not those of other libraries.

    >>> peak_memory(lambda: [torch.empty(1000), torch.empty(500)])
    6000
    """
    if device.startswith("cuda"):
        work()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # else it prints messages to the terminal
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        work()
    results: Any = profile.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    events = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    return max(itertools.accumulate((size for _, size in events), initial=0))


def layers_of(sizes: Sizes, device: str = "cpu") -> dict[str, Callable[[Tensor], Tensor]]:
    """The layers by name; each maps (batch, length, width) to the same shape."""

    def headed(mix: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def layer(x: Tensor) -> Tensor:
            return mix(x.unflatten(-1, (sizes.heads, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)

        return layer

    layers = (
        headed(lambda x: attend(x, x, x)),
        headed(lambda x: attention_weights(x, x) @ x),
        Recurrence(sizes.width).to(device),
        Convolution(sizes.width, sizes.kernel).to(device),
        headed(lambda x: attend_nearby(x, x, x, sizes.neighbours)),
    )
    return dict(zip(LAYERS, layers, strict=True))


class Recurrence(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.cells = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0]


class Convolution(nn.Module):
    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.kernels = nn.Conv1d(width, width, kernel, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels(x.transpose(1, 2)).transpose(1, 2)


def attend_nearby(q: Tensor, k: Tensor, v: Tensor, neighbours: int) -> Tensor:
    """`attend` where each query sees the keys at most neighbours / 2 positions away: (B, H, N, D) in and out.

    Computed in blocks of `neighbours` queries, each with twice as many keys; there is never an N × N matrix.
    """
    r, half, length = neighbours, neighbours // 2, q.shape[2]
    count = -(-length // r)
    spare = count * r - length
    queries = _blocks(F.pad(q, (0, 0, 0, spare)), r, r)
    keys, values = (_blocks(F.pad(x, (0, 0, half, r - half + spare)), 2 * r, r) for x in (k, v))
    own, other = torch.arange(r, device=q.device)[:, None], torch.arange(2 * r, device=q.device)[None] - half
    place = other + r * torch.arange(count, device=q.device)[:, None, None]
    mask = ((own - other).abs() <= half) & (place >= 0) & (place < length)
    mixed = attend(queries, keys, values, mask=mask[:, None].repeat(len(q), 1, 1, 1))
    return mixed.unflatten(0, (len(q), count)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _blocks(x: Tensor, size: int, step: int) -> Tensor:
    """(B, H, N, D) as blocks (B · blocks, H, size, D), each `step` after the one before."""
    return x.unfold(2, size, step).permute(0, 2, 1, 4, 3).flatten(0, 1)
