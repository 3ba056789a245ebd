"""LayerNorm against BatchNorm in a Transformer, by batch size, on the embedded digits.

BatchNorm takes its statistics over all tokens of a batch; LayerNorm over one token's channels, whatever the batch. The
slides' claim: with small batches, BatchNorm's statistics are too noisy.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import registry
from regard.console import Progress
from regard.drawing import BLUE, ORANGE, canvas, dress
from regard.study.images.finding import Finding
from regard.study.keep import cached, keep_plan
from regard.study.result import Gap

KINDS = ("layer", "batch")
TESTED = 360


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of tokens (B, N, width): each channel over all tokens of the batch."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, 1)).reshape(input.shape)


def with_batch_norm(model: nn.Module) -> nn.Module:
    """The network with a BatchNorm in place of every LayerNorm."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, TokenBatchNorm(child.normalized_shape[0]))
    return model


def norm_study(
    batches: Sequence[int] = (2, 8, 64), *, steps: int = 600, seeds: int = 3, out: str | Path = "studies/batch-norm",
    quiet: bool = False,
) -> Finding:  # fmt: skip
    """Test accuracy of the same small ViT with either norm, after as many steps of each batch size."""
    out, progress, rows = Path(out).expanduser(), Progress(quiet), list[dict[str, Any]]()
    keep_plan(out, {"kind": "batch-norm", "steps": steps})
    for seed in range(seeds):
        for batch in batches:
            for kind in KINDS:
                settings = {"kind": kind, "batch": batch, "steps": steps, "seed": seed}
                path = out / "kept" / f"{kind}-{batch}-{seed}.json"
                rows.append(settings | cached(path, settings, lambda s=settings: {"accuracy": _train(**s)}))
                progress.say(f"{kind} norm, batch {batch}, seed {seed}: {rows[-1]['accuracy']:.4f}")
    finding = Finding(
        "batch-norm",
        "LayerNorm and BatchNorm by batch size",
        rows,
        _sentences(rows, batches),
        lambda: _draw(rows, batches),
        out,
    )
    finding.write()
    return finding


def _train(kind: str, batch: int, steps: int, seed: int) -> float:
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    x, y = torch.from_numpy(digits.images).float()[:, None] / 16 - 0.3, torch.from_numpy(digits.target)
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=draw)
    test, train = order[:TESTED], order[TESTED:]
    torch.manual_seed(seed)
    model = registry.build("vit_nano", size=(8, 8), patch=(2, 2), channels=1, classes=10, depth=2)
    model = (with_batch_norm(model) if kind == "batch" else model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    for _ in range(steps):
        chosen = train[torch.randint(len(train), (batch,), generator=draw)]
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]).logits, y[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    model.eval()
    with torch.inference_mode():
        return float((model(x[test]).logits.argmax(-1) == y[test]).double().mean())


def _values(rows: list[dict[str, Any]], kind: str, batch: int) -> list[float]:
    return [row["accuracy"] for row in rows if (row["kind"], row["batch"]) == (kind, batch)]


def _sentences(rows: list[dict[str, Any]], batches: Sequence[int]) -> list[str]:
    lines = []
    for batch in batches:
        layer, other = (_values(rows, kind, batch) for kind in KINDS)
        gap = Gap.of(batch, [a - b for a, b in zip(layer, other, strict=True)])
        ahead = "LayerNorm is ahead" if gap.mean > 0 else "BatchNorm is ahead"
        sure = "" if gap.sure else f", which may be chance ({gap.seeds} seeds)"
        lines.append(
            f"Batch {batch}: LayerNorm {statistics.fmean(layer):.1%}, BatchNorm {statistics.fmean(other):.1%}; {ahead} "
            f"by {abs(100 * gap.mean):.1f} points{sure}."
        )
    return lines


def _draw(rows: list[dict[str, Any]], batches: Sequence[int]) -> Any:
    figure = canvas(5.6, 3.6)
    ax = figure.subplots()
    for kind, colour in zip(KINDS, (BLUE, ORANGE), strict=True):
        for batch in batches:
            ax.plot(
                [batch] * len(v := _values(rows, kind, batch)),
                [100 * a for a in v],
                "o",
                color=colour,
                alpha=0.4,
                markersize=4,
            )
        means = [100 * statistics.fmean(_values(rows, kind, batch)) for batch in batches]
        ax.plot(batches, means, "-", color=colour, label=f"{kind.capitalize()}Norm")
    ax.set_xscale("log")
    ax.set_xticks(batches, [str(n) for n in batches])
    ax.minorticks_off()
    ax.legend(frameon=False, labelcolor="linecolor")
    dress(ax, "batch size", "test accuracy (%); dots: seeds")
    return figure
