"""The training loop, the same for every task."""

from __future__ import annotations

import itertools
import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.console import Progress
from regard.data.batch import Batch
from regard.data.feed import Waited
from regard.errors import DataError, DivergedError, RunError, is_out_of_memory
from regard.networks.base import Network
from regard.settings import RunConfig
from regard.task import Task
from regard.training.compute import Work
from regard.training.distributed import ALONE, World, unshard, watched
from regard.training.energy import EnergyMeter
from regard.training.gradients import autocast
from regard.training.optim import Average, learning_rate
from regard.training.state import State, pack, unpack
from regard.training.step import Step
from regard.training.stopping import Halt, Stop

VALIDATIONS = 100  # maximum in a run with --steps: epochs of few images are short, validation may not be
SAVE_SHARE = 0.05  # maximal share of time for saving
CHECK_EVERY = 50  # steps on a GPU between two checks that all gradients were finite


@dataclass
class History:
    """One row per epoch, the best row (by validation, or the last), and the position of the run.

    The position is counted in updates, and in samples and batches of the epoch. So any number of workers or processes
    can resume from it.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    epoch: int = 1
    samples: int = 0
    batches: int = 0
    updates: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    skipped: int = 0
    work: Work | None = field(default_factory=Work)
    """None: the run was begun by a version that did not count it."""

    @staticmethod
    def of(stored: dict[str, Any]) -> History:
        """From the plain values of a file, each of which must be of the kind it was written as."""
        known: dict[str, Any] = {"work": None} | stored
        made, usual = History(**known), History()
        made.work = None if known["work"] is None else Work.of(known["work"])
        kinds = {"rows": (list,), "best": (dict, type(None)), "work": (Work, type(None))}
        kinds |= dict.fromkeys(("seconds", "waiting"), (int, float))
        for name, value in vars(made).items():
            if type(value) not in kinds.get(name, (int,)) or (type(value) is int and value < vars(usual)[name]):
                raise TypeError(f"{name} cannot be {value!r}")
        return made


class Feed(Protocol):
    """Source of batches."""

    rows: int | None
    """Number of inputs of a full batch in this process; None if full batches have several shapes."""

    def __len__(self) -> int: ...

    def epoch(self, number: int, start: int, waited: Waited, /) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class Writer(Protocol):
    """Writes weights, state and problems of a run."""

    def weights(self, name: str, weights: dict[str, Tensor], history: History) -> None: ...

    def state(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None: ...

    def trouble(self, history: History, numbers: list[int], what: str) -> None: ...


class Training:
    """Trains a model. `evaluate(model, tick)` gives validation figures; `writer` saves weights and state.

    If there is a moving average of the weights, it is what is validated and saved as weights. The random generator is
    seeded at every step, so dropout does not depend on other random draws.
    """

    def __init__(
        self,
        model: Network,
        task: Task,
        feed: Feed,
        config: RunConfig,
        device: torch.device,
        evaluate: Callable[[nn.Module, Callable[..., None]], dict[str, float]],
        writer: Writer,
        progress: Progress,
        world: World = ALONE,
    ):
        self.model, self.feed, self.config, self.device = model, feed, config, device
        self.evaluate, self.writer, self.progress, self.world = evaluate, writer, progress, world
        self.task = task
        self.step = Step(model, task.objective, config, device, world, progress.say, feed.rows)
        self.average = Average(model, config.optim.ema) if config.optim.ema else None
        self.history, self.stop = History(), Stop(progress.quiet)
        self.total = torch.zeros((), device=device)
        optim = config.optim
        self.steps = optim.steps or math.ceil(len(feed) / optim.accumulate) * optim.epochs
        self.unwritten: dict[str, dict[str, Tensor]] = {}
        self.saved, self.saving, self.began = time.monotonic(), 0.0, time.monotonic()
        self.unchecked: list[tuple[Tensor, list[int]]] = []
        self.meter = EnergyMeter(device)
        self.measured = (0.0, self.meter.joules())
        """Seconds and energy up to which this process's work has been added."""

    def restore(self, state: State) -> None:
        """Resume from a saved state."""
        unpack(state, self.model, list(self.step.optimizers), self.average)
        self.history = History.of(state.about["history"])
        self.total.fill_(state.about["loss"] if self.world.first else 0.0)
        if self.average:
            self.average.updates.fill_(state.about["average_updates"])

    def run(self) -> History:
        """Train to the last epoch, or until a stop is requested: then save and stop."""
        history, self.began = self.history, time.monotonic() - self.history.seconds
        self.measured = history.seconds, self.meter.joules()
        with self.progress.bar("training step", self.steps) as tick, self.stop, watched(self.world):
            try:
                while history.epoch <= self.config.optim.epochs:
                    self._train_epoch(tick)
                    if self._due_to_validate():
                        self._validate()
                    tick(history.updates, self._note())
                    history.epoch, history.samples, history.batches = history.epoch + 1, 0, 0
                    self.total.zero_()
                self._save()
            except Halt:
                self._save()
                at = f"epoch {history.epoch}, update {history.updates} of {self.steps}"
                out = shlex.quote(str(self.config.general.out))
                self.progress.say(f"stopped in {at}; `regard resume {out}` continues from there")
                self.stop.leave()
            except DataError:  # comes between two steps, so what there is can be saved; by one process, not by some
                self._save() if self.world.size == 1 else self._write_weights()
                raise
            except torch.AcceleratorError as error:  # what is in its memory is lost; what was saved is not
                at = f"epoch {history.epoch}: {str(error).splitlines()[0]}"
                do = "`regard resume` continues from the last save; CUDA_LAUNCH_BLOCKING=1 names the operation"
                raise RunError(f"the device failed in {at}", do=do) from None
            except Exception as error:  # not KeyboardInterrupt: a second Ctrl-C stops at once
                self._write_weights()
                if is_out_of_memory(error):
                    do = "free memory, or give a smaller batch with --accumulate, a smaller --size or --model"
                    raise RunError(f"out of memory in epoch {history.epoch}: {error}", do=do) from None
                raise
        return history

    def _train_epoch(self, tick: Callable[[int, str], None]) -> None:
        """The remaining steps of an epoch."""
        optim, history = self.config.optim, self.history
        self.model.train()
        batches = self.batches()
        while history.updates < self.steps and (group := list(itertools.islice(batches, optim.accumulate))):
            torch.manual_seed((self.config.general.seed << 32) + history.updates + (self.world.rank << 24))
            self.step.set_lr(learning_rate(history.updates, self.steps, optim.lr, optim.warmup, optim.schedule))
            loss, bad = self.step.train_step(group)
            self.total += torch.where(bad > 0, 0.0, loss)
            if self.average:
                self.average.update(bad)
            history.updates += 1
            history.samples += sum(batch.total for batch in group)
            history.batches += len(group)
            if history.work:
                for batch in group:
                    history.work.add(batch)
            self.unchecked.append((bad.clone(), [n for batch in group for n in batch.numbers]))
            if self.device.type == "cpu" or len(self.unchecked) >= CHECK_EVERY or history.updates == self.steps:
                self._check_finite()
            if history.updates < self.steps:  # the last one is told with what its epoch came to
                tick(history.updates, self._note())
            self._save_if_due()

    def batches(self) -> Iterator[Batch]:
        """The remaining batches of this epoch."""
        return self.feed.epoch(self.history.epoch, self.history.samples, self._waited)

    def _waited(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches; counts the time spent waiting for data.

        While a GPU still works on earlier steps, waiting does not count.
        """
        while True:
            event = torch.cuda.Event() if self.device.type == "cuda" else None
            if event:
                event.record()
            begun = time.monotonic()
            batch = next(batches, None)
            if event is None or event.query():
                self.history.waiting += time.monotonic() - begun
            if batch is None:
                return
            yield batch

    def _check_finite(self) -> None:
        """Check that every step was finite. A step that was not changed no weights; its samples are recorded."""
        flags = torch.stack([bad for bad, _ in self.unchecked]).tolist()
        skipped, self.unchecked = [n for flag, (_, n) in zip(flags, self.unchecked, strict=True) if flag], []
        for numbers in skipped:
            self.history.skipped += 1
            self.writer.trouble(self.history, numbers, "loss or gradient not finite")
            if self.config.machine.nonfinite == "stop":
                raise DivergedError(
                    f"loss or gradient is not a number in epoch {self.history.epoch}; that step was not made, and "
                    f"trouble.json in the run folder names its samples",
                    do="look at these samples; lower --lr, keep --clip on, or train in fp32; "
                    "`regard resume RUN --nonfinite skip` leaves such steps out",
                )

    def _due_to_validate(self) -> bool:
        """Whether to validate: every epoch, or less often in a run with --steps, whose epochs may be short."""
        optim, history = self.config.optim, self.history
        every = max(1, optim.epochs // VALIDATIONS) if optim.steps else 1
        return history.updates == self.steps or history.epoch % every == 0

    def _validate(self) -> None:
        """Validate at the end of an epoch."""
        history = self.history
        with self._averaged_weights():
            figures = self.figures(self.check)
            weights = {name: unshard(tensor.detach()).clone() for name, tensor in self.model.state_dict().items()}
        loss = self.world.sums([float(self.total)])[0] / history.batches
        history.seconds = time.monotonic() - self.began
        optim = self.config.optim
        lr = learning_rate(history.updates - 1, self.steps, optim.lr, optim.warmup, optim.schedule)
        row = {
            "epoch": history.epoch,
            "step": history.updates,
            "seconds": round(history.seconds, 2),
            "lr": f"{lr:.3g}",
            "train_loss": round(loss, 5),
            **{f"val_{name}": round(value, 5) for name, value in figures.items()},
        }
        if not math.isfinite(loss + figures["loss"]):
            raise DivergedError(
                f"the loss is not a number in epoch {history.epoch}; the weights kept are those from before",
                do="lower --lr, keep --clip on, or train in fp32",
            )
        history.rows.append(row)
        names = ["last"] + [f"epoch-{history.epoch:04d}"] * (self.config.machine.keep > 0)
        if history.best is None or optim.choose == "last" or self._rank(row) >= self._rank(history.best):
            history.best = row
            names.append("best")
        self.unwritten |= dict.fromkeys(names, weights)

    def figures(self, check: Callable[..., None]) -> dict[str, float]:
        """Figures of the validation samples, eagerly: other shapes than in training would be compiled again."""
        with torch.compiler.set_stance("force_eager"), autocast(self.config, self.device):
            return self.evaluate(self.model, check)

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Inside the block the model has its averaged weights, if there are any."""
        if self.average:
            self.average.swap()
        try:
            yield
        finally:
            if self.average:
                self.average.swap()

    def check(self, *_: object) -> None:
        """Raise Halt if a stop is requested. Called only between two steps."""
        if self.world.any(self.stop.asked()):
            self.stop.wanted = self.stop.wanted or signal.SIGTERM  # requested in another process
            raise Halt

    def _save_if_due(self) -> None:
        """Between two steps: save if it is due, stop if requested. All processes do the same."""
        every = self.config.machine.save_every
        due = not every or time.monotonic() - self.saved > max(every, self.saving / SAVE_SHARE)
        if self.world.any(due or self.stop.asked()):
            self.check()
            self._save()

    def _save(self) -> None:
        """Save the weights first, then the state: after an interruption at any moment the files are consistent."""
        begun = time.monotonic()
        self._write_weights()
        self.history.seconds = begun - self.began
        self._measure_work()
        updates = int(self.average.updates) if self.average else 0
        about = {"history": asdict(self.history), "average_updates": updates}
        about["loss"] = self.world.sums([float(self.total)])[0]
        self.writer.state(pack(self.model, self.step.optimizers, self.average), about)
        self.saved = time.monotonic()
        self.saving = self.saved - begun

    def _measure_work(self) -> None:
        """Add the time and energy of all devices since the last time; all processes must call this."""
        (seconds, joules), work = self.measured, self.history.work
        self.measured = self.history.seconds, self.meter.joules()
        now = self.measured[1]
        used = None if joules is None or now is None else now - joules
        used, unknown = self.world.sums([used or 0.0, float(used is None)])
        if work is not None:
            work.device_seconds += (self.history.seconds - seconds) * self.world.size
            work.joules = None if unknown or work.joules is None else work.joules + used

    def _write_weights(self) -> None:
        """Write the weights that are not yet written."""
        for name, weights in self.unwritten.items():
            self.writer.weights(name, weights, self.history)
        self.unwritten = {}

    def _rank(self, row: dict[str, Any]) -> tuple[float, float]:
        """Sort key of a row, higher is better: the task's metric, then the smaller loss."""
        name, direction = self.task.best
        value = row[f"val_{name}"]
        return value if direction == "max" else -value, -row["val_loss"]

    def _note(self) -> str:
        if not self.history.rows:
            return ""
        row, name = self.history.rows[-1], self.task.best[0]
        return f"epoch {row['epoch']}  loss {row['train_loss']:.3f}  val {name} {row[f'val_{name}']:.4f}"
