"""Transfer of several models to several data sets: the ViT paper's Table 2, with what it costs.

A model is a run, a file of weights, or a name, which starts from random weights.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from regard import api, registry, tasks
from regard.console import Progress, operations, time_left
from regard.data import ImageDataset
from regard.data.splits import refuse_unused_cut
from regard.drawing import COLOURS, canvas, dress, style
from regard.errors import ConfigError, DivergedError, RunError
from regard.run.compute import COSTS, add_costs
from regard.run.settle import check_settings
from regard.study.figure import save
from regard.study.keep import keep_plan, kept_row
from regard.study.result import Gap
from regard.study.run import reading
from regard.weights import Run, write_text

SETTINGS = {"recipe": "plain"}
"""Of a model from random weights, as published; weights have the recipe of fine-tuning."""


class Cell(NamedTuple):
    """Test accuracy of one model on one data set."""

    mean: float
    deviation: float | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Cell:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f}" + ("" if self.deviation is None else f" ± {100 * self.deviation:.2f}")


@dataclass(frozen=True)
class TransferTable:
    """The finished runs: a row per model, data set and seed."""

    out: Path
    models: dict[str, str]
    """What was given, by the name in the table."""
    data: dict[str, str]
    seeds: int
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    failed: dict[str, str]

    def values(self, model: str, data: str) -> dict[int, float]:
        return {row["seed"]: row["accuracy"] for row in self.rows if (row["model"], row["data"]) == (model, data)}

    def cell(self, model: str, data: str) -> Cell | None:
        values = self.values(model, data)
        return Cell.of(list(values.values())) if values else None

    def cost(self, model: str, kind: str) -> dict[str, float]:
        """Of fine-tuning ("tuning_cost") the mean of a run; of pre-training the cost that its runs share."""
        costs = [row[kind] for row in self.rows if row["model"] == model]
        if not costs:
            return {}
        return {name: value / len(costs) for name, value in add_costs(costs).items()}

    def summary(self) -> list[str]:
        lines = []
        for data in self.data:
            for one, other in itertools.combinations(self.models, 2):
                first, second = self.values(one, data), self.values(other, data)
                if seeds := sorted(first.keys() & second.keys()):
                    lines.append(_compare(one, other, data, Gap.of(0, [first[s] - second[s] for s in seeds])))
        counts = [len(self.values(model, data)) for model in self.models for data in self.data]
        if min(counts) < self.seeds:
            lines.append(f"Not all is there yet: some cells have {min(counts)} of {self.seeds} runs.")
        if self.seeds < 3:
            lines.append("Deviations of fewer than three runs say little.")
        seen = sorted({f"{row['model']} on {row['data']}" for row in self.rows if row["seen"]})
        if seen:
            lines.append(f"The weights had seen test images of the data in pre-training: {', '.join(seen)}.")
        if self.failed:
            lines.append(f"{len(self.failed)} runs failed and are in no mean: {', '.join(self.failed)}.")
        return lines

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows, as text."""
        header = ["model", "parameters", *self.data]
        costs = [(kind, name) for kind in ("tuning_cost", "pre_training_cost") for name in COSTS]
        known = [(kind, name) for kind, name in costs if any(name in self.cost(model, kind) for model in self.models)]
        header += [
            f"{'fine-tuning' if kind == 'tuning_cost' else 'pre-training'}, {UNITS[name]}" for kind, name in known
        ]
        rows = []
        for model in self.models:
            own = [row for row in self.rows if row["model"] == model]
            if own:
                cells = [str(self.cell(model, data) or "–") for data in self.data]
                told = [_cost(self.cost(model, kind).get(name), name) for kind, name in known]
                rows.append([model, f"{own[0]['parameters']:,}", *cells, *told])
        return header, rows

    def markdown(self) -> str:
        header, rows = self.table()
        lines = [f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows]]
        said = "\n".join(f"- {line}" for line in self.summary())
        shared = ", ".join(f"{name} {value}" for name, value in self.settings.items()) or "the defaults"
        given = "; ".join(f"{name}: {value}" for name, value in self.models.items() if name != value)
        return f"""# Transfer of {len(self.models)} models to {len(self.data)} data sets

{said}

{chr(10).join(lines)}

![test accuracy of every model on every data set](study.svg)

Test accuracy in percent: mean ± standard deviation over fine-tuning runs with other seeds. Compute of fine-tuning is
the mean of a run; of pre-training, what the weights cost before, "–" where it is not known (weights that are no run of
Regard) or the model starts from random weights. Energy has a column only where the device reports it. Differences are
computed per seed. All runs share {shared}. {given and f"Models: {given}."} study.csv has a row per run.
"""

    def write(self) -> None:
        folder = Run(self.out)
        flat = [{name: value for name, value in row.items() if not isinstance(value, dict)} for row in self.rows]
        for line, row in zip(flat, self.rows, strict=True):
            line |= {f"{kind}_{name}": row[f"{kind}_cost"].get(name, "") for kind in KINDS for name in COSTS}
        folder.write_rows("study.csv", flat)
        cells = [
            {"model": model, "data": data, **cell._asdict()}
            for model in self.models for data in self.data if (cell := self.cell(model, data))
        ]  # fmt: skip
        costs = {model: {kind: self.cost(model, f"{kind}_cost") for kind in KINDS} for model in self.models}
        folder.write_json("study.json", {
            "kind": "transfer", "models": self.models, "data": self.data, "settings": self.settings,
            "summary": self.summary(), "cells": cells, "costs": costs, "failed": self.failed, "rows": self.rows,
        })  # fmt: skip
        write_text(self.out / "study.md", self.markdown())
        self.draw()

    @style()
    def draw(self) -> None:
        """study.svg and study.png: per data set a dot per run, and mean and deviation of each model."""
        models = list(self.models)
        figure = canvas(1.8 + 3.0 * len(self.data), 1.2 + 0.4 * len(models))
        axes = figure.subplots(1, len(self.data), sharey=True, squeeze=False)[0]
        for ax, data in zip(axes, self.data, strict=True):
            for number, model in enumerate(models):
                colour, cell = COLOURS[number % len(COLOURS)], self.cell(model, data)
                if cell is None:
                    continue
                values = [100 * value for value in self.values(model, data).values()]
                ax.plot(values, [number] * len(values), "o", color=colour, alpha=0.4, markersize=4)
                ax.errorbar(100 * cell.mean, number + 0.18, xerr=100 * (cell.deviation or 0.0), fmt="o", color=colour)
            ax.set_yticks(range(len(models)), models)
            dress(ax, "test accuracy (%)", "")
            ax.set_title(data, loc="left", fontsize=9)
        axes[0].set_ylim(len(models) - 0.5, -0.5)
        save(figure, self.out / "study")


