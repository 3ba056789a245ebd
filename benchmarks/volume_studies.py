"""What the studies on scans share: cross-validations one after the other within a time, their table, and baselines.

Every cross-validation is a folder of `regard train --folds`; one that has finished is kept, and so is every fold of one
that has not: the same call goes on. Results are lines of JSON beside them, made anew from the folders.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard.console import columns
from regard.metrics import Concordance
from regard.metrics.delong import auc_delong, compare_areas, holm
from regard.run.fold_masks import explain_folds
from regard.tasks.survival.clinical import fit_cox


@dataclass(frozen=True)
class Cell:
    """One cross-validation of a study."""

    question: str
    table: Path
    model: str
    scans: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.question}-{self.model}-{self.scans.replace(',', '+')}"


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def run_cells(cells: list[Cell], out: Path, minutes: float, folds: int, jobs: int, explained: int) -> bool:
    """Train and explain what is not there yet, as far as the time allows; whether all is there."""
    began, longest, left = time.monotonic(), 0.0, list[str]()
    for number, cell in enumerate(cells, start=1):
        folder = out / cell.name
        if (folder / "done.json").is_file():
            continue
        spent = time.monotonic() - began
        if spent + longest > 60 * minutes:
            left.append(cell.name)
            continue
        print(f"[{spent:.0f} s] {number} of {len(cells)}: {cell.name}", flush=True)
        settings = {"model": cell.model, "scans": cell.scans, "explain": 1, **cell.settings}
        regard.train(cell.table, folds=folds, jobs=jobs, out=folder, quiet=True, **settings)
        scores = explain_folds(folder, cell.table, most=explained, quiet=True) if explained else []
        (folder / "done.json").write_text(json.dumps([score.to_json() for score in scores]))
        longest = max(longest, time.monotonic() - began - spent)
    print(f"{len(cells) - len(left)} of {len(cells)} cross-validations are there", flush=True)
    if left:
        print(f"the same call goes on with {left[0]}", flush=True)
    return not left


def results(cells: list[Cell], out: Path) -> list[dict[str, Any]]:
    """A line of JSON for each finished cross-validation, also written to results.jsonl."""
    lines = []
    for cell in cells:
        folder = out / cell.name
        if not (folder / "done.json").is_file():
            continue
        summary = json.loads((folder / "summary.json").read_text())
        kept = (
            "figures",
            "per_fold",
            "within_folds",
            "permutation",
            "confounders",
            "warnings",
            "parameters",
            "seconds",
        )
        lines.append({
            "question": cell.question, "model": cell.model, "scans": cell.scans,
            **{name: summary[name] for name in kept if name in summary},
            "masks": json.loads((folder / "done.json").read_text()),
        })  # fmt: skip
    (out / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def print_warnings(lines: list[dict[str, Any]]) -> None:
    """What each cross-validation says of itself, and what beside the scans predicts the label."""
    for line in lines:
        about = f"{line['question']}, {line['model']} {line['scans']}"
        for other in line.get("confounders", []):
            print(f"{about}: {other['name']} alone has AUC {other['auroc']:.3f}, p {other['p']:.3f}")
        for warning in line.get("warnings", []):
            print(f"{about}: {warning}")


def print_table(lines: list[dict[str, Any]], question: str, figure: str) -> None:
    """The deck's Table 4: pooled figure with its interval, mean and variance over folds, permutation test, maps."""
    rows = []
    for line in (line for line in lines if line["question"] == question):
        value, spread = line["figures"][figure], line["per_fold"][figure]
        p = line.get("permutation", {}).get("p")
        mask = line["masks"][0] if line["masks"] else None
        rows.append((
            line["model"], line["scans"], f"{value['value']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}",
            f"{spread['mean']:.3f} ± {spread['std']:.3f}", f"{spread['variance']:.4f}",
            "–" if p is None else f"{p:.3f}",
            "–" if mask is None else f"{mask['share']['value']:.1%} ({mask['chance']:.1%})",
            "–" if mask is None else f"{mask['hits']['value']:.0%}",
        ))  # fmt: skip
    print(f"\n{question}: {figure}")
    header = (
        "model",
        "scans",
        "pooled",
        "95 % interval",
        "folds",
        "variance",
        "p",
        "map inside (chance)",
        "peak inside",
    )
    print(columns(header, rows))


