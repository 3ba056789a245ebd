"""Cross-validation: a run per fold, the out-of-fold predictions of all, and what they add up to.

Tasks are known only through `regard.task.Task`: those that `pools`. Every run is given the splits of its fold, so that
whatever it computes from its training set has not seen the samples it is tested on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import tasks
from regard.console import Progress, columns
from regard.data.dataset import UNUSED, Dataset
from regard.data.splits import assign_folds, fold_splits
from regard.errors import ConfigError, DataError
from regard.metrics.folds import Permuted, permute
from regard.report.folds_page import write_folds_report
from regard.run.compute import add_costs
from regard.run.nested import choose_settings, combinations, inner_splits, require_choosable, sign_of
from regard.run.pool import Each, each
from regard.run.repeat import claim
from regard.run.runner import open_dataset, plain_settings, read_config, start
from regard.run.settle import check_settings, free_folder, pick_device
from regard.task import Folds
from regard.tasks import Entry
from regard.weights import Run
from regard.weights.checkpoint import header

FOLDS = "folds.json"
"""What makes a folder one of several folds."""
CHOSEN = "chosen.json"
"""In the folder of a fold's trials: what was chosen, and by which scores."""
VALIDATED = "predictions-val.csv"
"""In a fold's run: predictions of its own validation part, written last."""


