"""Runs, evaluations and cross-validations against a first one: paired tests on the same samples, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from regard import tasks
from regard.errors import ConfigError, RunError
from regard.metrics import Comparison
from regard.metrics.delong import holm
from regard.run.folds import FOLDS, is_folds
from regard.run.runner import read_config
from regard.tasks import Entry
from regard.weights import Run

EVALUATION = "evaluation.json"
"""What makes a folder one that `evaluate` wrote."""
CORRECTED = "DeLong"
"""The test whose p values are corrected for the number of runs."""


def compare(first: str | Path, *others: str | Path) -> dict[str, dict[str, Comparison]]:
    """By run: how far it is ahead of the first, by paired tests on the samples that both were tested on.

    Runs, folders of several folds, or folders that `evaluate` made. Of several others, DeLong's p values are also given
    corrected by Holm, as the first test, by which a verdict is made.
    """
    if not others:
        raise ConfigError("there is nothing to compare with", do="give two runs or more")
    made = {str(other): _compare(first, other) for other in others}
    if len(made) < 2:
        return made
    for name in next(iter(made.values())):
        own = [run for run, figures in made.items() if name in figures and CORRECTED in figures[name].tests]
        values = holm([made[run][name].tests[CORRECTED] for run in own])
        for run, p in zip(own, values, strict=True):
            held = made[run][name]
            made[run][name] = held._replace(tests={f"{CORRECTED}, Holm": p} | held.tests)
    return made


def predicted_by(path: str | Path) -> tuple[Run, Entry]:
    """A folder with predictions, and their task: of a run, of several folds, or made by `evaluate`."""
    folder = Run(Path(path).expanduser())
    for name in (EVALUATION, FOLDS):
        if (folder.path / name).is_file():
            return folder, tasks.find(str(folder.read_json(name).get("task")))
    return Run.open(path), read_config(Run.open(path))[1]


def _compare(*paths: str | Path) -> dict[str, Comparison]:
    (first, second), entries = zip(*map(predicted_by, paths), strict=True)
    if entries[0] != entries[1]:
        what = f"a run of {entries[0].name} cannot be compared with one of {entries[1].name}"
        raise ConfigError(what, where=second.path)
    for run in (first, second):
        if not (run.path / "predictions.csv").is_file():
            do = "`regard resume` finishes it; of several folds, the command that began them"
            raise RunError("the run is not finished", where=run.path, do=do)
    rows = [run.read_rows("predictions.csv") for run in (first, second)]
    task = entries[0].load()
    names = [[tuple(row[name] for name in task.identity if name in row) for row in own] for own in rows]
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]) and len(set(names[0])) == len(names[0]):
        place = {name: number for number, name in enumerate(names[1])}  # other folds: the same samples in another order
        rows[1] = [rows[1][place[name]] for name in names[0]]
    elif names[0] != names[1]:
        sizes = f": {len(names[0])} and {len(names[1])} samples" if len(names[0]) != len(names[1]) else ""
        what = f"the runs were not tested on the same samples{sizes}"
        do = "`regard eval RUN DATA --out FOLDER` of each on the same data, then compare these folders"
        raise ConfigError(what, where=second.path, do=do)
    return task.compare(rows[0], rows[1], first.read_json("data.json"))


class Scored(NamedTuple):
    """One run in a table of models × inputs: its network, what it saw, and one figure."""

    run: str
    model: str
    inputs: str
    figure: dict[str, Any]
    """Value, low, high, n."""
    per_fold: dict[str, Any] | None


def overview(paths: tuple[str, ...], name: str) -> list[Scored]:
    """The figure called `name` of each run that has it."""
    rows = []
    for path in paths:
        folder, entry = predicted_by(path)
        if is_folds(path):
            summary, about = folder.read_json("summary.json"), Run(folder.path / "fold1").read_config()
        elif (folder.path / EVALUATION).is_file():
            summary, about = folder.read_json(EVALUATION), None
        else:
            summary, about = folder.read_json("summary.json"), folder.read_config()
        if name not in summary["figures"]:
            continue
        model = about.settings["model"]["model"]["value"] if about else str(summary["run"])
        plan = folder.read_json("data.json").get("volumes", {}).get("plan", {})
        inputs = "+".join(plan.get("scans", ())) or entry.config.takes
        rows.append(
            Scored(str(path), str(model), inputs, summary["figures"][name], summary.get("per_fold", {}).get(name))
        )
    return rows
