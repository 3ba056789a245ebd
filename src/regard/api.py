"""The public functions. Each one only connects parts; the command line calls these and nothing else."""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import __version__, registry
from regard.config import MODEL_FIELDS, Augment, RunConfig, change, to_dict
from regard.console import Progress
from regard.data import (
    Augmenter,
    Images,
    Loader,
    Preparation,
    Scan,
    fit_loses,
    keep_some,
    open_source,
    scan,
    split,
    statistics,
)
from regard.errors import ConfigError, DataError
from regard.evaluation import Evaluation, choose_samples, quick_figures, seen_samples
from regard.evaluation import evaluate as run_evaluation
from regard.explain import Explanation, attends, reported
from regard.explain.draw import draw
from regard.explain.explorer import BUDGET, keep_attention
from regard.networks import Network
from regard.predictor import Predictor, build
from regard.recipes.settle import check_settings, pick_device, settle
from regard.report import write_report
from regard.tasks import Classification
from regard.training import History
from regard.training import train as run_training
from regard.weights import Checkpoint, Run, name_of, open_weights, save_checkpoint, write_text


def models() -> list[dict[str, Any]]:
    """Every model there is: name, parameters (1000 classes), input size, paper.

    >>> [m["parameters"] for m in models() if m["name"] == "vit_b16"]
    [86567656]
    """
    return [
        {"name": name, "parameters": entry.parameters, "size": entry.size, "paper": entry.paper}
        for name, entry in registry.MODELS.items()
    ]


