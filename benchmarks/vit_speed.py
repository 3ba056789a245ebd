"""Regard's ViT against timm's, both compiled, in one run on a GPU: training and inference, and what capture costs.

Same batch, bf16 autocast over fp32 weights, cross-entropy, fused AdamW; the two take turns, and the figure is the
median of the turns' ratios with their spread. Needs timm (and torchvision, which it imports).

    python benchmarks/vit_speed.py [--models vit_b16 vit_l16] [--turns 7]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm  # pyright: ignore[reportMissingImports]
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.networks.base import Network
from regard.nn import Tape

PEERS = {"vit_b16": ("vit_base_patch16_224", 256), "vit_l16": ("vit_large_patch16_224", 128)}
STEPS = 10


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of one call of `work`, from events around several."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(STEPS):
        work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / STEPS


def compare(label: str, ours: Callable[[], object], theirs: Callable[[], object], batch: int, turns: int) -> None:
    for work in (ours, theirs):
        for _ in range(5):
            work()
    pairs = [(timed(ours), timed(theirs)) for _ in range(turns)]
    ratios = sorted(other / own for own, other in pairs)
    own, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"| {label} | {batch} | {1e3 * batch / own:,.0f} | {1e3 * batch / other:,.0f} "
        f"| {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |",
        flush=True,
    )


def logits(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """Of either model: timm's returns them as they are, ours by name."""
    ours = isinstance(getattr(model, "_orig_mod", model), Network)
    return model(x, class_token_only=True).logits if ours else model(x)


def trainer(model: nn.Module, x: torch.Tensor, y: torch.Tensor):
    model.train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def work() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(logits(compiled, x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


def predictor(model: nn.Module, x: torch.Tensor):
    model.eval()
    compiled = torch.compile(model)

    def work() -> object:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            return logits(compiled, x)

    return work


def capture_cost(name: str) -> None:
    """One image, eagerly, as `explain` runs it: plain, inside `capture`, and with every head's weights asked for."""
    model, x = regard.create(name).cuda().eval(), torch.randn(1, 3, 224, 224, device="cuda")

    def plain() -> None:
        with torch.inference_mode():
            model(x)

    def captured() -> Tape:
        with torch.inference_mode(), regard.capture(model) as tape:
            model(x)
        return tape

    def asked() -> None:
        tape = captured()
        for layer in range(len(tape)):
            tape.attention(layer)

    times = []
    for work in (plain, captured, asked):
        work()
        times.append(statistics.median(timed(work) for _ in range(5)))
    print(
        f"{name}, one image, eager fp32: {times[0]:.1f} ms plain, {times[1]:.1f} ms inside capture, "
        f"{times[2]:.1f} ms with the exact weights of every layer; the tape holds {captured().nbytes / 2**20:.1f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    start = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, timm {timm.__version__}\n")
    print("| work | batch | Regard, images/s | timm, images/s | times as fast |\n|---|---|---|---|---|", flush=True)
    for name in options.models:
        peer, batch = PEERS[name]
        x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")
        mine, theirs = regard.create(name).cuda(), timm.create_model(peer).cuda()
        assert sum(p.numel() for p in mine.parameters()) == sum(p.numel() for p in theirs.parameters())
        compare(f"{name} training", trainer(mine, x, y), trainer(theirs, x, y), batch, options.turns)
        compare(f"{name} inference", predictor(mine, x), predictor(theirs, x), batch, options.turns)
        del mine, theirs
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    print()
    for name in options.models:
        capture_cost(name)
    print(f"\n{time.monotonic() - start:.0f} s in all, compiling included")


if __name__ == "__main__":
    main()
