"""What is asked of data and of trained models: check, load, evaluate, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard import tasks
from regard.config import make
from regard.console import Progress
from regard.data.dataset import Dataset
from regard.errors import ConfigError, DataError, RegardError, RunError
from regard.metrics import Comparison
from regard.run.runner import plain_settings, read_config
from regard.run.settle import check_settings, pick_device
from regard.task import Predictor, Result
from regard.tasks import Entry, part_options
from regard.weights import Run, identify, seen_samples


def check(data: str | Path, progress: Progress, command: str = "train", **settings: Any) -> Dataset:
    """Read every sample once; `settings` as for training say what the data is, where its files do not."""
    settings = plain_settings(settings)
    entry, _ = tasks.choose(data, settings, command)
    dataset = entry.load().open(data, check_settings(entry, settings), progress)
    progress.say(f"{data}: {dataset.summary()}")
    return dataset


def task_of(path: str | Path) -> Entry:
    """The task of a run folder, a checkpoint or others' weights."""
    if entry := tasks.of_run(path):
        return entry
    task, model = identify(path)
    try:
        return tasks.for_weights(task, model or "vit_s16")
    except RegardError as error:
        raise RunError(f"the checkpoint is damaged: {error.what}", where=path) from None


def load(path: str | Path, device: str = "auto", progress: Progress | None = None, **options: Any) -> Predictor:
    """A predictor from a run folder (its best weights) or from a weights file; on a GPU if there is one.

    `options` are the `LoadOptions` of its task.
    """
    entry = task_of(path)
    loaded = make(entry.settings.LoadOptions, options, entry.name)
    return entry.load().predictor(path, torch.device(pick_device(device)), loaded, progress or Progress())


def evaluate(
    run: str | Path, data: str | Path, *, split: str | None = None, quiet: bool = False, **options: Any
) -> Result:
    """Figures of a trained model on data; `options` are the task's `EvalOptions` and `LoadOptions`."""
    progress, entry = Progress(quiet), task_of(run)
    tasks.require_data(data)
    loading, options = part_options(entry, options)
    asked = make(entry.settings.EvalOptions, options, entry.name)
    task, predictor = entry.load(), load(run, progress=progress, **loading)
    settings = predictor.data_settings(data)
    dataset = task.open(data, entry.config.of(settings), progress)
    progress.say(f"{data}: {dataset.summary()}")
    dataset.require_usable()
    index = choose_samples(dataset, split, seen_samples(dataset, run, progress), progress)
    return task.evaluate_on(predictor, dataset, index, asked, progress)


def choose_samples(dataset: Dataset, split: str | None, seen: set[int], progress: Progress) -> list[int]:
    """The samples to test on. Some may have been seen only in a split asked for by name, or a test set kept whole."""
    given, word = dataset.given_splits(), dataset.samples_word
    names = sorted({name for name in given if name})
    tests = [name for name in names if name.startswith("test")]
    if split is None and tests and dataset.whole_tests:
        split = tests[0]
    if split is None:
        wanted = [i for i, name in enumerate(given) if not tests or name == tests[0]]
        new = [i for i in wanted if i not in seen]
        if len(new) < len(wanted):
            progress.say(f"left out: {len(wanted) - len(new)} {word} that this model was trained or chosen on")
        if not new:
            raise DataError(
                f"the model was trained or chosen on every one of these {word}",
                where=dataset.name,
                do="give other data, or --split all if figures on training data are what you want",
            )
        return new
    chosen = [i for i, name in enumerate(given) if split in ("all", name)]
    if not chosen:
        do = f"it has {', '.join(names)}" if names else "it names no splits: leave --split out"
        raise DataError(f"the data has no split {split!r}", where=dataset.name, do=do)
    if known := len(seen.intersection(chosen)):
        progress.say(f"warning: this model was trained or chosen on {known} of these {len(chosen)} {word}")
    return chosen


def compare(first: str | Path, *others: str | Path) -> dict[str, dict[str, Comparison]]:
    """By run: how far it is ahead of the first, by paired tests on the samples that both were tested on."""
    if not others:
        raise ConfigError("there is nothing to compare with", do="give two runs or more")
    return {str(other): _compare(Run.open(first), Run.open(other)) for other in others}


def _compare(first: Run, second: Run) -> dict[str, Comparison]:
    entries = [read_config(run)[1] for run in (first, second)]
    if entries[0] != entries[1]:
        what = f"a run of {entries[0].name} cannot be compared with one of {entries[1].name}"
        raise ConfigError(what, where=second.path)
    for run in (first, second):
        if not (run.path / "predictions.csv").is_file():
            raise RunError("the run is not finished", where=run.path, do="`regard resume` finishes it")
    rows = [run.read_rows("predictions.csv") for run in (first, second)]
    names = [[_identity(row) for row in own] for own in rows]
    if names[0] != names[1]:
        do = f"`regard eval` each on the same data; they have {len(names[0])} and {len(names[1])} samples"
        raise ConfigError("the runs were not tested on the same samples", where=second.path, do=do)
    return entries[0].load().compare(rows[0], rows[1], first.read_json("data.json"))


def _identity(row: dict[str, str]) -> tuple[str, ...]:
    """What two rows of one sample have in common, whatever was predicted."""
    return tuple(row[name] for name in ("name", "label", "source", "reference") if name in row)
