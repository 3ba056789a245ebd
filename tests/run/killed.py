"""A training run that ends itself."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import regard
import regard.training.loop as loop
from regard.tasks.classification import task


def main(data: str, out: str, update: int, signal: int, where: str, settings: dict) -> None:
    """At the given update it sends itself the signal, as a cluster would; with update -1 it runs to the end.

    Its state is saved at every update. A run that `out` holds is resumed. `where` may also be "group", for a signal to
    itself and to all its processes, as `timeout` sends it, or "worker", for one to a process that loads images.
    """
    rate, figures, calls = loop.learning_rate, task.quick_figures, []
    if where == "group":
        os.setsid()

    def strike() -> None:
        if update < 0:
            return
        if where == "worker":
            multiprocessing.active_children()[0].kill()
        else:
            os.kill(os.getpid(), signal)
        if where == "group":
            os.killpg(0, signal)

    def learning_rate(done: int, *rest: Any) -> float:
        if done == update and where != "evaluation":
            strike()
        return rate(done, *rest)

    def quick_figures(*arguments):
        calls.append(1)
        if where == "evaluation" and len(calls) == update:
            strike()
        return figures(*arguments)

    loop.learning_rate, task.quick_figures = learning_rate, quick_figures
    if (Path(out) / "config.json").exists():
        changes = {name: settings[name] for name in ("workers",) if name in settings}
        regard.resume(out, quiet=True, **changes)
    else:
        start = regard.pretrain if settings.pop("pretrain", False) else regard.train
        settings.setdefault("save_every", 0.0)
        start(data, out=out, quiet=True, **settings)
