"""One of several processes that train together: torchrun … ranks.py DATA OUT CASE UPDATE SETTINGS(JSON).

Writes what it saw to OUT.RANKS.RANK.json: the loss of every update summed over processes, the first gradient (the first
process) and the samples of every epoch. CASE says what befalls it at the given update: nothing, stop (SIGTERM to
the last process), kill (SIGKILL to the last process, the first time), hang (the last process).
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import regard
import regard.training.loop as loop
from regard.training.distributed import unshard
from regard.training.gradients import Gradients
from regard.training.step import Step


@contextmanager
def watching(out: str, case: str, update: int) -> Iterator[None]:
    """Training inside is seen, and struck at the given update."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    seen: dict = {"losses": {}, "samples": {}, "gradient": None}
    rate, batches, step, apply = loop.learning_rate, loop.Training.batches, Step.train_step, Gradients.apply

    def learning_rate(done, *rest):
        if done == update and rank == ranks - 1:
            struck = Path(f"{out}.struck")
            if case == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            if case == "kill" and not struck.exists():
                struck.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "hang":
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                time.sleep(1000)
        return rate(done, *rest)

    def watched_batches(self):
        for batch in batches(self):
            if batch.share > 0:
                seen["samples"].setdefault(str(self.history.epoch), []).extend(batch.numbers)
            seen["training"] = self
            yield batch

    def watched_step(self, group):
        loss, bad = step(self, group)
        training = seen["training"]
        seen["losses"][str(training.history.updates)] = self.world.sums([float(loss)])[0]
        return loss, bad

    def watched_apply(self):
        if seen["gradient"] is None:
            full = [unshard(p.grad) for p in self.model.parameters() if p.grad is not None]
            seen["gradient"] = torch.cat([g.flatten() for g in full]).tolist()
        return apply(self)

    loop.learning_rate, loop.Training.batches = learning_rate, watched_batches
    setattr(Step, "train_step", watched_step)  # noqa: B010
    Gradients.apply = watched_apply
    try:
        yield
    finally:
        seen.pop("training", None)
        Path(f"{out}.{ranks}.{rank}.json").write_text(json.dumps(seen))


def main(data: str, out: str, case: str, update: int, settings: dict) -> None:
    try:
        with watching(out, case, update):
            regard.train(data, out=out, quiet=True, resume=True, save_every=0.0, **settings)
    except regard.RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    _, data, out, case, update, settings = sys.argv
    main(data, out, case, int(update), json.loads(settings))
