"""The demo's score, honestly: settings chosen without the test digits, then five seeds tested once each.

python benchmarks/digits.py --choose     compare settings on splits of the development digits alone
python benchmarks/digits.py --seeds 5    train the recipe as it stands and read the test split
"""

import argparse
import os
import platform
import tempfile
from pathlib import Path

import numpy as np
import torch

import regard
from regard.data import open_source
from regard.nn import GridPositions

RESET = GridPositions.reset_parameters

SMALL_POSITIONS = "positions start at 0.02"
CANDIDATES = {
    "recipe": {},
    SMALL_POSITIONS: {},
    "80 epochs": {"epochs": 80},
    "no mixup": {"mixup": 0.0},
    "rotation 10°, zoom 10 %": {"rotate": 10.0, "zoom": 0.1},
    "sinusoidal positions": {"positions": "sinusoidal"},
    "mean pooling": {"pool": "mean"},
}


def _small(positions: GridPositions) -> None:
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter, std=0.02)


def choose(splits: int) -> None:
    """Accuracy on digits held out from the development part, over several splits of it."""
    source = open_source("digits")
    kept = [i for i, sample in enumerate(source.samples) if sample.split == "train"]
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "development.npz"
        np.savez(
            archive,
            images=np.stack([source.read(i)[0][0].numpy() for i in kept]),
            labels=np.array([source.samples[i].label for i in kept]),
        )
        print(
            "| settings | "
            + " | ".join(f"split {n}" for n in range(splits))
            + " | mean |\n"
            + "|---" * (splits + 2)
            + "|"
        )
        for name, settings in CANDIDATES.items():
            scores = []
            for n in range(splits):
                setattr(GridPositions, "reset_parameters", _small if name == SMALL_POSITIONS else RESET)  # noqa: B010
                run = regard.train(
                    archive, recipe="digits", split_seed=n, seed=n, explain=0, quiet=True,
                    out=str(Path(folder) / f"{name}-{n}"), **settings,
                )  # fmt: skip
                scores.append(run.read_json("summary.json")["figures"]["accuracy"]["value"])
            print(f"| {name} | " + " | ".join(f"{s:.2%}" for s in scores) + f" | {np.mean(scores):.2%} |", flush=True)


def final(seeds: int) -> None:
    print("| seed | test accuracy | 95 % interval | training seconds |\n|---|---|---|---|")
    scores, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            summary = regard.demo(seed=seed, quiet=True, out=f"{folder}/{seed}").read_json("summary.json")
            figure = summary["figures"]["accuracy"]
            scores.append(figure["value"])
            count = figure["n"]
            print(
                f"| {seed} | {figure['value']:.2%} | {figure['low']:.2%} to {figure['high']:.2%} "
                f"| {summary['seconds']:.0f} |",
                flush=True,
            )
    print(f"\nworst {min(scores):.2%}, mean {np.mean(scores):.2%} over {seeds} seeds, {count} test digits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, no accelerator\n")
    if arguments.choose:
        choose(3)
    else:
        final(arguments.seeds)
