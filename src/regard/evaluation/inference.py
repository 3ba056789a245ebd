"""A network over a whole split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Loader, Preparation, to_float


def whole_json(whole: Any, left: int) -> dict[str, Any]:
    """Figures of a whole test set beside those of the `left` samples that the model has not seen."""
    figures = {name: figure._asdict() for name, figure in whole.figures.items()}
    return {"n": len(whole.keys), "seen": len(whole.keys) - left, "figures": figures}


def left_out_words(whole: Any, left: int, figures: str, samples: str = "samples") -> str:
    """The same as a sentence; `figures` are the main ones of the whole set."""
    n = len(whole.keys)
    return f"{n - left} of {n} {samples} occur in training or validation and are left out; on all {n}: {figures}"


@torch.inference_mode()
def run_over(
    model: nn.Module,
    answer: Callable[[Tensor, Tensor], Tensor],
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[[int, str], None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `answer` gives for prepared images and their sample numbers; labels; and those numbers again."""
    training = model.training
    model.eval()
    parts: list[tuple[np.ndarray, ...]] = []
    try:
        for number, batch in enumerate(loader.epoch(0), start=1):
            x = preparation.normalised(to_float(batch.images.to(device)))
            answers = answer(x, batch.numbers).cpu()
            # Of a batch shared by several processes, one may hold a sample that counts elsewhere.
            own = slice(None if batch.steps[0][1] else 0)
            parts.append((answers.numpy()[own], batch.labels.numpy()[own], batch.numbers.numpy()[own]))
            tick(number, "")
    finally:
        model.train(training)
    answers, labels, index = (np.concatenate(column) for column in zip(*parts, strict=True))
    return answers, labels, index


def features_of(
    model: nn.Module,
    loader: Loader,
    preparation: Preparation,
    device: torch.device,
    tick: Callable[[int, str], None] = lambda done, note="": None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the head sees (N, width), labels (N,) and sample numbers (N,), in the loader's order."""
    return run_over(
        model, lambda x, _: model(x, class_token_only=True).features.float(), loader, preparation, device, tick
    )
