"""Archives of arrays (.npz) under MedMNIST's names: train_images and train_labels, val_…, test_…"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from regard.data.images import checked
from regard.data.source import Pixels, Sample, Source
from regard.errors import DataError

MAX_BYTES = 8 * 2**30
CLASS_NAMES = ("classes", "class_names", "label_names")
"""An array of texts under one of these names says what label 0, 1, … is called."""


def arrays_source(path: Path, labelled: bool = True) -> Source:
    """Pictures or volumes with one whole number as label, if they have any. Nothing in the archive can run."""
    arrays = _read(path)
    samples: list[tuple[str, int, str | None]] = []
    pixels: list[np.ndarray] = []
    for prefix in ("train_", "val_", "test_", ""):
        images, labels = arrays.get(f"{prefix}images"), arrays.get(f"{prefix}labels")
        if images is not None and not labelled:
            labels = np.zeros(images.shape[:1], dtype=np.int64)
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise DataError(f"of {prefix}images and {prefix}labels only one is there", where=path)
        if labels.ndim not in (1, 2) or labels.size != len(labels) or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                f"{prefix}labels has shape {labels.shape} and type {labels.dtype}, not one whole number per image",
                where=path,
            )
        if images.ndim not in (3, 4) or len(images) != len(labels):
            raise DataError(
                f"{prefix}images has shape {images.shape}, but {prefix}labels is for {len(labels)} pictures or volumes",
                where=path,
            )
        if len(images) and not images.size:
            raise DataError(f"{prefix}images has shape {images.shape}: images without pixels", where=path)
        pixels += list(_as_images(images, f"{path}: {prefix}images"))
        for n, label in enumerate(labels.flatten().tolist()):
            samples.append((f"{prefix or 'image_'}{n}".replace("_", "/"), label, prefix.rstrip("_") or None))
    if not samples:
        raise DataError(
            "the archive holds no train_images and train_labels (nor images and labels)",
            where=path,
            do=f"name its arrays so; it has {', '.join(sorted(arrays)) or 'none of these'}",
        )
    values = sorted({label for _, label, _ in samples})
    number = {value: n for n, value in enumerate(values)}
    names = _class_names(arrays, values, path) if labelled else {}
    return Source(
        name=path.stem,
        kind="arrays",
        why="an .npz with MedMNIST's array names" + ("; names of the classes in it" if names else ""),
        classes=tuple(names.get(v, str(v)) for v in values),
        samples=tuple(Sample(key, number[label], split) for key, label, split in samples),
        reader=Pixels(pixels),
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


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > MAX_BYTES:
            raise DataError(f"the arrays unpack to {total:,} bytes; at most {MAX_BYTES:,} are read", where=path)
        with np.load(path, allow_pickle=False) as archive:
            wanted = [name for name in archive.files if name.endswith(("images", "labels")) or name in CLASS_NAMES]
            return {name: archive[name] for name in wanted}
    except DataError:
        raise
    except Exception as error:  # zlib, LZMA, zip and NumPy's header each have errors of their own for damage
        raise DataError(f"the archive cannot be read safely: {error}", where=path) from None


def _as_images(block: np.ndarray, where: str) -> np.ndarray:
    """(N, channels, *size) from (N, H, W), (N, H, W, 1 or 3) or (N, D, H, W), as uint8 or float in 0..1."""
    block = np.moveaxis(block, -1, 1) if block.ndim == 4 and block.shape[-1] in (1, 3) else block[:, None]
    if block.dtype == np.uint8:
        return np.ascontiguousarray(block)
    if block.dtype == np.uint16:
        return block.astype(np.float32) / 65535.0
    if np.issubdtype(block.dtype, np.floating):
        return checked(np.ascontiguousarray(block, dtype=np.float32), where)
    raise DataError(
        f"pixels of type {block.dtype} are not understood", where=where, do="store uint8, uint16 or float 0..1"
    )
