"""Grade, methylation cluster and survival of 110 patients with lower-grade glioma, from MRI (the deck's Table 4).

    python benchmarks/lgg_study.py DATA OUT --minutes 9          # DATA: the folder with subjects.csv; on a GPU
    python benchmarks/lgg_study.py DATA OUT --tiny               # one epoch on small volumes, on a CPU

Five folds, each modality alone and all together, four networks under one recipe. Tumour volume and age are baselines on
the same folds. Maps of every tested subject are scored against the tumour's mask. Call it again until it says that all
cross-validations are there; the tables are printed each time from what is there. OUT/results.jsonl and baselines.jsonl
hold the figures. The orientation in these files is nominal: left and right in the maps are those of the header.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from volume_studies import (
    Cell,
    clinical_baselines,
    print_baselines,
    print_table,
    results,
    run_cells,
    write_table,
)

from regard.data.volumes import read_scan

SCANS = ("pre,flair,post", "flair", "post", "pre")
MODELS = ("vit3d_nano", "swin3d_nano", "monai_resnet10", "monai_densenet121")
RECIPE = {
    "epochs": 60, "batch_size": 16, "lr": 5e-4, "optimizer": "adamw", "weight_decay": 0.05, "size": (64, 64, 32),
    "warmup": 0.1, "compile": False,
}  # fmt: skip
"""The same for every network; nothing of it was chosen on these data."""
QUESTIONS = {
    "grade": ("grade", {"G2": "G2", "G3": "G3"}, "G3"),
    "methylation": ("methylation_cluster", {"5": "cluster 5", **dict.fromkeys("1234", "other")}, "cluster 5"),
}
"""Column, its values as classes, and the class that AUCs are of."""


def tables(data: Path, out: Path, most: int | None) -> dict[str, Path]:
    """A table per question, with paths that hold from anywhere; subjects without an answer are left out."""
    with (data / "subjects.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for name in ("pre", "flair", "post", "mask"):
            row[name] = str((data / row[name]).resolve())
    kept = ("patient", "pre", "flair", "post", "mask")
    made = {}
    for question, (column, classes, _) in QUESTIONS.items():
        some = [{**{k: row[k] for k in kept}, "label": classes[row[column]]} for row in rows if row[column] in classes]
        made[question] = write_table(out / "tables" / f"{question}.csv", some[:most])
    some = [{**{k: row[k] for k in kept}, "days": row["time_days"], "died": row["event"]} for row in rows]
    made["survival"] = write_table(out / "tables" / "survival.csv", some[:most])
    return made


def clinical(data: Path) -> tuple[dict[str, dict[str, list[float]]], dict[str, tuple[float, bool]]]:
    """Logarithm of the tumour's volume and age by patient; and time and event."""
    volume, age, times = {}, {}, {}
    with (data / "subjects.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    middle = float(np.median([float(row["age"]) for row in rows if row["age"]]))
    for row in rows:
        voxels = (read_scan(data / row["mask"], constant=True).array > 0).sum()
        volume[row["patient"]] = [float(np.log1p(voxels))]
        age[row["patient"]] = [float(row["age"] or middle)]
        times[row["patient"]] = (float(row["time_days"]), row["event"] == "1")
    both = {name: [*volume[name], *age[name]] for name in volume}
    return {"tumour volume": volume, "age": age, "volume and age": both}, times


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--questions", default="grade,methylation,survival")
    parser.add_argument("--scans", default=";".join(SCANS), help="sets of scans, parted by semicolons")
    parser.add_argument("--epochs", type=int, default=RECIPE["epochs"])
    parser.add_argument("--explained", type=int, default=22, help="subjects per fold whose maps are scored")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    recipe = RECIPE | {"epochs": asked.epochs}
    if asked.tiny:
        recipe |= {"epochs": 1, "size": (32, 32, 32), "device": "cpu"}
    there = tables(asked.data, asked.out, 40 if asked.tiny else None)
    cells = []
    for question in asked.questions.split(","):
        outcome = {"time": "days", "event": "died"} if question == "survival" else {"label_column": "label"}
        plain = {} if question == "survival" else {"label_smoothing": 0.0}
        for scans in asked.scans.split(";"):
            for model in asked.models.split(","):
                cells.append(Cell(question, there[question], model, scans, {**recipe, **plain, **outcome}))
    run_cells(cells, asked.out, asked.minutes, asked.folds, asked.jobs, asked.explained)
    lines = results(cells, asked.out)
    features, times = clinical(asked.data)
    (asked.out / "baselines.jsonl").unlink(missing_ok=True)
    for question in asked.questions.split(","):
        survival = question == "survival"
        print_table(lines, question, "c_index" if survival else "auroc")
        positive = "" if survival else QUESTIONS[question][2]
        print_baselines(clinical_baselines(cells, asked.out, question, features, positive, times if survival else None))


if __name__ == "__main__":
    main()
