"""The public functions. Each one only connects parts; the command line calls these and nothing else."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

from regard import registry
from regard.config import PretrainConfig, RunConfig, change, to_dict
from regard.config_text import TranslateConfig
from regard.console import Progress
from regard.data import Preparation, Scan
from regard.data.text import Corpus
from regard.errors import ConfigError, DataError, did_you_mean
from regard.evaluation import repeat
from regard.measuring import check, compare, evaluate, load, load_images, look_at, probe, read
from regard.networks.base import Network
from regard.predictor import build
from regard.pretraining import Pretraining, finish_pretraining
from regard.recipes.settle import check_settings, pick_device, settle
from regard.recipes.translation import check_text_settings
from regard.runner import (
    ImagePlan,
    add_command,
    environment,
    finish,
    fit,
    is_finished,
    kept_splits,
    make_plan,
    open_folder,
    rehearse,
    to_go_on,
)
from regard.training import History, joined, load_state
from regard.translating import is_text, resume_text, train_text
from regard.weights import (
    Checkpoint,
    Run,
    is_marian,
    name_of,
    open_marian,
    open_start,
    open_weights,
    save_checkpoint,
    translates,
)

__all__ = [
    "check", "compare", "create", "demo", "evaluate", "load", "load_images", "models", "pretrain", "probe", "resume",
    "save", "train", "translates",
]  # fmt: skip


def models() -> list[dict[str, Any]]:
    """Every model there is: name, parameters (1000 classes or 37,000 words), input size (none for words), paper.

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

    What translates takes `vocabulary` in place of `classes` and `size`: one number, or one of each language.

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
        if classes is not None or registry.config_class(name).inputs == "image":
            fields["classes"] = 1000 if classes is None else classes
        return registry.build(name, **fields)
    if name is not None:
        registry.find(name)
    if is_marian(weights):
        if classes is not None or fields or (name is not None and registry.find(name).family != "transformer"):
            do = "give neither classes nor fields, and no name or a Transformer's"
            raise ConfigError("a Marian model is what its config.json says, and nothing else", where=weights, do=do)
        translator = open_marian(weights)
        for line in translator.loaded.lines():
            Progress(quiet).say(line)
        return translator
    checkpoint, report = open_weights(weights, name, classes, **fields)
    for line in report.lines():
        Progress(quiet).say(line)
    model = build(checkpoint)
    model.loaded = report
    return model


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


def demo(name: str = "digits", *, quiet: bool = False, **settings: Any) -> Run:
    """The whole way on embedded data: train, evaluate, explain, report."""
    data = {"digits": "digits", "translate": "dates"}
    if name not in data:
        raise DataError(f"there is no demo called {name!r}", do=did_you_mean(name, data))
    return train(data[name], quiet=quiet, **settings)


def train(
    data: str | Path,
    *,
    seeds: int = 1,
    quiet: bool = False,
    command: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    found: Scan | Corpus | None = None,
    **settings: Any,
) -> Run:
    """Train a model on data and write a run folder; the keywords are those of `regard train --help`.

    `found` is what `check` has found in the same images: many runs need not read them many times.
    With `resume`, a run that `out` already holds is gone on with. With `dry_run`, a step is made, the plan is
    printed, and nothing is written. With `seeds`, that many runs from `seed` on in folders of their own, and the
    mean and deviation of their figures in the summary.json of the folder around them. Under torchrun, all its
    processes train one model.

    >>> run = train("digits", epochs=1, depth=1, explain=0, out=tmp / "run", quiet=True)
    >>> 0 <= run.read_json("summary.json")["figures"]["accuracy"]["value"] <= 1
    True
    """
    if seeds != 1:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        (check_text_settings if is_text(data, settings) else check_settings)(settings)

        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise ConfigError("several seeds do not go with several processes", do="give --seed 0, 1, … one by one")

        @cache
        def images() -> Scan | Corpus | None:
            """Read by the first run that needs them, and no more than once; sentences are read anew."""
            return found if found is not None or is_text(data, settings) else look_at(data, Progress(quiet))

        def once(seed: int, out: str) -> Run:
            mine = settings | {"seed": seed, "out": out}
            return train(data, quiet=quiet, command=command, resume=True, found=images(), **mine)

        return repeat(once, str(data), settings, seeds, Progress(quiet))
    if is_text(data, settings):
        if found is not None:
            raise ConfigError("found is for images; sentences are read anew", do="leave it out")
        return train_text(data, settings, quiet, command, resume, dry_run)
    return _start("train", RunConfig, data, settings, quiet, command, resume, dry_run, found)