@dataclass(frozen=True)
class Plan:
    """What every fold's run has in common."""

    data: str
    settings: dict[str, Any]
    numbers: list[int]
    """The fold of each sample, from 1 on; 0 is in none."""
    folder: Path
    quiet: bool
    command: str | None
    nested: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of settings that each fold chooses among."""

    def trials(self, fold: int) -> Run:
        """Where a fold chooses its settings."""
        return Run(self.folder / "nested" / f"fold{fold}")

    def run(self, fold: int) -> Run:
        return Run(self.folder / f"fold{fold}")


def cross_validate(
    data: str | Path,
    settings: Mapping[str, Any],
    folds: int,
    *,
    jobs: int = 1,
    quiet: bool = False,
    command: str | None = None,
    dataset: Dataset | None = None,
    dry_run: bool = False,
    retrain: int = 0,
    nested: Mapping[str, Sequence[Any]] | None = None,
    workers: AbstractContextManager[Each] | None = None,
) -> Run:
    """Train a run per fold, `jobs` at a time, or by other `workers`, and add up what each predicts of its own fold.

    The data is read once. A fold that has finished is kept: the same command resumes. With `retrain`, all folds are
    trained as many times again on outcomes that patients of one fold have exchanged: the honest chance level. Of
    `nested`, each fold chooses one value of each setting without a look at what it is tested on.
    """
    settings, progress = plain_settings(settings), Progress(quiet)
    entry = _require_foldable(data, settings, folds, jobs, retrain)
    asked, nested = check_settings(entry, settings), {name: list(own) for name, own in (nested or {}).items()}
    require_choosable(entry, settings, nested, folds)
    dataset = open_dataset(entry.load(), data, asked, dataset, progress)
    dataset.require_usable(asked.data.unreadable)
    numbers, note = assign_folds(dataset, folds, asked.data.split_seed)
    progress.say(f"folds: {note}")
    for line in entry.load().fold_doubts(dataset, numbers):
        progress.say(f"warning: {line}")
    _require_trainable(entry, dataset, numbers, asked, bool(nested))
    shared = entry.load().fold_settings(dataset, [n for n, fold in enumerate(numbers) if fold], asked)
    if dry_run:
        times = folds * (1 + len(combinations(nested)) if nested else 1)
        progress.say(f"the plan of the first of {folds} folds; all take {times} times as long")
        first = fold_splits(numbers, 1)
        return start("train", data, settings | shared, dataset=dataset, quiet=quiet, dry_run=True, given=first)
    out = settings.get("out") or free_folder(f"runs/{Path(data).stem}-folds")
    silent = quiet or jobs > 1 or bool(workers)
    plan = Plan(str(data), settings | shared, numbers, Path(out).expanduser(), silent, command, nested)
    folder, several = Run(plan.folder), {"folds": folds} | ({"nested": nested} if nested else {})
    claim(folder, {"data": str(data), **settings, "out": str(out), **several})
    folder.write_json(FOLDS, {"task": entry.name, "data": str(data), "note": note, **several})
    try:
        with workers or nullcontext(partial(each, jobs=jobs)) as share:
            _train_folds(plan, share, dataset, progress)
            add_up(folder, entry, dataset, numbers, note, progress)
            if retrain:
                _retrain(plan, entry, dataset, retrain, share, progress)
    except KeyboardInterrupt:
        progress.say("stopped; the same command resumes, and keeps the folds that have finished")
        raise
    return folder


def _train_folds(plan: Plan, share: Each, dataset: Dataset, progress: Progress) -> None:
    folds = max(plan.numbers)
    waiting = [fold for fold in range(1, folds + 1) if not _is_finished(plan.run(fold))]
    if len(waiting) < folds:
        progress.say(f"{folds - len(waiting)} of {folds} folds are there already")
    for fold, future in share(partial(_train_fold, plan), waiting, dataset):
        future.result()
        progress.say(f"fold {fold} of {folds} is finished: {plan.run(fold).path}")


def _retrain(plan: Plan, entry: Entry, dataset: Any, times: int, share: Each, progress: Progress) -> None:
    """What the first figure of the headline comes to when outcomes mean nothing: a p value of the whole way."""
    folder, silent = Run(plan.folder), Progress(quiet=True)
    summary, rows = folder.read_json("summary.json"), dataset.split_rows(["test"] * len(dataset))
    groups = np.array([row["group"] or f"sample {number}" for number, row in enumerate(rows)])
    name, values = summary["headline"][0], list[float]()
    for time in range(1, times + 1):
        order = permute(np.array(plan.numbers), groups, 1, seed=time)[1]
        place, swapped = Run(plan.folder / "exchanged" / str(time)), dataset.exchanged(order.tolist())
        own = replace(plan, folder=place.path, settings=plan.settings | {"explain": 0}, quiet=True)
        _train_folds(own, share, swapped, silent)
        add_up(place, entry, swapped, plan.numbers, "outcomes exchanged", silent, report=False)
        values.append(place.read_json("summary.json")["figures"][name]["value"])
        progress.say(f"outcomes exchanged, {time} of {times}: {name} {values[-1]:.4f}")
    made = Permuted.of([sign_of(name) * value for value in (summary["figures"][name]["value"], *values)])
    folder.write_json("summary.json", summary | {"retrained": {"figure": name, "values": values, "p": made.p}})
    report_folds(folder)


def _require_foldable(data: str | Path, settings: Mapping[str, Any], folds: int, jobs: int, retrain: int) -> Entry:
    if folds < 2:
        raise ConfigError(f"folds={folds} is too small", do="give --folds at least 2, such as 5")
    if retrain < 0:
        raise ConfigError(f"retrain={retrain} must be at least 0")
    if jobs < 1:
        raise ConfigError(f"jobs={jobs} must be at least 1")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("folds do not go with several processes", do="give --jobs for several folds at a time")
    entry, _ = tasks.choose(data, settings)
    if not entry.load().pools:
        able = ", ".join(other.name for other in tasks.TASKS if other.load().pools)
        raise ConfigError(f"--folds is not for {entry.name}: its predictions are not added up", do=f"it is for {able}")
    if settings.get("images") is not None:
        raise ConfigError("images is for one run, and folds use all", do="leave --images out")
    return entry


def _require_trainable(entry: Entry, dataset: Dataset, numbers: list[int], config: Any, nested: bool) -> None:
    """An error before the first fold is trained if a later one could not be, or its settings not chosen."""
    for fold in range(1, max(numbers) + 1):
        try:
            entry.load().split(dataset, config, fold_splits(numbers, fold))
            if nested:
                entry.load().split(dataset, config, inner_splits(numbers, fold))
        except DataError as error:
            do = "give fewer --folds, more data, or leave a rare label out"
            raise DataError(f"fold {fold}: {error.what}", where=error.where, do=do) from error


def _is_finished(run: Run) -> bool:
    return (run.path / VALIDATED).is_file() and (run.path / "report.html").is_file()


def _train_fold(plan: Plan, dataset: Dataset, fold: int) -> None:
    """One fold's run, and what it predicts of the part of its training data that chose its weights."""
    run, progress = plan.run(fold), Progress(plan.quiet)
    own = plan.settings | _choose(plan, dataset, fold, progress) | {"out": str(run.path)}
    start(
        "train", plan.data, own, dataset=dataset, quiet=plan.quiet, command=plan.command, resume=True,
        given=fold_splits(plan.numbers, fold),
    )  # fmt: skip
    names = {row["name"] for row in run.split_rows() if row["split"] == "val"}
    index = [number for number in range(len(dataset)) if dataset.key(number) in names]
    entry = tasks.find(run.read_config().task)
    device = torch.device(pick_device(plan.settings.get("device") or "auto"))
    predictor = entry.load().predictor(run.path, device, entry.settings.LoadOptions(), progress)
    result = entry.load().evaluate_on(predictor, dataset, index, entry.settings.EvalOptions(), progress)
    run.write_rows(VALIDATED, result.predictions())


