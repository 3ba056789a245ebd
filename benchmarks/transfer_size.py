"""Transfer by the number of pre-training images of CIFAR-10: to three of its classes that were left out, or to pets.

    python -m benchmarks.transfer_size CIFAR10 OUT --together            # classes 0 to 6, then horse, ship and truck
    python -m benchmarks.transfer_size CIFAR10 OUT --together --to PETS  # all ten, then 37 breeds at 64 pixels

CIFAR10 is a folder with train/CLASS and test/CLASS, PETS one with train, val and test. Nothing is started after seven
minutes; run it again to resume. OUT/study.md has fine-tuned, 5-shot and linear accuracy of two ViTs, a Swin, two
ResNets and BiT after 500 to 31,500 images (40,000 before pets), with 95 % intervals over seeds. Every model sees as
many batches. `--together`: a process per model. Runs are ordered by seed: a part of them is a figure of fewer seeds.
To go on elsewhere, OUT/plan.json and OUT/kept are enough. Not run yet.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.together import together
from regard.study import transfer_size

MODELS = ("vit_nano", "vit_mini4", "swin_nano", "resnet_nano", "resnet18", "bit_r50x1")
HELD = ("horse", "ship", "truck")
SETTINGS: dict[str, Any] = {"recipe": "plain", "policy": "trivial", "holdout": 0.1, "size": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--to", help="other data to transfer to; without it, three classes of the first")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tune-steps", type=int, default=500)
    parser.add_argument("--tune-images", type=int, default=1500, help="of the classes that were left out")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", action="store_true", help="a process per model")
    given = parser.parse_args()
    start = time.monotonic()
    tune: dict[str, Any] = {"steps": given.tune_steps} | ({"size": 64} if given.to else {"images": given.tune_images})
    sizes = given.sizes or (500, 2000, 8000, 40000 if given.to else 31500)

    def study(minutes: float) -> list[str]:
        return transfer_size(
            given.data, given.to, given.models, sizes, seeds=given.seeds, minutes=minutes, tune=tune, out=given.out,
            hold_classes=() if given.to else HELD, steps=given.steps, **SETTINGS,
        ).summary()  # fmt: skip

    if given.together:
        study(-1.0)  # the folder and its plan
        left = given.minutes - (time.monotonic() - start) / 60
        words = [given.data, given.out, *(("--to", given.to) if given.to else ()), "--sizes", *sizes]
        words += ["--steps", given.steps, "--tune-steps", given.tune_steps, "--seeds", given.seeds, "--minutes", left]
        words += ["--tune-images", given.tune_images]
        together("benchmarks.transfer_size", given.models, words)
    print(*study(-1.0 if given.together else given.minutes), sep="\n")


if __name__ == "__main__":
    main()
