"""The same training from several seeds: the figures' mean and standard deviation, as the ViT paper's Table 2."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import tasks
from regard.console import Progress, columns, shown
from regard.errors import ConfigError, RunError
from regard.run.compute import add_costs
from regard.run.runner import CHANGEABLE, open_dataset, plain_settings, start
from regard.run.settle import check_settings
from regard.weights import Run, to_json


def repeat(
    data: str | Path, settings: Mapping[str, Any], seeds: int, *, quiet: bool, command: str | None, dataset: Any
) -> Run:
    """Train with `seeds` seeds from the settings' own; a run that has finished is kept. The data is read once.

    The folder that holds them all gets settings.json, by which it is known again, and summary.json.
    """
    settings, progress = plain_settings(settings), Progress(quiet)
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} is too small", do="give --seeds at least 1, such as 3")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("several seeds do not go with several processes", do="give --seed 0, 1, … one by one")
    entry, _ = tasks.choose(data, settings)
    asked = check_settings(entry, settings)
    first, out = settings.get("seed", 0), settings.get("out") or f"runs/{Path(data).stem}-seeds"
    folder, stored = Run(Path(out).expanduser()), {"data": str(data), **settings, "seed": first, "out": out}
    claim(folder, stored)
    numbers, runs = range(first, first + seeds), list[Run]()
    for seed in numbers:
        run = Run(folder.path / f"seed{seed}")
        if (run.path / "report.html").is_file():  # what a run writes last
            progress.say(f"seed {seed}: finished before, in {run.path}")
        else:
            progress.say(f"seed {seed}: run folder {run.path}")
            dataset = open_dataset(entry.load(), data, asked, dataset, progress)
            own = settings | {"seed": seed, "out": str(run.path)}
            run = start("train", data, own, dataset=dataset, quiet=quiet, command=command, resume=True)
        runs.append(run)
    summaries = [run.read_json("summary.json") for run in runs]
    folder.write_json("summary.json", {"seeds": list(numbers), **spread(summaries)})
    return folder


def spread(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure its mean, its standard deviation (over n - 1) and its values."""
    figures = {}
    for name in summaries[0]["figures"]:
        values = [summary["figures"][name]["value"] for summary in summaries]
        known = [value for value in values if value is not None]
        figures[name] = {
            "mean": statistics.fmean(known) if known else None,
            "std": statistics.stdev(known) if len(known) > 1 else None,
            "values": values,
        }
    first = summaries[0]
    cost = add_costs([summary.get("compute", {}) for summary in summaries])
    return {
        "task": first["task"], "split": first["split"], "runs": len(summaries), "compute": cost, "figures": figures,
    }  # fmt: skip


def table(summary: dict[str, Any]) -> str:
    """A summary over seeds for people.

    >>> figures = {"accuracy": {"mean": 0.96, "std": 0.02, "values": [0.94, 0.98]}}
    >>> print(table({"task": "classification", "seeds": [0, 1], "figures": figures}))
    figure    mean ± deviation  seed 0  seed 1
    accuracy  0.9600 ± 0.0200   0.9400  0.9800
    """
    header = ("figure", "mean ± deviation", *(f"seed {n}" for n in summary["seeds"]))
    rows, entry = list[tuple[str, ...]](), tasks.find(summary["task"])
    for name, figure in summary["figures"].items():
        form = f".{entry.decimals(name)}f"
        mean, std, *values = (shown(value, form) for value in (figure["mean"], figure["std"], *figure["values"]))
        rows.append((name, f"{mean} ± {std}", *values))
    return columns(header, rows)


def claim(folder: Run, asked: dict[str, Any]) -> None:
    """Make the folder, or know it as one made for the same settings: runs of others must not be averaged with these."""
    if (folder.path / "settings.json").is_file():
        held, asked = folder.read_json("settings.json"), json.loads(to_json(asked))
        names = {*held, *asked} - set(CHANGEABLE)
        if differ := sorted(name for name in names if held.get(name) != asked.get(name)):
            raise RunError(
                f"the folder holds runs of other settings: {', '.join(differ)}",
                where=folder.path,
                do="choose another --out, or give the settings it was made with",
            )
    else:
        Run.create(folder.path).write_json("settings.json", asked)
