"""A run from its data to its report: started or resumed, trained, tested, explained, written down.

Tasks are known only through `regard.task.Task` and the table in `regard.tasks`.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import registry, tasks
from regard.console import Progress, columns
from regard.data.dataset import Dataset, leaked
from regard.data.splits import refuse_unused_cut
from regard.errors import ConfigError, RunError, counted, did_you_mean
from regard.report import write_report
from regard.run.compute import compute_of
from regard.run.settle import check_settings, pick_device, settle
from regard.run.writer import NullWriter, RunWriter, add_command, create_folder, in_python, setup_files
from regard.settings import Origin, RunConfig
from regard.task import Job, Task
from regard.tasks import Entry
from regard.training import ALONE, History, State, Training, World, joined, load_state
from regard.training.compute import Blueprint
from regard.weights import Run

CHANGEABLE = ("workers", "device", "nonfinite", "timeout", "explain", "compile", "save_every", "shard")
"""Settings that do not change the result, and so may be changed when a run is resumed."""
MEASURED_SECONDS = 4.0
"""For how long steps are timed, at least two of them."""
LONG_SECONDS = 1800.0
"""Training on a CPU from which a dry run says how to make it shorter."""


def start(
    command_name: str,
    data: str | Path,
    settings: Mapping[str, Any],
    *,
    dataset: Dataset | None = None,
    quiet: bool = False,
    command: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    given: list[str | None] | None = None,
) -> Run:
    """A run from its settings to its report; `given` are splits in place of the data's own."""
    settings = plain_settings(settings)
    entry, why = tasks.choose(data, settings, command_name)
    asked = check_settings(entry, settings)
    out = settings.get("out")
    if resume and not out:
        raise ConfigError("resume needs the run folder", do="give --out, or use `regard resume RUN`")
    resume = resume or restarted()
    if should_resume(out, resume):
        if dry_run:
            raise ConfigError("a dry run resumes nothing", do="leave out --dry-run or --resume")
        _require_same(Run.open(str(out)), entry, settings)
        changes = {name: settings[name] for name in CHANGEABLE if name in settings}
        return resume_run(str(out), data=data, dataset=dataset, quiet=quiet, command=command, changes=changes)
    task_class = entry.load()
    with joined(torch.device(pick_device(asked.machine.device)), asked.machine.timeout) as world:
        progress = Progress(quiet or not world.first)
        if out and world.first:
            Run.require_new(Path(out), setup_files(task_class) if resume else ())
        dataset = open_dataset(task_class, data, asked, dataset, progress)
        progress.say(f"{data}: {dataset.summary()}; task: {entry.name} ({why})")
        dataset.require_usable(asked.data.unreadable)
        refuse_unused_cut(settings, given or dataset.given_splits(), data)
        weights = task_class.start(asked, settings.get("model"), dataset)
        config, origins, why_these = settle(entry, task_class, dataset, settings, weights, given)
        if why_these:
            progress.say(f"defaults {why_these}")
        if world.size == 1 and config.flat().get("shard"):
            progress.say("warning: shard has no effect on one process")
        config = config.change({"out": world.agree(config.general.out or "")})
        splits, note = task_class.split(dataset, config, given)
        if given is not None:
            note = f"train and test as given; {note.partition('; ')[2]}"
        progress.say(f"splits: {note}")
        task = task_class(Job(config, origins, dataset, splits, note, weights, why_these))
        prepare(task, progress)
        if config.optim.minutes is not None:
            task = fit_minutes(task, world, progress)
        if dry_run:
            print(rehearse(task, progress))
            return Run(Path(config.general.out or ""))
        run = Run(Path(config.general.out or "").expanduser())
        if world.first:
            command = command or in_python(f"regard.{command_name}({str(data)!r}, **{settings!r})")
            confounded = task_class.confounded(dataset) if given is None else ()  # of folds it is said by their report
            run = create_folder(task, str(data), command, progress, resume, confounded)
        world.wait()
        history = train(run, task, progress, world)
    if world.first:
        finish(run, task, history, progress)
    return run


