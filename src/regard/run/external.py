"""A trained model, or the models of several folds together, on another cohort."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.console import Progress, columns, interval
from regard.data.dataset import LISTED, Dataset
from regard.errors import DataError
from regard.metrics import Figure
from regard.run.folds import is_folds
from regard.run.using import load, open_for_evaluation, write_evaluation
from regard.task import Result
from regard.weights import Run, find_run

SLOPE = "calibration_slope"


@dataclass(frozen=True)
class External:
    """Figures on another cohort beside those of the run itself, and what they must be read with."""

    result: Result
    internal: dict[str, Any]
    """The run's own figures: of its test split, or pooled over folds."""
    recalibration: dict[str, Figure]
    same_contents: list[str]
    """Names of samples whose pixels (or sentences) are in the training data."""
    same_patients: list[str]
    """Names of others whose patient has an id that is in the training data."""
    folds: list[dict[str, Figure]]
    """Of several folds, the figures of each model alone; `result` is of the mean of their predictions."""

    @property
    def figures(self) -> dict[str, Figure]:
        return self.result.figures | self.recalibration

    def predictions(self) -> list[dict[str, Any]]:
        return self.result.predictions()

    def to_json(self) -> dict[str, Any]:
        made = self.result.to_json()
        held = {name: figure._asdict() for name, figure in self.figures.items()}
        each = [{name: figure._asdict() for name, figure in own.items()} for own in self.folds]
        about = {
            "internal": self.internal, "same_contents": self.same_contents, "same_patients": self.same_patients,
            "folds": each,
        }  # fmt: skip
        return made | {"figures": held, "external": about}

    def describe(self) -> str:
        """Overlap, internal figures beside the external ones, each fold, and how to read the calibration."""
        lines = [_overlap(self.same_contents, "have contents"), _overlap(self.same_patients, "have patients")]
        rows = []
        for name, figure in self.figures.items():
            own = self.internal.get(name)
            inside = ("–", "–") if not own or own["value"] is None else (f"{own['value']:.4f}", interval(own))
            each = [fold[name].value for fold in self.folds if name in fold]
            alone = [f"{min(each):.4f} to {max(each):.4f}"] if each else ["–"] * bool(self.folds)
            rows.append((name, f"{figure.value:.4f}", interval(figure._asdict()), *inside, *alone))
        header = ("figure", "external", "95 % interval", "internal", "95 % interval")
        lines += ["", columns((*header, *["each fold alone"] * bool(self.folds)), rows)]
        if self.folds:
            lines.append(f"external: the mean of the predictions of {len(self.folds)} folds' models")
        for name, figure in self.recalibration.items():
            if name.startswith(SLOPE) and figure.high < 1:
                lines.append(f"{name}: predictions are too extreme for this cohort; recalibrate before they are used")
        if more := self.result.describe():
            lines += ["", more]
        return "\n".join(lines)


def _overlap(names: list[str], what: str) -> str:
    if not names:
        return f"samples that {what} of the training data: none"
    shown = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    return f"samples that {what} of the training data, and are left out: {len(names)} ({shown})"


def evaluate_external(
    run: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> External:
    """Figures on another cohort: all of it, if no split is named, without what the models have seen."""
    progress = Progress(quiet)
    runs = sorted(Path(run).expanduser().glob("fold*/config.json")) if is_folds(run) else []
    paths: list[str | Path] = [path.parent for path in runs] or [run]
    opened = open_for_evaluation(paths[0], data, out, options, progress)
    task, dataset = opened.entry.load(), opened.dataset
    given = dataset.given_splits()
    index = [number for number, name in enumerate(given) if split in (None, "all", name)]
    if not index:
        names = ", ".join(sorted({name for name in given if name})) or "no splits"
        raise DataError(f"the data has no split {split!r}", where=dataset.name, do=f"it has {names}")
    contents, patients = _seen(dataset, paths, index, progress)
    predictors = [opened.predictor, *(load(path, progress=progress, **opened.loading) for path in paths[1:])]
    results = [opened.evaluate(predictor, index, progress) for predictor in predictors]
    result = task.ensemble(results) if len(results) > 1 else results[0]
    seen = contents | patients
    if seen and len(seen) == len(index):
        what = "every sample of this cohort is in the training data"
        raise DataError(what, where=dataset.name, do="give a cohort that the model has not seen")
    if seen:
        result, results = task.without(result, seen), [task.without(own, seen) for own in results]
    made = External(
        result, _internal(run), task.recalibration(result), [dataset.key(n) for n in sorted(contents)],
        [dataset.key(n) for n in sorted(patients)], [dict(own.figures) for own in results] if len(results) > 1 else [],
    )  # fmt: skip
    if out is not None:
        about = {"task": opened.entry.name, "run": str(run), "data": str(data), "split": split}
        write_evaluation(out, dataset, set(index) - seen, split or "all", result.predictions(), about | made.to_json())
    return made


def _seen(dataset: Dataset, paths: list[str | Path], index: list[int], progress: Progress) -> tuple[set[int], set[int]]:
    """The samples among these that the models have seen: by contents, and others by patient."""
    rows = list[dict[str, str]]()
    for path in paths:
        folder = find_run(path)
        if folder is None:
            word = dataset.samples_word
            progress.say(f"warning: without a run folder it is not known which {word} the model was trained on")
        else:
            rows += folder.seen_rows()
    chosen = set(index)
    contents = dataset.seen([row | {"group": ""} for row in rows]) & chosen
    return contents, (dataset.seen(rows) & chosen) - contents


def _internal(run: str | Path) -> dict[str, Any]:
    folder = Run(Path(run).expanduser()) if is_folds(run) else find_run(run)
    if folder is None or not (folder.path / "summary.json").is_file():
        return {}
    return folder.read_json("summary.json")["figures"]
