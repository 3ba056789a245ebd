"""One training loop for every task: batches in, better weights out, a row of figures an epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from regard.config import RunConfig
from regard.console import Progress
from regard.data import Augmenter, Batch, Loader
from regard.errors import RunError
from regard.tasks import Task
from regard.training.optim import Average, learning_rate, make_optimizer


@dataclass
class History:
    """What happened: one row an epoch, and the best of them by validation."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None


def train(
    model: nn.Module,
    task: Task,
    loader: Loader,
    augment: Augmenter,
    config: RunConfig,
    device: torch.device,
    evaluate: Callable[[nn.Module], dict[str, float]],
    keep: Callable[[str, History], None],
    progress: Progress,
) -> History:
    """Train for `config.epochs`. `evaluate` gives validation figures; `keep(name, history)` saves the model.

    The weights that are evaluated and kept are the moving average, if there is one. Dropout draws from a
    generator seeded anew at every step, so nothing depends on what else drew from it.
    """
    optimizer = make_optimizer(model, config.lr, config.weight_decay)
    average = Average(model, config.ema) if config.ema else None
    # One graph for each batch size (the last batch is smaller): symbolic sizes are slower, and break in torch 2.11.
    forward = torch.compile(model, dynamic=False) if config.compile else model
    per_epoch = math.ceil(len(loader) / config.accumulate)
    steps, step, history, start = per_epoch * config.epochs, 0, History(), time.monotonic()
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")

    def backward(batch: Batch, epoch: int, number: int, parts: int) -> torch.Tensor:
        images, labels = (t.to(device, non_blocking=True) for t in batch[:2])
        x, targets = augment(images, labels, batch.numbers, epoch, number)
        with mixed:
            loss = task.loss(forward(x), targets)
        (loss / parts).backward()
        return loss.detach()

    with progress.bar("training step", steps) as tick:
        try:
            for epoch in range(1, config.epochs + 1):
                model.train()
                total, lr, parts = torch.zeros((), device=device), 0.0, 1
                for number, batch in enumerate(loader.epoch(epoch)):
                    if number % config.accumulate == 0:
                        torch.manual_seed((config.seed << 32) + step)
                        parts = min(config.accumulate, len(loader) - number)
                    total += backward(batch, epoch, number, parts)
                    if (number + 1) % config.accumulate and number + 1 < len(loader):
                        continue
                    lr = learning_rate(step, steps, config.lr, config.warmup)
                    for group in optimizer.param_groups:
                        group["lr"] = lr
                    if config.clip:
                        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                    if average:
                        average.update()
                    tick(step, _note(history))
                loss = float(total) / len(loader)
                if average:
                    average.swap()
                figures = evaluate(model)
                if not math.isfinite(loss + figures["loss"]):
                    raise RunError(
                        f"the loss is not a number in epoch {epoch}; the weights kept are those from before",
                        do="lower --lr, keep --clip on, or train in fp32",
                    )
                seconds = round(time.monotonic() - start, 2)
                row = {
                    "epoch": epoch,
                    "step": step,
                    "seconds": seconds,
                    "lr": f"{lr:.3g}",
                    "train_loss": round(loss, 5),
                }
                history.rows.append(row | {f"val_{name}": round(value, 5) for name, value in figures.items()})
                if history.best is None or _rank(history.rows[-1]) >= _rank(history.best):
                    history.best = history.rows[-1]
                    keep("best", history)
                keep("last", history)
                if average:
                    average.swap()
        except KeyboardInterrupt:
            saved = "the run folder can be used with eval, predict and explain" if history.rows else "nothing was saved"
            progress.say(f"stopped after {len(history.rows)} whole epochs; {saved}")
            raise
    return history


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    """Higher is better: validation accuracy, then a smaller loss."""
    return row["val_accuracy"], -row["val_loss"]


def _note(history: History) -> str:
    if not history.rows:
        return ""
    row = history.rows[-1]
    return f"epoch {row['epoch']}  loss {row['train_loss']:.3f}  val accuracy {row['val_accuracy']:.2%}"
