"""DETR from scratch on BCCD, 205 training images of blood cells: plain against modern mode with the same budget.

Budget: the same ResNet, widths, depths, input size, batch size, number of epochs and queries. Plain mode has its
published optimizer, modern mode's in a second arm, and in a third modern mode's class weight and dropout too. Fields of
modern mode are switched off one by one with `--phase ablation`, on a copy of the data without its test list: figures
are then of validation images, which also chose the epoch: optimistic, and only to compare arms. `--phase test`
reads the test images, once per arm and seed, of the arms that are named. Rows that the file holds are not run again.

Runs share the machine, `--jobs` at a time, and their folders are kept in `--runs`. After `--limit` seconds, or Ctrl-C,
they save and stop within another minute; the same command resumes them.

    python benchmarks/bccd.py BCCD/ --phase ablation --seeds 1 --jobs 8 --epochs 100 --out ablation.jsonl
    python benchmarks/bccd.py BCCD/ --phase test --arms modern plain plain_tuned --seeds 3 --jobs 9
    python benchmarks/bccd.py --table

BCCD/ is the unpacked folder with Annotations, ImageSets and JPEGImages.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "bccd.jsonl"
STOPPING = 60
"""Seconds that runs have to save what they need to be resumed."""
THREADS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
"""Variables that say how many cores a run may use: else each would take all."""
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
    "plain_tuned": PLAIN | OPTIMIZER | {"class_weight": 12.0, "dropout": 0.0},
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
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}-partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(data, partial, ignore=shutil.ignore_patterns("test.txt", "trainval.txt"))
        partial.rename(folder)
    return folder


def budget_of(options: argparse.Namespace) -> dict[str, Any]:
    """What all arms share."""
    budget = NETWORK | {"epochs": options.epochs, "size": options.size, "batch_size": options.batch_size}
    return budget | {"queries": options.queries} | json.loads(options.network)


def key_of(arm: str, seed: int, split: str, budget: dict[str, Any], changes: dict[str, Any]) -> str:
    """What makes two runs the same: the budget and the arm's settings too, which may be edited."""
    return json.dumps([arm, seed, split, budget, changes], sort_keys=True)


