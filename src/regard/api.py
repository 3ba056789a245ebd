"""The public functions. Each one only connects parts; the command line calls these and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from regard import registry
from regard.config import CONFIGS, PretrainConfig, RunConfig, change, to_dict
from regard.config_text import TranslateConfig
from regard.console import Progress
from regard.data import Images, Loader, Preparation, Scan, open_source, scan
from regard.data.text import Corpus
from regard.errors import ConfigError, DataError, did_you_mean
from regard.evaluation import (
    Evaluation,
    Parts,
    Probe,
    TranslationEvaluation,
    check_probes,
    choose_samples,
    features_of,
    probe_parts,
    repeat,
    run_probes,
    seen_samples,
)
from regard.evaluation import evaluate as run_evaluation
from regard.evaluation.probe import DRAWS, METHODS, NEIGHBOURS
from regard.interpreter import Interpreter
from regard.metrics import Comparison
from regard.networks import Network
from regard.predictor import Predictor, build
from regard.pretraining import Pretraining, finish_pretraining
from regard.recipes.settle import check_settings, pick_device, settle
from regard.recipes.translation import check_text_settings
from regard.report import write_probe
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
from regard.translating import (
    compare_text,
    evaluate_text,
    holds_text,
    is_text,
    open_text_data,
    resume_text,
    train_text,
)
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
        if classes is not None or registry.find(name).family in CONFIGS:
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


def load(
    path: str | Path, device: str = "auto", quiet: bool = False, heads: int | None = None, average: int = 0
) -> Predictor | Interpreter:
    """What predicts, from a run folder (its best weights) or from a weights file; on a GPU if there is one.

    Of a translator, also of a folder with an Opus-MT model, an `Interpreter`; of others a `Predictor`. `heads` is for
    files that do not say how many they have; `average` for translators that kept so many epochs: the mean of these.
    """
    if is_marian(path) or translates(path):
        return Interpreter.open(path, torch.device(pick_device(device)), average)
    return load_images(path, device, quiet, heads)


def load_images(path: str | Path, device: str = "auto", quiet: bool = False, heads: int | None = None) -> Predictor:
    """`load`, for what looks at images."""
    if is_marian(path) or translates(path):
        raise ConfigError("this is a translator: it reads sentences, not images", where=path)
    given: dict[str, Any] = {} if heads is None else {"heads": heads}
    checkpoint, report = open_weights(path, **given)
    for line in report.lines() if report.format != "regard" or report.untrained else ():
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


def check(data: str | Path, quiet: bool = False) -> Scan | Corpus:
    """Read every sample once and say what is there; of parallel text, every pair of sentences."""
    return open_text_data(data, {}) if holds_text(data) else _scan(data, Progress(quiet))


def _scan(data: str | Path, progress: Progress, labels: bool = True) -> Scan:
    source = open_source(data, labels)
    classes = f"{len(source.classes)} classes" if labels else "labels not used"
    progress.say(f"{data}: {source.kind} ({source.why}), {len(source.samples):,} images, {classes}")
    if source.ignored:
        progress.say(f"not part of the data: {len(source.ignored)} files (`regard check` lists them)")
    with progress.bar("reading", len(source.samples)) as tick:
        return scan(source, lambda done, total: tick(done))


def evaluate(
    run: str | Path, data: str | Path, *, split: str | None = None, batch: int = 64, quiet: bool = False
) -> Evaluation | TranslationEvaluation:
    """Figures of a trained model on data.

    Which images: those of `split`, or "all". If not said, the test split if the data has one, else
    everything, but never an image that the run trained on or chose its weights by (known by its pixels).
    """
    loaded, progress = load(run), Progress(quiet)
    if isinstance(loaded, Interpreter):
        return evaluate_text(loaded, run, data, split, progress)
    predictor = loaded
    predictor.require_classes()
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


def compare(first: str | Path, *others: str | Path) -> dict[str, dict[str, Comparison]]:
    """Whether other runs translate better than a first one: paired tests on the sentences that all were tested on.

    By run: BLEU's and chrF's difference with a 95 % interval, and how likely one as large is by chance.
    """
    if not others:
        raise ConfigError("there is nothing to compare with", do="give two runs or more")
    return {str(other): compare_text(Run.open(first), Run.open(other)) for other in others}


def probe(
    run: str | Path,
    data: str | Path,
    *,
    methods: Sequence[str] = METHODS,
    shots: Sequence[int] | None = None,
    draws: int = DRAWS,
    neighbours: int = NEIGHBOURS,
    seed: int = 0,
    batch: int = 64,
    out: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Probe:
    """How good a network's features are on data, without training it: few-shot, linear and nearest-neighbour probes.

    `shots` are training images a class, as many of 1, 5, 10, 25, 50 and 100 as there are if not said; `draws` how
    often they are drawn. `fields` are of the config, such as `size` (positions are resampled) or `heads`. `out` is
    a new folder for probe.json, probe.csv and probe.svg.

    >>> found = probe(save(create("vit_nano"), tmp / "random.safetensors"), "digits", shots=[1, 5], draws=2, quiet=True)
    >>> [(row.probe, row.shots) for row in found.rows]
    [('few_shot', 1), ('few_shot', 5), ('linear', None), ('neighbours', None)]
    """
    progress = Progress(quiet)
    if out is not None:
        Run.require_new(Path(out))
    checkpoint, report = open_weights(run, **fields)
    for line in report.lines() if report.format != "regard" or report.untrained else ():
        progress.say(line)
    predictor = Predictor(checkpoint, torch.device(pick_device("auto")))
    found = _scan(data, progress)
    found.require_readable()
    classes, samples, preparation = found.source.classes, found.source.samples, predictor.preparation
    index, note = probe_parts(found, run, progress)
    check_probes(methods, shots, draws, neighbours, [samples[i].label for i in index["train"]], classes, data)
    loader = Loader(Images(found, preparation.size, preparation.channels), list(chain(*index.values())), batch)
    with progress.bar("features", len(loader)) as tick:
        parts = Parts.of(*features_of(predictor.model, loader, preparation, predictor.device, tick), index)
    with progress.bar("probing", len(methods)) as tick:
        rows = run_probes(
            parts, classes, methods=methods, shots=shots, draws=draws, k=neighbours, seed=seed,
            device=predictor.device, tick=tick,
        )  # fmt: skip
    result = Probe(rows, {
        "weights": str(run), "data": str(data), "model": checkpoint.model, "size": preparation.size,
        "features": parts.train.features.shape[1], "classes": classes, "splits": note, "seed": seed,
        "images": {name: len(own) for name, own in index.items()},
    })  # fmt: skip
    if out is not None:
        write_probe(Run.create(Path(out)), result.to_json())
    return result


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
    **settings: Any,
) -> Run:
    """Train a model on data and write a run folder; the keywords are those of `regard train --help`.

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

        def once(seed: int, out: str) -> Run:
            mine = settings | {"seed": seed, "out": out}
            return train(data, quiet=quiet, command=command, resume=True, **mine)

        return repeat(once, str(data), settings, seeds, Progress(quiet))
    if is_text(data, settings):
        return train_text(data, settings, quiet, command, resume, dry_run)
    return _start("train", RunConfig, data, settings, quiet, command, resume, dry_run)


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
    resume: bool, dry_run: bool,
) -> Run:  # fmt: skip
    """A run of either kind, from its settings to its report."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    check_settings(settings, kind)
    out = settings.get("out")
    if to_go_on(out, resume):
        changes = {name: settings[name] for name in _CHANGEABLE if name in settings}
        return go_on(str(out), data=data, quiet=quiet, command=command, **changes)
    asked = change(kind(), settings)
    with joined(torch.device(pick_device(asked.device)), asked.timeout) as world:
        progress = Progress(quiet or not world.first)
        if out and world.first:
            Run.require_new(Path(out))
        found = _scan(data, progress, kind.labelled)
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
    run: str | Path, *, data: str | Path | None = None, quiet: bool = False, command: str | None = None, **changes: Any
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
        found = _scan(stored if data is None else data, progress, config.labelled)
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
