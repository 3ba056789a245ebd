"""Residual networks in others' names: torchvision's, which are timm's too, timm's BiT, transformers' ResNet and BiT."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import make
from regard.errors import ConfigError, RunError
from regard.geometry import per_axis
from regard.networks.resnet.config import SMALL_SIDE, ResNetConfig
from regard.weights.family import Family, Written
from regard.weights.files import Opened
from regard.weights.names import COUNTS, HALF, Format, Row, Shape
from regard.weights.notes import Notes, mismatch
from regard.weights.timm_config import stored_arguments

_WRAPPED = (r"^(module\.|_orig_mod\.|backbone\.|model\.|resnet\.|bit\.)+", "")


def _norm(ours: str, theirs: str, *kinds: str) -> tuple[Row, ...]:
    return tuple(Row(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in ("weight", "bias", *kinds))


def _batch_norm(ours: str, theirs: str) -> tuple[Row, ...]:
    return _norm(ours, theirs, "running_mean", "running_var", COUNTS)


_OURS, _HF_LAYER = "stages.{s}.{u}", "encoder.stages.{s}.layers.{u}"

TORCHVISION_RESNET = Format(
    "torchvision",
    (
        Row("root.weight", "conv1.weight"),
        *_batch_norm("root_norm", "bn1"),
        Row(f"{_OURS}.conv{{c}}.weight", "layer{s+1}.{u}.conv{c}.weight"),
        *_batch_norm(f"{_OURS}.norm{{c}}", "layer{s+1}.{u}.bn{c}"),
        Row(f"{_OURS}.shortcut.weight", "layer{s+1}.{u}.downsample.0.weight"),
        *_batch_norm(f"{_OURS}.shortcut_norm", "layer{s+1}.{u}.downsample.1"),
        *_norm("head", "fc"),
    ),
    sign=("conv1.weight", "bn1.running_var", "layer1.0.conv2.weight"),
    spellings=(_WRAPPED,),
)

HF_RESNET = Format(
    "hf",
    (
        Row("root.weight", "embedder.embedder.convolution.weight"),
        *_batch_norm("root_norm", "embedder.embedder.normalization"),
        Row(f"{_OURS}.conv{{c+1}}.weight", f"{_HF_LAYER}.layer.{{c}}.convolution.weight"),
        *_batch_norm(f"{_OURS}.norm{{c+1}}", f"{_HF_LAYER}.layer.{{c}}.normalization"),
        Row(f"{_OURS}.shortcut.weight", f"{_HF_LAYER}.shortcut.convolution.weight"),
        *_batch_norm(f"{_OURS}.shortcut_norm", f"{_HF_LAYER}.shortcut.normalization"),
        *_norm("head", "classifier.1"),
    ),
    sign=("embedder.embedder.convolution.weight", "encoder.stages.0.layers.0.layer.1.convolution.weight"),
    spellings=(_WRAPPED,),
)

HF_BIT = Format(
    "hf",
    (
        Row("root.weight", "embedder.convolution.weight"),
        Row(f"{_OURS}.conv{{c}}.weight", f"{_HF_LAYER}.conv{{c}}.weight"),
        *_norm(f"{_OURS}.norm{{c}}", f"{_HF_LAYER}.norm{{c}}"),
        Row(f"{_OURS}.shortcut.weight", f"{_HF_LAYER}.downsample.conv.weight"),
        *_norm("norm", "norm"),
        *_norm("head", "classifier.1"),
    ),
    sign=("embedder.convolution.weight", "norm.weight", "encoder.stages.0.layers.0.conv2.weight"),
    spellings=(_WRAPPED,),
    statistics=HALF,
)

TIMM_BIT = Format(
    "timm",
    (
        Row("root.weight", "stem.conv.weight"),
        Row(f"{_OURS}.conv{{c}}.weight", "stages.{s}.blocks.{u}.conv{c}.weight"),
        *_norm(f"{_OURS}.norm{{c}}", "stages.{s}.blocks.{u}.norm{c}"),
        Row(f"{_OURS}.shortcut.weight", "stages.{s}.blocks.{u}.downsample.conv.weight"),
        *_norm("norm", "norm"),
        Row("head.weight", "head.fc.weight", Shape(lambda t: t.flatten(1), lambda t, _: t[..., None, None])),  # 1 × 1
        Row("head.bias", "head.fc.bias"),
    ),
    sign=("stem.conv.weight", "norm.weight", "stages.0.blocks.0.conv2.weight"),
    spellings=(_WRAPPED,),
    statistics=HALF,
)

RESNET_FORMATS = (TORCHVISION_RESNET, HF_RESNET, HF_BIT, TIMM_BIT)

# What a config.json may say, and the only value of it that is the network here.
_ONLY = {
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
    "global_padding": None,
    "num_groups": 32,
    "output_stride": 32,
    "width_factor": 1,
}


def read(
    opened: Opened, format: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> tuple[dict[str, Tensor], ResNetConfig]:
    """Our state dict and the config it fits, from another library's tensors. The caller compares both."""
    for key, only in _ONLY.items():
        if opened.settings.get(key, only) != only:
            what = f"its {key} is {opened.settings[key]!r}; ours is {only!r}"
            raise RunError(what, where=opened.path, do="no other kind of residual network is known here")
    pool = stored_arguments(opened.settings, opened.path, "relu").get("global_pool", "avg")
    if pool != "avg":
        raise RunError(f"its pooling is {pool!r}; ours is the mean ('avg')", where=opened.path)
    state, unknown = format.read(opened.tensors)
    _fill_counts(state)
    differ = [f"{format.called(key)}: not in the file" for key in ("root.weight",) if key not in state]
    if differ := differ + [f"{key}: not in the model" for key in unknown]:
        raise mismatch(differ, opened.path)
    root, final = state["root.weight"], state.get("head.weight")
    if root.ndim != 4 or root.shape[2] not in (3, 7) or (final is not None and final.ndim != 2):
        raise mismatch([f"{format.called('root.weight')}: {tuple(root.shape)} in the file"], opened.path)
    small = root.shape[2] == 3
    if small:
        notes.assumed.append("the first convolution, of 3 × 3, has stride 1 and no pooling after it")
    kind = "bit" if format in (HF_BIT, TIMM_BIT) else "bottleneck" if "stages.0.0.conv3.weight" in state else "basic"
    values = {
        "size": _size(opened, fields.get("size"), small, notes),
        "channels": root.shape[1],
        "classes": 1000 if final is None else len(final),
        "width": len(root),
        "blocks": count_blocks(state, opened.path),
        "kind": kind,
        "stem": "small" if small else "large",
    }
    return state, make(ResNetConfig, values, opened.path)


