"""Do maps fall into the structure that decides? The hippocampus, with a label that its mask decides.

    python benchmarks/hippocampus_study.py DATA OUT --minutes 9     # DATA holds images/ and labels/; on a GPU
    python benchmarks/hippocampus_study.py DATA OUT --tiny          # one epoch on small volumes, on a CPU

The label says whether the anterior part's share of the structure is above the median; the network sees the scan alone.
Five folds; every tested subject is explained by the network that has not seen it, and the map scored against the whole
structure. Share and pointing game stand beside chance (the structure's share of the foreground) and beside the same
maps on other subjects' masks, permuted. Baselines on the same folds: logistic regression on the scan's voxels, and on
nothing but the number of voxels along each axis. Call it again until it says that all is there.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy.ndimage import zoom
from volume_studies import (
    Cell,
    clinical_baselines,
    print_baselines,
    print_table,
    print_warnings,
    results,
    run_cells,
    write_table,
)

from regard.console import columns
from regard.data.volumes import read_scan
from regard.errors import DataError

MODELS = ("vit3d_nano", "swin3d_nano")
RECIPE = {
    "epochs": 60, "batch_size": 16, "lr": 5e-4, "optimizer": "adamw", "weight_decay": 0.05, "size": (40, 56, 40),
    "warmup": 0.1, "label_smoothing": 0.0, "compile": False,
}  # fmt: skip


VOXELS = "voxels"


def table(data: Path, out: Path, most: int | None) -> Path:
    """Subjects with an image and a mask; what is left out is said."""
    images, masks = (
        {path.name: path for path in sorted((data / part).glob("*.nii*"))} for part in ("images", "labels")
    )
    shares, rows = {}, []
    for name in sorted(images.keys() | masks.keys()):
        if name not in images or name not in masks:
            print(f"left out: {name} has no {'image' if name in masks else 'mask'}")
            continue
        try:
            held = read_scan(masks[name]).array
        except DataError as error:
            print(f"left out: {name}: {error.what}")
            continue
        shares[name] = float((held == 1).sum() / max((held > 0).sum(), 1))
    middle = float(np.median(list(shares.values())))
    for name, share in shares.items():
        rows.append({
            "subject": name.split(".")[0], "t1": images[name].resolve(), "mask": masks[name].resolve(),
            "label": "large" if share > middle else "small", "anterior_share": f"{share:.4f}",
        })  # fmt: skip
    return write_table(out / "tables" / "anterior.csv", rows[:most])


def simple_features(where: Path) -> dict[str, dict[str, list[float]]]:
    """By baseline and subject: the scan as 12 × 12 × 12 voxels of mean 0 and deviation 1, and its shape."""
    voxels, shapes = {}, {}
    with where.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            held = read_scan(Path(row["t1"])).array.astype(np.float32)
            small = np.asarray(zoom(held, [12 / n for n in held.shape], order=1))
            voxels[row["subject"]] = ((small - small.mean()) / small.std().clip(1e-6)).ravel().tolist()
            shapes[row["subject"]] = [float(n) for n in held.shape]
    return {VOXELS: voxels, "shape of the volume": shapes}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--epochs", type=int, default=RECIPE["epochs"])
    parser.add_argument("--explained", type=int, default=60, help="subjects per fold whose maps are scored")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    recipe = RECIPE | {"epochs": asked.epochs}
    if asked.tiny:
        recipe |= {"epochs": 1, "size": (16, 16, 16), "device": "cpu"}
    where = table(asked.data, asked.out, 40 if asked.tiny else None)
    cells = [
        Cell("anterior", where, model, "t1", {**recipe, "label_column": "label"}) for model in asked.models.split(",")
    ]
    run_cells(cells, asked.out, asked.minutes, asked.folds, asked.jobs, asked.explained)
    lines = results(cells, asked.out)
    print_table(lines, "anterior", "auroc")
    (asked.out / "baselines.jsonl").unlink(missing_ok=True)
    features = simple_features(where)
    print_baselines(clinical_baselines(cells, asked.out, "anterior", features, "small", strength={VOXELS: 1e-3}))
    print_warnings(lines)
    rows = []
    for line in lines:
        for score in line["masks"]:
            share, hits, others = score["share"], score["hits"], score["others_share"]
            rows.append((
                line["model"], score["method"], share["n"], f"{share['value']:.1%}", f"{score['chance']:.1%}",
                f"{hits['value']:.0%}", f"{score['hits_p']:.2g}", "–" if others is None else f"{others:.1%}",
                "–" if others is None else f"{score['others_p']:.2g}",
            ))  # fmt: skip
    print("\nmaps against the structure")
    header = ("model", "method", "subjects", "map inside", "chance", "peak inside", "p", "in others' masks", "p")
    print(columns(header, rows))


if __name__ == "__main__":
    main()
