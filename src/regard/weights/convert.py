"""Writes a model's weights in another library's names and shapes, for that library to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard import registry
from regard.errors import ConfigError, RunError, did_you_mean
from regard.networks.config import ImageConfig
from regard.weights.checkpoint import MOST_COMMENT, Checkpoint, save_arrays, save_checkpoint, save_tensors
from regard.weights.families import FAMILIES, NAMES
from regard.weights.family import Written, refuse
from regard.weights.load import open_weights
from regard.weights.notes import LoadReport
from regard.weights.run import to_json, write_text

ENDINGS = {"regard": ".safetensors", "timm": ".safetensors", "torchvision": ".safetensors", "dinov2": ".safetensors",
           "microsoft": ".safetensors", "detr": ".safetensors", "google": ".npz", "hf": ""}  # fmt: skip


def convert(
    path: str | Path, out: str | Path, to: str, name: str | None = None, classes: int | None = None, **fields: Any
) -> tuple[LoadReport, list[str]]:
    """Read a weights file of any known format and write it in another; what was read, and how it was written.

    >>> import regard
    >>> run = regard.train("digits", epochs=1, depth=1, explain=0, out=tmp / "run", quiet=True)
    >>> report, written = convert(run.path, tmp / "digits.npz", to="google")
    >>> report.format, (tmp / "digits.npz").is_file()
    ('regard', True)
    """
    out = Path(out).expanduser()
    require_writable(out, to)
    checkpoint, report = open_weights(path, name, classes, **fields)
    return report, write_weights(checkpoint, out, to)


def require_writable(out: Path, to: str) -> None:
    """Wrong names are errors before anything is read."""
    if to not in NAMES:
        raise ConfigError(f"there is no format called {to!r}", do=did_you_mean(to, NAMES))
    if out.exists() and (not out.is_dir() or to != "hf" or any(out.iterdir())):
        raise RunError("the file exists already", where=out, do="choose another name; nothing is written over")
    if out.suffix != ENDINGS[to] and (ENDINGS[to] or out.suffix in ENDINGS.values()):  # a folder's name may have dots
        kind = f"a {ENDINGS[to]} file" if ENDINGS[to] else "a folder (config.json and model.safetensors)"
        raise ConfigError(f"{to} weights are written as {kind}, and {out.name!r} is not one")


def write_weights(checkpoint: Checkpoint, out: Path, to: str) -> list[str]:
    """Write a checkpoint's weights as `to`; returns what is worth knowing about the result."""
    if to == "regard":
        save_checkpoint(out, checkpoint)
        apart = [] if checkpoint.classes else ["its tokenizers are not in the file"]
        return [f"{len(checkpoint.weights)} tensors", *apart]
    config = registry.configure(checkpoint.model, **checkpoint.config)
    write = FAMILIES[config.family].write if config.family in FAMILIES else refuse
    written = write(checkpoint.weights, config, to)
    tensors, settings, header, notes, _ = written
    labels, processor = dict(enumerate(checkpoint.classes)), _processor(checkpoint, config)
    if to == "hf":
        settings |= {"id2label": labels, "label2id": {name: n for n, name in labels.items()}, "dtype": "float32"}
        _write_folder(out, written, processor)
        return [f"{len(tensors)} tensors", *notes]
    said = ", ".join(f"{name} ({value})" for name, value in header.items())
    about = {"settings": json.dumps(header | {"id2label": labels}), "preprocessor": json.dumps(processor)}
    if to == "google":
        if named := len(json.dumps(about)) <= MOST_COMMENT:
            said += ", classes"
        else:
            about["settings"] = json.dumps(header)
        save_arrays(tensors, out, json.dumps(about))
        notes.append(f"{said} and normalisation are in the archive's comment, for Regard to read")
        if not named:
            notes.append("the names of the classes do not fit there")
    else:
        save_tensors(tensors, out, about)
        notes.append(f"{said}, classes and normalisation are in the file's header, for Regard to read")
    return [f"{len(tensors)} tensors", *notes]


def _processor(checkpoint: Checkpoint, config: ImageConfig) -> dict[str, Any]:
    """How images are prepared, in the words of its preprocessor_config.json."""
    prepared, (height, width) = checkpoint.preparation, config.size[:2]
    assert prepared is not None
    boxes = config.predicts == "boxes"
    return {
        "image_processor_type": "DetrImageProcessor" if boxes else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": height, "longest_edge": width} if boxes else {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(prepared.mean),
        "image_std": list(prepared.std),
    }


def _write_folder(out: Path, written: Written, processor: dict[str, Any]) -> None:
    """A folder for from_pretrained: versions 4 and 5 of transformers both read version 4's names."""
    tensors, kind = written.tensors, written.settings["model_type"]
    if not written.complete:
        tensors = {name if "classifier" in name else f"{kind}.{name}": t for name, t in tensors.items()}
    save_tensors(tensors, out / "model.safetensors")
    for name, value in (("config.json", written.settings), ("preprocessor_config.json", processor)):
        write_text(out / name, to_json(value))
