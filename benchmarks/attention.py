"""What the one attention costs: Regard's ViT against Hugging Face transformers' in one run, and capture's price.

Same shape (ViT-S/16, 224 pixels), same input, same weights' sizes, fp32 on the CPU (bf16 on a GPU); the two take
turns, and the figure is the ratio of medians with the spread of the turns' ratios.

    python benchmarks/attention.py
"""

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

import regard
from regard.nn import Tape

TURNS = 9


def timed(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object], device: str) -> None:
    for work in (ours, theirs):
        timed(work, device)
    turns = [(timed(ours, device), timed(theirs, device)) for _ in range(TURNS)]
    ratios = sorted(other / own for own, other in turns)
    own, other = (statistics.median(column) for column in zip(*turns, strict=True))
    print(
        f"| {name} | {own * 1e3:.0f} ms | {other * 1e3:.0f} ms "
        f"| {other / own:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
    )


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = 64 if device == "cuda" else 8
    torch.manual_seed(0)
    mine = regard.create("vit_s16").to(device)
    shape: dict[str, Any] = {
        "hidden_size": 384,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
        "num_labels": 1000,
    }
    config = ViTConfig(**shape)
    peer: Any = ViTForImageClassification._from_config(config, attn_implementation="sdpa")
    peer = peer.to(device)
    x, y = torch.randn(batch, 3, 224, 224, device=device), torch.randint(0, 1000, (batch,), device=device)
    mixed = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{name}, torch {torch.__version__}, batch {batch}, median of {TURNS} turns\n")

    def infer(model: torch.nn.Module) -> Callable[[], object]:
        def work() -> object:
            with torch.inference_mode(), mixed:
                return model(x)

        return work

    def step(model: torch.nn.Module) -> Callable[[], object]:
        def work() -> object:
            with mixed:
                loss = F.cross_entropy(model(x).logits, y)
            model.zero_grad()
            loss.backward()
            return loss

        return work

    def captured() -> Tape:
        with regard.capture(mine) as tape:
            infer(mine)()
        return tape

    print("| work | Regard | transformers | times as fast |\n|---|---|---|---|")
    for model in (mine, peer):
        model.eval()
    compare("inference", infer(mine), infer(peer), device)
    for model in (mine, peer):
        model.train()
    compare("forward and backward", step(mine), step(peer), device)
    mine.eval()
    print("\n| work | captured | plain | plain over captured |\n|---|---|---|---|")
    compare("inference inside `capture`", captured, infer(mine), device)
    tape = captured()
    start = time.perf_counter()
    tape.attention(layer=6, head=3)
    print(f"\none head's exact weights, batch {batch}: {1e3 * (time.perf_counter() - start):.1f} ms; "
          f"the tape holds {tape.nbytes / 2**20:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
