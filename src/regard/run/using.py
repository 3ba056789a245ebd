"""What is asked of data and of trained models: check, load, evaluate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard import tasks
from regard.config import make
from regard.console import Progress
from regard.data.dataset import UNUSED, Dataset
from regard.errors import ConfigError, DataError, RunError, counted
from regard.run.comparing import EVALUATION
from regard.run.folds import FOLDS, is_folds
from regard.run.runner import open_dataset, plain_settings, read_config
from regard.run.settle import check_settings, pick_device
from regard.task import Predictor, Result
from regard.tasks import Entry, part_options
from regard.weights import Run, find_run, identify, seen_samples


def check(data: str | Path, progress: Progress, command: str = "train", **settings: Any) -> Dataset:
    """Read every sample once; `settings` as for training say what the data is, where its files do not."""
    settings = plain_settings(settings)
    entry, _ = tasks.choose(data, settings, command)
    dataset = open_dataset(entry.load(), data, check_settings(entry, settings), None, progress)
    progress.say(f"{data}: {dataset.summary()}")
    return dataset


def confounded(dataset: Dataset, data: str | Path, **settings: Any) -> list[str]:
    """What predicts the outcome without a look at the samples, for tasks that look for it."""
    return tasks.choose(data, settings)[0].load().confounded(dataset)


def require_trainable(dataset: Dataset, data: str | Path, **settings: Any) -> None:
    """An error if training would refuse this data. Data without a training split is for evaluation, and may be."""
    entry, _ = tasks.choose(data, settings)
    given = dataset.given_splits()
    if "train" in given or not any(given):
        entry.load().split(dataset, check_settings(entry, settings))


def task_of(path: str | Path) -> Entry:
    """The task of a run folder, a checkpoint or others' weights."""
    if entry := tasks.of_run(path):
        return entry
    if is_folds(path):
        return tasks.find(str(Run(Path(path).expanduser()).read_json(FOLDS)["task"]))
    task, model = identify(path)
    try:
        return tasks.for_weights(task, model or "vit_s16")
    except ConfigError as error:
        raise RunError(f"the checkpoint is damaged: {error.what}", where=path) from None


def load(path: str | Path, device: str = "auto", progress: Progress | None = None, **options: Any) -> Predictor:
    """A predictor from a run folder (its best weights) or from a weights file; on a GPU if there is one.

    `options` are the `LoadOptions` of its task.
    """
    if is_folds(path):
        Run.open(path)  # which says that it holds several
    entry = task_of(path)
    loaded = make(entry.settings.LoadOptions, options, entry.name)
    progress = progress or Progress()
    if line := _unfinished(path):
        progress.say(f"warning: {line}")
    return entry.load().predictor(path, torch.device(pick_device(device)), loaded, progress)


def _unfinished(path: str | Path) -> str:
    """What to say of a run that was stopped before its end."""
    run = find_run(path)
    if run is None or (run.path / "summary.json").is_file() or not (run.path / "metrics.csv").is_file():
        return ""
    rows, epochs = run.read_rows("metrics.csv"), read_config(run)[2].optim.epochs
    epoch = rows[-1]["epoch"] if rows else 0
    at = f"training stopped after epoch {epoch} of {epochs}" if int(epoch) < epochs else "it was not tested"
    return f"this run is not finished: {at}; `regard resume {shlex.quote(str(run.path))}` goes on"


