"""The same training from several seeds: the figures' mean and standard deviation, as the ViT paper's Table 2."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.console import Progress, columns
from regard.errors import ConfigError, RunError
from regard.weights import Run, to_json


def repeat(
    train: Callable[[int, str], Run], data: str, settings: dict[str, Any], seeds: int, progress: Progress
) -> Run:
    """Call `train(seed, folder)` for `seeds` seeds from the settings' own; a run that has finished is kept.

    The folder that holds them all gets settings.json, by which it is known again, and summary.json.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} makes no run", do="give --seeds at least 1, such as 3")
    first, out = settings.get("seed", 0), settings.get("out") or f"runs/{Path(data).stem}-seeds"
    folder, asked = Run(Path(out).expanduser()), {"data": data, **settings, "seed": first, "out": out}
    _claim(folder, asked)
    numbers, runs = range(first, first + seeds), list[Run]()
    for seed in numbers:
        run = Run(folder.path / f"seed{seed}")
        if (run.path / "report.html").is_file():  # what a run writes last
            progress.say(f"seed {seed}: finished before, in {run.path}")
        else:
            progress.say(f"seed {seed}: run folder {run.path}")
            run = train(seed, str(run.path))
        runs.append(run)
    folder.write_json(
        "summary.json", {"seeds": list(numbers), **spread([run.read_json("summary.json") for run in runs])}
    )
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
    return {"split": summaries[0]["split"], "runs": len(summaries), "figures": figures}


def table(summary: dict[str, Any]) -> str:
    """A summary over seeds for people.

    >>> figures = {"accuracy": {"mean": 0.96, "std": 0.02, "values": [0.94, 0.98]}}
    >>> print(table({"seeds": [0, 1], "figures": figures}))
    figure    mean ± deviation  seed 0  seed 1
    accuracy  0.9600 ± 0.0200   0.9400  0.9800
    """
    header = ("figure", "mean ± deviation", *(f"seed {n}" for n in summary["seeds"]))
    rows = [
        (name, f"{_number(f['mean'])} ± {_number(f['std'])}", *map(_number, f["values"]))
        for name, f in summary["figures"].items()
    ]
    return columns(header, rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _claim(folder: Run, asked: dict[str, Any]) -> None:
    """Make the folder, or know it as one made for the same settings: runs of others must not be averaged with these."""
    if (folder.path / "settings.json").is_file():
        held, asked = folder.read_json("settings.json"), json.loads(to_json(asked))
        if differ := sorted(name for name in {*held, *asked} if held.get(name) != asked.get(name)):
            raise RunError(
                f"the folder holds runs of other settings: {', '.join(differ)}",
                where=folder.path,
                do="choose another --out, or give the settings it was made with",
            )
    else:
        Run.create(folder.path).write_json("settings.json", asked)
