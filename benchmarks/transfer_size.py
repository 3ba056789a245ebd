"""Transfer by the number of pre-training images on CIFAR-10: seven classes to pre-train on, three to transfer to.

    python benchmarks/transfer_size.py CIFAR10 OUT

CIFAR10 is a folder with train/CLASS and test/CLASS. No run is started after eight minutes, so that the command ends
within nine on one H200; run it again to resume. OUT/study.md has fine-tuned, 5-shot and linear accuracy of a ViT, a
Swin and two ResNets after 500 to 31,500 images, with 95 % intervals over three seeds. Not run yet.
"""

from __future__ import annotations

import argparse
from typing import Any

from regard.study import transfer_size

MODELS = ("vit_nano", "swin_nano", "resnet_nano", "resnet18")
SIZES = (500, 2000, 8000, 31500)
HELD = ("horse", "ship", "truck")
SETTINGS: dict[str, Any] = {"steps": 4000, "recipe": "plain", "policy": "trivial", "holdout": 0.1, "size": 32}
TUNE: dict[str, Any] = {"steps": 500, "images": 1500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    result = transfer_size(
        given.data, None, MODELS, SIZES, seeds=given.seeds, minutes=given.minutes, hold_classes=HELD, tune=TUNE,
        out=given.out, **SETTINGS,
    )  # fmt: skip
    print(*result.summary(), sep="\n")


if __name__ == "__main__":
    main()
