"""Small data sets for `small_data.py`, made from public ones that were unpacked before.

    python benchmarks/small_sets.py cells BCCD/ OUT/           # blood cells, cut out of BCCD's boxes, by class
    python benchmarks/small_sets.py cats_dogs PETS/ OUT/       # Oxford-IIIT Pet as two classes
    python benchmarks/small_sets.py cifar_5000 CIFAR10/ OUT/   # 5,000 training images, 2,000 others to validate on
    python benchmarks/small_sets.py hippocampus TASK04/ OUT.npz   # needs nibabel

Cells keep BCCD's own lists of training, validation and test images. Hippocampus volumes are labelled by their masks:
is the anterior part's share of the structure above the median of the training volumes? The network sees the scan only.
"""

import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

SIDE = 64
"""Pixels of a cell's picture."""
BOX = (32, 48, 32)
"""Voxels of a hippocampus volume: the middle of the scan."""
CATS = {
    "abyssinian", "bengal", "birman", "bombay", "british_shorthair", "egyptian_mau", "maine_coon", "persian",
    "ragdoll", "russian_blue", "siamese", "sphynx",
}  # fmt: skip


def cells(source: Path, out: Path) -> None:
    """One picture per box, with a tenth of its size around it."""
    for split in ("train", "val", "test"):
        for name in (source / "ImageSets" / "Main" / f"{split}.txt").read_text().split():
            with Image.open(source / "JPEGImages" / f"{name}.jpg") as picture:
                picture = picture.convert("RGB")
            objects = ElementTree.parse(source / "Annotations" / f"{name}.xml").findall("object")
            for number, found in enumerate(objects):
                corners = {edge.tag: int(edge.text or 0) for edge in found.findall("bndbox/*")}
                left, top, right, bottom = (corners[edge] for edge in ("xmin", "ymin", "xmax", "ymax"))
                if right - left < 2 or bottom - top < 2:
                    continue
                half = max(right - left, bottom - top) * 0.6
                x, y = (left + right) / 2, (top + bottom) / 2
                box = round(x - half), round(y - half), round(x + half), round(y + half)
                folder = out / split / str(found.findtext("name"))
                folder.mkdir(parents=True, exist_ok=True)
                picture.crop(box).resize((SIDE, SIDE)).save(folder / f"{name}_{number}.jpg", quality=95)


def cats_dogs(source: Path, out: Path) -> None:
    """Links to the same photographs, in two folders."""
    for photo in sorted(source.glob("*/*/*.jpg")):
        split, breed = photo.parts[-3:-1]
        folder = out / split / ("cat" if breed in CATS else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{breed}_{photo.name}").symlink_to(photo.resolve())


def subset(source: Path, out: Path, count: int) -> None:
    """Links to as many training images of each class; 200 others of each class validate; all test images."""
    for folder in sorted((source / "train").iterdir()):
        photos = sorted(folder.iterdir())
        Random(0).shuffle(photos)
        _link(photos[:200], out / "val" / folder.name)
        _link(photos[200 : 200 + count // 10], out / "train" / folder.name)
        _link(sorted((source / "test" / folder.name).iterdir()), out / "test" / folder.name)


def _link(photos: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for photo in photos:
        (folder / photo.name).symlink_to(photo.resolve())


def hippocampus(source: Path, out: Path) -> None:
    """Volumes whose image and mask are both there: 60 % to train, 15 % to validate, 25 % to test."""
    from nibabel.nifti1 import Nifti1Image

    names = sorted(p.name for p in (source / "labels").glob("*.nii.gz") if (source / "images" / p.name).exists())
    Random(0).shuffle(names)
    volumes, shares = [], []
    for name in names:
        scan = np.asarray(Nifti1Image.from_filename(source / "images" / name).dataobj, dtype=np.float32)
        mask = np.asarray(Nifti1Image.from_filename(source / "labels" / name).dataobj)
        low, high = np.percentile(scan, (1, 99))
        volumes.append(_middle(np.clip((scan - low) / (high - low), 0, 1) * 255).astype(np.uint8))
        shares.append((mask == 1).sum() / (mask > 0).sum())
    ends = [0, round(0.6 * len(names)), round(0.75 * len(names)), len(names)]
    labels = (np.array(shares) > np.median(shares[: ends[1]])).astype(np.uint8)
    arrays: dict[str, np.ndarray] = {}
    for split, start, end in zip(("train", "val", "test"), ends, ends[1:], strict=False):
        arrays |= {f"{split}_images": np.stack(volumes[start:end]), f"{split}_labels": labels[start:end, None]}
    np.savez_compressed(out, allow_pickle=False, **arrays)


def _middle(volume: np.ndarray) -> np.ndarray:
    """Cut or padded with zeros to BOX, around the middle."""
    for axis, (have, want) in enumerate(zip(volume.shape, BOX, strict=True)):
        start = max(0, (have - want) // 2)
        volume = volume.take(range(start, min(have, start + want)), axis)
        short = want - volume.shape[axis]
        volume = np.pad(volume, [(short // 2, short - short // 2) if a == axis else (0, 0) for a in range(volume.ndim)])
    return volume


if __name__ == "__main__":
    makers = {"cells": cells, "cats_dogs": cats_dogs, "hippocampus": hippocampus}
    makers |= {f"cifar_{count}": partial(subset, count=count) for count in (1_000, 2_000, 5_000, 48_000)}
    if len(sys.argv) != 4 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    makers[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
