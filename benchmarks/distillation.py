"""DeiT's claim on little data: does a small ViT learn more beside a convolutional teacher?

python benchmarks/distillation.py DATA --out FOLDER [--seeds 3] [--epochs 40]

Per seed: a ResNet, and the same ViT alone, with the distillation token (hard, soft), and hard without the token. All
see the same images; the teacher has seen the training images and no others. Writes distillation.json. Finished runs are
kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import regard
from regard.weights import Run

STUDENTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "hard, token": {"distillation": "hard"},
    "soft, token": {"distillation": "soft"},
    "hard, no token": {"distillation": "hard", "distilled": False},
}


def accuracy(run: Run) -> float:
    return run.read_json("summary.json")["figures"]["accuracy"]["value"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--teacher", default="resnet_nano")
    parser.add_argument("--student", default="vit_nano")
    words = parser.parse_args()
    same: dict[str, Any] = {
        "recipe": "plain", "explain": 0, "pixel_baseline": False, "epochs": words.epochs, "quiet": True, "resume": True,
    }  # fmt: skip
    rows = []
    for seed in range(words.seeds):
        teacher = regard.train(
            words.data, model=words.teacher, seed=seed, out=str(words.out / f"teacher-{seed}"), **same
        )
        row = {"seed": seed, "teacher": accuracy(teacher)}
        for name, settings in STUDENTS.items():
            taught = {"teacher": str(teacher.path), **settings} if settings else {}
            out = words.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            row[name] = accuracy(
                regard.train(words.data, model=words.student, seed=seed, out=str(out), **same, **taught)
            )
        rows.append(row)
        print(row, flush=True)
        (words.out / "distillation.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
