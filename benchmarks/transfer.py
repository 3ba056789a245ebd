"""What transfer brings: a network trained on the digits 0 to 4, then trained on 5 to 9, against random weights.

python benchmarks/transfer.py --seeds 3
"""

import argparse
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import regard

FEW = 20  # training images a class
ADAMW = {"recipe": "digits", "mixup": 0.0, "lr": 1e-3}
WAYS: dict[str, dict[str, Any]] = {
    "random weights, recipe digits": {"weights": None, "recipe": "digits"},
    "--from, recipe digits": {"recipe": "digits"},
    "--from, --recipe paper_finetune": {"recipe": "paper_finetune"},
    "--from, --recipe paper_finetune, --lr 0.01": {"recipe": "paper_finetune", "lr": 0.01},
    "--from, adamw 1e-3, --layer-decay 0.75": ADAMW | {"layer_decay": 0.75},
    "--from, adamw 1e-3, --freeze 2": ADAMW | {"freeze": 2},
    "--from, adamw 1e-2, --freeze all": ADAMW | {"freeze": "all", "lr": 1e-2},
    "--from, adamw 5e-3, --lora 8": ADAMW | {"lora": 8, "lr": 5e-3},
}


def archives(folder: Path) -> None:
    """low.npz and high.npz without splits; few.npz: the high digits with few of them to train and choose on."""
    digits: Any = load_digits()
    images, labels = (digits.images * 255 / 16).round().astype(np.uint8), digits.target
    for name, own in (("low", labels < 5), ("high", labels >= 5)):
        np.savez(folder / f"{name}.npz", images=images[own], labels=labels[own])
    parts, draw = {"train": [], "val": [], "test": []}, np.random.default_rng(0)
    for label in range(5, 10):
        index = draw.permutation(np.flatnonzero(labels == label)).tolist()
        for part, some in zip(parts, (index[:FEW], index[FEW : FEW + 10], index[FEW + 10 :]), strict=True):
            parts[part] += some
    arrays = {f"{part}_images": images[index] for part, index in parts.items()}
    arrays |= {f"{part}_labels": labels[index] - 5 for part, index in parts.items()}
    np.savez(folder / "few.npz", **arrays)


def compare(folder: Path, seeds: int) -> None:
    common: dict[str, Any] = {"explain": 0, "quiet": True}
    base = regard.train(folder / "low.npz", recipe="digits", epochs=60, out=folder / "base", **common)
    settings = (("high", 5), ("high", 20), ("few", 100))
    print("| | " + " | ".join(f"{name}, {epochs} epochs" for name, epochs in settings) + " |\n" + "|---" * 4 + "|")
    for number, (way, chosen) in enumerate(WAYS.items()):
        cells = []
        for name, epochs in settings:
            run = regard.train(
                folder / f"{name}.npz", seeds=seeds, epochs=epochs, out=folder / f"{number}-{name}-{epochs}",
                **{**common, "weights": base.path, **chosen},
            )  # fmt: skip
            figure = run.read_json("summary.json")["figures"]["accuracy"]
            cells.append(f"{figure['mean']:.1%} ± {figure['std']:.1%}")
        print(f"| {way} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, no accelerator\n")
    with tempfile.TemporaryDirectory() as made:
        archives(Path(made))
        compare(Path(made), arguments.seeds)
