"""Executes the runs of a study, several at a time. Finished runs are kept: a stopped study can be resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from regard import api, tasks
from regard.console import Progress, time_left
from regard.data import ImageDataset
from regard.data.splits import refuse_unused_cut
from regard.data.text import TextDataset
from regard.errors import ConfigError, DivergedError
from regard.run.pool import each
from regard.run.settle import check_settings, settle
from regard.study.design import Study, Trial
from regard.study.keep import keep_plan
from regard.study.result import Result, collect
from regard.weights import Run

HALVINGS = 5
"""Number of default sizes of a study: all training samples, a half, a quarter, and so on."""


def run_study(study: Study, *, jobs: int = 1, quiet: bool = False) -> Result:
    """Execute the runs that are missing and write the result: study.csv, .json, .md, .svg and .png.

    `jobs` runs are executed at a time. A run whose loss becomes NaN is counted as failed.

    >>> from regard.study import norm
    >>> study = norm("digits", (40, 80), seeds=1, epochs=1, depth=1, out=tmp / "study")
    >>> [(row["arm"], row["images"]) for row in run_study(study, quiet=True).rows]
    [('pre', 40), ('post', 40), ('pre', 80), ('post', 80)]
    """
    if jobs < 1:
        raise ConfigError(f"jobs={jobs} must be at least 1")
    progress, failed = Progress(quiet), dict[str, str]()
    scan = _read(study, quiet)
    scan.require_usable()
    study = with_settings(study, scan)
    # Runs of other settings or data do not belong in one folder; more arms, sizes and seeds do.
    keep_plan(study.out, {"kind": study.kind, "data": scan.fingerprint(), "settings": study.settings})
    trials, start, made = study.trials(), time.monotonic(), 0
    waiting = [trial for trial in trials if not _finished(study, trial)]
    progress.say(f"{len(trials)} runs in {study.out / 'runs'}, {len(trials) - len(waiting)} of them there already")
    try:
        for trial, future in each(partial(_execute, study), waiting, scan, jobs=jobs):
            try:
                value = future.result()
            except DivergedError as error:
                failed[trial.name], value = error.what, None
            made += 1
            left = (time.monotonic() - start) / made * (len(waiting) - made)
            main = study.measures[0]
            outcome = "failed: " + failed[trial.name] if value is None else f"{main.name} {main.text(value)}"
            progress.say(f"run {made}/{len(waiting)}: {trial}: {outcome}; {time_left(left)}")
    except KeyboardInterrupt:
        progress.say(f"stopped with {len(waiting) - made} runs to go; run the same command to resume")
        raise
    finally:
        there = [trial for trial in trials if _finished(study, trial)]
        result = collect(study, there, failed)
        if there:
            result.write()
    return result


def _read(study: Study, quiet: bool) -> ImageDataset | TextDataset:
    """The data, as every arm reads it."""
    settings = study.settings | next(iter(study.arms.values()))
    scan = api.check(study.data, quiet=quiet, **reading(study.data, settings, study.command))
    if not isinstance(scan, (ImageDataset, TextDataset)):
        raise ConfigError("these studies are for images, and for pairs of sentences", where=study.data)
    return scan


def reading(data: str, settings: Mapping[str, Any], command: str = "train") -> dict[str, Any]:
    """Those of the settings that say how the data is read."""
    names = {*tasks.choose(data, settings, command)[0].config.opening(), "size"}  # volumes are prepared in their size
    return {name: value for name, value in settings.items() if name in names}


def with_settings(study: Study, scan: ImageDataset | TextDataset) -> Study:
    """The study with default sizes, checked against the data, and one batch size for all sizes."""
    refuse_unused_cut(study.settings, scan.given_splits(), study.data)
    configs, images = list[Any](), isinstance(scan, ImageDataset)
    for fields in study.arms.values():  # invalid settings of an arm raise an error before anything runs
        settings = study.settings | fields
        entry, _ = tasks.choose(study.data, settings, study.command)
        check_settings(entry, settings)
        task: Any = entry.load()
        plain = images and "recipe" not in settings
        if plain and task.choose(scan, None, settings, gpu=False).recipe == task.from_scratch:
            study = replace(study, settings={"recipe": task.plain} | study.settings)  # networks as published
        configs.append((settle(entry, task, scan, study.settings | fields)[0], task))
    config, task = configs[0]
    names, _ = task.split(scan, config)
    there, classes = names.count("train"), len(scan.source.classes) if isinstance(scan, ImageDataset) else 1
    sizes = study.sizes
    if study.kind in ("data-size", "transfer-size") and not sizes:
        sizes = tuple(sorted({there // 2**n for n in range(HALVINGS) if there // 2**n >= 4 * classes}))
    if sizes and not classes <= sizes[0] <= sizes[-1] <= there:
        raise ConfigError(
            f"sizes {sizes[0]} to {sizes[-1]} do not fit: there are {there} training {study.samples}"
            + f" of {classes} classes" * images,
            do=f"give --sizes between {classes} and {there}",
        )
    settings = {"explain": 0} | study.settings
    if sizes:  # a single run would choose a smaller batch for few samples
        batch = {"batch_size": min(config.data.batch_size, sizes[0])} if images else {}
        settings = (batch or {"batch_tokens": config.data.batch_tokens}) | settings
    return replace(study, sizes=sizes, settings=settings)


def _finished(study: Study, trial: Trial) -> bool:
    """Whether the report exists, which is written last."""
    return (study.out / "runs" / trial.name / "report.html").is_file()


def _execute(study: Study, scan: ImageDataset | TextDataset, trial: Trial) -> float:
    path = study.out / "runs" / trial.name
    settings = {name: value for name, value in trial.settings.items() if value is not None}
    run: Run = api.train(study.data, out=path, quiet=True, resume=True, dataset=scan, **settings)
    return run.read_json("summary.json")["figures"][study.measures[0].key]["value"]
