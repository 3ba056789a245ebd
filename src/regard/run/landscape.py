"""The training-loss landscape of a run: its task built again from the folder, the loss on a grid, figure and tables."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from regard.config import fit_value
from regard.console import Progress
from regard.data.batch import Batch
from regard.data.dataset import Dataset
from regard.errors import ConfigError, RunError
from regard.evaluation.landscape import Landscape, fill, filter_normalised, grid
from regard.report.landscape_figure import draw_landscape
from regard.run.runner import open_dataset, prepare, read_config, require_fitting, stored_splits
from regard.run.settle import pick_device
from regard.setting_groups import LandscapeOptions
from regard.task import Job, Task
from regard.training import ALONE, State, Stop, load_state
from regard.weights import Run, write_text

FILE = "landscape.json"
SAVE_EVERY = 10
"""Points after which what is known is written down."""


@dataclass(frozen=True)
class Surface:
    """The loss on a grid around a run's last weights."""

    steps: np.ndarray
    """Along each axis, in lengths of the weights."""
    losses: np.ndarray
    """(points,) or (points, points): rows are steps in the second direction, columns in the first."""
    samples: int
    folder: Path

    @property
    def centre(self) -> float:
        """The loss of the trained weights themselves."""
        middle = len(self.steps) // 2
        return float(self.losses[(middle,) * self.losses.ndim])


def landscape(
    run: str | Path, *, points: int = 17, span: float = 1.0, directions: int = 2, samples: int = 256,
    split: str = "train", seed: int = 0, data: str | Path | None = None, out: str | Path | None = None,
    device: str = "auto", dataset: Dataset | None = None, quiet: bool = False,
) -> Surface:  # fmt: skip
    """The loss around a run's last weights, written to `out`, RUN/landscape by default. The same call resumes."""
    LandscapeOptions(directions=directions, points=points, span=span, samples=samples, seed=seed)
    fit_value(split, Literal["train", "val"], "split", None)
    opened, progress = Run.open(run), Progress(quiet)
    task, state = _task(opened, data, dataset, device, progress)
    batches = _batches(task, split, samples)
    count = sum(len(batch.numbers) or len(batch) for batch in batches)
    objective = task.objective
    _load(task, state)
    weights = {name: p.detach() for name, p in task.model.named_parameters()}
    drawn = [filter_normalised(weights, seed + number) for number in range(directions)]
    steps, places = grid(points, span, directions)
    asked = {
        "points": points, "span": span, "directions": directions, "split": split, "seed": seed, "samples": count,
        "weights": _digest(weights),
    }  # fmt: skip
    folder = Run((opened.path / "landscape" if out is None else Path(out)).expanduser())
    known = _known(folder, asked)
    progress.say(
        f"{opened.path.name}: loss on {count} samples of {split}, {len(places)} points; {len(known)} are known"
    )

    def write() -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_json(FILE, asked | {"losses": [[*place, loss] for place, loss in known.items()]})

    with Stop(quiet) as stop, progress.bar("landscape", len(places)) as tick:

        def after(done: int) -> bool:
            tick(done, f"loss {known[places[done - 1]]:.4g}" if places[done - 1] in known else "")
            if done % SAVE_EVERY == 0:
                write()
            return stop.asked()

        fill(Landscape(task.model, objective, batches, drawn, seed), places, known, after)
        write()
        if len(known) < len(places):
            progress.say(f"stopped at {len(known)} of {len(places)} points; the same command continues")
            stop.leave()
    losses = np.array([known[place] for place in _raster(steps, directions)]).reshape([points] * directions)
    surface = Surface(steps, losses, count, folder.path)
    names = [f"step{n}" for n in range(1, directions + 1)]
    rows = [",".join([*names, "loss"])] + [
        ",".join(map(repr, [*place, known[place]])) for place in _raster(steps, directions)
    ]
    write_text(folder.path / "landscape.csv", "\n".join(rows) + "\n")
    title = f"{opened.path.name}: loss on {count} samples of {split}; {surface.centre:.4g} at the trained weights"
    draw_landscape(steps, losses, title, folder.path / "landscape")
    return surface


def _raster(steps: np.ndarray, directions: int) -> list[tuple[float, ...]]:
    """All places, the first direction fastest."""
    line = [float(n) for n in steps]
    return [(a,) for a in line] if directions == 1 else [(a, b) for b in line for a in line]


def _task(
    run: Run, data: str | Path | None, dataset: Dataset | None, device: str, progress: Progress
) -> tuple[Task, State]:
    """The run's task, as a resumed run has it."""
    stored, entry, config, origins = read_config(run)
    state = load_state(run.checkpoint("state"))
    if state is None:
        raise RunError("the run has no saved state", where=run.path, do="train a new run, or copy all of checkpoints/")
    require_fitting(state, config, run)
    here = {"device": pick_device(device), "workers": 0}
    config = config.change({name: value for name, value in here.items() if name in config.flat()})
    task_class = entry.load()
    dataset = open_dataset(task_class, stored if data is None else str(data), config, dataset, progress)
    task = task_class(Job(config, origins, dataset, stored_splits(run, dataset), "as they were"))
    prepare(task, progress, state, run.path)
    return task, state


def _batches(task: Task, split: str, samples: int) -> list[Batch]:
    """The first batches of the first epoch, as training sees them, of up to so many samples in whole batches.

    Of the validation split they are made in the same way: its samples take the place of the training samples.
    """
    if split == "val":
        task.job.splits = [{"val": "train", "train": ""}.get(name, name) for name in task.job.splits]
    feed, batches, count = task.feed(ALONE), [], 0
    try:
        for batch in feed.epoch(1, 0, lambda some: some):
            batches.append(batch)
            count += len(batch.numbers) or len(batch)
            if count >= samples:
                break
    finally:
        feed.close()
    if not batches:
        raise RunError(f"the run has no {split} samples", do="choose another --split")
    return batches


@torch.no_grad()
def _load(task: Task, state: State) -> None:
    """The run's last weights: their moving average, where it has one."""
    held = {name: tensor.detach() for name, tensor in task.model.state_dict().items()}
    state.fill({f"model/{name}": tensor for name, tensor in held.items() if f"model/{name}" in state.shapes})
    state.fill({f"average/{name}": tensor for name, tensor in held.items() if f"average/{name}" in state.shapes})


def _digest(weights: dict[str, torch.Tensor]) -> str:
    """What tells weights from others: of a run that was trained on, what is known is of no use."""
    sums = [f"{name} {float(t.double().sum()):.6g} {float(t.double().norm()):.6g}" for name, t in weights.items()]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()[:16]


def _known(folder: Run, asked: dict[str, Any]) -> dict[tuple[float, ...], float]:
    """The points that an earlier call has computed for the same settings and weights."""
    if not (folder.path / FILE).is_file():
        return {}
    held = folder.read_json(FILE)
    differing = [name for name, value in asked.items() if held.get(name) != value]
    if differing:
        what = f"there is a landscape of other {', '.join(differing)} already"
        raise ConfigError(what, where=folder.path, do="give another --out, or delete that folder")
    return {tuple(float(n) for n in place): float(loss) for *place, loss in held["losses"]}
