"""A study's result over all runs: means, deviations, which arm is ahead, and where curves cross."""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.report.page import total
from regard.study.design import ACCURACY, Measure, Study, Trial
from regard.weights import Run, write_text


class Point(NamedTuple):
    """One arm at one size: a test figure over seeds."""

    arm: str
    images: int
    mean: float
    deviation: float | None
    """Sample standard deviation over seeds; None for one seed."""
    seeds: int


class Gap(NamedTuple):
    """The difference in a figure between two arms at one size, over the seeds that both have."""

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
        """Of the main measure, in the order of arms and sizes."""
        return self.points_by(self.study.measures[0])

    def points_by(self, measure: Measure) -> list[Point]:
        return points_of(self.rows, list(self.study.arms), measure.key)

    def gaps(self, one: str, other: str, measure: Measure | None = None) -> list[Gap]:
        """By size: the figure of `one` minus that of `other`, per seed. Both have the same images for the same seed."""
        return gaps_of(self.rows, one, other, (measure or self.study.measures[0]).key)

    def summary(self) -> list[str]:
        """The result in sentences: one per pair of arms, and caveats."""
        measures, samples = self.study.measures, self.study.samples
        lines = [
            f"{measure.name[0].upper()}{measure.name[1:]}: " * (len(measures) > 1) + said
            for measure in measures
            for a, b in itertools.combinations(self.study.arms, 2)
            if (said := compare(a, b, self.gaps(a, b, measure), measure, samples))
        ]
        seeds = {point.seeds for point in self.points}
        if seeds and min(seeds) < 3:
            lines.append(f"Some means are of {min(seeds)} seed{'s' * (min(seeds) > 1)} only: take them as a hint.")
        if not all(row["split"].startswith("test") for row in self.rows):
            lines.append(f"There is no test split: figures are on validation {samples}, which also chose the weights.")
        if self.failed:
            lines.append(f"{len(self.failed)} runs failed and are in no mean: {', '.join(self.failed)}.")
        return lines

    def write(self) -> None:
        """study.csv (one row per run), study.json, study.md and the figure."""
        from regard.study.figure import draw

        folder, study = Run(self.study.out), self.study
        folder.write_rows("study.csv", [self._named(row) for row in self.rows])
        points = {
            measure.key: [self._named(p._asdict()) for p in self.points_by(measure)] for measure in study.measures
        }
        folder.write_json("study.json", {
            "kind": study.kind, "data": study.data, "settings": study.settings, "summary": self.summary(),
            "points": points[study.measures[0].key], "points_by_measure": points, "failed": self.failed,
        })  # fmt: skip
        write_text(study.out / "study.md", self.markdown())
        draw(self)

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with the number of samples under their own name."""
        return {self.study.samples if name == "images" else name: value for name, value in row.items()}

    def markdown(self) -> str:
        """The table and the sentences, for people."""
        measures, samples = self.study.measures, self.study.samples
        head = ["", f"training {samples}"]
        for measure in measures:
            head += [f"{measure.name}, mean", f"deviation over seeds{', points' * (measure.scale == 100)}"]
        columns = [[(m, p) for p in self.points_by(m)] for m in measures]
        table = [[*head, "seeds"], ["---"] * (len(head) + 1)]
        for cells in zip(*columns, strict=True):
            first = cells[0][1]
            said = [word for m, p in cells for word in (m.text(p.mean), _deviation(m, p))]
            table.append([first.arm, f"{first.images:,}", *said, str(first.seeds)])
        rows = "\n".join(f"| {' | '.join(cells)} |" for cells in table).replace("|  |", "| |", 1)
        drawn = ", nested and as many of each class" if samples == "images" else ", nested"
        shared = " ".join(f"--{n.replace('_', '-')} {shlex.quote(str(v))}" for n, v in self.study.settings.items())
        lines = "\n".join(f"- {line}" for line in self.summary())
        seconds = sum(row["seconds"] for row in self.rows)
        return f"""# {self.study.kind} on {self.study.data}