def pretrain(
    data: str | Path,
    *,
    quiet: bool = False,
    command: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    **settings: Any,
) -> Run:
    """Train a model on images without labels, to fill in hidden patches; the keywords are those of `regard pretrain`.

    The run's checkpoints hold the encoder, without a head: for `probe`, or to be fine-tuned.

    >>> run = pretrain("digits", patch=2, epochs=1, depth=1, explain=0, out=tmp / "pretrained", quiet=True)
    >>> 0 < run.read_json("summary.json")["figures"]["reconstruction_loss"]["value"]
    True
    """
    return _start("pretrain", PretrainConfig, data, settings, quiet, command, resume, dry_run)


def _start(
    name: str, kind: type[RunConfig], data: str | Path, settings: dict[str, Any], quiet: bool, command: str | None,
    resume: bool, dry_run: bool, found: Scan | Corpus | None = None,
) -> Run:  # fmt: skip
    """A run of either kind, from its settings to its report."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    check_settings(settings, kind)
    out = settings.get("out")
    if to_go_on(out, resume):
        changes = {name: settings[name] for name in _CHANGEABLE if name in settings}
        return go_on(str(out), data=data, quiet=quiet, command=command, found=found, **changes)
    asked = change(kind(), settings)
    with joined(torch.device(pick_device(asked.device)), asked.timeout) as world:
        progress = Progress(quiet or not world.first)
        if out and world.first:
            Run.require_new(Path(out))
        found = read(data, found, progress, kind.labelled)
        found.require_readable(asked.unreadable)
        weights, classes = settings.get("weights"), len(found.source.classes)
        start = open_start(weights, classes, settings) if weights else None
        config, origins = settle(found, settings, start and start.shape, kind)
        config = change(config, {"out": world.agree(config.out or "")})
        plan = make_plan(found, config, origins, progress, _plan_of(config), start=start)
        if dry_run:
            print(rehearse(plan, progress))
            return Run(Path(config.out or ""))
        run = Run(Path(config.out or "").expanduser())
        if world.first:
            command = command or f"regard.{name}({str(data)!r}, **{settings!r})"
            run = open_folder(plan, str(data), command, environment(plan.device), progress)
        world.wait()
        history = fit(run, plan, progress, world)
    if world.first:
        _finish(run, plan, history, progress)
    return run


def _plan_of(config: RunConfig) -> type[ImagePlan]:
    return ImagePlan if config.labelled else Pretraining


def _finish(run: Run, plan: ImagePlan, history: History, progress: Progress) -> None:
    if isinstance(plan, Pretraining):
        finish_pretraining(run, plan, history, progress)
    else:
        finish(run, plan, history, progress)


_CHANGEABLE = ("workers", "device", "nonfinite", "timeout", "explain", "compile", "save_every", "shard")


def resume(
    run: str | Path,
    *,
    data: str | Path | None = None,
    quiet: bool = False,
    command: str | None = None,
    found: Scan | Corpus | None = None,
    **changes: Any,
) -> Run:
    """Go on with a run that was stopped, exactly where it was; `data` if its data has been moved.

    Only what does not change the result may be changed: workers, device, nonfinite, timeout, explain, compile,
    save_every, shard.

    >>> run = train("digits", epochs=1, depth=1, explain=0, out=tmp / "stopped", quiet=True)
    >>> resume(run.path, quiet=True).path == run.path
    True
    """
    for name in changes:
        if name not in _CHANGEABLE:
            raise ConfigError(f"{name} cannot be changed in a run that goes on", do=did_you_mean(name, _CHANGEABLE))
    opened = Run.open(run)
    stored, config, origins = opened.read_config()
    config = change(config, changes)
    if isinstance(config, TranslateConfig):
        return resume_text(opened, stored if data is None else data, config, origins, changes, quiet, command)
    with joined(torch.device(pick_device(config.device)), config.timeout) as world:
        progress = Progress(quiet or not world.first)
        if is_finished(opened, progress):
            return opened
        found = read(stored if data is None else data, found, progress, config.labelled)
        splits = kept_splits(opened, found)
        state = load_state(opened.checkpoint("state"))
        weights, classes = config.weights, len(found.source.classes)
        start = open_start(weights, classes, to_dict(config)) if weights and not state else None
        plan = make_plan(found, config, origins, progress, _plan_of(config), start=start, splits=splits, state=state)
        if world.first:
            add_command(opened, command or f"regard.resume({str(run)!r}, **{changes!r})")
        history = fit(opened, plan, progress, world, state)
    if world.first:
        _finish(opened, plan, history, progress)
    return opened


go_on = resume  # for `train`, whose keyword has the same name
