"""Regard's Transformer against transformers' Marian of the same size and the same weights, in one run.

Training: the same batch, bf16 autocast over fp32 weights on a GPU (fp32 on a CPU), label smoothing, clipping and fused
AdamW for both; ours through the step that `regard train` takes (compiled and recorded on a GPU), Marian as its users
run it, eagerly, and once more compiled. Decoding: beam search of five, ours recorded on a GPU, against `generate`; both
find exactly as many words for every sentence, for a bias keeps them from ending. bf16 weights on a GPU.
The two take turns, and the figure is the median of the turns' ratios with their spread. Needs transformers.

On a CPU each work gets a process of its own, as users run it: memory that training has left at hand makes searches
faster, Marian's more than ours.

    python benchmarks/translate_speed.py [--device cuda cpu] [--work training decoding] [--turns 7] [--small]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batch import Batch
from regard.networks.transformer.config import configure
from regard.networks.transformer.network import Transformer
from regard.tasks.translation.evaluation import make_search
from regard.tasks.translation.loss import NextWord
from regard.tasks.translation.settings import Config
from regard.training import Step, autocast
from regard.weights.seq2seq import EPS, save_marian

SMOOTHING, BEAMS, NEVER = 0.1, 5, -1e4


@dataclass(frozen=True)
class Load:
    """How much of each: sentences a training step and a search, words of each, and calls a turn."""

    training: int
    decoding: int
    words: int
    calls: int


HEADER = "| work | Regard | Marian | times as fast |\n|---|---|---|---|"
LOADS = {"cuda": Load(256, 64, 32, 10), "cpu": Load(32, 64, 32, 1), "small": Load(16, 8, 16, 2)}


def their_loss(output: Any, targets: Tensor, padding: int) -> Tensor:
    """As transformers' own models and trainers have it: torch's cross-entropy of the scores in fp32."""
    logits, wanted = output.logits.float().flatten(0, 1), targets[:, 1:].flatten()
    return F.cross_entropy(logits, wanted, ignore_index=padding, label_smoothing=SMOOTHING)


def models(name: str, vocabulary: int, device: torch.device, endless: bool = False) -> tuple[Transformer, nn.Module]:
    """Ours, of Marian's shape, and Marian with its weights; if endless, no sentence ends before it has to."""
    torch.manual_seed(0)
    marian = {"positions": "halves", "activation": "swish", "output_bias": True, "start": 0, "eps": EPS}
    ours = Transformer(configure(name, vocabulary=vocabulary, **marian))
    if endless and ours.output_bias is not None:
        with torch.no_grad():
            ours.output_bias[ours.config.end] = NEVER
    with tempfile.TemporaryDirectory() as folder:
        save_marian(ours, folder)
        theirs: Any = transformers.MarianMTModel.from_pretrained(folder)
    return ours.to(device), theirs.to(device)


