"""Writes a model's weights in another library's names and shapes, for that library to load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import registry
from regard.config import CONFIGS, ModelConfig, ResNetConfig, ViTConfig, make
from regard.errors import ConfigError, RunError, did_you_mean
from regard.geometry import grid_of
from regard.nn.patches import GridPositions
from regard.weights.checkpoint import Checkpoint, save_checkpoint, write_aside
from regard.weights.load import open_weights
from regard.weights.names import DINOV2, FORMATS, HF, HF_DINOV2, NAMES, TIMM, Format
from regard.weights.notes import LoadReport
from regard.weights.resnet import resnet_names

ENDINGS = {"regard": ".safetensors", "timm": ".safetensors", "torchvision": ".safetensors", "dinov2": ".safetensors",
           "google": ".npz", "hf": ""}  # fmt: skip


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
        return [f"{len(checkpoint.weights)} tensors"]
    config = make(CONFIGS[registry.find(checkpoint.model).family], checkpoint.config, checkpoint.model)
    if isinstance(config, ResNetConfig):
        return _write_resnet(checkpoint, config, out, to)
    if not isinstance(config, ViTConfig):
        raise ConfigError(f"{to} weights have no words for a fully connected network", do="keep it as regard")
    target = _choose(config, to)
    tensors, notes = write_names(checkpoint.weights, config, target)
    if to == "google":
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}

        def save(aside: Path) -> None:
            with aside.open("wb") as file:
                np.savez(file, **arrays)

        write_aside(out, save)
    elif to == "hf":
        _write_folder(out, tensors, _folder_settings(checkpoint, config, target), _processor(checkpoint, config))
    else:
        save_tensors(tensors, out, _header(_about(checkpoint, config), checkpoint, config))
        notes.append(f"heads ({config.heads}), classes and normalisation are in the file's header, for Regard to read")
    if to == "google":
        notes.append("the file cannot say the classes' names and how images are normalised")
    return [f"{len(tensors)} tensors", *notes]


def _write_resnet(checkpoint: Checkpoint, config: ResNetConfig, out: Path, to: str) -> list[str]:
    tensors, settings, notes = resnet_names(checkpoint.weights, config, to)
    labels = dict(enumerate(checkpoint.classes))
    settings |= {"id2label": labels, "label2id": {name: n for n, name in labels.items()}, "dtype": "float32"}
    if to == "hf":
        _write_folder(out, tensors, settings, _processor(checkpoint, config))
    else:
        about = {"id2label": labels, "image_size": list(config.size)}
        save_tensors(tensors, out, _header(about, checkpoint, config))
        notes.append("classes, size and normalisation are in the file's header, for Regard to read")
    return [f"{len(tensors)} tensors", *notes]


def _choose(config: ViTConfig, to: str) -> Format:
    """transformers has one model without registers and LayerScale and another with them."""
    if to == "hf":
        return HF_DINOV2 if config.registers or config.layer_scale is not None else HF
    return next(f for f in FORMATS if f.name == to)


def write_names(
    weights: Mapping[str, Tensor], config: ViTConfig, target: Format
) -> tuple[dict[str, Tensor], list[str]]:
    """The same model as `target`'s tensors, and notes; a model it has no words for is an error."""
    notes: list[str] = []
    state = {key: tensor.detach().cpu().float() for key, tensor in weights.items()}
    _require_expressible(config, target)
    state["positions.table"] = _table(state, config, notes)
    for key in [key for key in state if key.startswith("positions.axes")]:
        del state[key]
    if config.head == "mlp":
        for kind in ("weight", "bias"):
            state[f"hidden.{kind}"] = state.pop(f"head.0.{kind}")
            state[f"head.{kind}"] = state.pop(f"head.2.{kind}")
    extra: dict[str, Tensor] = {}
    if target is TIMM and config.registers:  # as timm's own models with registers: no positions for prefix tokens
        classed = int(config.pool == "class")
        table = state["positions.table"]
        if classed:
            state["class_token"] = state["class_token"] + table[:classed]
        state["positions.table"] = table[classed:]
        notes.append("positions are for patches alone: build the timm model with no_embed_class=True")
    if target in (DINOV2, HF_DINOV2):
        extra = _as_dinov2(state, config, target, notes)
    if target.name != "hf" and config.eps != target.eps:
        notes.append(
            f"LayerNorm's eps is {config.eps:g} here, which the file cannot say; {target.name}'s is {target.eps:g}"
        )
    tensors, unknown = target.write(state, config)
    if unknown:
        raise RunError(f"{target.name} has no name for {unknown[0]}")
    return tensors | extra, notes


def _as_dinov2(state: dict[str, Tensor], config: ViTConfig, target: Format, notes: list[str]) -> dict[str, Tensor]:
    """What DINOv2's models always have: LayerScale (ones change nothing) and a mask token (unused in inference)."""
    for n in range(config.depth if config.layer_scale is None else 0):
        state[f"blocks.{n}.scale1.scale"] = state[f"blocks.{n}.scale2.scale"] = torch.ones(config.width)
    if target is DINOV2:
        del state["head.weight"], state["head.bias"]
        notes.append("the head is left out: the format has none")
        return {"mask_token": torch.zeros(1, config.width)}
    head = state["head.weight"]
    state["head.weight"] = torch.cat([head, torch.zeros_like(head)], dim=1)  # it reads the mean of the patches too
    return {"embeddings.mask_token": torch.zeros(1, config.width)}


