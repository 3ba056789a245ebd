"""AdrenalMNIST3D with its official split: transformers and MONAI's ResNet under one recipe, several seeds.

    python benchmarks/volumes_small.py adrenalmnist3d_64.npz OUT [--models vit3d_nano swin3d_nano monai_resnet18]
        [--seeds 3] [--minutes 8] [--set epochs=60 lr=1e-3] [--pretrain 200] [--from vit_s16.safetensors]
    python benchmarks/volumes_small.py adrenalmnist3d_64.npz TRIAL --validate --set epochs=200 vit3d:patch=8
    python benchmarks/volumes_small.py adrenalmnist3d.npz TRIAL --validate --set epochs=200 vit3d:patch=4

All runs share SHAPES, the settings for binary shapes, changed by --set; what a model does not have is refused by name,
and vit3d:patch=8 is for models of that name alone. Without --set recipe=NAME, runs from weights have the recipe for
fine-tuning. --pretrain first trains each vit3d model for so many epochs by masking, on the training volumes alone;
--from starts the transformers from weights, those of pictures included. The test volumes are read once, at the end.

To choose settings, --validate: five folds of the training and validation volumes together, without the test volumes,
since 98 validation volumes with 22 of the rarer class say little. One JSON line per run is printed and added to
OUT/results.jsonl: AUC with its interval. A second call resumes: no run is started after --minutes, and a finished one
is not repeated. An OUT that holds runs of other settings is refused.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard.run.repeat import claim
from regard.weights import Run

SHAPES: dict[str, Any] = {
    "mixup": 0.0, "cutmix": 0.0, "label_smoothing": 0.0, "flip_axes": "x,y,z", "rotate": 30.0, "elastic": 0.04,
    "choose": "last", "pixel_baseline": False,
}  # fmt: skip
"""Mixtures of two shapes are no shape, and part of one is not of its class; glands of both sides are mirror images. The
last epoch is taken: which one is best, few validation volumes cannot say."""
FOLDS = 5


def value_of(text: str) -> Any:
    """A setting's value as JSON, else as a word."""
    try:
        made = json.loads(text)
    except ValueError:
        return text
    return tuple(made) if isinstance(made, list) else made


def settings_of(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Those for all models, and those for this one."""
    named = ((*name.rpartition(":")[::2], value) for name, value in options.settings.items())
    return {"explain": 0} | SHAPES | {name: value for prefix, name, value in named if model.startswith(prefix)}


def without_test(data: Path, out: Path) -> Path:
    """An archive of the training and validation volumes, whose splits are forgotten."""
    made = out / "trainval.npz"
    if not made.is_file():
        with np.load(data) as held:
            images, labels = (
                np.concatenate([held[f"{s}_{n}"] for s in ("train", "val")]) for n in ("images", "labels")
            )
        np.savez_compressed(out / "trainval-part.npz", images=images, labels=labels)
        (out / "trainval-part.npz").rename(made)
    return made


def pretrained(model: str, options: argparse.Namespace) -> Path:
    """A run that was pre-trained by masking; made once for all seeds, and resumed where it was stopped."""
    out, own = options.out / f"pretrain-{model}", settings_of(model, options)
    shape = {name: value for name, value in own.items() if name in ("patch", "size", "device")}
    regard.pretrain(options.data, model=model, epochs=options.pretrain, out=out, explain=0, resume=True, **shape)
    return out


def run_one(model: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run's line."""
    start, weights = time.monotonic(), None
    if options.weights and not model.startswith("monai"):
        weights = options.weights
    if options.pretrain and model.startswith("vit3d"):
        weights = str(pretrained(model, options))
    settings: dict[str, Any] = settings_of(model, options)
    if weights:
        settings["weights"] = weights
    out = options.out / f"{model}-{seed}"
    if options.validate:
        data = without_test(options.data, options.out)
        run = regard.train(data, model=model, seed=seed, out=out, folds=FOLDS, **settings)
    else:
        run = regard.train(options.data, model=model, seed=seed, out=out, resume=True, **settings)
    figures = run.read_json("summary.json")["figures"]
    return {
        "model": model, "seed": seed, "weights": weights, "figures": figures,
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["vit3d_nano", "swin3d_nano", "monai_resnet18"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8, help="no new run is started after that")
    parser.add_argument("--pretrain", type=int, default=0, metavar="EPOCHS")
    parser.add_argument("--from", dest="weights", metavar="WEIGHTS")
    parser.add_argument("--validate", action="store_true", help="five folds of train and val, without the test volumes")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    options.settings = {name: value_of(value) for name, value in (pair.split("=", 1) for pair in options.set)}
    if options.validate and options.pretrain:
        parser.error("--validate and --pretrain do not go together: pre-training would see the folds that are tested")
    asked = {"data": str(options.data), "pretrain": options.pretrain, "weights": options.weights, **options.settings}
    asked |= {"validate": options.validate}
    claim(Run(options.out), asked)
    start, results = time.monotonic(), options.out / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.is_file() else []
    todo = [(model, seed) for seed in range(options.seeds) for model in options.models]
    for number, (model, seed) in enumerate(todo, start=1):
        if any((line["model"], line["seed"]) == (model, seed) for line in done):
            continue
        if time.monotonic() - start > 60 * options.minutes:
            print(f"out of time before run {number} of {len(todo)}: call again to resume", flush=True)
            break
        line = run_one(model, seed, options)
        done.append(line)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
    which = "out-of-fold AUC" if options.validate else "test AUC"
    print(f"\n| model | seeds | {which}, mean (each) |\n|---|---|---|")
    for model in options.models:
        aucs = [line["figures"]["auroc"]["value"] for line in done if line["model"] == model]
        if aucs:
            each = ", ".join(f"{auc:.3f}" for auc in aucs)
            print(f"| {model} | {len(aucs)} | {statistics.mean(aucs):.3f} ({each}) |")


if __name__ == "__main__":
    main()