def out_of_fold(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def clinical_baselines(
    cells: list[Cell], out: Path, question: str, features: Mapping[str, Mapping[str, list[float]]], positive: str = "",
    times: Mapping[str, tuple[float, bool]] | None = None, strength: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Logistic regression, or Cox's model where `times` are given, of a few numbers on the folds of the networks.

    `features` are by name of the baseline and subject; `strength` by name, where scikit-learn's C is not 1. They are
    standardised by, and fitted to, the other folds only. Networks are compared with each baseline: by DeLong's paired
    test, p values by Holm's.
    """
    done = [cell for cell in cells if cell.question == question and (out / cell.name / "done.json").is_file()]
    if not done:
        return []
    rows = out_of_fold(out / done[0].name)
    fold, names = np.array([int(row["fold"]) for row in rows]), [row["name"] for row in rows]
    lines = []
    for baseline, values in features.items():
        x = np.array([values[name] for name in names], dtype=np.float64)
        score = np.zeros(len(names))
        for number in np.unique(fold):
            train, test = fold != number, fold == number
            mean, std = x[train].mean(0), x[train].std(0).clip(1e-9)
            scaled = (x - mean) / std
            if times is None:
                from sklearn.linear_model import LogisticRegression

                labels = np.array([row["label"] == positive for row in rows])
                model = LogisticRegression(C=(strength or {}).get(baseline, 1.0), max_iter=1000)
                score[test] = model.fit(scaled[train], labels[train]).decision_function(scaled[test])
            else:
                when, died = (np.array([times[name][n] for name in names]) for n in (0, 1))
                score[test] = scaled[test] @ fit_cox(scaled[train], when[train], died[train])
        line: dict[str, Any] = {"question": question, "baseline": baseline}
        if times is None:
            labels = np.array([row["label"] == positive for row in rows])
            line["auroc"] = auc_delong(score, labels)._asdict()
            line["networks"] = _against(score, labels, done, out, positive, names)
        else:
            when, died = (np.array([times[name][n] for name in names]) for n in (0, 1))
            each = [Concordance(when[fold == n], died[fold == n]).of(score[fold == n]) for n in np.unique(fold)]
            line["c_index"] = {"mean": float(np.mean(each)), "std": float(np.std(each, ddof=1)), "folds": each}
        lines.append(line)
    with (out / "baselines.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return lines


def _against(
    score: np.ndarray, labels: np.ndarray, done: list[Cell], out: Path, positive: str, names: list[str]
) -> dict[str, Any]:
    """How far each network is ahead of a baseline."""
    made, p_values = {}, []
    for cell in done:
        by_name = {row["name"]: float(row[f"p_{positive}"]) for row in out_of_fold(out / cell.name)}
        compared = compare_areas(score, np.array([by_name[name] for name in names]), labels)
        made[f"{cell.model} {cell.scans}"] = compared.difference._asdict() | {"p": compared.tests["DeLong"]}
        p_values.append(compared.tests["DeLong"])
    for own, p in zip(made.values(), holm(p_values), strict=True):
        own["p_holm"] = p
    return made


def print_baselines(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        about = f"{line['question']}, {line['baseline']}"
        if "auroc" in line:
            area = line["auroc"]
            print(f"{about}: AUC {area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})")
            for name, own in line["networks"].items():
                interval = f"{own['low']:+.3f} to {own['high']:+.3f}"
                print(f"    {name} ahead by {own['value']:+.3f} ({interval}), p {own['p_holm']:.3f}")
        else:
            own = line["c_index"]
            print(f"{about}: C-index over folds {own['mean']:.3f} ± {own['std']:.3f}")
