"""The public functions. Each one only connects parts; the command line calls these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard import registry, tasks
from regard.config import to_dict
from regard.console import Progress
from regard.data import Preparation
from regard.data.dataset import Dataset
from regard.errors import ConfigError, DataError, did_you_mean
from regard.metrics import Comparison
from regard.networks.base import Network
from regard.run import using
from regard.run.comparing import compare as compare_runs
from regard.run.external import evaluate_external
from regard.run.folds import cross_validate, is_folds, report_folds
from regard.run.landscape import Surface
from regard.run.repeat import repeat
from regard.run.runner import report as report_run
from regard.run.runner import resume_run, start
from regard.run.settle import check_repeats, check_settings, free_folder, pick_device
from regard.task import Predictor, Result
from regard.weights import Checkpoint, Run, name_of, open_weights, save_checkpoint

__all__ = [
    "check", "compare", "create", "demo", "evaluate", "landscape", "load", "models", "pretrain", "probe", "report",
    "resume", "save", "train",
]  # fmt: skip

SCENES = {"train": 3000, "val": 100, "test": 300, "size": 64}
SCENE_RECIPES = ("scenes_boxes", "scenes_masks")
"""Its two stages."""


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
        if classes is not None:
            fields["classes"] = classes
        return registry.build(name, **fields)
    if name is not None:
        registry.find(name)
    checkpoint, report = open_weights(weights, name, classes, **fields)
    for line in report.lines():
        Progress(quiet).say(line)
    model = checkpoint.build()
    model.loaded = report
    return model.eval() if model.config.inputs == "text" else model


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
    if name not in tasks.DEMOS:
        raise DataError(f"there is no demo called {name!r}", do=did_you_mean(name, tasks.DEMOS))
    if name == "brain":
        from regard.run.brain_demo import demo_brain

        return demo_brain(quiet=quiet, **settings)
    data = tasks.DEMOS[name]
    return _demo_scenes(quiet, **settings) if data is None else train(data, quiet=quiet, **settings)


def _demo_scenes(
    quiet: bool, out: str | Path | None = None, command: str | None = None, seed: int = 0, **settings: Any
) -> Run:
    """A folder with the data and two runs: boxes, and then masks on them, which is the one returned."""
    from regard.data.objects.scenes import write_scenes

    folder = Path(out or free_folder("runs/scenes")).expanduser()
    # stuff is not in the recipes: data is read before a recipe's settings are known.
    stages = [settings | {"recipe": recipe, "stuff": True, "seed": seed} for recipe in SCENE_RECIPES]
    for asked in stages:
        check_settings(tasks.for_settings(folder / "data", asked), asked)
    data = write_scenes(folder / "data", **SCENES, seed=seed)
    Progress(quiet).say(f"made {sum(SCENES.values()) - SCENES['size']:,} scenes in {data}")
    run, weights = None, None
    for asked in stages:
        place = folder / asked["recipe"].removeprefix("scenes_")
        run = train(data, quiet=quiet, command=command, weights=weights, out=place, **asked)
        weights = str(run.path)
    assert run is not None
    return run


def train(
    data: str | Path,
    *,
    seeds: int = 1,
    folds: int = 1,
    jobs: int = 1,
    retrain: int = 0,
    nested: Mapping[str, Sequence[Any]] | None = None,
    quiet: bool = False,
    command: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    dataset: Dataset | None = None,
    **settings: Any,
) -> Run:
    """Train a model on data and write a run folder; the keywords are the flags of `regard train DATA --help-all`.

    `dataset` is what `check` returned for the same data: many runs need not read it many times. With `resume`, a run
    that `out` already holds is resumed. With `dry_run`, one step is made, the plan is printed, and nothing is written.
    With `seeds`, that many runs from `seed` on in folders of their own, and the mean and deviation of their figures in
    the summary.json of the folder around them. With `folds`, a cross-validation: as many runs, `jobs` at a time, each
    tested on its own fold; the folder around them has all out-of-fold predictions and a report; `retrain`
    says how many times they are trained again on exchanged outcomes, and of `nested`, such as `{"lr": [1e-3, 1e-4]}`,
    each fold chooses for itself. Under torchrun, all its processes train one model.

    >>> run = train("digits", epochs=1, depth=1, explain=0, out=tmp / "run", quiet=True)
    >>> 0 <= run.read_json("summary.json")["figures"]["accuracy"]["value"] <= 1
    True
    """
    check_repeats(seeds, folds, jobs, retrain, dry_run, bool(nested))
    options: dict[str, Any] = {"quiet": quiet, "command": command, "dataset": dataset}
    if folds != 1:
        options |= {"jobs": jobs, "retrain": retrain, "nested": nested, "dry_run": dry_run}
        return cross_validate(data, settings, folds, **options)
    if seeds != 1:
        return repeat(data, settings, seeds, **options)
    return start("train", data, settings, resume=resume, dry_run=dry_run, **options)


def pretrain(
    data: str | Path,
    *,
    quiet: bool = False,
    command: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    dataset: Dataset | None = None,
    **settings: Any,
) -> Run:
    """Train a model on images without labels, to fill in hidden patches; the keywords are those of `regard pretrain`.

    The run's checkpoints hold the encoder, without a head: for `probe`, or to be fine-tuned. `dataset` is the same data
    without labels, read before.

    >>> run = pretrain("digits", patch=2, epochs=1, depth=1, explain=0, out=tmp / "pretrained", quiet=True)
    >>> 0 < run.read_json("summary.json")["figures"]["reconstruction_loss"]["value"]
    True
    """
    options: dict[str, Any] = {"quiet": quiet, "command": command, "dataset": dataset}
    return start("pretrain", data, settings, resume=resume, dry_run=dry_run, **options)


def resume(
    run: str | Path,
    *,
    data: str | Path | None = None,
    quiet: bool = False,
    command: str | None = None,
    dataset: Dataset | None = None,
    **changes: Any,
) -> Run:
    """Resume a run exactly where it was stopped; `data` if its data has been moved.

    Only what does not change the result may be changed: workers, device, nonfinite, timeout, explain, compile,
    save_every, shard.

    >>> run = train("digits", epochs=1, depth=1, explain=0, out=tmp / "stopped", quiet=True)
    >>> resume(run.path, quiet=True).path == run.path
    True
    """
    return resume_run(run, data=data, dataset=dataset, quiet=quiet, command=command, changes=changes)


def report(run: Run) -> None:
    """Draw figures and report anew from the files of a run, or of several folds."""
    report_folds(run) if is_folds(run.path) else report_run(run)


def load(path: str | Path, device: str = "auto", quiet: bool = False, **options: Any) -> Predictor:
    """A predictor, from a run folder (its best weights) or a weights file of any known format.

    Whatever the task, it has `predict`, `predict_many` and `explain`. Options by task: of images `size`, another
    input size, and `heads`, where weights do not say it; of a translator `average`, the mean of so many kept epochs.
    """
    return using.load(path, device, Progress(quiet), **options)


def check(data: str | Path, quiet: bool = False, **settings: Any) -> Dataset:
    """Read every sample once; `describe()` of the result says what is there and what is wrong with it.

    `settings` as for `train` say what the data is, where its files do not: `source` and `target` of parallel text.

    >>> dataset = check("digits", quiet=True)
    >>> len(dataset), dataset.duplicates()
    (1797, [])
    """
    return using.check(data, Progress(quiet), **settings)


def evaluate(
    run: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    external: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Figures of a trained model on data. `out` is a new folder for evaluation.json and predictions.csv.

    Which samples: those of `split`, or "all". If not said, the test split if the data has one, else val, else all that
    the run has not seen. The figures are without test samples that the run trained on or chose its weights by; `whole`
    of the result is with them. Settings say how the data is read, such as `label_column`, or `source` and `target`,
    where the data calls the languages otherwise. Options by task: of images `mirror`, the mean over each image and its
    mirror image; of sentences `beam_size` and `length_penalty` (the run's own if not said); and those of
    `load`.

    With `external`, the data is another cohort: all of it is tested, what overlaps with the training data by contents
    or patient is named and left out, and calibration and the run's own figures are given beside. `run` may then be a
    folder of several folds: the mean of their models' predictions is tested, and each alone.
    """
    if external:
        return evaluate_external(run, data, split=split, out=out, quiet=quiet, **options)
    return using.evaluate(run, data, split=split, out=out, quiet=quiet, **options)


