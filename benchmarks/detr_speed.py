"""Regard's DETR-R50 against transformers', as it is and compiled, in one run on a GPU: training and inference.

Batch 8, 800 × 800 pixels, ten objects per image, bf16 autocast over fp32 weights, frozen norms, fused AdamW, gradients
clipped at 0.1. A training step is forward, matching, losses of all decoder blocks, backward and update. Ours is
compiled as a whole, where `regard train` compiles block by block, and recorded as one CUDA graph. transformers' is
measured as it is, compiled, and in inference also compiled and recorded as one graph by this script. Two take turns,
and the figure is the median of the turns' ratios with their spread. First the matching on the GPU is compared with
SciPy's.

    python benchmarks/detr_speed.py [--only training inference] [--peers eager compiled recorded] [--turns 5]
        [--seconds 500] [--profile FILE] [--no-check]
    python benchmarks/detr_speed.py --device cpu --size 64 64 --batch 2 --turns 1 --steps 1 --tiny  # a trial
"""

import argparse
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import regard
from regard.data.batch import Batch
from regard.tasks.objects.loss import SetLoss
from regard.tasks.objects.matching import assign, match

CLASSES, OBJECTS = 91, 10
TINY: dict[str, dict[str, Any]] = {
    "ours": {"depth": 1, "decoder_depth": 2},
    "theirs": {"encoder_layers": 1, "decoder_layers": 2},
}
Work = Callable[[], Any]


class Bench:
    """The data and the two networks on one device."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.device = options, torch.device(options.device)
        torch.manual_seed(0)
        height, width = options.size
        self.images = torch.randn(options.batch, 3, height, width, device=self.device)
        self.mask = torch.ones(options.batch, height, width, dtype=torch.bool, device=self.device)
        sides = torch.rand(options.batch, OBJECTS, 2, device=self.device) * 0.3 + 0.05
        self.boxes = torch.cat((torch.rand_like(sides) * 0.6 + 0.2, sides), dim=-1)
        self.labels = torch.randint(CLASSES, (options.batch, OBJECTS), device=self.device)
        self.targets = {"boxes": self.boxes, "labels": self.labels}

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.gpu)

    def compiled(self, model: Any) -> Any:
        return torch.compile(model) if self.gpu else model

    def synchronise(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        # Random data teaches nothing, and the work of a step does not depend on the rate.
        return torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0, fused=True, capturable=self.gpu)

    def ours(self) -> Any:
        fields = TINY["ours"] if self.options.tiny else {}
        return regard.create("detr_r50", classes=CLASSES, frozen_norms=True, **fields).to(self.device)

    def theirs(self) -> nn.Module:
        stages: dict[str, Any] = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
        made = transformers.ResNetConfig(**stages)
        fields: dict[str, Any] = {"use_timm_backbone": False, "backbone_config": made, "num_labels": CLASSES}
        fields |= {"auxiliary_loss": True} | (TINY["theirs"] if self.options.tiny else {})
        model: Any = transformers.DetrForObjectDetection(transformers.DetrConfig(**fields))
        for name, parameter in model.model.backbone.named_parameters():
            # As in the paper. Version 5 freezes all stages, since it looks for version 4's names.
            parameter.requires_grad_(any(f".stages.{stage}." in name for stage in (1, 2, 3)))
        return model.to(self.device)

    def our_training(self) -> Work:
        model = self.ours().train()
        network, loss_of, optimizer = self.compiled(model), SetLoss.of(model.config), self.optimizer(model)
        batch = Batch({"image": self.images, "mask": self.mask}, self.targets)

        def work() -> Tensor:
            with self.autocast():
                loss = loss_of.loss(loss_of.forward(network, batch), batch.targets)
            return update(model, loss, optimizer)

        return self.recorded(work)

    def recorded(self, work: Work) -> Work:
        """The same as one CUDA graph."""
        if not self.gpu:
            return work
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # as training/replay.py
            result = work()

        def replay(held: Work = work) -> Any:
            """`held` has the weights and the optimizer's state: the graph reads and writes their memory."""
            graph.replay()
            return result

        return replay

    def their_training(self, peer: str) -> Work:
        model: Any = self.theirs().train()
        network, optimizer = self.compiled(model) if peer == "compiled" else model, self.optimizer(model)
        labels = [{"class_labels": own, "boxes": box} for own, box in zip(self.labels, self.boxes, strict=True)]

        def work() -> Tensor:
            with self.autocast():
                loss = network(pixel_values=self.images, pixel_mask=self.mask.long(), labels=labels).loss
            return update(model, loss, optimizer)

        return work

    def our_inference(self) -> Work:
        network = self.compiled(self.ours().eval())

        def work() -> object:
            with torch.inference_mode(), self.autocast():
                return network(self.images, self.mask)

        return self.recorded(work)

    def their_inference(self, peer: str) -> Work:
        model: Any = self.theirs().eval()
        network = model if peer == "eager" else self.compiled(model)
        mask = self.mask.long()

        def work() -> object:
            with torch.inference_mode(), self.autocast():
                return network(pixel_values=self.images, pixel_mask=mask)

        return self.recorded(work) if peer == "recorded" else work

    def timed(self, work: Work) -> float:
        """Milliseconds of one call."""
        self.synchronise()
        start = time.perf_counter()
        for _ in range(self.options.steps):
            work()
        self.synchronise()
        return 1e3 * (time.perf_counter() - start) / self.options.steps

    def ready(self, kind: str, peer: str | None = None) -> Work:
        """A step of ours, or of the peer, after what is done once."""
        start = time.monotonic()
        if peer is None:
            work = self.our_training() if kind == "training" else self.our_inference()
        else:
            work = self.their_training(peer) if kind == "training" else self.their_inference(peer)
        for _ in range(3 if self.gpu else 1):
            work()
        self.synchronise()
        print(f"  ({peer or 'Regard'}, {kind}: ready after {time.monotonic() - start:.0f} s)", flush=True)
        return work

    def measure(self, kind: str, peer: str, ours: Work) -> None:
        works = {"Regard": ours, peer: self.ready(kind, peer)}
        if kind == "training" and (wrong := [name for name, work in works.items() if not work().isfinite()]):
            raise RuntimeError(f"the loss is not finite: {', '.join(wrong)}")
        pairs = [tuple(self.timed(work) for work in works.values()) for _ in range(self.options.turns)]
        ratios = sorted(other / own for own, other in pairs)
        own, other = (1e3 * self.options.batch / statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"| {kind}, transformers {peer} | {own:,.1f} | {other:,.1f} | "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
            flush=True,
        )
        if self.options.profile and self.gpu:
            from swin_speed import profile

            for name, work in works.items():
                profile(f"{name if name == 'Regard' else f'transformers, {name}'}, {kind}", work, self.options.profile)

    def compare(self, kind: str, peers: list[str]) -> None:
        """Ours, made ready once, against each peer."""
        ours = self.ready(kind)
        for peer in peers:
            try:
                self.measure(kind, peer, ours)
            except Exception:
                print(f"FAILED: {kind}, {peer}\n{traceback.format_exc()[-3000:]}", flush=True)


