"""One training loop for every task: batches in, better weights out, a row of figures an epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import RunConfig
from regard.console import Progress
from regard.data import Augmenter, Loader
from regard.errors import DivergedError
from regard.networks import Network
from regard.tasks import Task
from regard.training.optim import Average, learning_rate
from regard.training.step import Step, mixed

AT_ONCE = 2**25  # numbers augmented at once: 128 MB of them
LOOKS = 100  # validations of a run by steps, at most: a small set's epochs are short, its validation set may not be
SAVE_EVERY = 30.0  # seconds: an epoch may take one, and writing weights to disk as long


@dataclass
class History:
    """What happened: one row an epoch, and the best of them by validation."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None


def train(
    model: Network,
    task: Task,
    loader: Loader,
    augment: Augmenter,
    config: RunConfig,
    device: torch.device,
    evaluate: Callable[[nn.Module], dict[str, float]],
    keep: Callable[[dict[str, dict[str, Tensor]], History], None],
    progress: Progress,
) -> History:
    """Train for `config.epochs`, or until `config.steps`. `evaluate` gives validation figures;
    `keep(weights by name, history)` saves.

    The weights that are evaluated and kept are the moving average, if there is one. Dropout draws from a
    generator seeded anew at every step, so nothing depends on what else drew from it.
    """
    step = Step(model, task, config, device)
    average = Average(model, config.ema) if config.ema else None
    loader.keep_on(device)
    per_epoch = math.ceil(len(loader) / config.accumulate)
    steps, done, history, shelf = config.steps or per_epoch * config.epochs, 0, History(), _Shelf(keep)
    start = time.monotonic()
    with progress.bar("training step", steps) as tick:
        try:
            for epoch in range(1, config.epochs + 1):
                model.train()
                total, lr, parts, number = torch.zeros((), device=device), 0.0, 1, 0
                for number, (x, targets) in enumerate(batches(loader, augment, epoch, device)):
                    if number % config.accumulate == 0:
                        torch.manual_seed((config.seed << 32) + done)
                        parts = min(config.accumulate, len(loader) - number)
                        lr = learning_rate(done, steps, config.lr, config.warmup)
                        step.set_rate(lr)
                    if config.accumulate == 1:
                        total += step.whole(x, targets)
                    else:
                        total += step.gradients(x, targets, parts)
                        if (number + 1) % config.accumulate and number + 1 < len(loader):
                            continue
                        step.apply()
                    done += 1
                    if average:
                        average.update()
                    tick(done, _note(history))
                    if done == steps:
                        break
                if config.steps and done < steps and epoch % max(1, config.epochs // LOOKS):
                    continue
                loss = float(total) / (number + 1)
                if average:
                    average.swap()
                with torch.compiler.set_stance("force_eager"), mixed(config, device):
                    figures = evaluate(model)
                if not math.isfinite(loss + figures["loss"]):
                    raise DivergedError(
                        f"the loss is not a number in epoch {epoch}; the weights kept are those from before",
                        do="lower --lr, keep --clip on, or train in fp32",
                    )
                seconds = round(time.monotonic() - start, 2)
                row = {
                    "epoch": epoch,
                    "step": done,
                    "seconds": seconds,
                    "lr": f"{lr:.3g}",
                    "train_loss": round(loss, 5),
                }
                history.rows.append(row | {f"val_{name}": round(value, 5) for name, value in figures.items()})
                better = history.best is None or _rank(history.rows[-1]) >= _rank(history.best)
                if better:
                    history.best = history.rows[-1]
                shelf.put(model, history, better)
                if average:
                    average.swap()
        except KeyboardInterrupt:
            saved = "the run folder can be used with eval, predict and explain" if history.rows else "nothing was saved"
            progress.say(f"stopped after {len(history.rows)} whole epochs; {saved}")
            raise
        finally:
            shelf.write(history)
    return history


class _Shelf:
    """The best and the last weights, written from time to time and at the end."""

    def __init__(self, keep: Callable[[dict[str, dict[str, Tensor]], History], None]):
        self.keep, self.weights, self.written = keep, {}, 0.0

    def put(self, model: nn.Module, history: History, best: bool) -> None:
        copy = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.weights |= {"best": copy, "last": copy} if best else {"last": copy}
        if time.monotonic() - self.written > SAVE_EVERY:
            self.write(history)

    def write(self, history: History) -> None:
        if self.weights:
            self.keep(self.weights, history)
            self.weights, self.written = {}, time.monotonic()


def batches(loader: Loader, augment: Augmenter, epoch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented images and soft targets. On a GPU many batches are augmented at once: a few launches, not many."""
    pixels = loader.batch * loader.images.channels * math.prod(loader.images.size)
    together = max(1, min(16, AT_ONCE // pixels)) if device.type == "cuda" else 1
    step = 0
    for some in loader.epoch(epoch, together):
        images = augment.images(some.images.to(device, non_blocking=True), some.numbers, epoch)
        labels = some.labels.to(device, non_blocking=True)
        for x, own in zip(images.split(loader.batch), labels.split(loader.batch), strict=True):
            yield augment.mix(x, own, epoch, step)
            step += 1


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    """Higher is better: validation accuracy, then a smaller loss."""
    return row["val_accuracy"], -row["val_loss"]


def _note(history: History) -> str:
    if not history.rows:
        return ""
    row = history.rows[-1]
    return f"epoch {row['epoch']}  loss {row['train_loss']:.3f}  val accuracy {row['val_accuracy']:.2%}"
