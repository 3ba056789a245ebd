"""AdrenalMNIST3D with its official split: transformers and MONAI's ResNet under one recipe, several seeds.

    python benchmarks/volumes_small.py adrenalmnist3d_64.npz OUT [--models vit3d_nano swin3d_nano monai_resnet18]
        [--seeds 3] [--minutes 8] [--set epochs=60 lr=1e-3] [--pretrain 200] [--from vit_s16.safetensors]

All runs share the settings given by --set; what a model does not have is refused by name. Without --set recipe=NAME,
runs from weights have the recipe for fine-tuning. --pretrain first trains each vit3d model for so many epochs by
masking, on the training volumes alone; --from starts the transformers from weights, those of pictures included. The
epoch is chosen on the validation volumes; the test volumes are read once, at the end. One JSON line per run is printed
and added to OUT/results.jsonl: test AUC with its interval. A second call resumes: no run is started after --minutes,
and a finished one is not repeated. An OUT that holds runs of other settings is refused.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import regard
from regard.run.repeat import claim
from regard.weights import Run


def value_of(text: str) -> Any:
    """A setting's value as JSON, else as a word."""
    try:
        made = json.loads(text)
    except ValueError:
        return text
    return tuple(made) if isinstance(made, list) else made


def pretrained(model: str, options: argparse.Namespace) -> Path:
    """A run that was pre-trained by masking; made once for all seeds, and resumed where it was stopped."""
    out = options.out / f"pretrain-{model}"
    shape = {name: value for name, value in options.settings.items() if name in ("patch", "size", "device")}
    regard.pretrain(options.data, model=model, epochs=options.pretrain, out=out, explain=0, resume=True, **shape)
    return out


def run_one(model: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run's line."""
    start, weights = time.monotonic(), None
    if options.weights and not model.startswith("monai"):
        weights = options.weights
    if options.pretrain and model.startswith("vit3d"):
        weights = str(pretrained(model, options))
    settings = {"explain": 0} | options.settings | ({"weights": weights} if weights else {})
    out = options.out / f"{model}-{seed}"
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
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    options.settings = {name: value_of(value) for name, value in (pair.split("=", 1) for pair in options.set)}
    asked = {"data": str(options.data), "pretrain": options.pretrain, "weights": options.weights, **options.settings}
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
    print("\n| model | seeds | test AUC, mean (each) |\n|---|---|---|")
    for model in options.models:
        aucs = [line["figures"]["auroc"]["value"] for line in done if line["model"] == model]
        if aucs:
            each = ", ".join(f"{auc:.3f}" for auc in aucs)
            print(f"| {model} | {len(aucs)} | {statistics.mean(aucs):.3f} ({each}) |")


if __name__ == "__main__":
    main()