class OutOfTime(BaseException):
    """Not an `Exception`: compilers catch those and continue."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` inside the block after so many seconds, also within a compilation."""

    def ring(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def update(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def check(device: str) -> None:
    """Assignments on the device against SciPy's."""
    torch.manual_seed(0)
    for queries, targets in ((100, OBJECTS), (100, 63), (20, 30)):
        cost, valid = torch.randn(48, queries, targets), torch.rand(48, targets) < 0.8
        same = torch.equal(match(cost.to(device), valid.to(device)).cpu(), assign(cost, valid))
        print(f"{'OK    ' if same else 'FAILED'} 48 matchings of {queries} queries and {targets} objects", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds, peers = ["training", "inference"], ["eager", "compiled", "recorded"]
    parser.add_argument("--only", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--peers", nargs="+", default=peers, choices=peers)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps per turn")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, nargs=2, default=[800, 800])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few blocks: to see that it runs")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--profile", type=Path, help="file to which tables of GPU time are written")
    parser.add_argument("--seconds", type=float, default=500, help="stop after this many")
    options = parser.parse_args()
    start, bench = time.monotonic(), Bench(options)
    name = torch.cuda.get_device_name() if bench.gpu else "CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}\n", flush=True)
    if options.profile:
        options.profile.write_text(f"# GPU time of DETR-R50, {name}\n", encoding="utf-8")
    counts = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (bench.ours(), bench.theirs())]
    print(f"parameters that train: {counts[0]:,} here, {counts[1]:,} in transformers", flush=True)
    if not options.no_check:
        check(options.device)
    print("\n| work | Regard, images/s | peer, images/s | times as fast |\n|---|---|---|---|", flush=True)
    for kind in options.only:
        # In training the peer's matching waits for the host: nothing of it can be recorded.
        chosen = [peer for peer in options.peers if (kind, peer) != ("training", "recorded")]
        try:
            with limited(options.seconds - (time.monotonic() - start)):
                bench.compare(kind, chosen)
        except OutOfTime:
            print(f"out of time: what is missing of {kind}", flush=True)
        except Exception:
            print(f"FAILED: Regard, {kind}\n{traceback.format_exc()[-3000:]}", flush=True)
        if bench.gpu:
            torch.compiler.reset()
            torch.cuda.empty_cache()
    print(f"\n{time.monotonic() - start:.0f} s in all, compiling included")


if __name__ == "__main__":
    main()
