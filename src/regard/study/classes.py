"""One data set as two: some classes to pre-train on, the others to transfer to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data import ImageDataset
from regard.data.source import Files
from regard.errors import ConfigError, did_you_mean
from regard.weights import to_csv, write_aside, write_text


def check_held(dataset: ImageDataset, held: Sequence[str]) -> None:
    """An error if the classes are not the data's, or too few are on either side."""
    classes = dataset.source.classes
    for name in held:
        if name not in classes:
            what = f"the data has no class {name!r} to hold"
            raise ConfigError(what, where=dataset.path, do=did_you_mean(name, classes))
    for word, count in (("held", len(set(held))), ("left to pre-train on", len(classes) - len(set(held)))):
        if count < 2:
            raise ConfigError(f"{count} classes are {word}", do="leave at least two on either side of --hold-classes")


def hold_classes(dataset: ImageDataset, held: Sequence[str], folder: Path) -> tuple[Path, Path]:
    """Write the data without the `held` classes, and the data of these alone; the splits stay as they are.

    Image files are listed in a table, arrays are copied into an archive.
    """
    check_held(dataset, held)
    classes = dataset.source.classes
    samples = dataset.source.samples
    numbers = [n for n in range(len(samples)) if dataset.digests[n]]
    write = _write_table if isinstance(dataset.source.reader, Files) else _write_arrays
    parts = {
        "pretrain": [n for n in numbers if classes[samples[n].label] not in held],
        "transfer": [n for n in numbers if classes[samples[n].label] in held],
    }
    first, second = (write(dataset, own, folder / name) for name, own in parts.items())
    return first, second


def _write_table(dataset: ImageDataset, numbers: list[int], path: Path) -> Path:
    reader, source = dataset.source.reader, dataset.source
    assert isinstance(reader, Files)
    rows = [
        {
            "path": str(reader.paths[n].resolve()), "label": source.classes[source.samples[n].label],
            "split": source.samples[n].split or "", "patient": source.samples[n].group or "",
        }
        for n in numbers
    ]  # fmt: skip
    empty = [name for name in ("split", "patient") if not any(row[name] for row in rows)]
    write_text(path.with_suffix(".csv"), to_csv([{k: v for k, v in row.items() if k not in empty} for row in rows]))
    return path.with_suffix(".csv")


def _write_arrays(dataset: ImageDataset, numbers: list[int], path: Path) -> Path:
    if len(dataset.sizes) != 1 or dataset.source.survey:
        raise ConfigError("classes can be held of image files or arrays of one size", where=dataset.path)
    arrays: dict[str, Any] = {}
    samples = dataset.source.samples
    for split in sorted({samples[n].split or "" for n in numbers}):
        own = [n for n in numbers if (samples[n].split or "") == split]
        prefix = f"{split}_" if split else ""
        pixels = np.stack([np.moveaxis(dataset.source.read(n)[0].numpy(), 0, -1) for n in own])
        arrays[f"{prefix}images"] = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        arrays[f"{prefix}labels"] = np.array([samples[n].label for n in own])
    arrays["classes"] = np.array(dataset.source.classes)
    path.parent.mkdir(parents=True, exist_ok=True)

    def save(aside: Path) -> None:
        with aside.open("wb") as file:
            np.savez(file, **arrays)

    write_aside(path.with_suffix(".npz"), save)
    return path.with_suffix(".npz")
