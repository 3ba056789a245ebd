"""Transfer by the number of pre-training images of CIFAR-10: to three of its classes that were left out, or to pets.

    python benchmarks/transfer_size.py CIFAR10 OUT            # classes 0 to 6, then horse, ship and truck
    python benchmarks/transfer_size.py CIFAR10 OUT --to PETS  # all ten, then 37 breeds at 64 pixels

CIFAR10 is a folder with train/CLASS and test/CLASS, PETS one with train, val and test. No run is started after eight
minutes, so that the command ends soon after on one H200; run it again to resume. OUT/study.md has fine-tuned, 5-shot
and linear accuracy of two ViTs, a Swin, two ResNets and BiT after 500 to 31,500 images (40,000 before pets), with 95 %
intervals over three seeds. Every model sees as many batches. Not run yet.
"""

from __future__ import annotations

import argparse
from typing import Any

from regard.study import transfer_size

MODELS = ("vit_nano", "vit_mini4", "swin_nano", "resnet_nano", "resnet18", "bit_r50x1")
HELD = ("horse", "ship", "truck")
SETTINGS: dict[str, Any] = {"steps": 4000, "recipe": "plain", "policy": "trivial", "holdout": 0.1, "size": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--to", help="other data to transfer to; without it, three classes of the first")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--steps", type=int, default=SETTINGS["steps"])
    parser.add_argument("--tune-steps", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    tune: dict[str, Any] = {"steps": given.tune_steps} | ({"size": 64} if given.to else {"images": 1500})
    result = transfer_size(
        given.data, given.to, given.models, given.sizes or (500, 2000, 8000, 40000 if given.to else 31500),
        seeds=given.seeds, minutes=given.minutes, hold_classes=() if given.to else HELD, tune=tune, out=given.out,
        **SETTINGS | {"steps": given.steps},
    )  # fmt: skip
    print(*result.summary(), sep="\n")


if __name__ == "__main__":
    main()
