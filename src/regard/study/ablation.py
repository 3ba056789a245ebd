"""Variations of the Transformer (Vaswani et al., Table 3) on parallel text: perplexity and BLEU of each, over seeds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from regard import api, registry, tasks
from regard.console import Progress, time_left
from regard.data.text import TextDataset
from regard.drawing import COLOURS, GREY, canvas, dress, style
from regard.errors import ConfigError, DivergedError, did_you_mean
from regard.run.pool import each
from regard.run.settle import check_settings
from regard.study.figure import save
from regard.study.keep import keep_plan, kept_row
from regard.study.run import reading
from regard.weights import Run, write_text

FIGURES = ("perplexity", "bleu")
"""The columns of the table: those of the main test split, or of val where there is none."""
ROWS = ("heads", "keys", "dropout", "smoothing", "positions")
"""Rows A, B, D (dropout and label smoothing) and E. Row C is `--depth`, `--width` and `--mlp`."""


BASE = {"dropout": 0.1, "label_smoothing": 0.1}
"""The paper's, whatever a recipe has."""


def variations(model: str, settings: Mapping[str, Any], rows: Sequence[str] = ROWS) -> dict[str, dict[str, Any]]:
    """The arms by name: the base, and one changed setting each.

    >>> list(variations("transformer_nano", {"width": 32, "heads": 4}, ("heads", "positions")))
    ['base', 'heads 1', 'heads 2', 'heads 8', 'heads 16', 'positions learned']
    """
    config = registry.configure(model, **{name: settings[name] for name in ("width", "heads") if name in settings})
    heads, width, base = config.heads, config.width, BASE | dict(settings)
    arms: dict[str, dict[str, dict[str, Any]]] = {
        "heads": {f"heads {n}": {"heads": n} for n in (1, heads // 2, heads * 2, heads * 4) if n and width % n == 0},
        "keys": {f"d_k {n}": {"key_width": n} for n in (width // heads // 4, width // heads // 2) if n > 0},
        "dropout": {f"dropout {n}": {"dropout": n} for n in (0.0, 0.1, 0.2, 0.3) if n != base["dropout"]},
        "smoothing": {
            f"label smoothing {n}": {"label_smoothing": n} for n in (0.0, 0.1, 0.2) if n != base["label_smoothing"]
        },
        "positions": {"positions learned": {"positions": "learned"}},
    }
    for row in rows:
        if row not in arms:
            raise ConfigError(f"the table has no row {row!r}", do=did_you_mean(row, arms))
    return {"base": {}} | {name: arm for row in rows for name, arm in arms[row].items() if arm != {"heads": heads}}


class Mean(NamedTuple):
    """A figure over seeds: its mean and the 95 % interval of it (Student's t); one seed has none."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """
        >>> [round(x, 2) for x in Mean.of([1.0, 2.0, 3.0])]
        [2.0, -0.48, 4.48]
        """
        from scipy.stats import t

        mean, count = fmean(values), len(values)
        if count < 2:
            return cls(mean, None, None)
        room = float(t.ppf(0.975, count - 1)) * stdev(values) / count**0.5
        return cls(mean, mean - room, mean + room)

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})")


@dataclass(frozen=True)
class Ablation:
    """The finished runs: one row per arm and seed."""

    out: Path
    data: str
    arms: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    failed: dict[str, str]

    def mean(self, arm: str, figure: str) -> Mean | None:
        values = [row[figure] for row in self.rows if row["arm"] == arm]
        return Mean.of(values) if values else None

    def difference(self, arm: str, figure: str) -> Mean | None:
        """The arm minus the base, per seed."""
        by = {(row["arm"], row["seed"]): row[figure] for row in self.rows}
        values = [
            value - by["base", seed] for (name, seed), value in by.items() if name == arm and ("base", seed) in by
        ]
        return Mean.of(values) if values else None

    def summary(self) -> list[str]:
        lines = []
        for arm in self.arms:
            gaps = {figure: self.difference(arm, figure) for figure in FIGURES}
            if arm == "base" or None in gaps.values():
                continue
            words = ", ".join(f"{figure} {gap.value:+.2f}{_sure(gap)}" for figure, gap in gaps.items() if gap)
            lines.append(f"{arm} against base: {words}.")
        counts = {sum(row["arm"] == arm for row in self.rows) for arm in self.arms}
        if min(counts) < 3:
            lines.append(f"Some arms have {min(counts)} finished seeds only: take them as a hint.")
        if self.failed:
            lines.append(f"{len(self.failed)} runs failed and are in no mean: {', '.join(self.failed)}.")
        return lines

    def markdown(self) -> str:
        lines = ["| | parameters | perplexity | BLEU | seeds |", "|---|---|---|---|---|"]
        for arm in self.arms:
            rows = [row for row in self.rows if row["arm"] == arm]
            if rows:
                perplexity, bleu = (self.mean(arm, figure) for figure in FIGURES)
                lines.append(f"| {arm} | {rows[0]['parameters']:,} | {perplexity} | {bleu} | {len(rows)} |")
        said = "\n".join(f"- {line}" for line in self.summary())
        shared = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        split = ", ".join(sorted({row["split"] for row in self.rows}))
        return f"""# Variations of the Transformer on {self.data}

{said}

{chr(10).join(lines)}

![perplexity and BLEU](study.svg)

Mean over seeds and its 95 % interval (Student's t) on {split}; differences are computed per seed, "?" where their
interval includes zero. Perplexity is per token. All runs share {shared}. study.csv has a row per run.
"""

    def write(self) -> None:
        folder = Run(self.out)
        folder.write_rows("study.csv", self.rows)
        means = {arm: {f: self.mean(arm, f) for f in FIGURES} for arm in self.arms}
        stored = {arm: {f: m and m._asdict() for f, m in each.items()} for arm, each in means.items()}
        folder.write_json("study.json", {"data": self.data, "settings": self.settings, "summary": self.summary(),
                                         "means": stored, "failed": self.failed})  # fmt: skip
        write_text(self.out / "study.md", self.markdown())
        draw(self)


def _sure(gap: Mean) -> str:
    return " ?" if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high else ""


@style()
def draw(result: Ablation) -> None:
    """Write study.svg and study.png: a dot per seed, mean and interval, and a line at the base."""
    arms = [arm for arm in result.arms if any(row["arm"] == arm for row in result.rows)]
    figure = canvas(8.4, 1.0 + 0.28 * len(arms))
    axes = figure.subplots(1, 2, sharey=True)
    for ax, what in zip(axes, FIGURES, strict=True):
        for number, arm in enumerate(arms):
            values, mean = [row[what] for row in result.rows if row["arm"] == arm], result.mean(arm, what)
            assert mean is not None
            room = 0.0 if mean.high is None else mean.high - mean.value
            ax.plot(values, [number] * len(values), "o", color=GREY, alpha=0.5, markersize=3)
            ax.errorbar(mean.value, number, xerr=room, fmt="o", color=COLOURS[0], markersize=5)
            if arm == "base":
                ax.axvline(mean.value, color=GREY, linestyle=":")
        ax.set_yticks(range(len(arms)), arms)
        dress(ax, {"bleu": "BLEU"}.get(what, what), "")
    axes[0].invert_yaxis()
    save(figure, result.out / "study")


def ablation(
    data: str | Path,
    rows: Sequence[str] = ROWS,
    *,
    seeds: int = 3,
    jobs: int = 1,
    out: str | Path | None = None,
    quiet: bool = False,
    minutes: float | None = None,
    **settings: Any,
) -> Ablation:
    """Train every variation with every seed, by seed, and write study.md, .csv, .json, .svg and .png into `out`.

    `jobs` runs are made at a time. Finished runs are kept: a stopped study resumes with the same command. After
    `minutes` no further run is started.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1", do="3 or more show the noise")
    if jobs < 1:
        raise ConfigError(f"jobs={jobs} must be at least 1")
    if "seed" in settings:
        raise ConfigError("a study sets seed itself", do="give --seeds")
    settings = {"model": "transformer_nano", "explain": 0} | BASE | settings
    if registry.find(settings["model"]).family != "transformer":
        raise ConfigError(f"{settings['model']} is no Transformer", do="give --model transformer_nano or another")
    arms, place = variations(settings["model"], settings, rows), Path(out or f"studies/{Path(data).stem}-ablation")
    place, progress, start = place.expanduser(), Progress(quiet), time.monotonic()
    for fields in arms.values():
        for name in fields.keys() & settings.keys() - {"heads", "dropout", "label_smoothing"}:
            raise ConfigError(f"{name} is compared by this study itself", do=f"leave --{name.replace('_', '-')} out")
        check_settings(tasks.choose(str(data), settings | fields)[0], settings | fields)
    scan = api.check(data, quiet=quiet, **reading(str(data), settings))
    if not isinstance(scan, TextDataset):
        raise ConfigError("an ablation is of translators: it needs parallel text", where=data)
    keep_plan(place, {"kind": "ablation", "data": scan.fingerprint(), "settings": settings})
    trials = [(arm, seed) for seed in range(seeds) for arm in arms]
    failed, made = dict[str, str](), 0
    waiting = [trial for trial in trials if _row(place, *trial) is None]
    until = None if minutes is None else time.time() + 60 * minutes
    try:
        for (arm, seed), future in each(partial(_execute, place, str(data), settings, arms, until), waiting, scan,
                                        jobs=jobs):  # fmt: skip
            try:
                row = future.result()
                if row is None:
                    continue
                said = ", ".join(f"{figure} {row[figure]:.2f}" for figure in FIGURES)
            except DivergedError as error:
                failed[f"{arm}-{seed}"] = said = error.what
            made += 1
            left = (time.monotonic() - start) / made * (len(waiting) - made)
            progress.say(f"run {made}/{len(waiting)}: {arm}, seed {seed}: {said}; {time_left(left)}")
        if minutes is not None and made < len(waiting):
            progress.say(f"{minutes:g} minutes are over with {len(waiting) - made} runs to go; run again to resume")
    finally:
        there = [row for trial in trials if (row := _row(place, *trial)) is not None]
        result = Ablation(place, str(data), arms, settings, there, failed)
        if result.rows:
            result.write()
    return result


def _folder(place: Path, arm: str, seed: int) -> Path:
    return place / "runs" / f"{arm.replace(' ', '-')}-{seed}"


def _execute(
    place: Path, data: str, settings: dict[str, Any], arms: dict[str, dict[str, Any]], until: float | None,
    scan: TextDataset, trial: tuple[str, int],
) -> dict[str, Any] | None:  # fmt: skip
    """The row of a run; None if the time is over."""
    if until is not None and time.time() > until:
        return None
    arm, seed = trial
    own: dict[str, Any] = settings | arms[arm] | {"seed": seed, "out": _folder(place, arm, seed)}
    api.train(data, quiet=True, resume=True, dataset=scan, **own)
    return _row(place, arm, seed)


def _row(place: Path, arm: str, seed: int) -> dict[str, Any] | None:
    """What a finished run came to."""
    folder = _folder(place, arm, seed)
    return kept_row(place / "kept" / f"{folder.name}.json", folder, lambda: _read_row(Run(folder), arm, seed))


def _read_row(run: Run, arm: str, seed: int) -> dict[str, Any] | None:
    if not (run.path / "report.html").is_file():
        return None
    summary = run.read_json("summary.json")
    figures = {figure: summary["figures"][figure]["value"] for figure in FIGURES}
    return {
        "arm": arm, "seed": seed, **figures, "split": summary["split"], "parameters": summary["parameters"],
        "seconds": summary["seconds"],
    }  # fmt: skip