def cores_each(options: argparse.Namespace) -> int:
    return max(1, (os.cpu_count() or 1) // options.jobs)


def run(data: str, arm: str, seed: int, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run, begun or resumed, and its row."""
    import torch

    import regard

    budget = budget_of(options)
    settings: dict[str, Any] = budget | {"size": tuple(budget["size"])} | ARMS[arm]
    workers = min(4, cores_each(options))
    made = regard.train(data, out=folder, seed=seed, explain=0, resume=True, workers=workers, **settings)
    summary, figures = made.read_json("summary.json"), {}
    for name in ("ap", "ap50", "ap75", "ar"):
        figures[name] = {key: summary["figures"][name][key] for key in ("value", "low", "high")}
    return {
        "arm": arm, "seed": seed, "split": summary["split"], "n": summary["figures"]["ap"]["n"], **figures,
        "per_class": {name: row["ap50"]["value"] for name, row in summary["per_class"].items()},
        "validation": summary["val_ap"], "parameters": summary["parameters"], "budget": budget, "changes": ARMS[arm],
        "seconds": summary["seconds"], "jobs": options.jobs,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }  # fmt: skip


class Live(NamedTuple):
    """A run in a process of its own."""

    arm: str
    seed: int
    process: subprocess.Popen[str]
    errors: IO[str]


def start(data: str, arm: str, seed: int, split: str, options: argparse.Namespace) -> Live:
    key = key_of(arm, seed, split, budget_of(options), ARMS[arm])
    folder = options.runs / f"{split}-{arm}-{seed}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    numbers = {"epochs": [options.epochs], "size": options.size, "batch-size": [options.batch_size]}
    numbers |= {"queries": [options.queries], "jobs": [options.jobs]}
    given = [word for name, values in numbers.items() for word in (f"--{name}", *map(str, values))]
    command = [sys.executable, __file__, data, *given, "--network", options.network]
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - not a pipe, which would fill up
    process = subprocess.Popen(  # in a session of its own: Ctrl-C reaches it once, from here
        [*command, "--one", arm, str(seed), str(folder)], stdout=subprocess.PIPE, stderr=errors, text=True,
        start_new_session=True, env=dict.fromkeys(THREADS, str(cores_each(options))) | os.environ,
    )  # fmt: skip
    return Live(arm, seed, process, errors)


def stop(live: list[Live]) -> None:
    """As by Ctrl-C: each run saves its state and ends."""
    for entry in live:
        entry.process.send_signal(signal.SIGINT)
    until = time.monotonic() + STOPPING
    for entry in live:
        try:
            entry.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            entry.process.kill()


def run_all(data: str, options: argparse.Namespace) -> None:
    """Every arm with every seed that the file does not hold yet, `jobs` at a time."""
    split = "val" if options.phase == "ablation" else "test"
    held = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {key_of(row["arm"], row["seed"], row["split"], row["budget"], row["changes"]) for row in held}
    every = [(arm, seed) for seed in range(options.seeds) for arm in options.arms or ARMS]
    queue = [own for own in every if key_of(*own, split, budget_of(options), ARMS[own[0]]) not in done]
    live, begun = list[Live](), time.monotonic()
    print(f"{len(queue)} runs, {options.jobs} at a time, on {split} images", flush=True)
    try:
        while (queue or live) and time.monotonic() - begun < options.limit:
            while queue and len(live) < options.jobs:
                live.append(start(data, *queue.pop(0), split, options))
            time.sleep(0.5)
            for entry in [entry for entry in live if entry.process.poll() is not None]:
                live.remove(entry)
                print(f"{time.monotonic() - begun:.0f} s: {entry.arm}, seed {entry.seed}: {keep(entry, options.out)}")
                sys.stdout.flush()
    finally:
        stop(live)
    for entry in live:  # one may have ended by itself
        print(f"stopped: {entry.arm}, seed {entry.seed}: {keep(entry, options.out)}")
    if live or queue:
        print(f"not begun: {queue}; the same command continues")


def keep(entry: Live, out: Path) -> str:
    """Write the row of a run that has ended; what it came to, in words."""
    rows = [line for line in (entry.process.stdout or []) if line.startswith('{"arm"')]
    if rows:
        with out.open("a") as file:
            file.write(rows[0])
        return describe(json.loads(rows[0]))
    if entry.process.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
        return "to be resumed"
    entry.errors.seek(0)
    return f"no figures (exit code {entry.process.returncode})\n{entry.errors.read()[-1500:]}"


def describe(row: dict[str, Any]) -> str:
    return f"AP {row['ap']['value']:.3f}, AP50 {row['ap50']['value']:.3f} on {row['split']}, {row['seconds']:.0f} s"


def table(path: Path) -> str:
    """Mean and deviation over seeds, by split and arm; rows of several budgets have no common table."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    budgets = {json.dumps(row["budget"], sort_keys=True) for row in rows}
    changes = {(row["arm"], json.dumps(row["changes"], sort_keys=True)) for row in rows}
    if len(budgets) > 1 or len(changes) > len({row["arm"] for row in rows}):
        raise SystemExit(f"{path} holds rows of {len(budgets)} budgets, or arms whose settings were changed: keep each "
                         "in a file of its own, by --out")  # fmt: skip
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
    if any(row["split"] == "val" for row in rows):
        lines += ["", "Rows of val are of the images that chose the epoch: optimistic, and only to compare arms."]
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
    parser.add_argument("--limit", type=float, default=480, help="seconds after which runs save and stop")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/bccd"), help="folder of the runs, to resume them")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
    elif options.data is None:
        parser.error("give the folder of BCCD")
    elif options.one:
        arm, seed, folder = options.one
        try:
            print(json.dumps(run(options.data, arm, int(seed), folder, options)), flush=True)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
    elif options.phase == "test" and not options.arms:
        parser.error("name the arms that read the test images, by --arms")
    else:
        options.runs.mkdir(parents=True, exist_ok=True)
        data = Path(options.data).resolve()
        run_all(str(data if options.phase == "test" else without_test(data, options.runs.resolve() / "data")), options)


if __name__ == "__main__":
    main()