def resume_run(
    run: str | Path,
    *,
    data: str | Path | None = None,
    dataset: Dataset | None = None,
    quiet: bool = False,
    command: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Run:
    """Continue a run exactly where it was stopped; `data` if its data has been moved."""
    changes = dict(changes or {})
    for name in changes:
        if name not in CHANGEABLE:
            raise ConfigError(f"{name} cannot be changed when a run is resumed", do=did_you_mean(name, CHANGEABLE))
    opened = Run.open(run)
    stored, entry, config, origins = read_config(opened)
    config = config.change(changes)
    task_class = entry.load()
    with joined(torch.device(pick_device(config.machine.device)), config.machine.timeout) as world:
        progress = Progress(quiet or not world.first)
        data = stored if data is None else str(data)
        if data == stored and is_finished(opened, progress):
            return opened
        dataset = open_dataset(task_class, data, config, dataset, progress)
        splits = stored_splits(opened, dataset)
        if is_finished(opened, progress):
            return opened
        state = load_state(opened.checkpoint("state"))
        if state:
            require_fitting(state, config, opened)
        weights = None if state else task_class.start(config, config.model.model, dataset)
        task = task_class(Job(config, origins, dataset, splits, "as they were", weights))
        prepare(task, progress, state, opened.path)
        if world.first:
            opened.clear()
            add_command(opened, command or in_python(f"regard.resume({str(run)!r}, **{changes!r})"))
        history = train(opened, task, progress, world, state)
    if world.first:
        finish(opened, task, history, progress)
    return opened


def _require_same(run: Run, entry: Entry, settings: Mapping[str, Any]) -> None:
    """What is asked for must be what the run was begun with, but for what may be changed."""
    _, held, config, _ = read_config(run)
    if held != entry:
        raise ConfigError(f"the folder holds a run of {held.name}, not of {entry.name}", where=run.path)
    stored, asked = config.flat(), entry.config.of(settings).flat()
    for name in settings.keys() - set(CHANGEABLE) - {"out"}:
        if asked[name] not in (None, "auto", stored.get(name)):
            what = f"the run there was begun with {name}={stored.get(name)}, not {asked[name]}"
            raise ConfigError(what, where=run.path, do="choose another --out, or leave the setting out")


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def open_dataset(
    task: type[Task], data: str | Path, config: RunConfig, dataset: Dataset | None, progress: Progress
) -> Dataset:
    """The data as it was read before, or read now."""
    values = config.flat()
    reading = {name: values[name] for name in config.opening()}
    if dataset is None:
        dataset = task.open(data, config, progress)
        dataset.reading.update(reading)
    elif dataset.path != str(data):
        what = "dataset is not what `regard.check` has read from this data"
        raise ConfigError(what, where=data, do="leave it out")
    for name in reading.keys() & dataset.reading.keys():
        if dataset.reading[name] != reading[name]:
            what = f"dataset was read with {name}={dataset.reading[name]}, and {name}={reading[name]} is asked for"
            raise ConfigError(what, where=data, do="give `regard.check` the same settings, or leave dataset out")
    return dataset


def restarted() -> bool:
    """Whether torchrun has started this process again after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def should_resume(out: str | None, resume: bool) -> bool:
    """Whether a run that is to be resumed is there already."""
    return bool(out) and resume and (Path(str(out)).expanduser() / "config.json").is_file()


def is_finished(run: Run, progress: Progress) -> bool:
    done = (run.path / "summary.json").is_file() and (run.path / "report.html").is_file()
    if done:
        progress.say(f"{run.path} is finished; there is nothing to resume")
    return done


def read_config(run: Run) -> tuple[str, Entry, RunConfig, dict[str, Origin]]:
    """Where a run's data was, its task, its settings and where each came from."""
    stored = run.read_config()
    entry = tasks.find(stored.task)
    config, origins = entry.config.from_json(stored.settings, run.path / "config.json")
    return stored.data, entry, config, origins


def stored_splits(run: Run, dataset: Dataset) -> list[str]:
    """The splits of a run that is resumed; its data must be what it was."""
    rows = run.split_rows()
    if run.read_json("data.json")["fingerprint"] != dataset.fingerprint():
        before, now = {row["name"] for row in rows}, {row["name"] for row in dataset.split_rows([""] * len(dataset))}
        what = _few("gone: ", before - now) + _few("new: ", now - before) or ["labels or contents"]
        do = "restore the data, or train a new run on it"
        raise RunError(f"the data has changed since the run began ({'; '.join(what)})", where=run.path, do=do)
    return [row["split"] for row in rows]


def _few(title: str, names: set[str], most: int = 3) -> list[str]:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"{title}{', '.join(sorted(names)[:most])}{more}"] if names else []


def require_fitting(state: State, config: RunConfig, run: Run) -> None:
    """Refuse a state whose settings are not those of its tensors before a model is built from them."""
    try:
        if registry.configure(config.model.model, **state.about["model"]).block_count > len(state.shapes):
            raise ValueError("its settings and tensors do not fit together")
        History.of(state.about["history"])
    except (TypeError, ValueError, KeyError, ConfigError) as error:
        do = "delete it; `regard resume` then starts from the beginning"
        raise RunError(f"the saved state is damaged: {error}", where=run.checkpoint("state"), do=do) from None


