"""A study's result over all runs: means, deviations, which arm is ahead, and where curves cross."""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.study.design import Study, Trial
from regard.weights import Run, write_text


class Point(NamedTuple):
    """One arm at one size: test accuracy over seeds."""

    arm: str
    images: int
    mean: float
    deviation: float | None
    """Sample standard deviation over seeds; None for one seed."""
    seeds: int


class Gap(NamedTuple):
    """The difference in accuracy between two arms at one size, over the seeds that both have."""

    images: int
    mean: float
    error: float | None
    """Standard error of the mean; None for one seed."""
    seeds: int = 1

    @classmethod
    def of(cls, images: int, differences: list[float]) -> Gap:
        """From the differences of single seeds."""
        count = len(differences)
        error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else None
        return cls(images, statistics.fmean(differences), error, count)

    @property
    def sure(self) -> bool:
        """Whether the 95 % interval (Student's t, wide for few seeds) excludes zero."""
        from scipy.stats import t

        return self.error is not None and abs(self.mean) > float(t.ppf(0.975, self.seeds - 1)) * self.error


def points_of(rows: list[dict[str, Any]], arms: list[str], figure: str = "accuracy") -> list[Point]:
    """Mean and deviation over seeds of a figure of the runs, in the order of arms and sizes."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row["arm"], row["images"]), []).append(row[figure])
    points = [
        Point(arm, images, statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else None, len(v))
        for (arm, images), v in groups.items()
    ]
    return sorted(points, key=lambda point: (arms.index(point.arm), point.images))


def gaps_of(rows: list[dict[str, Any]], one: str, other: str, figure: str = "accuracy") -> list[Gap]:
    """By size: the figure of `one` minus that of `other`, per seed."""
    value: dict[tuple[str, int, int], float] = {(row["arm"], row["images"], row["seed"]): row[figure] for row in rows}
    gaps = []
    for images in sorted({row["images"] for row in rows}):
        seeds = [s for a, n, s in value if (a, n) == (one, images) and (other, images, s) in value]
        if differences := [value[one, images, s] - value[other, images, s] for s in seeds]:
            gaps.append(Gap.of(images, differences))
    return gaps


@dataclass(frozen=True)
class Result:
    """The finished runs of a study, one row per run."""

    study: Study
    rows: list[dict[str, Any]]
    failed: dict[str, str]
    """Failed runs and their error messages."""

    @property
    def points(self) -> list[Point]:
        """In the order of arms and sizes."""
        return points_of(self.rows, list(self.study.arms))

    def gaps(self, one: str, other: str) -> list[Gap]:
        """By size: accuracy of `one` minus that of `other`, per seed. Both have the same images for the same seed."""
        return gaps_of(self.rows, one, other)

    def summary(self) -> list[str]:
        """The result in sentences: one per pair of arms, and caveats."""
        lines = [compare(a, b, self.gaps(a, b)) for a, b in itertools.combinations(self.study.arms, 2)]
        lines = [line for line in lines if line]
        seeds = {point.seeds for point in self.points}
        if seeds and min(seeds) < 3:
            lines.append(f"Some means are of {min(seeds)} seed{'s' * (min(seeds) > 1)} only: take them as a hint.")
        if any(row["split"] != "test" for row in self.rows):
            lines.append("There is no test split: accuracies are on validation images, which also chose the weights.")
        if self.failed:
            lines.append(f"{len(self.failed)} runs failed and are in no mean: {', '.join(self.failed)}.")
        return lines

    def write(self) -> None:
        """study.csv (one row per run), study.json, study.md and the figure."""
        from regard.study.figure import draw

        folder, study = Run(self.study.out), self.study
        folder.write_rows("study.csv", self.rows)
        folder.write_json("study.json", {
            "kind": study.kind, "data": study.data, "settings": study.settings, "summary": self.summary(),
            "points": [point._asdict() for point in self.points], "failed": self.failed,
        })  # fmt: skip
        write_text(study.out / "study.md", self.markdown())
        draw(self)

    def markdown(self) -> str:
        """The table and the sentences, for people."""
        rows = "\n".join(
            f"| {p.arm} | {p.images:,} | {100 * p.mean:.2f} % | "
            f"{'–' if p.deviation is None else f'{100 * p.deviation:.2f}'} | {p.seeds} |"
            for p in self.points
        )
        shared = " ".join(f"--{n.replace('_', '-')} {shlex.quote(str(v))}" for n, v in self.study.settings.items())
        lines = "\n".join(f"- {line}" for line in self.summary())
        seconds = sum(row["seconds"] for row in self.rows)
        return f"""# {self.study.kind} on {self.study.data}

