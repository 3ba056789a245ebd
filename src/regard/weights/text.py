"""A translator's checkpoint: weights and shape in one file, its tokenizers in the run folder around it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import registry
from regard.config import read_json
from regard.data.text import Tokenizers
from regard.errors import RegardError, RunError
from regard.networks.translator import Translator
from regard.weights.checkpoint import FORMAT
from regard.weights.files import open_file
from regard.weights.load import find_file, require_finite

TOKENIZERS = "tokenizers"


@dataclass(frozen=True)
class TextCheckpoint:
    """Weights of a translator, and what they are the weights of."""

    model: str
    config: dict[str, Any]
    languages: tuple[str, str]
    progress: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def about(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "config": self.config,
            "languages": list(self.languages),
            "progress": self.progress,
        }


def translates(path: str | Path) -> bool:
    """Whether a run or checkpoint is of a translator; no where it is nothing that can be read."""
    path = Path(path).expanduser()
    try:
        if (path / "config.json").is_file():
            model = read_json(path / "config.json").get("model")
            name = model.get("value") if isinstance(model, dict) else None
        else:
            name = _header(path).get("model") if path.suffix == ".safetensors" else None
    except (OSError, ValueError, AttributeError, RecursionError, RegardError):
        return False
    return isinstance(name, str) and name in registry.MODELS and registry.config_class(name).inputs == "text"


def _header(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, without its weights being read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return json.loads((file.metadata() or {})["regard"])
    except (SafetensorError, KeyError):
        return {}


def open_text(path: str | Path) -> tuple[TextCheckpoint, Translator, Tokenizers]:
    """A run's best translator, or that of a checkpoint file in a run folder, with its tokenizers."""
    file = find_file(path)
    opened = open_file(file)
    try:
        if opened.metadata.get("format") != FORMAT:
            raise ValueError(f"it is not of this version ({FORMAT})")
        about = json.loads(opened.metadata["regard"])
        source, target = map(str, about["languages"])
        name, config = str(about["model"]), dict(about["config"])
        checkpoint = TextCheckpoint(name, config, (source, target), about["progress"], opened.tensors)
        with torch.device("meta"):
            model: Translator = registry.build(name, **config)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"the checkpoint is damaged: {error}", where=file) from None
    wanted, there = model.state_dict(), checkpoint.weights
    differ = [f"{name}: not in the file" for name in wanted.keys() - there.keys()]
    differ += [f"{name}: not in the model" for name in there.keys() - wanted.keys()]
    differ += [
        f"{name}: {tuple(wanted[name].shape)} here, {tuple(there[name].shape)} in the file"
        for name in wanted.keys() & there.keys()
        if wanted[name].shape != there[name].shape
    ]
    if differ:
        raise RunError("the weights do not fit: " + "; ".join(sorted(differ)[:10]), where=file)
    require_finite(there, file)
    folder = file.parent.parent / TOKENIZERS
    if not folder.is_dir():
        raise RunError("its tokenizers are missing", where=folder, do="keep a checkpoint in its run folder")
    tokenizers = Tokenizers.load(folder)
    model = registry.build(checkpoint.model, **checkpoint.config)
    sizes = (tokenizers.source.size, tokenizers.target.size)
    if sizes != (model.config.source_words, model.config.target_words):
        words = (model.config.source_words, model.config.target_words)
        raise RunError(f"tokenizers of {sizes} tokens do not fit a model of {words}", where=folder)
    model.load_state_dict(there)
    return checkpoint, model, tokenizers