{lines}

{rows}

![{" and ".join(measure.name for measure in measures)}](study.svg)

All runs share `{shared}`; a seed decides weights, order and which training {samples} are drawn{drawn}.
Validation and test {samples} are the same throughout. {len(self.rows)} runs, {seconds:.0f} seconds of training;
study.csv has a row for each.
"""


def collect(study: Study, trials: list[Trial], failed: dict[str, str]) -> Result:
    """Read the run folders of finished trials."""
    rows = []
    for trial in trials:
        run = Run(study.out / "runs" / trial.name)
        summary, data = run.read_json("summary.json"), run.read_json("data.json")
        rows.append({
            "arm": trial.arm, "images": total(data["counts"]["train"]), "seed": trial.seed,
            **{measure.key: summary["figures"][measure.key]["value"] for measure in study.measures},
            "split": summary["split"],
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


def _deviation(measure: Measure, point: Point) -> str:
    return "–" if point.deviation is None else f"{measure.scale * point.deviation:.2f}"


def compare(one: str, other: str, gaps: list[Gap], measure: Measure = ACCURACY, samples: str = "images") -> str:
    """One sentence: which arm is ahead, and whether and where the curves cross.

    >>> compare("cnn", "vit", [Gap(100, 0.05, 0.01, 5), Gap(1000, 0.02, 0.002, 5)])
    'cnn is ahead of vit at every size from 100 to 1,000 images, by 2.0 to 5.0 points: the curves do not cross.'
    """
    if not gaps:
        return ""
    if measure.lower:
        gaps = [gap._replace(mean=-gap.mean) for gap in gaps]
    if len(gaps) == 1:
        (gap,) = gaps
        ahead, behind = (one, other) if gap.mean >= 0 else (other, one)
        if gap.sure:
            return f"{ahead} is ahead of {behind} by {_points(gap, measure)}."
        return f"{ahead} and {behind} cannot be told apart: {_points(gap, measure)} for {ahead}."
    crossings = [(a, b, at) for a, b in itertools.pairwise(gaps) if (at := crossing(a, b)) is not None]
    first, last = gaps[0].images, gaps[-1].images
    if not crossings:
        total = sum(gap.mean for gap in gaps)
        ahead, behind = (one, other) if total >= 0 else (other, one)
        sizes = [measure.scale * abs(gap.mean) for gap in gaps]
        unsure = [f"{gap.images:,}" for gap in gaps if not gap.sure]
        but = f" At {', '.join(unsure)} {samples} it may be chance: the 95 % interval holds zero." if unsure else ""
        return (
            f"{ahead} is ahead of {behind} at every size from {first:,} to {last:,} {samples}, by {min(sizes):.1f} to "
            f"{max(sizes):.1f} {measure.unit}: the curves do not cross.{but}"
        )
    parts = []
    for before, after, at in crossings:
        left, right = (one, other) if before.mean > 0 else (other, one)
        near = _points(before, measure)
        parts.append(
            f"{left} is ahead up to about {_rounded(at)} {samples} (by {near} at {before.images:,}), "
            f"{right} beyond (by {_points(after, measure)} at {after.images:,})"
        )
    doubt = not all(before.sure and after.sure for before, after, _ in crossings)
    but = (
        " Beside a crossing a difference may be chance (its 95 % interval holds zero): whether they cross is uncertain."
    )
    return "; ".join(parts) + "." + (but if doubt else "")


def _points(gap: Gap, measure: Measure) -> str:
    error = "" if gap.error is None else f" ± {measure.scale * gap.error:.1f}"
    return f"{measure.scale * abs(gap.mean):.1f}{error} {measure.unit}"


def _rounded(images: float) -> str:
    """Rounded to two digits: interpolation between a few sizes is not more precise."""
    digits = max(0, math.floor(math.log10(images)) - 1)
    return f"{round(images / 10**digits) * 10**digits:,}"
