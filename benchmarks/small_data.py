"""Defaults on small data: test accuracy of several networks and recipes from scratch, over seeds.

Settings were chosen on validation images; each run reads the test images once, at its end. Rows are appended to a
file of JSON lines, so that a stopped benchmark is continued by the same command; `--table` writes them as Markdown.

    python benchmarks/small_data.py DATA --name pets --arms default default:resnet18 plain --seeds 3 --jobs 5
    python benchmarks/small_data.py --table

An arm is RECIPE or RECIPE:MODEL, with settings after it: `default:resnet_nano,size=96`. With `--jobs` above 1 runs
share the machine: their seconds say little, and are marked so.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "small_data.jsonl"


def parse(arm: str) -> dict[str, Any]:
    head, *changes = arm.split(",")
    recipe, _, model = head.partition(":")
    settings: dict[str, Any] = {"recipe": recipe} | ({"model": model} if model else {})
    for change in changes:
        name, value = change.split("=")
        settings[name] = json.loads(value)
    return settings


def run(name: str, data: str, arm: str, seed: int, jobs: int) -> dict[str, Any]:
    """One run, and its row."""
    import torch

    import regard
    from regard import registry
    from regard.geometry import per_axis

    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        settings: dict[str, Any] = {"pixel_baseline": find_spec("sklearn") is not None} | parse(arm)
        made = regard.train(data, out=f"{folder}/run", seed=seed, explain=0, **settings)
        summary, config = made.read_json("summary.json"), made.read_json("config.json")
        wall = time.time() - begun
    used = {key: held["value"] for group in config["settings"].values() for key, held in group.items()}
    gpu, axes = torch.cuda.is_available() and used["device"] != "cpu", len(registry.find(used["model"]).size)
    return {
        "data": name, "arm": arm, "seed": seed, "split": summary["split"], **summary["figures"]["accuracy"],
        "balanced": summary["figures"]["balanced_accuracy"]["value"], "validation": summary["val_accuracy"],
        "pixels": {key: f["value"] for key, own in summary.get("pixel_baselines", {}).items() for f in own.values()},
        "model": used["model"], "size": per_axis(used["size"], axes, "size"), "parameters": summary["parameters"],
        "epochs": used["epochs"], "seconds": summary["seconds"], "waiting": summary["waiting"], "wall": round(wall, 1),
        "jobs": jobs,
        "machine": torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads",
    }  # fmt: skip


def run_all(name: str, data: str, arms: list[str], seeds: int, jobs: int, out: Path, limit: float) -> None:
    """Every arm with every seed that the file does not hold yet, `jobs` at a time."""
    held = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["data"], row["arm"], row["seed"]) for row in held}
    queue = [(arm, seed) for seed in range(seeds) for arm in arms if (name, arm, seed) not in done]
    live: list[tuple[str, int, subprocess.Popen[str]]] = []
    begun = time.time()
    while queue or live:
        while queue and len(live) < jobs:
            arm, seed = queue.pop(0)
            command = [sys.executable, __file__, data, "--name", name, "--one", arm, str(seed), "--jobs", str(jobs)]
            live.append((arm, seed, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=sys.stderr)))
        time.sleep(0.5)
        for arm, seed, process in [entry for entry in live if entry[2].poll() is not None]:
            live.remove((arm, seed, process))
            rows = [line for line in (process.stdout or []) if line.startswith('{"data"')]
            if rows:
                with out.open("a") as file:
                    file.write(rows[0])
            print(f"{time.time() - begun:.0f} s:", rows[0].strip() if rows else f"FAILED {arm} {seed}", flush=True)
        if time.time() - begun > limit:
            for *_, process in live:
                process.kill()
            print(f"stopped: {[entry[:2] for entry in live]} and {queue} are left")
            return


def table(path: Path) -> str:
    """Mean and deviation over seeds, by data and arm."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    header = ("data", "recipe:model", "network", "parameters", "epochs", "test", "seeds", "validation", "training")
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for data, arm, machine in dict.fromkeys((row["data"], row["arm"], row["machine"]) for row in rows):
        own = [row for row in rows if (row["data"], row["arm"], row["machine"]) == (data, arm, machine)]
        values = [100 * row["value"] for row in own]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        shared = f", {own[0]['jobs']} runs side by side" if own[0]["jobs"] > 1 else ""
        lines.append(
            f"| {data} | `{arm}` | {own[0]['model']} at {'×'.join(map(str, own[0]['size']))} | "
            f"{own[0]['parameters']:,} | {own[0]['epochs']} | "
            f"{statistics.fmean(values):.1f}{spread} % of {own[0]['n']} | {len(own)} | "
            f"{100 * statistics.fmean(row['validation'] for row in own):.1f} % | "
            f"{statistics.fmean(row['seconds'] for row in own):.0f} s, {machine}{shared} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--name", default="data")
    parser.add_argument("--arms", nargs="+", default=["default", "default:resnet18", "plain", "plain:resnet18"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which runs are stopped")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
    elif options.one:
        print(
            json.dumps(run(options.name, options.data, options.one[0], int(options.one[1]), options.jobs)), flush=True
        )
    else:
        run_all(options.name, options.data, options.arms, options.seeds, options.jobs, options.out, options.limit)
