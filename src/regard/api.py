"""The public functions. Each one only connects parts; the command line calls these and nothing else."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import __version__, registry
from regard.config import Augment, RunConfig, change, to_dict
from regard.console import Progress
from regard.data import (
    Augmenter,
    Images,
    Loader,
    Preparation,
    Scan,
    checked,
    find_images,
    fit_loses,
    open_source,
    read_image,
    read_mask,
    scan,
    split,
    statistics,
    to_tensor,
)  # fmt: skip
from regard.errors import ConfigError, DataError
from regard.evaluation import Evaluation, choose_samples, quick_figures, seen_samples
from regard.evaluation import evaluate as run_evaluation
from regard.explain import DEFAULT, REPORTED, Explanation, check_method, explain, random_twins
from regard.explain.draw import draw
from regard.explain.explorer import BUDGET, keep_attention
from regard.explain.inspection import Inspection, inspect_model
from regard.explain.visualise import STEPS, Visualisation, visualise
from regard.networks import Network
from regard.recipes.settle import check_settings, pick_device, settle
from regard.report import write_report
from regard.tasks import Classification, Prediction
from regard.training import History
from regard.training import train as run_training
from regard.weights import Checkpoint, Run, name_of, open_weights, save_checkpoint, write_text

_MODEL_FIELDS = (
    "size", "channels", "patch", "width", "depth", "heads", "mlp", "pool", "positions", "registers", "dropout",
    "drop_path", "stem",
)  # fmt: skip


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
    model = _build(checkpoint)
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


def _build(checkpoint: Checkpoint) -> Network:
    model: Network = registry.build(checkpoint.model, **checkpoint.config)
    model.load_state_dict(checkpoint.weights)
    return model


Image = Any
"""A path, a Pillow image, or pixels (channels, *size) as array or tensor: uint8, or floating point in 0..1."""


class Predictor:
    """A trained model with its classes and preparation: images in, answers and reasons out."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        self.classes, self.preparation, self.device = checkpoint.classes, checkpoint.preparation, device
        self.model = _build(checkpoint)
        self.model.to(device).eval()
        self.task = Classification()
        self.twins: list[Network] = []

    def __repr__(self) -> str:
        return f"Predictor({type(self.model).__name__}, {len(self.classes)} classes, input {self.preparation.size})"

    def prepare(self, image: Image) -> Tensor:
        """What the network is given for an image, (1, channels, *size): fitted and normalised, on its device."""
        return self.preparation(self._read(image)[1]).to(self.device)

    def predict(self, image: Image) -> Prediction:
        """The answer for one image: a path, a Pillow image, or pixels (channels, *size), uint8 or float in 0..1."""
        return next(self.predict_many([image]))

    @torch.inference_mode()
    def predict_many(
        self, images: Iterable[Image], batch: int = 64, failed: list[DataError] | None = None
    ) -> Iterator[Prediction]:
        """Answers in the order of the images, computed `batch` at a time.

        An image that cannot be read is an error; given a list `failed`, the error goes there and the rest goes on.
        """
        waiting: list[tuple[str, Tensor]] = []

        def answer() -> Iterator[Prediction]:
            x = torch.cat([prepared for _, prepared in waiting]).to(self.device)
            probs = self.task.probabilities(self.model(x, lean=True)).cpu()
            for (name, _), row in zip(waiting, probs, strict=True):
                yield Prediction.of(name, row, self.classes)
            waiting.clear()

        for image in images:
            try:
                name, pixels = self._read(image)
                waiting.append((name, self.preparation(pixels)))
            except DataError as error:
                if failed is None:
                    raise
                failed.append(error)
            if len(waiting) == batch:
                yield from answer()
        if waiting:
            yield from answer()

    def explain(
        self, image: Image, method: str = DEFAULT, target: str | None = None, *, mask: Any = None, **options: Any
    ) -> Explanation:
        """Why: a map over the image and its scores. `target` is the class to explain, the predicted if not said.

        `mask` is where the cause is known to lie: a picture or array as large as the image, not zero inside,
        or a box (top, left, bottom, right) in its pixels. The map is then also scored against it.
        """
        check_method(method, options, self.model)
        name, pixels = self._read(image)
        picture = self.preparation.picture(pixels)
        region = None if mask is None else self.preparation.region(read_mask(mask, tuple(pixels.shape[1:])))
        x = self.preparation.normalised(picture[None]).to(self.device)
        self.twins = self.twins or random_twins(self.model)
        return explain(
            self.model, self.task, x, picture, name, self.classes, method=method, target=target, mask=region,
            twins=self.twins, **options,
        )  # fmt: skip

    def inspect(self, images: Iterable[Image] = (), *, registers: int = 0, quiet: bool = True) -> Inspection:
        """What the network has learnt: filters, positions and, on images, attention distance and token norms.

        `registers` adds that many test-time registers and measures the norms again, where there are outliers.
        """
        images = find_images([str(images)]) if isinstance(images, str | Path) else images
        pictures = [self.preparation.picture(self._read(image)[1]) for image in images]
        with Progress(quiet).bar("inspecting", len(pictures)) as tick:
            together = torch.stack(pictures) if pictures else None
            return inspect_model(self.model, together, self.preparation.normalised, registers=registers, tick=tick)

    def visualise(self, target: str | None = None, *, quiet: bool = True, **wanted: Any) -> Visualisation:
        """The input that most excites a class (`target`), a head (`layer`, `head`) or a token (`layer`, `token`)."""
        mean, std = self.preparation.mean, self.preparation.std
        wanted = {"steps": STEPS, "target": target} | wanted
        with Progress(quiet).bar("visualising", wanted["steps"]) as tick:
            return visualise(self.model, mean, std, self.classes, tick=tick, **wanted)

    @staticmethod
    def _read(image: Image) -> tuple[str, Tensor]:
        if isinstance(image, str | Path):
            return str(image), read_image(Path(image).expanduser())[0]
        if hasattr(image, "getbands"):
            return "picture", to_tensor(image, "the given picture")
        if not isinstance(image, Tensor | np.ndarray):
            raise DataError(
                f"a {type(image).__name__} is no image",
                do="give a path, a Pillow image or pixels (several: predict_many)",
            )
        pixels = torch.as_tensor(image).cpu()
        if pixels.ndim < 3 or pixels.shape[0] not in (1, 3):
            raise DataError(
                f"pixels of shape {tuple(pixels.shape)} are not (channels, *size) with 1 or 3 channels",
                do="put the channels first: pixels.transpose(2, 0, 1), or volume[None]",
            )
        if pixels.is_floating_point():
            return "pixels", torch.from_numpy(checked(pixels.float().numpy(), "the given pixels"))
        if pixels.dtype != torch.uint8:
            raise DataError(f"pixels of type {pixels.dtype} are not understood", do="give uint8, or float in 0..1")
        return "pixels", pixels


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
    progress.say(f"splits: {split_note}")
    source, device = found.source, torch.device(config.device)
    parts = {name: [i for i, n in enumerate(names) if n == name] for name in ("train", "val", "test")}
    if origins["batch"] != "flag" and len(parts["train"]) < 10 * config.batch:  # few images: still ten steps an epoch
        config = change(config, {"batch": max(4, len(parts["train"]) // 10)})
        origins["batch"] = "auto"
    chosen = [n for n, origin in origins.items() if origin in ("recipe", "auto") and n not in ("recipe", "out")]
    progress.say(f"recipe {config.recipe} and data give " + ", ".join(f"{n}={getattr(config, n)}" for n in chosen))
    torch.manual_seed(config.seed)
    model: Network = registry.build(
        config.model,
        classes=len(source.classes),
        **{name: value for name in _MODEL_FIELDS if (value := getattr(config, name)) is not None},
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
    with progress.bar("explaining", len(chosen)) as tick:
        for number, n in enumerate(chosen, start=1):
            pixels, truth = images[0, int(result.index[n])][0], result.classes[result.labels[n]]
            done.append([predictor.explain(pixels, method).about(result.keys[n], truth) for method in REPORTED])
            draw(done[-1], run.path / "explain" / f"{number:02d}.png")
            x = predictor.preparation(pixels).to(predictor.device)
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
