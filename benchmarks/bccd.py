"""DETR from scratch on BCCD, 205 training images of blood cells: plain against modern mode with the same budget.

Budget: the same ResNet, widths, depths, input size, batch size, number of epochs and queries. Plain mode has its
published optimizer, and modern mode's in a second arm. Fields of modern mode are switched off one by one with `--phase
ablation`, on a copy of the data without its test list: figures are then of validation images. `--phase test` reads the
test images, once per arm and seed: rows that the file holds are not run again. Runs share the machine, `--jobs` at a
time; the command ends after `--limit` seconds, and the same command continues.

    python benchmarks/bccd.py BCCD/ --phase ablation --seeds 1 --jobs 6 --limit 500
    python benchmarks/bccd.py BCCD/ --phase test --arms modern plain plain_muon --seeds 3 --jobs 5 --limit 500
    python benchmarks/bccd.py --table

BCCD/ is the unpacked folder with Annotations, ImageSets and JPEGImages.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

RESULTS = Path(__file__).parent / "results" / "bccd.jsonl"
NETWORK: dict[str, Any] = {
    "model": "detr_nano", "width": 128, "mlp": 512, "depth": 3, "decoder_depth": 3, "backbone_width": 32,
}  # fmt: skip
OPTIMIZER: dict[str, Any] = {
    "optimizer": "muon", "lr": 6e-3, "weight_decay": 0.05, "clip": 5.0, "schedule": "cosine", "warmup": 0.05,
    "ema": 0.998,
}  # fmt: skip
AUGMENTATION: dict[str, Any] = {"crop_share": 0.3, "scale_low": 0.5, "scale_high": 1.5, "colour": 0.3}
PLAIN: dict[str, Any] = {"recipe": "detection_plain"} | AUGMENTATION
MODERN: dict[str, Any] = {"recipe": "detection", "stride": 16} | AUGMENTATION
ARMS: dict[str, dict[str, Any]] = {
    "modern": MODERN,
    "plain": PLAIN,
    "plain_muon": PLAIN | OPTIMIZER,
    "no_fusion": MODERN | {"fused_stages": 1},
    "post_norm": MODERN | {"norm": "post"},
    "no_two_stage": MODERN | {"two_stage": False},
    "no_refine": MODERN | {"refine": False},
    "no_box_bias": MODERN | {"box_bias": False},
    "no_denoising": MODERN | {"denoising": 0},
    "softmax": MODERN | {"classification": "softmax", "class_weight": 3.0},
    "varifocal": MODERN | {"classification": "varifocal"},
    "published_weight": MODERN | {"class_weight": 2.0},
    "adamw": MODERN | {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-2, "clip": 0.5},
    "mosaic": MODERN | {"mosaic": 0.3},
}
"""Changes to the shared budget, by arm."""


def without_test(data: Path, folder: Path) -> Path:
    """A copy of the data whose test images are in no list, so that no run can see them."""
    kept = shutil.copytree(data, folder, ignore=shutil.ignore_patterns("test.txt", "trainval.txt"))
    return Path(kept)


def run(data: str, arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run, and its row."""
    import torch

    import regard

    budget = NETWORK | {"epochs": options.epochs, "size": tuple(options.size), "batch_size": options.batch_size}
    budget |= {"queries": options.queries} | json.loads(options.network)
    with tempfile.TemporaryDirectory() as folder:
        made = regard.train(data, out=f"{folder}/run", seed=seed, explain=0, **budget | ARMS[arm])
        summary, figures = made.read_json("summary.json"), {}
        for name in ("ap", "ap50", "ap75", "ar"):
            figures[name] = {key: summary["figures"][name][key] for key in ("value", "low", "high")}
    return {
        "arm": arm, "seed": seed, "split": summary["split"], "n": summary["figures"]["ap"]["n"], **figures,
        "per_class": {name: row["ap50"]["value"] for name, row in summary["per_class"].items()},
        "validation": summary["val_ap"], "parameters": summary["parameters"], "budget": budget,
        "seconds": summary["seconds"], "jobs": options.jobs,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }  # fmt: skip


def run_all(data: str, options: argparse.Namespace) -> None:
    """Every arm with every seed that the file does not hold yet, `jobs` at a time."""
    split = "val" if options.phase == "ablation" else "test"
    held = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["arm"], row["seed"], row["split"]) for row in held}
    queue = [(a, s) for s in range(options.seeds) for a in options.arms or ARMS if (a, s, split) not in done]
    live: list[tuple[str, int, subprocess.Popen[str], IO[str]]] = []
    begun = time.monotonic()
    given = [*sys.argv[2:], "--epochs", str(options.epochs)]
    print(f"{len(queue)} runs, {options.jobs} at a time, on {split} images", flush=True)
    while queue or live:
        while queue and len(live) < options.jobs:
            arm, seed = queue.pop(0)
            command = [sys.executable, __file__, data, *given, "--one", arm, str(seed)]
            errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - not a pipe, which would fill up
            live.append(
                (arm, seed, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True), errors)
            )
        time.sleep(0.5)
        for entry in [entry for entry in live if entry[2].poll() is not None]:
            live.remove(entry)
            arm, seed, process, errors = entry
            rows = [line for line in (process.stdout or []) if line.startswith('{"arm"')]
            if rows:
                with options.out.open("a") as file:
                    file.write(rows[0])
            errors.seek(0)
            said = describe(json.loads(rows[0])) if rows else f"FAILED\n{errors.read()[-1500:]}"
            print(f"{time.monotonic() - begun:.0f} s: {arm}, seed {seed}: {said}", flush=True)
        if time.monotonic() - begun > options.limit:
            for entry in live:
                entry[2].kill()
            print(f"stopped: {[entry[:2] for entry in live]} and {queue} are left")
            return


def describe(row: dict[str, Any]) -> str:
    return f"AP {row['ap']['value']:.3f}, AP50 {row['ap50']['value']:.3f} on {row['split']}, {row['seconds']:.0f} s"


def table(path: Path) -> str:
    """Mean and deviation over seeds, by split and arm."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = ["| split | arm | AP | AP50 | seeds | parameters | epochs | training |", "|---" * 8 + "|"]
    for split, arm in dict.fromkeys((row["split"], row["arm"]) for row in rows):
        own = [row for row in rows if (row["split"], row["arm"]) == (split, arm)]
        cells = []
        for name in ("ap", "ap50"):
            values = [row[name]["value"] for row in own]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.3f}{spread}")
        seconds = statistics.fmean(row["seconds"] for row in own)
        lines.append(
            f"| {split} | `{arm}` | {cells[0]} | {cells[1]} | {len(own)} | {own[0]['parameters']:,} | "
            f"{own[0]['budget']['epochs']} | {seconds:.0f} s, {own[0]['machine']}, {own[0]['jobs']} side by side |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--phase", choices=["ablation", "test"], default="ablation")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--size", type=int, nargs=2, default=[480, 640])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--network", default="{}", help="changes to the shared network, as JSON")
    parser.add_argument("--limit", type=float, default=500, help="seconds after which runs are stopped")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
    elif options.data is None:
        parser.error("give the folder of BCCD")
    elif options.one:
        print(json.dumps(run(options.data, options.one[0], int(options.one[1]), options)), flush=True)
    elif options.phase == "test":
        run_all(options.data, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_all(str(without_test(Path(options.data), Path(folder) / "bccd")), options)


if __name__ == "__main__":
    main()