def sentences(config: Any, count: int, words: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random sources (count, words) that end, and targets (count, words + 1) that begin."""
    both = torch.randint(3, config.target_words, (2, count, words + 1), generator=torch.Generator().manual_seed(0))
    source, targets = both[0, :, 1:].contiguous(), both[1]
    source[:, -1], targets[:, 0] = config.end, config.start
    return source.to(device), targets.to(device)


def our_training(model: Transformer, source: Tensor, targets: Tensor) -> Callable[[], object]:
    device = source.device
    precision, compiled = ("bf16", True) if device.type == "cuda" else ("fp32", False)
    config = Config.of(precision=precision, compile=compiled, lr=1e-4, weight_decay=0.01)
    step = Step(model.train(), NextWord(model.config.padding, SMOOTHING), config, device)
    batch = Batch({"source": source}, {"target": targets})
    return lambda: step.train_step([batch])


def their_training(model: Any, source: Tensor, targets: Tensor, compiled: bool) -> Callable[[], object]:
    config = Config.of(precision="bf16" if source.is_cuda else "fp32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    run, seen = torch.compile(model.train()) if compiled else model.train(), torch.ones_like(source)

    def work() -> None:
        with autocast(config, source.device):
            output = run(input_ids=source, attention_mask=seen, decoder_input_ids=targets[:, :-1], use_cache=False)
            loss = their_loss(output, targets, model.config.pad_token_id)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return work


def our_search(model: Transformer, source: Tensor, words: int) -> Callable[[], Tensor]:
    """Gives the best sentence's words (B, words), by the search that `regard predict` makes."""
    search = make_search(model.eval(), source.device, beams=BEAMS, penalty=0.6, ratio=0.0, constant=words)
    return lambda: search(source).words[:, 0]


def their_search(model: Any, source: Tensor, padding: int, words: int) -> Callable[[], Tensor]:
    seen = torch.ones_like(source)
    options: dict[str, Any] = {"num_beams": BEAMS, "max_new_tokens": words, "do_sample": False, "length_penalty": 1.0}
    options |= {"bad_words_ids": [[padding]], "max_length": None}
    model.eval()

    def generate() -> Tensor:
        with torch.no_grad():
            return model.generate(input_ids=source, attention_mask=seen, **options)[:, 1:]

    return generate


def timed(work: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds of one call."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - start) / calls


def compare(
    label: str, ours: Callable[[], object], theirs: Callable[[], object], amount: int, calls: int, turns: int,
    device: torch.device,
) -> None:  # fmt: skip
    for work in (ours, theirs):
        timed(work, 5 if device.type == "cuda" else 1, device)  # compiling, recording and choosing kernels
    pairs = [(timed(ours, calls, device), timed(theirs, calls, device)) for _ in range(turns)]
    ratios = sorted(other / own for own, other in pairs)
    own, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"| {label} | {amount / own:,.1f} | {amount / other:,.1f} "
        f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
        flush=True,
    )


@torch.no_grad()
def same_loss(ours: Transformer, theirs: Any, source: Tensor, targets: Tensor) -> str:
    """What makes the comparison one: without dropout, both have the same loss."""
    objective, batch = NextWord(ours.config.padding, SMOOTHING), Batch({"source": source}, {"target": targets})
    own = objective.loss(objective.forward(ours.eval(), batch), batch.targets)
    output = theirs.eval()(input_ids=source, decoder_input_ids=targets[:, :-1])
    other = their_loss(output, targets, ours.config.padding)
    assert abs(own - other) < 1e-3 * other, (own, other)
    return f"loss {float(own):.4f} and {float(other):.4f}"


def bench_training(device: torch.device, name: str, vocabulary: int, load: Load, turns: int) -> None:
    ours, theirs = models(name, vocabulary, device)
    source, targets = sentences(ours.config, load.training, load.words, device)
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    size = f"{counts[0]:,} parameters ({counts[1]:,}, positions counted)"
    print(f"\n{where}; {name}, {size}, {same_loss(ours, theirs, source, targets)}\n")
    print(HEADER, flush=True)
    tokens, rest = load.training * load.words, (load.calls, turns, device)
    label = f"training, {load.training} × {load.words} words: target tokens/s"
    step = our_training(ours, source, targets)
    compare(label, step, their_training(theirs, source, targets, False), tokens, *rest)
    if device.type == "cuda":
        try:  # a compiler's failure on another's model is no reason to measure nothing else
            compare(f"{label}; Marian compiled", step, their_training(theirs, source, targets, True), tokens, *rest)
        except RuntimeError as error:
            print(f"| {label}; Marian compiled | – | {type(error).__name__} | – |", flush=True)
        torch._dynamo.reset()


def bench_decoding(device: torch.device, name: str, vocabulary: int, load: Load, turns: int) -> None:
    ours, theirs = models(name, vocabulary, device, endless=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        ours, theirs = ours.bfloat16(), theirs.bfloat16()
    print(f"\n{HEADER}", flush=True)
    source, _ = sentences(ours.config, load.decoding, load.words, device)
    other = their_search(theirs, source, ours.config.padding, load.words)
    label = f"beam {BEAMS}, {load.decoding} × {load.words} words: sentences/s"
    own = our_search(ours, source, load.words)
    compare(label, own, other, load.decoding, 1, turns, device)
    found, expected = own(), other()
    assert found.shape == expected.shape == (load.decoding, load.words), (found.shape, expected.shape)
    same = (found == expected).all(1).double().mean()
    print(f"\nthe same words as Marian's for {same:.0%} of sentences", flush=True)


WORK = {"training": bench_training, "decoding": bench_decoding}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", nargs="+", choices=["cuda", "cpu"], help="default: all there are")
    parser.add_argument("--model", default="transformer_base", choices=["transformer_base", "transformer_big"])
    parser.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="transformer_nano and little of it: shows that it works")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    start = time.monotonic()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for kind in options.device or (["cuda"] if torch.cuda.is_available() else []) + ["cpu"]:
        name, vocabulary = ("transformer_nano", 1000) if options.small else (options.model, 37_000)
        for work in options.work:
            if kind == "cpu" and len(options.work) > 1:
                subprocess.run([sys.executable, *sys.argv, "--device", kind, "--work", work], check=True)
                continue
            WORK[work](torch.device(kind), name, vocabulary, LOADS["small" if options.small else kind], options.turns)
    print(f"\n{time.monotonic() - start:.0f} s in all, compiling included")


if __name__ == "__main__":
    main()
