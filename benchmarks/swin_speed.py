"""Regard's Swin-T against timm's and torchvision's, all compiled, in one run on a GPU: training and inference.

As `vit_speed.py`: batch 256, bf16 autocast over fp32 weights, fused AdamW, stochastic depth of 0.1 in all; two networks
take turns, and the figure is the median of the turns' ratios with their spread. Before that the kernel for windows is
checked against attention without it, and with --tune the fastest way to launch it is searched for, printed and used.

    python benchmarks/swin_speed.py [--only training inference] [--peers timm torchvision] [--turns 7] [--no-kernel]
        [--tune] [--no-check] [--profile FILE] [--seconds 190]
"""

import argparse
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vit_speed import compare, predictor, timed, trainer

import regard
from regard.nn import attention
from regard.nn.windows import WindowAttention, Windows, from_windows, relative_rows, shift_mask, to_windows

BATCH, DROP_PATH = 256, 0.1
WORK = {"training": trainer, "inference": predictor}
STAGES = [(56, 3), (28, 6), (14, 12), (7, 24)]
"""Side of the grid and heads of 32 channels, of each stage."""
GROUPS = {
    "window kernel": ("_attend", "_differentiate"),
    "norms and sums": ("triton_red", "triton_per"),
    "pointwise": ("triton_",),
    "optimizer": ("multi_tensor",),
    "other attention": ("fmha", "flash", "attention", "cudnn_generated"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
    "torch's own": ("elementwise", "reduce", "memcpy", "memset", "index", "cat"),
}
"""Words in the names of GPU kernels, the first that fits."""


@contextmanager
def no_kernel() -> Iterator[None]:
    """Window attention by torch's own operators."""
    most, attention.MOST_FUSED = attention.MOST_FUSED, 0
    try:
        yield
    finally:
        attention.MOST_FUSED = most


def check() -> None:
    """Largest relative errors of the kernel and of the path without it, both in bf16, against double precision."""
    print("Largest error in bf16, with the kernel / without, relative to the largest value in double precision:")
    for (side, heads), shift in product(STAGES, [(0, 0), (3, 3)]):
        if side == 7 and any(shift):
            continue
        errors = module_errors(side, heads, shift)
        text = ", ".join(f"{name} {own:.1e}/{other:.1e}" for name, (own, other) in errors.items())
        good = all(own < 2 * other + 1e-4 for own, other in errors.values())
        print(f"{'OK    ' if good else 'FAILED'} {side} x {side}, shift {shift}: {text}", flush=True)
    errors = operator_errors()
    text = ", ".join(f"{error:.1e}" for error in errors)
    print(f"{'OK    ' if max(errors) < 1e-5 else 'FAILED'} the operator in fp32: {text}", flush=True)
    torch.manual_seed(0)
    model, x = regard.create("swin_t").cuda().eval(), torch.randn(8, 3, 224, 224, device="cuda")
    nn.init.normal_(model.head.weight, std=0.05)
    with torch.inference_mode():
        with no_kernel():
            exact = model(x).logits
        with torch.autocast("cuda", torch.bfloat16):
            own = model(x).logits
            with no_kernel():
                other = model(x).logits
    errors = [f"{relative(logits, exact):.1e}" for logits in (own, other)]
    print(f"logits of swin_t in bf16, against fp32: {errors[0]} with the kernel, {errors[1]} without", flush=True)


def relative(tensor: Tensor, exact: Tensor) -> float:
    tensor, exact = tensor.detach().double(), exact.detach().double()
    return float((tensor - exact).abs().max() / exact.abs().max())


def cut(side: int, shift: tuple[int, int]) -> Windows:
    rows, mask = relative_rows((7, 7), (7, 7)), shift_mask((side, side), (7, 7), shift)
    return Windows((7, 7), shift, rows.cuda(), None if mask is None else mask.cuda())


def module_errors(side: int, heads: int, shift: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Of the output and of all gradients of one layer, with and without the kernel."""
    torch.manual_seed(0)
    module, windows = WindowAttention(32 * heads, heads, (7, 7)).cuda(), cut(side, shift)
    nn.init.normal_(module.positions.table)
    x = torch.randn(4, side, side, 32 * heads, device="cuda")
    weights = torch.randn_like(x)

    def results(dtype: torch.dtype) -> list[Tensor]:
        given = x.to(dtype).requires_grad_()
        inputs = [given, *module.parameters()]
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            out = module(given, windows)
        return [out, *torch.autograd.grad((out * weights).sum(), inputs)]

    own = results(torch.float32)
    with no_kernel():
        other = results(torch.float32)
        module.double()
        exact = results(torch.float64)
    names = ["output", "x", *(name for name, _ in module.named_parameters())]
    return {name: (relative(a, e), relative(b, e)) for name, a, b, e in zip(names, own, other, exact, strict=True)}


def operator_errors() -> list[float]:
    """Of the operator itself in fp32: output and gradients of queries, keys and values and of the bias."""
    torch.manual_seed(0)
    qkv, bias = torch.randn(2, 14, 21, 192, device="cuda"), torch.randn(2, 49, 49, device="cuda")
    weights, results = torch.randn(2, 14, 21, 64, device="cuda"), []
    for dtype in (torch.float32, torch.float64):
        inputs = [t.to(dtype).requires_grad_() for t in (qkv, bias)]
        if dtype == torch.float32:
            out = attention.attend_windows(inputs[0], inputs[1], 2, (7, 7), (3, 3))
        else:
            out = by_pairs(*inputs)
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs)])
    return [relative(own, exact) for own, exact in zip(*results, strict=True)]


def by_pairs(qkv: Tensor, bias: Tensor) -> Tensor:
    """Shifted windows of 7 x 7 of a grid of 14 x 21 with two heads, from `attend`."""
    q, k, v = to_windows(qkv, (7, 7), (3, 3)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    mask = shift_mask((14, 21), (7, 7), (3, 3), qkv.device)
    mixed = attention.attend(q, k, v, mask=mask, bias=bias[None])
    return from_windows(mixed.transpose(1, 2).flatten(2), (14, 21), (7, 7), (3, 3))


def tune() -> None:
    """Time of the kernels on the shifted windows of stages 1 and 3, by how they are launched; the fastest is used."""
    from regard.nn import window_kernel

    shapes = [(STAGES[0], 2), (STAGES[2], 6)]
    inputs = []
    for (side, heads), blocks in shapes:
        qkv = torch.randn(BATCH, side, side, 96 * heads, device="cuda", dtype=torch.bfloat16)
        gradient, bias = torch.randn_like(qkv[..., : 32 * heads]), torch.randn(heads, 49, 49, device="cuda")
        inputs.append((qkv, bias, gradient.contiguous(), heads, blocks))
    forward = [(4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 4, 0), (4, 3, 96), (2, 2, 0), (8, 2, 0)]
    backward = [(4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 1, 168), (4, 2, 168), (8, 2, 0), (8, 2, 128), (2, 1, 0)]
    for name, plan, options, counts in (
        ("forward", window_kernel.FORWARD, forward, [528, 1056, 2112, 4224, 16896, 10**9]),
        ("backward", window_kernel.BACKWARD, backward, [264, 396, 528, 1056, 2112, 4224]),
    ):
        rows = []
        for (warps, stages, registers), programs in product(options, counts):
            choice: dict[str, Any] = {"programs": programs, "num_warps": warps, "num_stages": stages}
            choice |= {"maxnreg": registers} if registers else {}
            plan.clear()
            plan.update(choice)
            try:
                times = [launch_time(name, *case) for case in inputs]
            except Exception as error:
                print(f"{name} {choice}: {type(error).__name__} {error}"[:300], flush=True)
                continue
            rows.append((sum(t * case[-1] for t, case in zip(times, inputs, strict=True)), times, choice))
        rows.sort(key=lambda row: row[0])
        for _, times, choice in [*rows[:6], *rows[6::6]]:
            rates = [
                (4 if name == "forward" else 7) * case[2].nbytes / 1e6 / each
                for case, each in zip(inputs, times, strict=True)
            ]
            figures = ", ".join(f"{1e3 * t:.0f} us ({rate:.0f} GB/s)" for t, rate in zip(times, rates, strict=True))
            print(f"{name}: stages 1, 3: {figures}: {choice}", flush=True)
        plan.clear()
        plan.update(rows[0][-1])
        print(f"{name}: used from here on: {plan}", flush=True)


def launch_time(name: str, qkv: Tensor, bias: Tensor, gradient: Tensor, heads: int, _: int) -> float:
    from regard.nn import window_kernel

    def work() -> object:
        if name == "forward":
            return window_kernel.window_attention(qkv, bias, heads, [7, 7], [3, 3])
        return window_kernel.window_attention_backward(gradient, qkv, bias, heads, [7, 7], [3, 3])

    timed(work)
    return min(timed(work) for _ in range(2))


def build(name: str) -> nn.Module:
    if name == "Regard":
        return regard.create("swin_t", drop_path=DROP_PATH).cuda()
    if name == "timm":
        import timm  # pyright: ignore[reportMissingImports]

        return timm.create_model("swin_tiny_patch4_window7_224", drop_path_rate=DROP_PATH).cuda()
    from torchvision.models import SwinTransformer  # pyright: ignore[reportMissingImports]

    # As its `swin_t`, whose stochastic depth of 0.2 cannot be changed.
    shape: dict[str, Any] = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}
    return SwinTransformer([4, 4], window_size=[7, 7], stochastic_depth_prob=DROP_PATH, **shape).cuda()


def warm(name: str, work: Callable[[], object]) -> None:
    start = time.monotonic()
    work()
    torch.cuda.synchronize()
    print(f"  ({name}: {time.monotonic() - start:.0f} s for the first call, with compiling)", flush=True)


def profile(title: str, work: Callable[[], object], file: Path, steps: int = 3) -> None:
    """Append the GPU time of one step to `file`: by group, and the kernels that take most."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as run:
        for _ in range(steps):
            work()
        torch.cuda.synchronize()
    rows: list[tuple[float, float, str]] = []
    for event in run.key_averages():
        on_gpu = str(event.device_type).endswith("CUDA") and not getattr(event, "is_user_annotation", False)
        if on_gpu and event.self_device_time_total > 0 and not event.key.startswith(("##", "Optimizer.", "Torch-")):
            rows.append((event.self_device_time_total / 1e3 / steps, event.count / steps, event.key))
    rows.sort(reverse=True)
    groups: dict[str, float] = {}
    for spent, _, key in rows:
        words = key.lower()
        group = next((g for g, parts in GROUPS.items() if any(part in words for part in parts)), "other")
        groups[group] = groups.get(group, 0.0) + spent
    total = sum(groups.values())
    lines = [f"\n## {title}: {total:.2f} ms of GPU time per step", "", "| group | ms | share |", "|---|---|---|"]
    for group, spent in sorted(groups.items(), key=lambda item: -item[1]):
        lines.append(f"| {group} | {spent:.2f} | {spent / total:.0%} |")
    lines += ["", "| ms | calls | kernel |", "|---|---|---|"]
    lines += [f"| {spent:.3f} | {count:.0f} | `{key[:110]}` |" for spent, count, key in rows[:40]]
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    short = ", ".join(f"{g} {t:.1f}" for g, t in sorted(groups.items(), key=lambda item: -item[1]))
    print(f"  ({title}, ms per step: {short})", flush=True)


def measure(kind: str, peer: str, options: argparse.Namespace) -> None:
    x = torch.randn(BATCH, 3, 224, 224, device="cuda")
    data = (x, torch.randint(0, 1000, (BATCH,), device="cuda")) if kind == "training" else (x,)
    ours, theirs = build("Regard"), build(peer)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    works = {"Regard": WORK[kind](ours, *data), peer: WORK[kind](theirs, *data)}
    for name, work in works.items():
        guarded(f"compiling {name}", warm, name, work)
    guarded("Regard alone", alone, kind, works["Regard"])
    guarded("compare", compare, f"swin_t {kind}, against {peer}", *works.values(), BATCH, options.turns)
    if options.profile:
        for name, work in works.items():
            guarded("profile", profile, f"{name}, {kind}", work, options.profile)


def alone(kind: str, work: Callable[[], object]) -> None:
    spent = statistics.median(timed(work) for _ in range(3))
    print(f"  (Regard alone, {kind}: {spent:.2f} ms, {1e3 * BATCH / spent:,.0f} images/s)", flush=True)


def guarded(label: str, function: Callable[..., object], *arguments: object) -> None:
    """Run a section; if it fails, say so and let the others run."""
    try:
        function(*arguments)
    except Exception:
        print(f"FAILED: {label}\n{traceback.format_exc()[-3000:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(WORK), choices=list(WORK))
    parser.add_argument("--peers", nargs="*", default=["timm", "torchvision"], choices=["timm", "torchvision"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--no-kernel", action="store_true", help="window attention by torch's own operators")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--profile", type=Path, help="file to which tables of GPU time are written")
    parser.add_argument("--seconds", type=float, default=190, help="start no comparison after this many")
    options = parser.parse_args()
    start = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n", flush=True)
    if options.profile:
        options.profile.write_text(f"# GPU time of Swin-T, {torch.cuda.get_device_name()}\n", encoding="utf-8")
    if options.no_kernel:
        attention.MOST_FUSED = 0
    elif not options.no_check:
        guarded("check", check)
    if options.tune and not options.no_kernel:
        guarded("tune", tune)
    print(f"\n{time.monotonic() - start:.0f} s so far\n")
    print("| work | batch | Regard, images/s | peer, images/s | times as fast |\n|---|---|---|---|---|", flush=True)
    for peer, kind in product(options.peers, options.only):
        if time.monotonic() - start > options.seconds:
            print(f"left out for lack of time: {kind}, against {peer}")
            continue
        guarded(f"{kind}, against {peer}", measure, kind, peer, options)
        torch.cuda.empty_cache()
        torch.compiler.reset()
    print(f"\n{time.monotonic() - start:.0f} s in all, compiling included")


if __name__ == "__main__":
    main()