def compare(first: str | Path, *others: str | Path) -> dict[str, dict[str, Comparison]]:
    """Whether other runs are better than a first one: paired tests on the samples that all were tested on.

    By run and figure: the difference with a 95 % interval, p values, and a `verdict()` in words. In place of a run, a
    folder of several folds, or one that `evaluate(…, out=…)` made. AUCs are compared by DeLong's test; of several runs
    its p values are corrected by Holm.
    """
    return compare_runs(first, *others)


def landscape(run: str | Path, **options: Any) -> Surface:
    """The training loss around a run's last weights, in filter-normalised random directions (Li et al. 2018).

    Options: `directions` (2, or 1 for a line), `points` along each axis (odd), `span` (1: as long as the weights
    themselves), `samples` that the loss is the mean of, `split` ("train" or "val"), `seed` of the directions, `out`
    (RUN/landscape), `data` if it has been moved, `device`, `quiet`. Writes landscape.png, .svg, .csv and .json. What
    was stopped is resumed by the same call.

    >>> run = train("digits", epochs=1, depth=1, explain=0, out=tmp / "hill", quiet=True)
    >>> landscape(run.path, points=3, samples=64, quiet=True).losses.shape
    (3, 3)
    """
    from regard.run.landscape import landscape as compute

    return compute(run, **options)


def probe(run: str | Path, data: str | Path, **options: Any) -> Any:
    """How good a network's features are on data, without training it: few-shot, linear and nearest-neighbour probes.

    Options: `methods`, `shots` (training images per class), `draws`, `neighbours`, `seed`, `batch_size`, `out` (a new
    folder for probe.json, probe.csv and probe.svg), `keep` (one for a run of the network with the linear probe as its
    head), `quiet`, and fields of the config such as `size` or `heads`.

    >>> import regard
    >>> weights = regard.save(regard.create("vit_nano"), tmp / "random.safetensors")
    >>> result = probe(weights, "digits", shots=[1, 5], draws=2, quiet=True)
    >>> [(row.probe, row.shots) for row in result.rows]
    [('few_shot', 1), ('few_shot', 5), ('linear', None), ('neighbours', None)]
    """
    entry, _ = tasks.choose(data, {})
    task: Any = entry.load()
    if not entry.probes:
        raise ConfigError(f"probes need images with labels, and this data is for {entry.name}", where=data)
    return task.probe(run, data, device=torch.device(pick_device("auto")), **options)