def evaluate(
    run: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Figures of a trained model on data; `out` is a folder to make for them and the predictions.

    `options` are the task's `EvalOptions` and `LoadOptions`, and settings that say how the data is read.
    """
    if is_folds(run):
        raise ConfigError("several folds are tested together on another cohort", where=run, do="give --external")
    progress = Progress(quiet)
    opened = open_for_evaluation(run, data, out, options, progress)
    entry, task, dataset = opened.entry, opened.entry.load(), opened.dataset
    part, index, seen = choose_samples(dataset, split, run, progress)
    result = opened.evaluate(opened.predictor, index, progress)
    if seen:
        result = task.without(result, seen)
    for line in task.doubts({"split": part, **_validated(run), **result.to_json()}):
        progress.say(f"warning: {line}")
    if out is not None:
        about = {"task": entry.name, "run": str(run), "data": str(data), "split": split}
        write_evaluation(out, dataset, set(index) - seen, part, result.predictions(), about | result.to_json())
    return result


class Opened(NamedTuple):
    """A model, data to test it on, and how."""

    entry: Entry
    predictor: Predictor
    dataset: Dataset
    asked: Any
    loading: dict[str, Any]

    def evaluate(self, predictor: Predictor, index: list[int], progress: Progress) -> Result:
        return self.entry.load().evaluate_on(predictor, self.dataset, index, self.asked, progress)


def open_for_evaluation(
    run: str | Path, data: str | Path, out: str | Path | None, options: dict[str, Any], progress: Progress
) -> Opened:
    entry = task_of(run)
    tasks.require_data(data)
    if out is not None:
        Run.require_new(Path(out))
    loading = part_options(entry, options)[0]
    given = {name: options[name] for name in entry.config.opening().keys() & options.keys()}
    rest = {name: value for name, value in options.items() if name not in loading and name not in given}
    asked = make(entry.settings.EvalOptions, rest, entry.name)
    task, predictor = entry.load(), load(run, progress=progress, **loading)
    predictor.require_answers()
    settings = task.stored_settings(run, data) | predictor.data_settings(data) | given
    dataset = task.open_for(predictor, data, entry.config.of(settings), progress)
    progress.say(f"{data}: {dataset.summary()}")
    dataset.require_usable()
    return Opened(entry, predictor, dataset, asked, loading)


def write_evaluation(
    out: str | Path, dataset: Dataset, tested: set[int], part: str, rows: list[dict[str, Any]], about: dict[str, Any]
) -> None:
    """A new folder with data, predictions and figures, which `compare` reads."""
    folder = Run.create(Path(out))
    splits = ["test" if number in tested else UNUSED for number in range(len(dataset))]
    folder.write_json("data.json", dataset.to_json(splits, f"evaluated: {part or 'all'}"))
    folder.write_rows("predictions.csv", rows)
    folder.write_json(EVALUATION, about)


def choose_samples(
    dataset: Dataset, split: str | None, run: str | Path, progress: Progress
) -> tuple[str, list[int], set[int]]:
    """The split, its samples, and those among them that the model has seen, for figures with and without them.

    If no split is named: the test split, else val, else everything that the model has not seen.
    """
    given, word, folder = dataset.given_splits(), dataset.samples_word, find_run(run)
    names = sorted({name for name in given if name})
    tests = [name for name in names if name.startswith("test")]
    part = split or next(iter([*tests, *(name for name in names if name == "val")]), None)
    seen = seen_samples(dataset, run, progress)
    if part is None:
        return "", _unseen(dataset, list(range(len(dataset))), seen, progress), set()
    chosen = [i for i, name in enumerate(given) if part in ("all", name)]
    if not chosen and folder:
        chosen = _own_cut(dataset, folder, part, progress)
    if not chosen:
        do = f"it has {', '.join(names)}" if names else "it names no splits: leave --split out"
        raise DataError(f"the data has no split {part!r}", where=dataset.name, do=do)
    if split is None and part == "val":
        progress.say("the data has no test split: the figures are on val")
    known = seen.intersection(chosen)
    if part == "val" and folder and known:
        progress.say(
            f"warning: {len(known)} of these {len(chosen)} {word} also chose the model's weights, or trained it"
        )
        known = dataset.seen([row for row in folder.seen_rows() if row["split"] == "train"]).intersection(chosen)
    elif known and (dataset.whole_tests or not part.startswith("test")):
        progress.say(f"warning: this model was trained or chosen on {len(known)} of these {len(chosen)} {word}")
    if dataset.whole_tests or part in ("all", "train"):
        return part, chosen, set()
    if len(known) == len(chosen) and split is None:
        _unseen(dataset, chosen, known, progress)
    if known and part.startswith("test"):
        progress.say(f"{len(known)} of {len(chosen)} {part} {word} occur in training or validation")
    return part, chosen, known if len(known) < len(chosen) else set()


def _validated(run: str | Path) -> dict[str, Any]:
    """What the run scored on its validation data, if its folder says so: the figure that chose its weights."""
    folder = find_run(run)
    if folder is None or not (folder.path / "summary.json").is_file():
        return {}
    summary = folder.read_json("summary.json")
    return {name: x for name, x in summary.items() if name.startswith("val_") and isinstance(x, int | float)}


def _unseen(dataset: Dataset, wanted: list[int], seen: set[int], progress: Progress) -> list[int]:
    new, word = [i for i in wanted if i not in seen], dataset.samples_word
    if len(new) < len(wanted):
        progress.say(f"left out: {counted(len(wanted) - len(new), word)} that this model was trained or chosen on")
    if not new:
        raise DataError(
            f"the model was trained or chosen on every one of these {word}",
            where=dataset.name,
            do="give other data, or --split all if figures on training data are what you want",
        )
    return new


def _own_cut(dataset: Dataset, folder: Run, part: str, progress: Progress) -> list[int]:
    """The samples of a split that the run itself cut from this data."""
    rows, given = [row for row in folder.split_rows() if row["split"] == part], dataset.given_splits()
    names = {row["name"] for row in rows}
    chosen = [i for i in sorted(dataset.seen(rows)) if dataset.key(i) in names and given[i] in (None, "train")]
    if chosen:
        progress.say(f"{part} as the run cut it: {len(chosen)} {dataset.samples_word}")
    return chosen
