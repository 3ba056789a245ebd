"""Regard's 3D ViT against MONAI's: training on volumes of 224³ voxels and four channels, in one run on one GPU.

The same shape (ViT-B, patches of 16³), batch, bf16 autocast over fp32 weights, cross-entropy and fused AdamW. Four
networks take turns: Regard's and MONAI's, each eager and compiled. The figure is the median over turns; peak memory is
measured for each alone, its weights and optimizer included. JSON lines follow the table.

    python benchmarks/volumes_speed.py [--monai FOLDER] [--turns 5] [--minutes 8]

FOLDER holds MONAI and einops as pure Python packages, where they are not installed (`pip install --no-deps --target`).
On a CPU, to try it out: --size 32 --batch 2 --depth 2 --turns 2 --steps 1 --kinds regard-eager monai-eager.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import regard

KINDS = ("regard-compiled", "regard-eager", "monai-compiled", "monai-eager")
WARM = 3
"""Steps before anything is measured."""


def make(kind: str, options: argparse.Namespace) -> Any:
    """A network for two classes: ours, or MONAI's of the same shape."""
    size, width, heads = (options.size,) * 3, options.width, options.width // 64
    if kind.startswith("regard"):
        return regard.create(
            "vit3d_b16", size=size, patch=options.patch, channels=options.channels, classes=2, width=width,
            depth=options.depth, heads=heads, mlp=4 * width,
        )  # fmt: skip
    from monai.networks.nets.vit import ViT

    return ViT(
        options.channels, size, (options.patch,) * 3, hidden_size=width, mlp_dim=4 * width, num_layers=options.depth,
        num_heads=heads, classification=True, num_classes=2, qkv_bias=True,
    )  # fmt: skip


def trainer(kind: str, options: argparse.Namespace, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One training step of a fresh network."""
    model = make(kind, options).to(x.device).train()
    ours = kind.startswith("regard")
    if kind.endswith("compiled"):
        if ours:  # as `regard train` does: blocks, which share one graph
            for module in model.compiled():
                module.compile()
        else:
            model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            out = model(x, class_token_only=True).logits if ours else model(x)[0]
            loss = F.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Callable[[], None], steps: int, cuda: bool) -> float:
    """Seconds per step."""
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def prepare(
    kind: str, options: argparse.Namespace, x: torch.Tensor, y: torch.Tensor
) -> tuple[Callable[[], None], float | None]:
    """Its step, warmed up, and the GiB that it needs beside what is already there."""
    before = torch.cuda.memory_allocated() if x.is_cuda else 0
    step = trainer(kind, options, x, y)
    for number in range(WARM):
        if x.is_cuda and number == WARM - 1:
            torch.cuda.reset_peak_memory_stats()
        step()
    return step, (torch.cuda.max_memory_allocated() - before) / 2**30 if x.is_cuda else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--monai", help="folder that holds MONAI and einops")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    for name, value in {"size": 224, "patch": 16, "channels": 4, "batch": 4, "width": 768, "depth": 12}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="per turn")
    parser.add_argument("--minutes", type=float, default=8, help="no new turn is begun after that")
    options = parser.parse_args()
    if options.monai:
        sys.path.insert(0, options.monai)
    start, device = time.monotonic(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    x = torch.randn(options.batch, options.channels, *(options.size,) * 3, device=device)
    y = torch.randint(0, 2, (options.batch,), device=device)
    name = torch.cuda.get_device_name() if x.is_cuda else "CPU"
    print(
        f"{name}, torch {torch.__version__}: {tuple(x.shape)}, training, {'bf16' if x.is_cuda else 'fp32'}", flush=True
    )
    steps, peaks, words = {}, {}, {}
    for kind in options.kinds:
        steps[kind], peak = prepare(kind, options, x, y)
        peaks[kind] = peak
        words[kind] = "not measured" if peak is None else f"{peak:.1f}"
        print(f"  {time.monotonic() - start:5.0f} s: {kind} is warm, peak memory in GiB: {words[kind]}", flush=True)
    seconds: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    for turn in range(options.turns):
        if turn and time.monotonic() - start > 60 * options.minutes:
            print(f"  out of time after {turn} turns", flush=True)
            break
        for kind, step in steps.items():
            seconds[kind].append(timed(step, options.steps, x.is_cuda))
        print(f"  {time.monotonic() - start:5.0f} s: turn {turn + 1} of {options.turns}", flush=True)
    print("\n| network | volumes/s (lowest to highest turn) | peak memory, GiB |\n|---|---|---|")
    rates = {kind: [options.batch / each for each in turns] for kind, turns in seconds.items()}
    for kind, each in rates.items():
        print(f"| {kind} | {statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f}) | {words[kind]} |")
    for kind, each in rates.items():
        row = {"network": kind, "volumes_per_s": each, "peak_gib": peaks[kind], "device": name, "shape": list(x.shape)}
        print(json.dumps(row))
    print(f"{time.monotonic() - start:.0f} s in all, compiling included")


if __name__ == "__main__":
    main()
