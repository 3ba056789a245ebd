"""Archives of arrays (.npz) under MedMNIST's names: train_images and train_labels, val_…, test_…

What an array claims to be is read, and refused, before it is unpacked: a few kilobytes can claim to be any size.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.images import checked
from regard.data.source import Sample, Source
from regard.errors import DataError

CLASS_NAMES = ("classes", "class_names", "label_names")
"""An array of texts under one of these names says what label 0, 1, … is called."""
PREFIXES = ("train_", "val_", "test_", "")
SHARE = 0.75
"""Of the free memory, what arrays may take."""


class Header(NamedTuple):
    """What an array says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Blocks:
    """Reads samples from arrays as they were stored; each is made a picture or volume when it is asked for."""

    arrays: list[np.ndarray]

    def __call__(self, index: int) -> tuple[Tensor, str]:
        pixels = torch.from_numpy(_as_image(self.arrays[index]))
        return pixels, "L" if len(pixels) == 1 else "RGB"


def arrays_source(path: Path, labelled: bool = True) -> Source:
    """Pictures or volumes with one whole number as label, if they have any. Nothing in the archive can run."""
    wanted = ("images", "labels") if labelled else ("images",)
    samples: list[tuple[str, int, str | None]] = []
    pixels: list[np.ndarray] = []
    names = [prefix + name for prefix in PREFIXES for name in wanted] + list(CLASS_NAMES) * labelled
    arrays = _read(path, names, labelled)
    for prefix in PREFIXES:
        images = arrays.get(f"{prefix}images")
        if images is None:
            continue
        labels = arrays[f"{prefix}labels"] if labelled else np.zeros(len(images), dtype=np.int64)
        if np.issubdtype(images.dtype, np.floating):
            for image in images:
                checked(image, f"{path}: {prefix}images")
        pixels += list(images)
        for n, label in enumerate(labels.flatten().tolist()):
            samples.append((f"{prefix or 'image_'}{n}".replace("_", "/"), label, prefix.rstrip("_") or None))
    values = sorted({label for _, label, _ in samples})
    number = {value: n for n, value in enumerate(values)}
    names = _class_names(arrays, values, path) if labelled else {}
    return Source(
        name=path.stem,
        kind="arrays",
        why="an .npz with MedMNIST's array names" + ("; names of the classes in it" if names else ""),
        classes=tuple(names.get(v, str(v)) for v in values),
        samples=tuple(Sample(key, number[label], split) for key, label, split in samples),
        reader=Blocks(pixels),
    )


def _class_names(arrays: dict[str, np.ndarray], values: list[int], path: Path) -> dict[int, str]:
    """By label, what it is called, if the archive says it."""
    for member in CLASS_NAMES:
        if member not in arrays:
            continue
        texts = arrays[member]
        if texts.ndim != 1 or texts.dtype.kind not in "US":
            what = f"{member} has shape {texts.shape} and type {texts.dtype}, not one text per class"
            raise DataError(what, where=path)
        names = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts.tolist()]
        if not 0 <= values[0] <= values[-1] < len(names) or len(set(names)) < len(names):
            what = f"{member} has {len(set(names))} different names, and labels run from {values[0]} to {values[-1]}"
            raise DataError(what, where=path, do="give every label from 0 on a name of its own")
        return dict(enumerate(names))
    return {}


def _read(path: Path, wanted: list[str], labelled: bool) -> dict[str, np.ndarray]:
    """The arrays of these names, once all that they say of themselves has been found good."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            headers = {name: member_header(archive, members[name]) for name in wanted if name in members}
            _require_usable(headers, sorted(members), path, labelled)
            total, room = sum(header.nbytes for header in headers.values()), int(SHARE * free_memory())
            if total > room:
                what = f"the arrays unpack to {total:,} bytes; this machine has room for {room:,}"
                raise DataError(what, where=path, do="use a machine with more memory, or a folder of images")
            return {name: read_member(archive, members[name]) for name in headers}
    except DataError:
        raise
    except Exception as error:  # zlib, LZMA, zip and NumPy's header each have errors of their own for damage
        raise DataError(f"the archive cannot be read safely: {error}", where=path) from None


def member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    """What an array of an archive says of itself; an error if it is a pickle, or claims to be larger than it is."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    header = Header(shape, dtype)
    name = member.filename.removesuffix(".npy")
    if header.dtype.hasobject:
        raise ValueError(f"{name!r} is a pickle, which can run code: refused")
    if header.nbytes > member.file_size:
        raise ValueError(f"{name!r} claims the shape {header.shape} and is far smaller")
    return header


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """An array of an archive, whose header has been looked at."""
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _require_usable(headers: Mapping[str, Header], there: list[str], path: Path, labelled: bool) -> None:
    """Images, and a whole number for each."""
    for prefix in PREFIXES:
        images, labels = headers.get(f"{prefix}images"), headers.get(f"{prefix}labels")
        if images is None and labels is None:
            continue
        if images is None or (labels is None and labelled):
            raise DataError(f"of {prefix}images and {prefix}labels only one is there", where=path)
        count = images.shape[0] if images.shape else 0
        if labels is not None:
            count = labels.shape[0] if labels.shape else 0
            whole = np.issubdtype(labels.dtype, np.integer)
            if len(labels.shape) not in (1, 2) or math.prod(labels.shape) != count or not whole:
                what = (
                    f"{prefix}labels has shape {labels.shape} and type {labels.dtype}, not one whole number per image"
                )
                raise DataError(what, where=path)
        if len(images.shape) not in (3, 4) or images.shape[0] != count:
            what = f"{prefix}images has shape {images.shape}, but {prefix}labels is for {count} pictures or volumes"
            raise DataError(what, where=path)
        if count and not math.prod(images.shape):
            raise DataError(f"{prefix}images has shape {images.shape}: images without pixels", where=path)
        if images.dtype not in (np.uint8, np.uint16) and not np.issubdtype(images.dtype, np.floating):
            raise DataError(
                f"pixels of type {images.dtype} are not understood",
                where=f"{path}: {prefix}images",
                do="store uint8, uint16 or float 0..1",
            )
    if not any(header.shape[0] for name, header in headers.items() if name.endswith("images")):
        raise DataError(
            "the archive holds no train_images and train_labels (nor images and labels)",
            where=path,
            do=f"name its arrays so; it has {', '.join(there[:20]) or 'none of these'}",
        )


def _as_image(image: np.ndarray) -> np.ndarray:
    """(channels, *size) from (H, W), (H, W, 1 or 3) or (D, H, W), as uint8 or float in 0..1."""
    image = np.moveaxis(image, -1, 0) if image.ndim == 3 and image.shape[-1] in (1, 3) else image[None]
    if image.dtype == np.uint16:
        return image.astype(np.float32) / 65535.0
    return np.ascontiguousarray(image, dtype=np.uint8 if image.dtype == np.uint8 else np.float32)


def free_memory() -> int:
    """Bytes of memory that are free: of the machine, or of the container that this process is in if that has less."""
    rooms = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            rooms.append(int(line.split()[1]) * 1024)
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        numbers = [int(line) for name in (most, used) for line in _lines(name) if line.strip().isdecimal()]
        if len(numbers) == 2:
            rooms.append(max(0, numbers[0] - numbers[1]))
    return min(rooms)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
