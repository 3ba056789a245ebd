"""Writes what a run keeps to its folder. Of several processes the first one writes."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.console import Progress
from regard.errors import RunError
from regard.task import Task
from regard.training import History, World, save_state
from regard.version import __version__
from regard.weights import Run, save_checkpoint, write_text


class RunWriter:
    """The training loop's writer."""

    def __init__(self, run: Run, task: Task, world: World):
        self.run, self.task, self.world = run, task, world

    def weights(self, name: str, weights: dict[str, Tensor], history: History) -> None:
        if not self.world.first:
            return
        self.run.write_rows("metrics.csv", history.rows)
        row = (history.best or {}) if name == "best" else history.rows[-1]
        held = self.task.kept_weights(self.run, name, weights)
        save_checkpoint(self.run.checkpoint(name), self.task.checkpoint(row, held))
        epochs = sorted(self.run.checkpoint("best").parent.glob("epoch-*.safetensors"))
        for old in epochs[: -self.task.config.machine.keep or None]:
            old.unlink(missing_ok=True)

    def state(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        sharded = getattr(self.task.config.machine, "shard", False) and self.world.size > 1
        save_state(self.run.checkpoint("state"), tensors, about | self.task.about(), self.world, sharded)

    def trouble(self, history: History, numbers: list[int], what: str) -> None:
        path = self.run.path / "trouble.json"
        before = self.run.read_json("trouble.json", list) if path.exists() else []
        names = [self.task.job.dataset.key(n) for n in numbers]
        if self.world.first:
            entry = {"epoch": history.epoch, "update": history.updates, "what": what, "samples": names}
            self.run.write_json("trouble.json", [*before, entry])


class NullWriter:
    """Writes nothing: for a dry run."""

    def weights(self, name: str, weights: dict[str, Tensor], history: History) -> None: ...

    def state(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None: ...

    def trouble(self, history: History, numbers: list[int], what: str) -> None: ...


SETUP_FILES = ("command.txt", "environment.json", "data.json", "splits.csv")


def setup_files(task: type[Task]) -> tuple[str, ...]:
    """What a run folder holds before it is a run."""
    return *SETUP_FILES, *task.files


def create_folder(
    task: Task, data: str, command: str, progress: Progress, restart: bool = False, confounded: Sequence[str] = ()
) -> Run:
    """The run folder, with all that is known before training; with `restart`, in place of an unfinished one.

    Its settings are written last. Only then is it a run: whatever stops the process, a run can be resumed, and what
    is not one yet can be made anew.
    """
    job, names = task.job, setup_files(type(task))
    run = Run.create(Path(job.config.general.out or "runs/run"), names if restart else ())
    run.begin_setup()
    try:
        write_text(run.path / "command.txt", one_line(command) + "\n")
        run.write_json("environment.json", environment(job.device))
        for line in (*job.dataset.warnings(job.splits), *confounded):
            progress.say(f"warning: {line}")
        run.write_json("data.json", job.dataset.to_json(job.splits, job.note) | {"confounded": list(confounded)})
        run.write_rows("splits.csv", job.dataset.split_rows(job.splits))
        task.write(run, progress)
        run.end_setup(data, job.config, job.origins, job.why)
    except BaseException as error:
        run.clear(names)
        if isinstance(error, OSError):
            do = "make room on the disk, or choose another --out, and run again"
            raise RunError(f"the run folder could not be written: {error}", where=run.path, do=do) from None
        raise
    return run


def add_command(run: Run, line: str) -> None:
    write_text(run.path / "command.txt", run.read_text("command.txt") + one_line(line) + "\n")


def in_python(call: str) -> str:
    """A call as command.txt keeps it: a comment to a shell."""
    return f"# in Python: {call}"


def one_line(text: str) -> str:
    """Without line breaks and other control characters, which could make more than one command of it."""
    return "".join(c if c.isprintable() else " " for c in text)


def environment(device: torch.device) -> dict[str, Any]:
    """On what a run was made."""
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "regard": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "accelerator": accelerator,
        "threads": torch.get_num_threads(),
    }