KINDS = ("tuning", "pre_training")
UNITS = {"flops": "FLOP", "device_hours": "device-hours", "energy_kwh": "kWh"}


def _cost(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    return operations(value) if name == "flops" else f"{value:.3g}"


def _compare(one: str, other: str, data: str, gap: Gap) -> str:
    ahead, behind = (one, other) if gap.mean >= 0 else (other, one)
    error = "" if gap.error is None else f" ± {100 * gap.error:.1f}"
    points = f"{100 * abs(gap.mean):.1f}{error} points"
    if gap.sure:
        return f"{data}: {ahead} is ahead of {behind} by {points}."
    return f"{data}: {ahead} and {behind} cannot be told apart ({points} for {ahead}, {gap.seeds} runs each)."


def transfer(
    data: Sequence[str | Path],
    models: Sequence[str | Path],
    *,
    seeds: int = 3,
    minutes: float | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TransferTable:
    """Fine-tune every model on every data set with every seed, and write study.md, .csv, .json, .svg and .png.

    A model is a run folder, a weights file, or a name (random weights). Finished runs are kept: a stopped study resumes
    with the same call. After `minutes` no further run is started.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1", do="3 or more show the noise")
    if not data or not models:
        raise ConfigError("a table needs data and models", do="give regard study transfer DATA… --models A B")
    for name in {"seed", "model", "weights", "out"} & settings.keys():
        raise ConfigError(f"a study sets {name} itself", do="give --seeds and --models")
    place = Path(out or "studies/transfer").expanduser()
    arms, sets = short_names(models), short_names(data)
    starts = {name: _start(given) for name, given in arms.items()}
    for own, path in itertools.product(starts.values(), sets.values()):
        entry = tasks.choose(path, settings | own)[0]
        check_settings(entry, settings | own)
        if not entry.probes:
            raise ConfigError(f"this table is for images with classes, and the data is for {entry.name}", where=path)
    progress, start = Progress(quiet), time.monotonic()
    scans = {name: _read(path, settings, quiet) for name, path in sets.items()}
    prints = {name: scan.fingerprint() for name, scan in scans.items()}
    _keep(place, settings, arms, prints)
    failed = dict[str, str]()
    trials = list(itertools.product(range(seeds), sets, arms))
    waiting = [trial for trial in trials if _row(place, *trial) is None]
    progress.say(f"{len(trials)} runs in {place / 'runs'}, {len(trials) - len(waiting)} of them there already")
    try:
        for made, (seed, name, arm) in enumerate(waiting, start=1):
            if minutes is not None and time.monotonic() - start > 60 * minutes:
                progress.say(
                    f"{minutes:g} minutes are over with {len(waiting) - made + 1} runs to go; run again to resume"
                )
                break
            folder = _folder(place, seed, name, arm)
            usual: dict[str, Any] = {"explain": 0} if "weights" in starts[arm] else {"explain": 0, **SETTINGS}
            own = usual | settings | starts[arm]
            try:
                api.train(sets[name], out=folder, seed=seed, quiet=True, resume=True, dataset=scans[name], **own)
                row = _row(place, seed, name, arm)
                assert row is not None
                said = f"accuracy {row['accuracy']:.2%}"
            except DivergedError as error:
                failed[folder.name] = said = error.what
            left = (time.monotonic() - start) / made * (len(waiting) - made)
            progress.say(f"run {made}/{len(waiting)}: {arm} on {name}, seed {seed}: {said}; {time_left(left)}")
    finally:
        rows = [row for trial in trials if (row := _row(place, *trial)) is not None]
        result = TransferTable(place, arms, sets, seeds, settings, rows, failed)
        if rows:
            result.write()
    return result


def _keep(place: Path, settings: dict[str, Any], models: dict[str, str], prints: dict[str, str]) -> None:
    """More models, data and seeds can be added; what has a name in the folder stays what it was."""
    keep_plan(place, {"kind": "transfer", "settings": settings})
    held = Run(place).read_json("names.json") if (place / "names.json").is_file() else {"models": {}, "data": {}}
    for kind, new in (("models", models), ("data", prints)):
        for name in new.keys() & held[kind].keys():
            if held[kind][name] != new[name]:
                what = f"the study there has other {kind} called {name}"
                raise RunError(what, where=place, do="choose another --out, or rename one of the two")
    Run(place).write_json("names.json", {"models": held["models"] | models, "data": held["data"] | prints})


def short_names(given: Sequence[str | Path]) -> dict[str, str]:
    """Each by its last part, or by more parts where two have the same.

    >>> short_names(["vit_nano", "runs/a/best", "runs/b/best"])
    {'vit_nano': 'vit_nano', 'a-best': 'runs/a/best', 'b-best': 'runs/b/best'}
    """
    texts = [str(each) for each in given]
    if len(set(texts)) != len(texts):
        raise ConfigError("the same is given twice", do="give each model and each data set once")

    def named(text: str, parts: int) -> str:
        path = Path(text)
        return "-".join(path.with_suffix("").parts[-parts:] if path.is_file() else path.parts[-parts:])

    parts = dict.fromkeys(texts, 1)
    for count in range(2, 20):
        names = [named(text, parts[text]) for text in texts]
        if len(set(names)) == len(names):
            break
        parts |= {text: count for text, name in zip(texts, names, strict=True) if names.count(name) > 1}
    return {named(text, parts[text]).replace("/", ""): text for text in texts}


def _start(given: str) -> dict[str, Any]:
    """The settings that say where a model starts."""
    if Path(given).expanduser().exists():
        return {"weights": given}
    if "/" in given or Path(given).suffix:
        raise RunError("there is no such run or file of weights", where=given, do="give one, or the name of a model")
    registry.find(given)
    return {"model": given}


def _read(path: str, settings: Mapping[str, Any], quiet: bool) -> ImageDataset:
    scan = api.check(path, quiet=quiet, **reading(path, settings))
    if not isinstance(scan, ImageDataset):
        raise ConfigError("this study is for images", where=path)
    scan.require_usable()
    refuse_unused_cut(settings, scan.given_splits(), path)
    return scan


def _folder(place: Path, seed: int, data: str, model: str) -> Path:
    return place / "runs" / f"{model}-{data}-{seed}"


def _row(place: Path, seed: int, data: str, model: str) -> dict[str, Any] | None:
    """What a finished run came to."""
    folder = _folder(place, seed, data, model)
    return kept_row(place / "kept" / f"{folder.name}.json", folder, lambda: _read_row(Run(folder), seed, data, model))


def _read_row(run: Run, seed: int, data: str, model: str) -> dict[str, Any] | None:
    if not (run.path / "report.html").is_file():
        return None
    summary = run.read_json("summary.json")
    told = run.read_json("transfer.json") if (run.path / "transfer.json").is_file() else {}
    compute = summary["compute"]
    known = compute.get("pre_training", {})
    return {
        "model": model, "data": data, "seed": seed, "accuracy": summary["figures"]["accuracy"]["value"],
        "split": summary["split"], "seen": told.get(f"seen_in_{summary['split']}", 0),
        "parameters": summary["parameters"], "tuning_cost": add_costs([compute]),
        "pre_training_cost": {} if "unknown" in known else add_costs([known]) if known else {},
        "run": f"runs/{run.path.name}",
    }  # fmt: skip