def prepare(task: Task, progress: Progress, state: State | None = None, folder: Path | None = None) -> None:
    """Build the model and settle what depends on it; `state` and `folder` are a running run's."""
    job, about = task.job, state.about if state else None
    task.prepare(progress, about, folder)
    torch.manual_seed(job.config.general.seed)
    task.model = task.build(about).to(job.device)
    task.model.checkpointing = job.config.machine.checkpointing
    task.parameters = sum(p.numel() for p in task.model.parameters())
    task.adapt()
    if folder:
        return
    changes = task.batch_settings(progress)
    job.config = job.config.change(changes)
    job.origins |= dict.fromkeys(changes, "auto")
    optim = job.config.optim
    if optim.steps is not None:
        per_epoch = math.ceil(task.batches_per_epoch() / optim.accumulate)
        job.config = job.config.change({"epochs": math.ceil(optim.steps / per_epoch)})
        job.origins["epochs"] = "auto"
    hidden = {"recipe", "out"} | ({"epochs"} if optim.steps or optim.minutes else set())
    values = job.config.flat()
    chosen = [n for n, origin in job.origins.items() if origin in ("recipe", "auto") and n not in hidden]
    said = ", ".join(f"{name}={values[name]}" for name in chosen if values.get(name) is not None)
    progress.say(f"recipe {job.config.general.recipe} and data give {said}")


def make_training(task: Task, validation: Any, writer: Any, progress: Progress, world: World) -> Training:
    def validate(model: nn.Module, tick: Callable[..., None]) -> dict[str, float]:
        return task.validate(model, validation, tick, world)

    config = task.job.config
    return Training(task.model, task, task.feed(world), config, task.device, validate, writer, progress, world)


def train(run: Run, task: Task, progress: Progress, world: World, state: State | None = None) -> History:
    """Train, from the saved state if there is one."""
    trained = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    some = "" if trained == task.parameters else f", {trained:,} trained"
    many = f" with {world.size} processes" if world.size > 1 else ""
    model = task.job.config.model
    name = registry.title(model.model, **model.fields())
    progress.say(
        f"{name}: {task.parameters:,} parameters{some}, {task.input_words}, on {task.device}{many}; "
        f"run folder {run.path}"
    )
    validation = task.loader("val", world)
    task.blueprint = Blueprint.of(task.model, task.objective)
    training = make_training(task, validation, RunWriter(run, task, world), progress, world)
    if state:
        training.restore(state)
        at = training.history
        progress.say(f"resuming from epoch {at.epoch}, update {at.updates} of {training.steps}")
    try:
        return training.run()
    finally:
        training.feed.close()
        validation.close()


def finish(run: Run, task: Task, history: History, progress: Progress) -> None:
    """Test the best weights once, explain some predictions, and write the report."""
    try:
        _finish(run, task, history, progress)
    except KeyboardInterrupt:
        again = f"`regard resume {shlex.quote(str(run.path))}`"
        progress.say(f"stopped after training; {again} tests, explains and writes the report")
        raise


def _finish(run: Run, task: Task, history: History, progress: Progress) -> None:
    trained, results = task.trained(run), {}
    for part in task.tests:
        with progress.bar(f"testing on {part}", len(task.job.part(part))) as tick:
            results[part] = task.evaluate(trained, part, tick)
    main, name = task.tests[0], task.best[0]
    whole = results[main]
    if seen := _leaked(task, main):
        results[main] = task.without(whole, seen)
    best, waiting = history.best or {}, history.waiting / max(history.seconds, 1e-9)
    progress.say(f"training took {history.seconds:.0f} s, {waiting:.1%} of it waiting for data")
    summary = {
        "task": task.name, "split": main, "parameters": task.parameters, "seconds": round(history.seconds, 2),
        "waiting": round(waiting, 4), "skipped_steps": history.skipped, "best_epoch": best.get("epoch"),
        f"val_{name}": best.get(f"val_{name}"), "headline": list(task.headline),
        **task.extra_summary(results[main]),
        "compute": compute_of(task, history),
        **results[main].to_json(), "others": {part: r.to_json() for part, r in results.items() if part != main},
    }  # fmt: skip
    run.write_json("summary.json", summary)
    for line in task.doubts(summary):
        progress.say(f"warning: {line}")
    if results[main] is not whole:
        run.write_rows("predictions-all.csv", whole.predictions())
    for part, result in results.items():
        run.write_rows("predictions.csv" if part == main else f"predictions-{part}.csv", result.predictions())
    name = task.headline[0]
    if task.config.general.explain and name in (figures := summary["figures"]):
        told = f"{name} {figures[name]['value']:.4f} on {main}; now some predictions are explained"
        progress.say(f"{told} (--explain 0 leaves that out)")
    task.explain(run, trained, results[main], progress)
    report(run)


def _leaked(task: Task, part: str) -> set[int]:
    """The tested samples that training or validation has too; none if all are, or where test sets are kept whole."""
    dataset, splits = task.job.dataset, task.job.splits
    seen = set[int]() if dataset.whole_tests else leaked(dataset, splits, part)
    return seen if len(seen) < splits.count(part) else set()


