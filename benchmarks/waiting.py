"""Does reading keep a GPU busy? ViT-S/16 on JPEG files of 224 pixels, more than are kept in memory; or scans.

The files are made first (smooth colours and noise, about as many bytes as photographs have), by all cores. Then a
ViT-S/16 trains on them as any run does: each image is read, decoded and cropped anew in every epoch. Printed is what
the run's summary.json says: the share of the time in which the GPU had nothing to do for want of images.

    python benchmarks/waiting.py [--images 60000] [--batch-size 256] [--epochs 3]
    python benchmarks/waiting.py --subjects 40 --epochs 30 [--size 224] [--model vit3d_b16] [--stream]

With --subjects, of each four scans of `size`³ voxels are made, prepared and kept on disk before the training, at a
batch of four. --stream reads them from there in every epoch, as volumes are that do not fit on the GPU. On a CPU, to
try it out:
--subjects 12 --size 16 --model vit3d_nano --epochs 2.
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


def make_subject(root: str, number: int, size: int) -> None:
    """Four scans of one subject: a bright ball in dark noise."""
    import nibabel

    rng, affine = np.random.default_rng(number), np.diag([1.0, 1.0, 1.0, 1.0])
    places = np.indices((size,) * 3).reshape(3, -1).T - size / 2
    ball = (np.linalg.norm(places, axis=1) < size / 2).reshape((size,) * 3)
    for scan in range(4):
        voxels = np.where(ball, rng.integers(200, 1000, ball.shape), 0).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(voxels, affine), Path(root) / f"{number}_{scan}.nii")


def train_on_scans(root: Path, options: argparse.Namespace) -> None:
    """A run on made subjects, and what it says of waiting."""
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        count = options.subjects
        list(pool.map(make_subject, [str(root)] * count, range(count), [options.size] * count))
    rows = [",".join([f"s{n}", *(f"{n}_{scan}.nii" for scan in range(4)), "ab"[n % 2]]) for n in range(count)]
    (root / "subjects.csv").write_text("\n".join(["subject,a,b,c,d,label", *rows]))

    import torch

    import regard
    from regard.data import loader

    if options.stream:
        loader.KEPT_SHARE = loader.CACHE_BYTES = 0
    begun = time.monotonic()
    dataset = regard.check(root / "subjects.csv", size=options.size, spacing=1, cache_folder=str(root / "cache"))
    print(f"{count} subjects of 4 × {options.size}³ voxels, read and prepared in {time.monotonic() - begun:.0f} s")
    run = regard.train(
        root / "subjects.csv", model=options.model, size=(options.size,) * 3, spacing=1, batch_size=4, explain=0,
        epochs=options.epochs, pixel_baseline=False, cache_folder=str(root / "cache"), out=root / "run",
        dataset=dataset,
    )  # fmt: skip
    summary = run.read_json("summary.json")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    where = "read in every epoch" if options.stream else "kept where they fit"
    print(f"{device}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{options.model}, batch 4, {options.epochs} epochs in {summary['seconds']:.0f} s, volumes {where}")
    print(f"waiting for data {summary['waiting']:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--subjects", type=int, default=0, help="made scans in place of JPEG files")
    parser.add_argument("--size", type=int, default=224, help="voxels on each side")
    parser.add_argument("--model", default="vit3d_b16")
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.subjects:
            return train_on_scans(Path(folder), options)
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
