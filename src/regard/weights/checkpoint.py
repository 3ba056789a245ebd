"""A checkpoint: one safetensors file. Its header holds, as JSON, everything needed to use it again."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard import registry
from regard.config import make
from regard.data import Preparation
from regard.errors import RunError

FORMAT = "regard-2"
MOST_COMMENT = 65_535
"""Bytes that the comment of a zip archive may have."""
ASIDE = ".regard-part"
"""Ending of the folders that files are written in before they are put in place."""


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a model, with its name, config, classes, preparation and task."""

    model: str
    """The name in the registry."""
    config: dict[str, Any]
    """The fields of the model's config."""
    classes: tuple[str, ...] = ()
    preparation: Preparation | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    """Epoch, step and validation figures when it was written."""
    weights: dict[str, Tensor] = field(default_factory=dict, repr=False)
    task: str = ""
    """The name of the task; none for others' weights."""
    details: dict[str, Any] = field(default_factory=dict)
    """What only this task needs, such as the languages of a translator."""

    def build(self) -> Any:
        """The network with these weights."""
        model = registry.build(self.model, **self.config)
        model.load_state_dict(self.weights)
        return model

    def about(self) -> dict[str, Any]:
        """Everything but the weights, for the file's header."""
        return {
            "task": self.task,
            "model": self.model,
            "config": self.config,
            "classes": list(self.classes),
            "preparation": self.preparation and asdict(self.preparation),
            "details": self.details,
            "progress": self.progress,
        }


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file beside `path`, then put it in place: a failure leaves the old file whole.

    The file lies in a new folder that only this user may enter: nothing, such as a link to another file, can be
    prepared under its name.
    """
    folder = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(ASIDE, f".{path.name[:60]}.", path.parent)
        aside = Path(folder) / "file"
        write(aside)
        aside.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner may read
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except (OSError, _safetensors_error()) as error:
        kept = "; the earlier file is unharmed" if path.exists() else ""
        denied = isinstance(error, PermissionError)
        do = "choose a folder you may write to" if denied else "make room on the disk and run again"
        raise RunError(f"the file could not be written: {error}{kept}", where=path, do=do) from None
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.weights.items()}
    metadata = {"format": FORMAT, "regard": json.dumps(checkpoint.about())}
    write_aside(path, lambda aside: save_file(tensors, aside, metadata=metadata))


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str] | None = None) -> None:
    """A safetensors file for others to read."""
    from safetensors.torch import save_file

    apart = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}  # no two share memory
    write_aside(path, lambda aside: save_file(apart, aside, metadata={"format": "pt", **(about or {})}))


def save_arrays(tensors: dict[str, Tensor], path: Path, comment: str) -> None:
    """A NumPy archive for others to read. Its comment is text that other readers pass over."""

    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}

    def save(aside: Path) -> None:
        with aside.open("wb") as file:
            np.savez(file, **arrays)
        with zipfile.ZipFile(aside, "a") as archive:
            archive.comment = comment.encode()

    write_aside(path, save)


def parse_checkpoint(metadata: Mapping[str, str], weights: dict[str, Tensor], path: Path) -> Checkpoint:
    """A checkpoint from what a safetensors file holds."""
    if metadata.get("format") != FORMAT:
        raise RunError(f"the file is not a checkpoint of this version ({FORMAT})", where=path)
    try:
        about = json.loads(metadata["regard"])
        config, classes = dict(about["config"]), tuple(map(str, about["classes"]))
        preparation = about["preparation"] and make(Preparation, about["preparation"], path)
        details, task, progress = dict(about["details"]), str(about["task"]), dict(about["progress"])
        if config.get("classes", 0) != len(classes) or bool(preparation) != bool(classes):
            raise ValueError("settings and weights do not fit together")
        if len(set(classes)) < len(classes):
            raise ValueError(f"two classes are called {Counter(classes).most_common(1)[0][0]!r}")
        return Checkpoint(str(about["model"]), config, classes, preparation, progress, weights, task, details)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"the checkpoint is damaged: {error}", where=path) from None


def header(path: Path) -> dict[str, Any]:
    """The header of a Regard checkpoint, without reading its weights; empty for files of other libraries."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors" or not path.is_file():
        return {}
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("regard", "{}"))
        return about if isinstance(about, dict) else {}
    except (SafetensorError, ValueError, RecursionError):
        return {}


def _safetensors_error() -> type[Exception]:
    from safetensors import SafetensorError

    return SafetensorError