def create(
    name: str | None = None,
    *,
    classes: int | None = None,
    weights: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Network:
    """A model by name. `size` may be one number or one per axis; any other field of its config may be given.

    `weights` is a file of any public format, or a run; the name may then be left out. A head for other `classes` and
    positions for another `size` are adapted; what was changed is said, and kept as `model.loaded`.

    >>> model = create("vit_b16", classes=10, size=(64, 48), depth=2)
    >>> model(torch.zeros(1, 3, 64, 48)).logits.shape
    torch.Size([1, 10])
    """
    if weights is None:
        if name is None:
            raise ConfigError(
                "neither a name nor weights say which model is meant", do="`regard models` lists the names"
            )
        return registry.build(name, classes=1000 if classes is None else classes, **fields)
    if name is not None:
        registry.find(name)
    checkpoint, report = open_weights(weights, name, classes, **fields)
    for line in report.lines():
        Progress(quiet).say(line)
    model = build(checkpoint)
    model.loaded = report
    return model


def load(path: str | Path, device: str = "auto", quiet: bool = False, heads: int | None = None) -> Predictor:
    """A predictor from a run folder (its best weights) or from a weights file; on a GPU if there is one.

    `heads` is for files that do not say how many they have.
    """
    given: dict[str, Any] = {} if heads is None else {"heads": heads}
    checkpoint, report = open_weights(path, **given)
    for line in report.lines() if report.format != "regard" else ():
        Progress(quiet).say(line)
    return Predictor(checkpoint, torch.device(pick_device(device)))


def save(
    model: Network,
    path: str | Path,
    *,
    classes: tuple[str, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Path:
    """Write a model as one file that `load`, `create` and `regard convert` read: weights and what they are of.

    `classes` are their names in order, `mean` and `std` of each channel what its inputs are normalised by (0 and 1).

    >>> save(create("vit_nano", classes=2), tmp / "model.safetensors", classes=("cat", "dog")).name
    'model.safetensors'
    >>> load(tmp / "model.safetensors").classes
    ('cat', 'dog')
    """
    config, path = model.config, Path(path).expanduser()
    names = tuple(map(str, range(config.classes))) if classes is None else tuple(classes)
    if len(names) != config.classes or len(set(names)) != len(names):
        raise ConfigError(
            f"{len(names)} names do not fit {config.classes} classes", do="give each class a name of its own"
        )
    preparation = Preparation(
        config.size, config.channels, mean or (0.0,) * config.channels, std or (1.0,) * config.channels
    )
    state = Checkpoint(name_of(config), to_dict(config), names, preparation, {}, model.state_dict())
    save_checkpoint(path, state)
    return path


def check(data: str | Path, quiet: bool = False) -> Scan:
    """Read every sample once and say what is there."""
    return _scan(data, Progress(quiet))


def _scan(data: str | Path, progress: Progress) -> Scan:
    source = open_source(data)
    progress.say(f"{data}: {source.kind} ({source.why}), {len(source.samples):,} images, {len(source.classes)} classes")
    if source.ignored:
        progress.say(f"not part of the data: {len(source.ignored)} files (`regard check` lists them)")
    with progress.bar("reading", len(source.samples)) as tick:
        return scan(source, lambda done, total: tick(done))


def evaluate(
    run: str | Path, data: str | Path, *, split: str | None = None, batch: int = 64, quiet: bool = False
) -> Evaluation:
    """Figures of a trained model on data.

    Which images: those of `split`, or "all". If not said, the test split if the data has one, else
    everything, but never an image that the run trained on or chose its weights by (known by its pixels).
    """
    predictor, progress = load(run), Progress(quiet)
    found = _scan(data, progress)
    found.require_readable()
    source = found.source
    unknown = sorted(set(source.classes) - set(predictor.classes))
    if unknown:
        raise DataError(
            f"the data has classes the model does not know: {', '.join(unknown)}",
            where=data,
            do=f"it knows {', '.join(predictor.classes)}",
        )
    index = choose_samples(found, split, seen_samples(found, run, progress), progress)
    preparation = predictor.preparation
    loader = Loader(Images(found, preparation.size, preparation.channels), index, batch)
    with progress.bar("evaluating", len(loader)) as tick:
        return run_evaluation(
            predictor.model,
            predictor.task,
            loader,
            preparation,
            source,
            predictor.classes,
            predictor.device,
            tick,
        )


def demo(name: str = "digits", *, quiet: bool = False, **settings: Any) -> Run:
    """The whole way on embedded data: train, evaluate, explain, report."""
    if name != "digits":
        raise DataError(f"there is no demo called {name!r}", do="there is one so far: digits")
    return train("digits", quiet=quiet, **settings)


def train(data: str | Path, *, quiet: bool = False, command: str | None = None, **settings: Any) -> Run:
    """Train a model on data and write a run folder; the keywords are those of `regard train --help`.

    >>> run = train("digits", epochs=1, depth=1, explain=0, out=tmp / "run", quiet=True)
    >>> 0 <= run.read_json("summary.json")["figures"]["accuracy"]["value"] <= 1
    True
    """
    progress = Progress(quiet)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    check_settings(settings)
    if settings.get("out"):
        Run.require_new(Path(settings["out"]))
    found = _scan(data, progress)
    found.require_readable()
    config, origins = settle(found, settings)
    names, split_note = split(found, config.split_seed, config.holdout)
    if config.images is not None:
        names = keep_some(found, names, config.images, config.seed)
        split_note += f"; {config.images} training images are used, drawn with seed {config.seed}"
    progress.say(f"splits: {split_note}")
    source, device = found.source, torch.device(config.device)
    parts = {name: [i for i, n in enumerate(names) if n == name] for name in ("train", "val", "test")}
    if origins["batch"] != "flag" and len(parts["train"]) < 10 * config.batch:  # few images: still ten steps an epoch
        config = change(config, {"batch": max(4, len(parts["train"]) // 10)})
        origins["batch"] = "auto"
    if config.steps is not None:
        an_epoch = math.ceil(math.ceil(len(parts["train"]) / config.batch) / config.accumulate)
        config, origins["epochs"] = change(config, {"epochs": math.ceil(config.steps / an_epoch)}), "auto"
    chosen = [n for n, origin in origins.items() if origin in ("recipe", "auto") and n not in ("recipe", "out")]
    progress.say(f"recipe {config.recipe} and data give " + ", ".join(f"{n}={getattr(config, n)}" for n in chosen))
    torch.manual_seed(config.seed)
    model: Network = registry.build(
        config.model,
        classes=len(source.classes),
        **{name: value for name in MODEL_FIELDS if (value := getattr(config, name)) is not None},
    ).to(device)
    model.checkpointing = config.checkpointing
    size, channels = model.config.size, model.config.channels
    images = Images(found, size, channels)
    preparation = Preparation(size, channels, *statistics(images, parts["train"]))

    run = Run.create(Path(config.out or "runs/run"))
    run.write_config(str(data), config, origins)
    write_text(run.path / "command.txt", (command or f"regard.train({str(data)!r}, **{settings!r})") + "\n")
    run.write_json("environment.json", _environment(device))
    for count, what in (
        (len(found.crossing(names)), "images stand"),
        (len(found.parted(names)), "patients have images"),
    ):
        if count:
            progress.say(f"warning: {count} {what} in more than one split (data.json lists them)")
    run.write_json("data.json", found.to_json(names, split_note))
    run.write_rows("splits.csv", [
        {"name": s.key, "split": n, "label": source.classes[s.label], "pixels": d, "group": s.group or ""}
        for s, n, d in zip(source.samples, names, found.digests, strict=True)
    ])  # fmt: skip
    if any(fit_loses(shape, size) for shape in found.sizes):
        progress.say(f"images of other proportions than {size} are cut at the centre, not stretched")
    count = sum(p.numel() for p in model.parameters())
    progress.say(f"{config.model}: {count:,} parameters, input {size}, on {device}; run folder {run.path}")
    history = _fit(run, model, images, parts, preparation, config, progress)

    predictor = load(run.path, config.device)
    tested = "test" if parts["test"] else "val"
    loader = Loader(images, parts[tested], config.batch, workers=config.workers or 0)
    with progress.bar(f"testing on {tested}", len(loader)) as tick:
        result = run_evaluation(
            predictor.model, predictor.task, loader, preparation, source, source.classes, device, tick
        )
    best = history.best or {}
    run.write_json("summary.json", {
        "split": tested, "parameters": count, "seconds": history.rows[-1]["seconds"],
        "best_epoch": best.get("epoch"), "val_accuracy": best.get("val_accuracy"), **result.to_json(),
    })  # fmt: skip
    run.write_rows("predictions.csv", result.predictions())
    _explain_some(run, predictor, images, result, config.explain, progress)
    write_report(run)
    return run


def _fit(
    run: Run,
    model: Network,
    images: Images,
    parts: dict[str, list[int]],
    preparation: Preparation,
    config: RunConfig,
    progress: Progress,
) -> History:
    """Train, keeping curves and checkpoints in the run folder as they come."""
    task, device, workers = Classification(config.smoothing), torch.device(config.device), config.workers or 0
    classes = images.source.classes
    varied = Images(images.scan, images.size, images.channels, crop=config.crop == "resized", seed=config.seed)
    augment = Augment(**{f.name: getattr(config, f.name) for f in fields(Augment)})
    validation = Loader(images, parts["val"], config.batch, workers=workers)

    def keep(weights: dict[str, dict[str, Tensor]], history: History) -> None:
        run.write_rows("metrics.csv", history.rows)
        rows = {"best": history.best or {}, "last": history.rows[-1]}
        for name, state in weights.items():
            about = Checkpoint(config.model, to_dict(model.config), classes, preparation, rows[name], state)
            save_checkpoint(run.checkpoint(name), about)

    return run_training(
        model,
        task,
        Loader(varied, parts["train"], config.batch, shuffle=config.seed, workers=workers),
        Augmenter(augment, config.seed, preparation.mean, preparation.std, len(classes)),
        config,
        device,
        lambda current: quick_figures(current, task, validation, preparation, device),
        keep,
        progress,
    )


def _explain_some(
    run: Run, predictor: Predictor, images: Images, result: Evaluation, count: int, progress: Progress
) -> None:
    """Explain a few tested images, and keep their attention for the report's reader to ask."""
    done, room, chosen = list[list[Explanation]](), BUDGET, result.examples(count)
    methods = reported(predictor.model)
    with progress.bar("explaining", len(chosen)) as tick:
        for number, n in enumerate(chosen, start=1):
            pixels, truth = images[0, int(result.index[n])][0], result.classes[result.labels[n]]
            done.append([predictor.explain(pixels, method).about(result.keys[n], truth) for method in methods])
            draw(done[-1], run.path / "explain" / f"{number:02d}.png")
            x = predictor.preparation(pixels).to(predictor.device)
            if attends(predictor.model):
                room -= keep_attention(run, number, predictor.model, x, done[-1][0].picture, room)
            tick(number)
    if done:
        run.write_json("explain/explanations.json", [[e.to_json() for e in maps] for maps in done])


def _environment(device: torch.device) -> dict[str, Any]:
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "regard": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "accelerator": accelerator,
        "threads": torch.get_num_threads(),
    }