def report(run: Run) -> None:
    """Draw a run's figures and write its report from the files of its folder."""
    _, entry, config, origins = read_config(run)
    write_report(run, config, origins, entry.load(), entry.command)


class Timing(NamedTuple):
    """Seconds of a first step, of each later one with its loading, and of a validation; the first loss; all steps.

    Where the first epochs are of low resolution, `step` is the mean over a run, and `first` a step of each size.
    """

    first: float
    step: float
    validation: float
    loss: float
    steps: int


def measure(task: Task, progress: Progress) -> Timing:
    """One step to see that all works, some to time them, one batch of validation. The task is not fit to train then."""
    optim, samples = task.job.config.optim, len(task.job.part("val"))
    few = min(64, samples)
    validation = task.loader("val", limit=few)
    training = make_training(task, validation, NullWriter(), progress, ALONE)
    share, validated = task.job.config.flat().get("low_res", 0.0), 0.0
    task.model.train()
    training.step.set_lr(0.0)
    try:
        first, step, loss = _time_steps(training, optim.epochs)
        if share:
            again, small, _ = _time_steps(training, 1)
            first, step = first + again, share * small + (1 - share) * step
        for _ in range(1 + (task.device.type == "cuda")):  # there, the first time chooses kernels
            begun = time.monotonic()
            training.figures(lambda *_: None)
            validated = (time.monotonic() - begun) * samples / few
    finally:
        training.feed.close()
        validation.close()
    return Timing(first, step, validated, loss, training.steps)


def _time_steps(training: Training, epoch: int) -> tuple[float, float, float]:
    """Seconds of an epoch's first step and of each later one with its loading, and the first loss."""
    training.history.epoch = epoch
    batches, times, losses = training.batches(), list[float](), list[float]()
    least = 12 if training.device.type == "cuda" else 3  # there, the first four compile and record
    while len(times) < least or (sum(times[1:]) < MEASURED_SECONDS and len(times) < training.steps):
        begun = time.monotonic()
        some = list(itertools.islice(batches, training.config.optim.accumulate))
        if not some:
            break
        losses.append(float(training.step.train_step(some)[0]) / len(some))
        times.append(time.monotonic() - begun)
    later = times[max(1, len(times) // 2) :] or times
    return times[0], sum(later) / len(later), losses[0]


def fit_minutes(task: Task, world: World, progress: Progress) -> Task:
    """The same task with as many epochs as fit in the minutes asked for, built anew: measuring has moved its state."""
    job = task.job
    if world.size > 1:
        raise ConfigError("minutes is for one process", do="give --epochs or --steps")
    timing, optim = measure(task, progress), job.config.optim
    epoch = timing.step * timing.steps / optim.epochs + timing.validation
    epochs = int((60 * (optim.minutes or 0) - timing.first) / epoch)
    asked = f"the {optim.minutes:g} min asked for"
    if epochs < 1:
        progress.say(f"warning: one epoch takes about {epoch:.1f} s here, more than {asked}")
    else:
        progress.say(f"{counted(epochs, 'epochs')} of about {epoch:.1f} s here for {asked}")
    job.config, job.origins["epochs"] = job.config.change({"epochs": max(1, epochs)}), "auto"
    again = type(task)(job)
    prepare(again, Progress(quiet=True))
    return again


def rehearse(task: Task, progress: Progress) -> str:
    """What the run would take."""
    job, optim, timing = task.job, task.job.config.optim, measure(task, progress)
    seconds = timing.step * timing.steps + timing.validation * optim.epochs + timing.first
    memory = torch.cuda.max_memory_allocated() if task.device.type == "cuda" else None
    word = job.dataset.samples_word
    named = [name for name in ("train", "val", *task.tests) if name in job.splits]
    rows = [
        ("task", task.name),
        ("parameters", f"{task.parameters:,}"),
        (word, ", ".join(f"{name} {job.splits.count(name):,}" for name in dict.fromkeys(named))),
        *task.plan_rows(),
        ("steps", f"{timing.steps:,} of {task.step_words}"),
        ("first loss", f"{timing.loss:.3f}"),
        ("time per step", f"{timing.step * 1000:.0f} ms (the first one {timing.first:.1f} s)"),
        ("time per epoch", f"{timing.step * timing.steps / optim.epochs + timing.validation:.0f} s with validation"),
        ("training", f"about {seconds / 60:.1f} minutes"),
        ("memory", f"{memory / 2**30:.2f} GiB on the GPU" if memory else "not measured on a CPU"),
    ]
    if not memory and seconds > LONG_SECONDS:
        rows.append(("shorter", "--minutes 10 fits the epochs to a time; `regard probe` uses weights as they are"))
    return columns(("plan", ""), rows)