def _choose(plan: Plan, dataset: Dataset, fold: int, progress: Progress) -> dict[str, Any]:
    """The settings that a fold has chosen for itself."""
    if not plan.nested:
        return {}
    trials = plan.trials(fold)
    made = choose_settings(
        plan.data, plan.settings, plan.nested, trials.path, inner_splits(plan.numbers, fold), dataset, plan.quiet
    )
    trials.write_json(CHOSEN, made)
    told = ", ".join(f"{name}={value}" for name, value in made["chosen"].items())
    progress.say(f"fold {fold} chooses {told}, by {made['figure']} on the next fold")
    return made["chosen"]


def add_up(
    folder: Run, entry: Entry, dataset: Any, numbers: list[int], note: str, progress: Progress, report: bool = True
) -> None:
    """predictions.csv, data.json, summary.json and report.html of all folds."""
    count, task = max(numbers), entry.load()
    runs = [Run(folder.path / f"fold{fold}") for fold in range(1, count + 1)]
    place = {dataset.key(number): number for number in range(len(dataset))}
    patients = [row["group"] for row in dataset.split_rows(["test"] * len(dataset))]
    rows = [
        {"name": row["name"], "fold": str(fold), "patient": patients[place[row["name"]]], **row}
        for fold, run in enumerate(runs, start=1)
        for row in run.read_rows("predictions.csv")
    ]
    chosen = [place[row["name"]] for row in rows]
    covariates = {name: values[chosen] for name, values in dataset.covariates().items()}
    data = dataset.to_json([UNUSED if number == 0 else "test" for number in numbers], note)
    details = [header(run.checkpoint()).get("details", {}) for run in runs]
    trials = [Run(folder.path / "nested" / f"fold{fold}") for fold in range(1, count + 1)]
    chosen = [own.read_json(CHOSEN) for own in trials if own.path.is_dir()]
    pooled = task.pool(Folds(rows, [run.read_rows(VALIDATED) for run in runs], covariates, details), data)
    summaries = [run.read_json("summary.json") for run in runs]
    summary = {
        "task": entry.name, "folds": count, "parameters": summaries[0]["parameters"],
        "seconds": round(sum(own["seconds"] for own in summaries), 2),
        "compute": add_costs([own.get("compute", {}) for own in summaries]),
        "best_epochs": [own["best_epoch"] for own in summaries],
        "chosen_by": next((key[4:].replace("_", " ") for key in summaries[0] if key.startswith("val_")), None),
        **({"nested": chosen} if chosen else {}),
        **pooled,
    }  # fmt: skip
    folder.write_rows("predictions.csv", rows)
    folder.write_json("data.json", data)
    folder.write_json("summary.json", summary)
    for line in summary["warnings"]:
        progress.say(f"warning: {line}")
    if report:
        report_folds(folder)


def is_folds(path: str | Path) -> bool:
    return (Path(path).expanduser() / FOLDS).is_file()


def report_folds(folder: Run) -> None:
    """The page of all folds, from the files of the folder."""
    where, entry, config, origins = read_config(Run.open(folder.path / "fold1"))
    write_folds_report(folder, entry.load(), config, origins, where)


def table(summary: dict[str, Any]) -> str:
    """A summary over folds for people: every figure per fold, as the deck's Table 4.

    >>> spread = {"mean": 0.6, "std": 0.1, "variance": 0.01, "values": [0.5, 0.7]}
    >>> print(table({"task": "survival", "folds": 2, "per_fold": {"c_index": spread}}))
    figure   mean ± deviation  variance  fold 1  fold 2
    c_index  0.6000 ± 0.1000   0.0100    0.5000  0.7000
    """
    entry, rows = tasks.find(summary["task"]), list[tuple[str, ...]]()
    for name, own in summary["per_fold"].items():
        form = f".{entry.decimals(name)}f"
        numbers = (own["mean"], own["std"], own["variance"], *own["values"])
        mean, std, variance, *values = ("–" if number is None else f"{number:{form}}" for number in numbers)
        rows.append((name, f"{mean} ± {std}", variance, *values))
    header = ("figure", "mean ± deviation", "variance", *(f"fold {n}" for n in range(1, summary["folds"] + 1)))
    return columns(header, rows)
