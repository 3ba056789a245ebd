"""What is asked of data and of trained models: check, load, evaluate, compare."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from regard import tasks
from regard.config import make
from regard.console import Progress
from regard.data.dataset import UNUSED, Dataset
from regard.errors import ConfigError, DataError, RegardError, RunError, counted
from regard.metrics import Comparison
from regard.run.runner import plain_settings, read_config
from regard.run.settle import check_settings, pick_device
from regard.task import Predictor, Result
from regard.tasks import Entry
from regard.weights import Run, identify, seen_samples

EVALUATION = "evaluation.json"
"""What makes a folder one that `evaluate` wrote."""


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
    run: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Figures of a trained model on data; `out` is a folder to make for them and the predictions."""
    progress, entry = Progress(quiet), task_of(run)
    tasks.require_data(data)
    if out is not None:
        Run.require_new(Path(out))
    asked = make(entry.settings.EvalOptions, options, entry.name)
    task, predictor = entry.load(), load(run, progress=progress)
    predictor.require_answers()
    settings = predictor.data_settings(data) | opening_settings(asked)
    dataset = task.open(data, entry.config.of(settings), progress)
    progress.say(f"{data}: {dataset.summary()}")
    dataset.require_usable()
    index = choose_samples(dataset, split, seen_samples(dataset, run, progress), progress)
    result = task.evaluate_on(predictor, dataset, index, asked, progress)
    if out is not None:
        folder, tested = Run.create(Path(out)), set(index)
        splits = ["test" if number in tested else UNUSED for number in range(len(dataset))]
        folder.write_json("data.json", dataset.to_json(splits, f"evaluated: {split or 'test'}"))
        folder.write_rows("predictions.csv", result.predictions())
        about = {"task": entry.name, "run": str(run), "data": str(data), "split": split}
        folder.write_json(EVALUATION, about | result.to_json())
    return result


def opening_settings(options: Any) -> dict[str, Any]:
    """Of options that are given, those that say what the data is."""
    given = {entry.name: getattr(options, entry.name) for entry in fields(options) if entry.metadata["opens"]}
    return {name: value for name, value in given.items() if value is not None}


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
            left = counted(len(wanted) - len(new), word)
            progress.say(f"left out: {left} that this model was trained or chosen on")
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
    """By run: how far it is ahead of the first, by paired tests on the samples that both were tested on.

    Runs, or folders that `evaluate` made.
    """
    if not others:
        raise ConfigError("there is nothing to compare with", do="give two runs or more")
    return {str(other): _compare(first, other) for other in others}


def predicted_by(path: str | Path) -> tuple[Run, Entry]:
    """A folder with predictions, and their task: of a run, or made by `evaluate`."""
    folder = Run(Path(path).expanduser())
    if (folder.path / EVALUATION).is_file():
        return folder, tasks.find(str(folder.read_json(EVALUATION).get("task")))
    return Run.open(path), read_config(Run.open(path))[1]


def _compare(*paths: str | Path) -> dict[str, Comparison]:
    (first, second), entries = zip(*map(predicted_by, paths), strict=True)
    if entries[0] != entries[1]:
        what = f"a run of {entries[0].name} cannot be compared with one of {entries[1].name}"
        raise ConfigError(what, where=second.path)
    for run in (first, second):
        if not (run.path / "predictions.csv").is_file():
            raise RunError("the run is not finished", where=run.path, do="`regard resume` finishes it")
    rows = [run.read_rows("predictions.csv") for run in (first, second)]
    names = [[_identity(row) for row in own] for own in rows]
    if names[0] != names[1]:
        sizes = f": {len(names[0])} and {len(names[1])} samples" if len(names[0]) != len(names[1]) else ""
        what = f"the runs were not tested on the same samples{sizes}"
        do = "`regard eval RUN DATA --out FOLDER` of each on the same data, then compare these folders"
        raise ConfigError(what, where=second.path, do=do)
    return entries[0].load().compare(rows[0], rows[1], first.read_json("data.json"))


def _identity(row: dict[str, str]) -> tuple[str, ...]:
    """What two rows of one sample have in common, whatever was predicted."""
    return tuple(row[name] for name in ("name", "label", "source", "reference") if name in row)