def _fill_counts(state: dict[str, Tensor]) -> None:
    """Files from before 2018 do not count BatchNorm's batches; nothing depends on it."""
    for key in [key for key in state if key.endswith(".running_var")]:
        state.setdefault(key.replace("running_var", COUNTS), torch.tensor(0))


def count_blocks(state: Mapping[str, Tensor], where: Path) -> tuple[int, ...]:
    """Blocks of each stage, which must be numbered without a gap."""
    numbers = {tuple(map(int, m.groups())) for key in state if (m := re.match(r"stages\.(\d+)\.(\d+)\.", key))}
    stages = Counter(stage for stage, _ in numbers)
    counts = [stages[n] for n in range(1 + max(stages, default=0))]
    whole = {(stage, unit) for stage, count in enumerate(counts) for unit in range(count)}
    if numbers != whole or not all(counts):
        raise mismatch(["its blocks are not numbered one after another"], where)
    return tuple(counts)


def _size(opened: Opened, size: Any, small: bool, notes: Notes) -> tuple[int, ...]:
    """No tensor depends on the size: what the caller or the files beside it say, else what is usual."""
    beside = opened.preprocessor.get("size")
    said = [size, opened.settings.get("image_size")]
    if isinstance(beside, dict):
        said += [
            (beside["height"], beside["width"]) if {"height", "width"} <= set(beside) else beside.get("shortest_edge")
        ]
    said += [tuple(opened.timm_settings.get("input_size", ())[1:])]
    for value in said:
        if value:
            return per_axis(tuple(value) if isinstance(value, list) else value, 2, "size")
    side = SMALL_SIDE // 2 if small else 224
    notes.assumed.append(f"its pictures are of {side} × {side}: neither the file nor one beside it says")
    return side, side


def adapt(state: dict[str, Tensor], config: ResNetConfig, target: ResNetConfig, notes: Notes) -> None:
    """The first convolution for grey input; a standardised one (BiT's) cannot be summed."""
    if (config.channels, target.channels) == (3, 1) and config.kind != "bit":
        sum_over_colours(state, "root.weight", notes)


def sum_over_colours(state: dict[str, Tensor], key: str, notes: Notes) -> None:
    state[key] = state[key].sum(dim=1, keepdim=True)
    notes.changed.append("the first convolution is summed over colours: grey input answers as grey in colour did")


def write(weights: Mapping[str, Tensor], config: ResNetConfig, to: str) -> Written:
    """Our tensors as `to` names them, with what else its files say."""
    able = {"hf", "timm"} if config.kind == "bit" else {"hf", "torchvision", "timm"}
    if to not in able:
        what = f"{to} weights cannot represent a {'BiT' if config.kind == 'bit' else 'ResNet'}"
        raise ConfigError(what, do=f"these can: {', '.join(sorted(able))}, regard")
    notes: list[str] = []
    if config.stem == "small" and to == "hf":
        raise ConfigError("hf weights cannot represent stem='small'", do="these can: torchvision, timm, regard")
    if config.stem == "small":
        notes.append("the first convolution is of 3 × 3 with stride 1 and no pooling follows: build the model so")
    if config.kind == "bit":
        format = HF_BIT if to == "hf" else TIMM_BIT
    else:
        format = HF_RESNET if to == "hf" else TORCHVISION_RESNET
    state = {key: tensor.detach().cpu() for key, tensor in weights.items()}
    tensors, unknown = format.write(state, config)
    if unknown:
        raise RunError(f"{to} has no name for {unknown[0]}")
    return Written(tensors, _settings(config), {"image_size": list(config.size)}, notes)


def _settings(config: ResNetConfig) -> dict[str, Any]:
    """The shape in the words of transformers' config.json."""
    bit = config.kind == "bit"
    widths = [config.features // 2**n for n in reversed(range(len(config.blocks)))]
    settings: dict[str, Any] = {
        "architectures": [f"{'Bit' if bit else 'ResNet'}ForImageClassification"],
        "model_type": "bit" if bit else "resnet",
        "num_channels": config.channels,
        "embedding_size": config.width,
        "hidden_sizes": widths,
        "depths": list(config.blocks),
        "layer_type": "preactivation" if bit else config.kind,
        "hidden_act": "relu",
        "image_size": list(config.size),
    }
    return settings | ({"num_groups": 32, "global_padding": None} if bit else {"downsample_in_bottleneck": False})


RESNET = Family(own="root.weight", formats=RESNET_FORMATS, read=read, adapt=adapt, write=write)