def _require_expressible(config: ViTConfig, target: Format) -> None:
    """The first field that the format has no words for is named, with the formats that have."""
    wanted = {
        "registers": "registers" if config.registers else None,
        "layer_scale": "blocks.0.scale1.scale" if config.layer_scale is not None else None,
        "head": "hidden.weight" if config.head == "mlp" else None,
        "stem": "patches.root.weight" if config.stem == "r50" else None,
    }
    for field, key in wanted.items():
        able = [f.name for f in FORMATS if key and f.called(key)]
        if field == "head":  # timm's old files have the layer, its models no longer do
            able = [name for name in able if name != "timm"]
        if key and target.name not in able:
            others = ", ".join(dict.fromkeys(able))
            raise _inexpressible(f"{field}={getattr(config, field)!r}", target, f"these have: {others}, regard")
    if len(config.size) != 2:
        raise _inexpressible(f"an input of {len(config.size)} axes", target, "keep it as regard")
    for field, own in {"norm": "post", "stem": "conv", "positions": "conditional", "rotary": True}.items():
        if getattr(config, field) == own:
            raise _inexpressible(f"{field}={own!r}", target, "no other format here has; keep it as regard")
    if config.pool == "mean" and target.needs_class:
        raise _inexpressible("pool='mean'", target, "these have: google, timm, regard")
    grid = grid_of(config.size, config.patch)
    if target.square and (grid[0] != grid[1] or config.patch[0] != config.patch[1]):
        raise _inexpressible(f"size={config.size}", target, "its models are square; these are not: google, hf, timm")
    if target is HF_DINOV2 and config.mlp % config.width:
        raise _inexpressible(f"mlp={config.mlp}", target, "there it is a multiple of the width; use timm or dinov2")


def _inexpressible(what: str, target: Format, do: str) -> ConfigError:
    return ConfigError(f"{target.name} weights have no words for {what}", do=do)


def _table(state: Mapping[str, Tensor], config: ViTConfig, notes: list[str]) -> Tensor:
    """Positions of any kind as the learned table that others have."""
    if config.positions == "learned":
        return state["positions.table"]
    grid, prefix = grid_of(config.size, config.patch), int(config.pool == "class")
    positions = GridPositions(config.positions, grid, config.width, prefix)
    positions.load_state_dict({k.removeprefix("positions."): v for k, v in state.items() if k.startswith("positions.")})
    notes.append(f"{config.positions} positions are written as a table")
    with torch.no_grad():
        return positions(torch.zeros(1, prefix + grid[0] * grid[1], config.width), grid)[0]


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str] | None = None) -> None:
    """A safetensors file for others to read."""
    from safetensors.torch import save_file

    apart = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}  # no two share memory
    write_aside(path, lambda aside: save_file(apart, aside, metadata={"format": "pt", **(about or {})}))


def _about(checkpoint: Checkpoint, config: ViTConfig) -> dict[str, Any]:
    """What tensors alone do not say, in the words of transformers' config.json."""
    labels = dict(enumerate(checkpoint.classes))
    return {"num_attention_heads": config.heads, "layer_norm_eps": config.eps, "id2label": labels}


def _header(settings: dict[str, Any], checkpoint: Checkpoint, config: ModelConfig) -> dict[str, str]:
    """For a safetensors file: what Regard reads there of what others keep in files beside it."""
    about = {"settings": settings, "preprocessor": _processor(checkpoint, config)}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}


def _processor(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Any]:
    """How images are prepared, in the words of its preprocessor_config.json."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": config.size[0], "width": config.size[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(checkpoint.preparation.mean),
        "image_std": list(checkpoint.preparation.std),
    }


def _folder_settings(checkpoint: Checkpoint, config: ViTConfig, target: Format) -> dict[str, Any]:
    """A ViT in the words of transformers' config.json."""
    kind = "vit" if target is HF else "dinov2_with_registers" if config.registers else "dinov2"
    architecture = {"vit": "ViT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[kind]
    settings: dict[str, Any] = _about(checkpoint, config) | {
        "architectures": [f"{architecture}ForImageClassification"],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "image_size": config.size[0] if config.size[0] == config.size[1] else list(config.size),
        "patch_size": config.patch[0] if config.patch[0] == config.patch[1] else list(config.patch),
        "num_channels": config.channels,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "qkv_bias": True,
        "label2id": {label: n for n, label in enumerate(checkpoint.classes)},
        "dtype": "float32",
    }
    if target is HF:
        settings["intermediate_size"] = config.mlp
    else:
        settings |= {"mlp_ratio": config.mlp // config.width, "use_swiglu_ffn": False}
        settings |= {"num_register_tokens": config.registers} if config.registers else {}
    return settings


def _write_folder(out: Path, tensors: dict[str, Tensor], settings: dict[str, Any], processor: dict[str, Any]) -> None:
    """A folder for from_pretrained: versions 4 and 5 of transformers both read version 4's names."""
    kind = settings["model_type"]
    prefixed = {name if name.startswith("classifier") else f"{kind}.{name}": t for name, t in tensors.items()}
    save_tensors(prefixed, out / "model.safetensors")
    for name, value in (("config.json", settings), ("preprocessor_config.json", processor)):
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        write_aside(out / name, lambda aside, text=text: aside.write_text(text, encoding="utf-8"))
