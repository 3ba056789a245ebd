"""FixRes: accuracy over the test resolution, with and without a short fine-tuning at it.

Touvron et al., "Fixing the train-test resolution discrepancy" (2019): random crops make objects look larger in training
than in testing, so a larger test size can be better; then the classifier and the norms are fine-tuned at that size,
with the images as in testing. Here positions are resampled where the network has a table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from regard import api
from regard.console import Progress
from regard.data import ImageDataset, Images, Loader, to_float
from regard.drawing import BLUE, GREY, ORANGE, canvas, dress
from regard.errors import ConfigError
from regard.metrics import Figure
from regard.run.using import task_of
from regard.study.images.finding import Finding
from regard.study.keep import cached, keep_plan
from regard.weights import Run, fingerprint

NORMS = (nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm)


def resolution_study(
    run: str | Path,
    data: str | Path,
    sizes: Sequence[int] = (),
    *,
    epochs: int = 2,
    lr: float = 1e-3,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Finding:
    """Accuracy of a classification run at each test size, before and after fine-tuning head and norms there.

    `sizes` default to three quarters, once, one and a quarter and one and a half times the run's own.
    """
    folder, progress = Run.open(run), Progress(quiet)
    trained: Any = api.load(run, quiet=True)
    if not hasattr(trained, "preparation") or len(trained.preparation.size) != 2 or not hasattr(trained, "scores"):
        raise ConfigError("this study is for classifiers of pictures", where=run)
    if not trained.model.config.any_size:
        raise ConfigError("the network takes inputs of one size only", where=run, do="give a ViT, Swin or ResNet")
    own = trained.preparation.size[0]
    sizes = tuple(sizes) or tuple(own * quarters // 4 for quarters in (3, 4, 5, 6))
    place = Path(out or f"studies/{folder.path.name}-resolution").expanduser()
    dataset = _read(run, data, trained)
    about = {"kind": "resolution", "weights": fingerprint(run), "data": dataset.fingerprint(), "epochs": epochs}
    keep_plan(place, about)
    rows = []
    for size in sizes:
        settings = {"size": size, "epochs": epochs, "lr": lr}
        row = cached(
            place / "kept" / f"{size}.json", settings, lambda size=size: _at(run, data, dataset, size, epochs, lr)
        )
        rows.append({"size": size, **row})
        progress.say(f"{size} pixels: {row['accuracy']:.4f}, fine-tuned there {row['tuned']:.4f}")
    finding = Finding("resolution", "Test resolution", rows, _sentences(rows, own), lambda: _draw(rows, own), place)
    finding.write()
    return finding


def _read(run: str | Path, data: str | Path, predictor: Any) -> ImageDataset:
    entry = task_of(run)
    config = entry.config.of(predictor.data_settings(data))
    return entry.load().open_for(predictor, data, config, Progress(True))  # pyright: ignore[reportReturnType]


def _at(run: str | Path, data: str | Path, dataset: ImageDataset, size: int, epochs: int, lr: float) -> dict[str, Any]:
    """Accuracy at one size, and again after fine-tuning at it."""
    entry = task_of(run)
    task: Any = entry.load()
    predictor: Any = api.load(run, quiet=True, size=size)
    options = entry.settings.EvalOptions()
    train, test = (_part(run, dataset, part) for part in ("train", "test"))
    before: Figure = task.evaluate_on(predictor, dataset, test, options, Progress(True)).figures["accuracy"]
    _tune(predictor, dataset, train, epochs, lr)
    after: Figure = task.evaluate_on(predictor, dataset, test, options, Progress(True)).figures["accuracy"]
    return {
        "accuracy": before.value, "low": before.low, "high": before.high,
        "tuned": after.value, "tuned_low": after.low, "tuned_high": after.high, "n": before.n,
    }  # fmt: skip


def _part(run: str | Path, dataset: ImageDataset, part: str) -> list[int]:
    """The samples of a split as the run had it."""
    names = {row["name"] for row in Run.open(run).split_rows() if row["split"] == part}
    chosen = [n for n in range(len(dataset)) if dataset.key(n) in names]
    if not chosen:
        raise ConfigError(f"the data has none of the run's {part} images", do="give the data that it was trained on")
    return chosen


def _tune(predictor: Any, dataset: ImageDataset, index: list[int], epochs: int, lr: float) -> None:
    """Fine-tune head and norms on training images that look as in testing."""
    model, prepared = predictor.model, predictor.preparation
    model.requires_grad_(False)
    layers = [model.get_submodule(name) for name in model.config.last_layers]
    layers += [module for module in model.modules() if isinstance(module, NORMS)]
    weights = [p.requires_grad_() for layer in layers for p in layer.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    loader = Loader(Images(dataset, prepared.size, prepared.channels), index, 64, shuffle=0)
    names = [predictor.classes.index(name) for name in dataset.source.classes]
    model.train()
    for epoch in range(1, epochs + 1):
        for batch in loader.epoch(epoch):
            x = prepared.normalised(to_float(batch.images.to(predictor.device)))
            wanted = torch.tensor(names, device=predictor.device)[batch.labels.to(predictor.device)]
            optimizer.zero_grad()
            F.cross_entropy(model(x, class_token_only=True).logits, wanted).backward()
            optimizer.step()
    loader.close()
    model.eval()


def _sentences(rows: list[dict[str, Any]], own: int) -> list[str]:
    best, tuned = max(rows, key=lambda row: row["accuracy"]), max(rows, key=lambda row: row["tuned"])
    lines = [
        f"Trained at {own} pixels; of the sizes tried, {best['size']} is best as it is: {best['accuracy']:.1%} "
        f"({best['low']:.1%} to {best['high']:.1%})."
    ]
    lines.append(
        f"With head and norms fine-tuned at the test size, {tuned['size']} is best: {tuned['tuned']:.1%} "
        f"({tuned['tuned_low']:.1%} to {tuned['tuned_high']:.1%})."
    )
    home = next((row for row in rows if row["size"] == own), None)
    if home is not None and home is not best:
        inside = home["low"] <= best["accuracy"] <= home["high"]
        said = "lies within the interval of" if inside else "lies outside the interval of"
        lines.append(f"The best size without fine-tuning {said} the training size, {home['accuracy']:.1%}.")
    return lines


def _draw(rows: list[dict[str, Any]], own: int) -> Any:
    figure = canvas(6.0, 3.8)
    ax = figure.subplots()
    x = [row["size"] for row in rows]
    for name, low, high, label, colour in (
        ("accuracy", "low", "high", "as it is", BLUE),
        ("tuned", "tuned_low", "tuned_high", "head and norms fine-tuned there", ORANGE),
    ):
        ax.plot(x, [100 * row[name] for row in rows], "o-", color=colour, label=label, markersize=4)
        ax.fill_between(
            x,
            [100 * row[low] for row in rows],
            [100 * row[high] for row in rows],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    ax.axvline(own, color=GREY, linewidth=1, linestyle=":")
    ax.annotate("trained", (own, ax.get_ylim()[0]), (3, 3), textcoords="offset points", color=GREY, fontsize=8)
    ax.set_xticks(x)
    ax.legend(frameon=False, labelcolor="linecolor")
    dress(ax, "test size (pixels)", "test accuracy (%), band: 95 % interval")
    return figure
