"""Does reading keep a GPU busy? ViT-S/16 on JPEG files of 224 pixels, more than are kept in memory.

The files are made first (smooth colours and noise, about as many bytes as photographs have), by all cores. Then a
ViT-S/16 trains on them as any run does: each image is read, decoded and cropped anew in every epoch. Printed is what
the run's summary.json says: the share of the time in which the GPU had nothing to do for want of images.

    python benchmarks/waiting.py [--images 60000] [--batch-size 256] [--epochs 3]
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image


def make(root: str, first: int, count: int) -> int:
    """Write `count` pictures, alternately of two classes; their bytes in all."""
    rng, size = np.random.default_rng(first), 0
    for number in range(first, first + count):
        smooth = Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).resize(
            (224, 224), Image.Resampling.BICUBIC
        )
        noisy = np.asarray(smooth).astype(np.int16) + rng.integers(-12, 12, (224, 224, 3))
        path = Path(root) / "ab"[number % 2] / f"{number:06d}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        size += path.stat().st_size
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        for name in "ab":
            (root / name).mkdir(parents=True)
        begun, each = time.monotonic(), 500
        with ProcessPoolExecutor() as pool:
            starts = range(0, options.images, each)
            sizes = [pool.submit(make, str(root), at, min(each, options.images - at)) for at in starts]
            total = sum(size.result() for size in sizes)
        print(
            f"{options.images:,} JPEGs of {total / options.images / 1024:.0f} KiB in {time.monotonic() - begun:.0f} s"
        )

        import torch

        import regard

        run = regard.train(
            root, model="vit_s16", batch_size=options.batch_size, epochs=options.epochs, holdout=0.02, explain=0,
            out=f"{folder}/run",
        )  # fmt: skip
        summary, rows = run.read_json("summary.json"), run.read_rows("metrics.csv")
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        seconds = float(rows[-1]["seconds"]) - float(rows[0]["seconds"])
        rate = options.images * 0.96 * (len(rows) - 1) / seconds if len(rows) > 1 else float("nan")
        print(f"{device}, {os.cpu_count()} cores, torch {torch.__version__}")
        print(
            f"ViT-S/16, batch {options.batch_size}, {options.epochs} epochs: waiting for data {summary['waiting']:.2%}"
        )
        print(f"later epochs, validation included: {rate:,.0f} images/s")


if __name__ == "__main__":
    main()