{lines}

| | training images | test accuracy, mean | deviation over seeds, points | seeds |
|---|---|---|---|---|
{rows}

![test accuracy](study.svg)

All runs share `{shared}`; a seed decides weights, order and which training images are drawn, nested and as many of each
class. Validation and test images are the same throughout. {len(self.rows)} runs, {seconds:.0f} seconds of training;
study.csv has a row for each.
"""


def collect(study: Study, trials: list[Trial], failed: dict[str, str]) -> Result:
    """Read the run folders of finished trials."""
    rows = []
    for trial in trials:
        run = Run(study.out / "runs" / trial.name)
        summary, data = run.read_json("summary.json"), run.read_json("data.json")
        rows.append({
            "arm": trial.arm, "images": sum(data["counts"]["train"].values()), "seed": trial.seed,
            "accuracy": summary["figures"]["accuracy"]["value"], "split": summary["split"],
            "steps": int(run.read_rows("metrics.csv")[-1]["step"]), "parameters": summary["parameters"],
            "seconds": summary["seconds"], "run": f"runs/{trial.name}",
        })  # fmt: skip
    return Result(study, rows, failed)


def crossing(before: Gap, after: Gap) -> float | None:
    """Where a difference changes its sign between two sizes, interpolated on a log axis; None if it does not.

    >>> round(crossing(Gap(100, 0.02, None), Gap(400, -0.02, None)))
    200
    """
    if before.mean * after.mean >= 0:
        return None
    share = before.mean / (before.mean - after.mean)
    return math.exp(math.log(before.images) + share * math.log(after.images / before.images))


def compare(one: str, other: str, gaps: list[Gap]) -> str:
    """One sentence: which arm is ahead, and whether and where the curves cross.

    >>> compare("cnn", "vit", [Gap(100, 0.05, 0.01, 5), Gap(1000, 0.02, 0.002, 5)])
    'cnn is ahead of vit at every size from 100 to 1,000 images, by 2.0 to 5.0 points: the curves do not cross.'
    """
    if not gaps:
        return ""
    if len(gaps) == 1:
        (gap,) = gaps
        ahead, behind = (one, other) if gap.mean >= 0 else (other, one)
        if gap.sure:
            return f"{ahead} is ahead of {behind} by {_points(gap)}."
        return f"{ahead} and {behind} cannot be told apart: {_points(gap)} for {ahead}."
    crossings = [(a, b, at) for a, b in itertools.pairwise(gaps) if (at := crossing(a, b)) is not None]
    first, last = gaps[0].images, gaps[-1].images
    if not crossings:
        total = sum(gap.mean for gap in gaps)
        ahead, behind = (one, other) if total >= 0 else (other, one)
        sizes = [100 * abs(gap.mean) for gap in gaps]
        unsure = [f"{gap.images:,}" for gap in gaps if not gap.sure]
        but = f" At {', '.join(unsure)} images it may be chance: the 95 % interval holds zero." if unsure else ""
        return (
            f"{ahead} is ahead of {behind} at every size from {first:,} to {last:,} images, by {min(sizes):.1f} to "
            f"{max(sizes):.1f} points: the curves do not cross.{but}"
        )
    parts = []
    for before, after, at in crossings:
        left, right = (one, other) if before.mean > 0 else (other, one)
        parts.append(
            f"{left} is ahead up to about {_rounded(at)} images (by {_points(before)} at {before.images:,}), "
            f"{right} beyond (by {_points(after)} at {after.images:,})"
        )
    doubt = not all(before.sure and after.sure for before, after, _ in crossings)
    but = (
        " Beside a crossing a difference may be chance (its 95 % interval holds zero): whether they cross is uncertain."
    )
    return "; ".join(parts) + "." + (but if doubt else "")


def _points(gap: Gap) -> str:
    error = "" if gap.error is None else f" ± {100 * gap.error:.1f}"
    return f"{100 * abs(gap.mean):.1f}{error} points"


def _rounded(images: float) -> str:
    """Rounded to two digits: interpolation between a few sizes is not more precise."""
    digits = max(0, math.floor(math.log10(images)) - 1)
    return f"{round(images / 10**digits) * 10**digits:,}"
