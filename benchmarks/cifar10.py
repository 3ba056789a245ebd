"""CIFAR-10 from scratch on one GPU, by the recipe `cifar`: test accuracy, wall clock, and the curve between them.

The clock starts with this process and stops when the test images are evaluated: decoding, compiling and saving are
in it. Settings were chosen on validation images cut from the training set; so are the weights; the test set is read
once, at the end. Afterwards the same weights are asked once more, each image together with its mirror image.

    python benchmarks/cifar10.py DATA --stem conv --out results      # DATA: the folder with train/ and test/
    python benchmarks/cifar10.py DATA --model swin_mini --change '{"seed": 1}' --out results
    python benchmarks/cifar10.py DATA --tries tries.json --jobs 4     # settings on validation images: no test/ in DATA
    python benchmarks/cifar10.py --draw results                       # the curves of the runs kept there

tries.json is a list of changes to the recipe, `[{"model": "swin_mini", "epochs": 30}, …]`; each prints a line.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START = time.time()


def run(data: str, model: dict[str, Any], changes: dict[str, Any], out: Path, keep: str | None) -> None:
    import torch

    import regard

    with tempfile.TemporaryDirectory() as folder:
        settings = {"recipe": "cifar", "explain": 0, "out": keep or f"{folder}/run"} | model
        begun = time.time() - START
        result = regard.train(data, **settings, **changes)
        wall = time.time() - START
        summary, rows = result.read_json("summary.json"), result.read_rows("metrics.csv")
        mirrored = regard.evaluate(result.path, data, mirror=True).figures["accuracy"]
        both = time.time() - START
    accuracy = summary["figures"]["accuracy"]
    before = wall - begun - float(rows[-1]["seconds"])
    facts = {
        "stem": ", ".join(
            [*model.values(), *(f"{name} {value}" for name, value in changes.items() if name != "epochs")]
        ),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "parameters": summary["parameters"],
        "epochs": len(rows),
        "test accuracy": accuracy,
        "validation accuracy": summary["val_accuracy"],
        "wall clock, s": round(wall, 1),
        "test accuracy, judged with the mirror image": mirrored._asdict(),
        "wall clock with that, the images read again, s": round(both, 1),
        "of that before and after training, s": round(begun + before, 1),
        "first epoch with compiling, s": float(rows[0]["seconds"]),
        "later epochs, s each": round(
            (float(rows[-1]["seconds"]) - float(rows[0]["seconds"])) / max(1, len(rows) - 1), 3
        ),
    }
    out.mkdir(parents=True, exist_ok=True)
    name = "-".join(["cifar10", *model.values(), *(f"seed{changes[key]}" for key in changes if key == "seed")])
    (out / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("epoch", "seconds", "train_loss", "val_accuracy"))
        writer.writerows((r["epoch"], r["seconds"], r["train_loss"], r["val_accuracy"]) for r in rows)
    print(json.dumps(facts, indent=2))


def try_one(data: str, changes: dict[str, Any]) -> None:
    """One run's figures on 10,000 validation images; the recipe keeps its last weights, so they choose nothing."""
    import regard

    images = sum(1 for path in Path(data, "train").rglob("*") if path.is_file())
    settings = {"recipe": "cifar", "explain": 0, "holdout": 10_000 / images, "pixel_baseline": False} | changes
    with tempfile.TemporaryDirectory() as folder:
        made = regard.train(data, out=f"{folder}/run", **settings)
        summary, rows = made.read_json("summary.json"), made.read_rows("metrics.csv")
    figures, seconds = summary["figures"], [float(row["seconds"]) for row in rows]
    facts = {"changes": changes, "images": images - 10_000, "split": summary["split"]}
    facts |= {name: round(figures[name]["value"], 4) for name in ("accuracy", "log_loss")}
    facts |= {"train_loss": float(rows[-1]["train_loss"]), "seconds": seconds[-1]}
    print(json.dumps(facts), flush=True)


def try_all(data: str, tries: list[dict[str, Any]], jobs: int) -> None:
    """Every try, `jobs` at a time."""
    if Path(data, "test").exists():
        raise SystemExit(f"{data} has a folder test: settings are chosen without it")

    def one(changes: dict[str, Any]) -> int:
        return subprocess.run([sys.executable, __file__, data, "--try", json.dumps(changes)]).returncode

    with ThreadPoolExecutor(jobs) as pool:
        failed = [changes for changes, code in zip(tries, pool.map(one, tries), strict=True) if code]
    if failed:
        raise SystemExit(f"failed: {json.dumps(failed)}")


def draw(folder: Path) -> None:
    """Validation accuracy against seconds since training began, one line a run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.4), layout="constrained")
    ax = figure.subplots()
    for number, path in enumerate(sorted(folder.glob("cifar10-*.csv"))):
        rows = list(csv.DictReader(path.open()))
        facts = json.loads(path.with_suffix(".json").read_text())
        value = facts["test accuracy"]["value"]
        what = f"{facts['stem']}, {facts['epochs']} epochs"
        label = f"{what}: test {100 * value:.2f} %, {facts['wall clock, s']:.0f} s in all"
        seconds, accuracy = ([float(r[name]) for r in rows] for name in ("seconds", "val_accuracy"))
        ax.plot(seconds, [100 * a for a in accuracy], "--" if number > 9 else "-", label=label)
    ax.axhline(95, color="#888888", linewidth=0.8, linestyle=":")
    ax.set(xlabel="seconds since training began", ylabel="validation accuracy (%)", ylim=(75, 97))
    ax.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize="small")
    figure.savefig(folder / "cifar10.svg", metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--model", help="another network than the recipe's, such as swin_mini")
    parser.add_argument("--stem", choices=("patch", "conv"), default="conv")
    parser.add_argument("--pool", choices=("class", "mean"), default="mean")
    parser.add_argument("--change", type=json.loads, default={}, help="""settings, such as '{"epochs": 90}'""")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--keep", help="run folder to keep; else it is thrown away")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--tries", type=Path, help="settings to compare on validation images, as JSON")
    parser.add_argument("--try", dest="one", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=4, help="tries side by side")
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
    elif options.one is not None:
        try_one(options.data, options.one)
    elif options.tries:
        try_all(options.data, json.loads(options.tries.read_text()), options.jobs)
    else:
        model = {"model": options.model} if options.model else {"stem": options.stem, "pool": options.pool}
        run(options.data, model, options.change, options.out, options.keep)
