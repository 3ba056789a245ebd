"""The demo on brains: data with known truth, five folds of a classifier and of survival, maps against the lesions."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard import tasks
from regard.console import Progress, columns, interval
from regard.data.volumes.brain import LABELS, write_brains
from regard.explain.mask_scores import score_table
from regard.metrics import Concordance
from regard.run.fold_masks import explain_folds
from regard.run.folds import cross_validate
from regard.run.settle import check_settings, free_folder
from regard.weights import Run

SUBJECTS = 160
FOLDS = 5
SETTINGS: dict[str, Any] = {"model": "vit3d_nano", "spacing": 5.0, "size": (32, 40, 32), "explain": 2}
"""Voxels of 5 mm: 80 tokens, which two cores train in minutes."""
STATUS: dict[str, Any] = {"label_column": "label", "label_smoothing": 0.0, "epochs": 30}
PROGNOSIS: dict[str, Any] = {"time": "days", "event": "died", "epochs": 60, "batch_size": 16}
EXPLAINED = 20
"""Tested subjects per fold whose maps are scored against their lesions."""


def demo_brain(
    *, out: str | Path | None = None, seed: int = 0, epochs: int | None = None, subjects: int = SUBJECTS,
    folds: int = FOLDS, jobs: int = 1, quiet: bool = False, command: str | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """A folder with the data and two cross-validations, status and prognosis; the first is returned. It resumes."""
    progress, folder = Progress(quiet), Path(out or free_folder("runs/brain")).expanduser()
    table = folder / "data" / "subjects.csv"
    length = {} if epochs is None else {"epochs": epochs}
    plans = {
        name: SETTINGS | own | length | settings | {"seed": seed, "out": str(folder / name)}
        for name, own in (("status", STATUS), ("prognosis", PROGNOSIS))
    }
    for asked in plans.values():
        check_settings(tasks.for_settings(table, asked), asked)
    if not table.is_file():
        with progress.bar("making brains", subjects) as tick:
            write_brains(folder / "data", subjects, seed=seed, tick=tick)
    made = {}
    for name, asked in plans.items():
        progress.say(f"{name}: {folds} folds")
        made[name] = cross_validate(table, asked, folds, jobs=jobs, quiet=quiet, command=command)
    scores = explain_folds(made["status"].path, table, most=EXPLAINED, quiet=quiet)
    print(_figures({name: run.read_json("summary.json") for name, run in made.items()}, table))
    print("\nmaps against the lesions", columns(*score_table(scores)), sep="\n")
    return made["status"]


def _figures(summaries: Mapping[str, Any], table: Path) -> str:
    """AUC and C-index, beside the C-index of the true risk: what no model can beat."""
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    time, event, risk = (np.array([float(row[name]) for row in rows]) for name in ("days", "died", "true_risk"))
    best = Concordance(time, event > 0).of(risk)
    area, c_index = summaries["status"]["figures"]["auroc"], summaries["prognosis"]["figures"]["c_index"]
    return columns(("figure", "value", "95 % interval", "n", "of the truth"), [
        (f"AUC, {LABELS[0]}", f"{area['value']:.3f}", interval(area, ".3f"), area["n"], "1.000"),
        ("C-index", f"{c_index['value']:.3f}", interval(c_index, ".3f"), c_index["n"], f"{best:.3f}"),
    ])  # fmt: skip
