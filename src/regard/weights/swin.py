"""Swin Transformers: other libraries' tensors as ours, ours as theirs, and ours for another input or window."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import make
from regard.errors import ConfigError, RunError
from regard.geometry import per_axis
from regard.networks.swin.config import SwinConfig
from regard.nn.patches import resample_grid
from regard.nn.windows import relative_rows, shift_mask
from regard.weights.family import Family, Written
from regard.weights.files import Opened
from regard.weights.inflate import change_channels, inflate_swin
from regard.weights.names import Format
from regard.weights.notes import Notes, mismatch
from regard.weights.swin_names import (
    HF_SWIN,
    MASK,
    MICROSOFT,
    ROWS,
    SWIN_FORMATS,
    TABLE,
    TIMM_SWIN,
)
from regard.weights.timm_config import stored_arguments

# How each library cuts windows on a grid that is no longer than one: see `SwinConfig.small_grid`.
RULES: dict[str, Literal["axis", "shortest", "pad"]] = {
    "microsoft": "shortest",
    "timm": "axis",
    "torchvision": "pad",
    "hf": "shortest",
}
# Libraries whose bias tables are for the windows of the model's own input size, which may be smaller there.
SHRINKING = (MICROSOFT, TIMM_SWIN)
BLOCKED = -100.0
"""What Microsoft's code adds to the score of a pair that may not attend; ours is minus infinity."""
# What a config.json of transformers may say, and the only value of it that is the network here.
_ONLY = {"hidden_act": "gelu", "qkv_bias": True, "use_absolute_embeddings": False, "layer_norm_eps": 1e-5}


def read(
    opened: Opened, format: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> tuple[dict[str, Tensor], SwinConfig]:
    """Our state dict and the config it fits, from another library's tensors. The caller compares both."""
    for key, only in _ONLY.items():
        if opened.settings.get(key, only) != only:
            raise RunError(f"its {key} is {opened.settings[key]!r}; ours is {only!r}", where=opened.path)
    state, unknown = format.read(opened.tensors)
    for key in [key for key in unknown if re.fullmatch(format.spare, format.respell(key))]:
        unknown.remove(key)
        notes.leave(key, opened.tensors[key])
    if unknown:
        raise mismatch([f"{key}: not in the model" for key in unknown], opened.path)
    buffers = {key: state.pop(key) for key in list(state) if key.endswith((ROWS, MASK))}
    notes.left += sum(tensor.numel() for tensor in buffers.values())
    depths = _depths(state, opened.path)
    tables = [f"stages.{stage}.blocks.0.{TABLE}" for stage in range(len(depths))]
    _require_axes(state, tables, format, opened.path)
    kernel, up, final = state["patches.project.weight"], state["stages.0.blocks.0.mlp.up.weight"], "head.weight"
    values = {
        "patch": tuple(kernel.shape[2:]),
        "channels": kernel.shape[1],
        "classes": len(state[final]) if final in state else 1000,
        "width": len(kernel),
        "depths": depths,
        "heads": tuple(state[table].shape[1] for table in tables),
        "window": _window(max(len(state[table]) for table in tables), opened, fields.get("window")),
        "mlp_ratio": len(up) / len(kernel),
        "eps": format.eps,
        "small_grid": opened.settings.get("small_grid", RULES[format.name]),
    }
    config = make(SwinConfig, values, opened.path)
    masks = {key: tensor for key, tensor in buffers.items() if key.endswith(MASK)}
    size = _size(opened, config, [len(state[table]) for table in tables], masks, fields.get("size"), notes)
    config = replace(config, size=size)
    _check_buffers(buffers, config, format, opened.path)
    if format in SHRINKING:
        _grow_tables(state, config, notes)
    state["patches.project.weight"] = kernel.flatten(1)
    return state, config


def _depths(state: Mapping[str, Tensor], where: Path) -> tuple[int, ...]:
    """Blocks of each stage, which must be numbered without a gap and have a bias table each."""
    pattern = re.compile(rf"stages\.(\d+)\.blocks\.(\d+)\.{re.escape(TABLE)}")
    numbers = {(int(m[1]), int(m[2])) for key in state if (m := pattern.fullmatch(key))}
    stages = Counter(stage for stage, _ in numbers)
    depths = [stages[n] for n in range(1 + max(stages, default=0))]
    if not all(depths) or numbers != {(stage, block) for stage, count in enumerate(depths) for block in range(count)}:
        raise mismatch(["its blocks are not numbered one after another"], where)
    return tuple(depths)


def _require_axes(state: Mapping[str, Tensor], tables: list[str], format: Format, where: Path) -> None:
    """Check the tensors that give the sizes: there, number of axes, not empty."""
    axes = {"patches.project.weight": 4, "stages.0.blocks.0.mlp.up.weight": 2} | dict.fromkeys(tables, 2)
    if missing := [key for key in axes if key not in state]:
        raise mismatch([f"{format.called(key)}: not in the file" for key in missing], where)
    axes |= {"head.weight": 2} if "head.weight" in state else {}
    odd = [key for key, count in axes.items() if state[key].ndim != count or not state[key].numel()]
    if odd:
        raise mismatch([f"{format.called(key)}: {tuple(state[key].shape)} in the file" for key in odd], where)


def _rows(window: tuple[int, ...]) -> int:
    """Rows of a bias table: pairs of tokens have so many offsets."""
    return math.prod(2 * side - 1 for side in window)


def _window(rows: int, opened: Opened, asked: Any) -> tuple[int, ...]:
    """The window whose table has so many rows: as the files say, else a square one, else `asked`."""
    arguments = stored_arguments(opened.settings, opened.path)
    side = (math.isqrt(rows) + 1) // 2
    for said in (opened.settings.get("window_size"), arguments.get("window_size"), side, asked):
        if said and _rows(window := _two(said, "window")) == rows:
            return window
    raise RunError(f"bias tables of {rows} rows are for no square window", where=opened.path, do="give window=")


def _two(value: Any, name: str) -> tuple[int, ...]:
    return per_axis(tuple(value) if isinstance(value, list) else value, 2, name)


def _size(
    opened: Opened, config: SwinConfig, rows: list[int], masks: Mapping[str, Tensor], asked: Any, notes: Notes
) -> tuple[int, ...]:
    """The input size that the weights are for: as the files, the masks or smaller tables say; else what is usual."""
    arguments = stored_arguments(opened.settings, opened.path)
    said = [opened.settings.get("image_size"), arguments.get("img_size")]
    for value in (*said, tuple(opened.timm_settings.get("input_size", ())[1:])):
        if value:
            return _two(value, "size")
    if masks:
        first = min(masks, key=lambda key: int(key.split(".")[1]))
        side, stage = math.isqrt(len(masks[first])), int(first.split(".")[1])
        return tuple(side * each * 2**stage * patch for each, patch in zip(config.window, config.patch, strict=True))
    windows = [config.fit_window(grid)[0] for grid in config.grids(_two(asked, "size"))] if asked else []
    if asked and (min(rows) == max(rows) or [_rows(window) for window in windows] == rows):
        return _two(asked, "size")
    for stage, count in enumerate(rows):
        if count < max(rows):
            side = (math.isqrt(count) + 1) // 2
            return tuple(side * 2**stage * patch for patch in config.patch)
    cell = [2 ** (len(config.depths) - 1) * patch for patch in config.patch]
    size = tuple(each * side for each, side in zip(config.window, cell, strict=True))
    notes.assumed.append(f"its pictures are of {size[0]} × {size[1]}, one window in the last stage: no file says")
    return size


def _check_buffers(buffers: Mapping[str, Tensor], config: SwinConfig, format: Format, where: Path) -> None:
    """Refuse a file whose indices or masks are not those that our network computes."""
    grids = config.grids()
    for key, tensor in buffers.items():
        stage = int(key.split(".")[1])
        if stage >= len(grids):
            raise mismatch([f"{format.called(key)}: not in the model"], where)
        window, shift = config.fit_window(grids[stage])
        if key.endswith(ROWS):
            window = window if format in SHRINKING else config.window
            same = torch.equal(tensor.flatten().long(), relative_rows(window, window).flatten())
        else:
            mask = shift_mask(grids[stage], window, shift)
            same = mask is not None and torch.equal(tensor.float(), _as_scores(mask))
        if not same:
            what = f"{format.called(key)} is not what windows of {window} on a grid of {grids[stage]} have"
            raise RunError(what, where=where, do="this is a changed Swin, which is not known here")


def _as_scores(mask: Tensor) -> Tensor:
    """Microsoft's form of a mask: (windows, tokens, tokens), 0 or -100."""
    return torch.zeros(mask[:, 0].shape).masked_fill(~mask[:, 0], BLOCKED)


def _offsets(window: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(2 * side - 1 for side in window)


def _grow_tables(state: dict[str, Tensor], config: SwinConfig, notes: Notes) -> None:
    """Tables for smaller windows as tables for the whole window: zeros for offsets that do not occur there."""
    for stage, (grid, depth) in enumerate(zip(config.grids(), config.depths, strict=True)):
        small, _ = config.fit_window(grid)
        for key in (f"stages.{stage}.blocks.{block}.{TABLE}" for block in range(depth)):
            if small == config.window or len(state[key]) != _rows(small):
                continue
            field = state[key].reshape(*_offsets(small), -1)
            around = [n for whole, side in zip(config.window, small, strict=True) for n in (whole - side,) * 2]
            state[key] = F.pad(field, [0, 0, *reversed(around)]).flatten(0, -2)
        if small != config.window:
            notes.changed.append(f"bias tables of stage {stage + 1} are for windows of {small}: zeros around them")


def _shrink_tables(state: dict[str, Tensor], config: SwinConfig, notes: list[str]) -> None:
    """The inverse of `_grow_tables`."""
    for stage, (grid, depth) in enumerate(zip(config.grids(), config.depths, strict=True)):
        small, _ = config.fit_window(grid)
        if small == config.window:
            continue
        notes.append(f"bias tables of stage {stage + 1} are cut to windows of {small}, for inputs of {config.size}")
        inner = tuple(slice(w - s, w + s - 1) for w, s in zip(config.window, small, strict=True))
        for key in (f"stages.{stage}.blocks.{block}.{TABLE}" for block in range(depth)):
            state[key] = state[key].reshape(*_offsets(config.window), -1)[inner].flatten(0, -2)


def adapt(state: dict[str, Tensor], config: SwinConfig, target: SwinConfig, notes: Notes) -> None:
    """Bias tables for another window, and a projection for other channels. Another size changes no tensor."""
    if config.window != target.window and len(config.window) == len(target.window):
        for key in [key for key in state if key.endswith(TABLE)]:
            state[key] = resample_grid(state[key], _offsets(config.window), _offsets(target.window))
        sides = ["×".join(map(str, window)) for window in (config.window, target.window)]
        notes.changed.append(f"relative position biases are resampled from windows of {sides[0]} to {sides[1]}")
    if config.size != target.size:
        sides = ["×".join(map(str, size)) for size in (config.size, target.size)]
        notes.changed.append(f"the input is {sides[1]}, not {sides[0]}: more or fewer windows, the same biases")
    if config.channels != target.channels:
        change_channels(state, config.channels, target.channels, notes)


def write(weights: Mapping[str, Tensor], config: SwinConfig, to: str) -> Written:
    """Our tensors in the names of `to`, and the settings its files hold."""
    formats = {format.name: format for format in SWIN_FORMATS}
    if to not in formats:
        able = ", ".join(formats)
        raise ConfigError(f"{to} weights cannot represent a Swin Transformer", do=f"these can: {able}, regard")
    _require_expressible(config, to)
    format, notes = formats[to], list[str]()
    theirs = replace(config, small_grid=RULES[to])
    if any(config.fit_window(grid) != theirs.fit_window(grid) for grid in config.grids()):
        notes.append(f"at this size {to} cuts windows as small_grid={RULES[to]!r}, not {config.small_grid!r}")
    if format is TIMM_SWIN and (padded := _padded_shifts(theirs)):
        stages = f"stage{'s' * (len(padded) > 1)} {', '.join(map(str, padded))}"
        notes.append(
            f"timm answers differently at {config.size}: it rolls before it pads, and shifted windows of {stages} need "
            "padding; sizes whose windows fit have equal answers"
        )
    state = {key: tensor.detach().cpu().float() for key, tensor in weights.items()}
    if format in SHRINKING:
        _shrink_tables(state, theirs, notes)
    tensors, unknown = format.write(state | _buffers(theirs, format), theirs)
    if unknown:
        raise RunError(f"{to} has no name for {unknown[0]}")
    header = {
        "image_size": list(config.size),
        "window_size": list(config.window),
        "small_grid": config.small_grid,
    }
    return Written(tensors, _settings(config) if format is HF_SWIN else {}, header, notes)


def _padded_shifts(config: SwinConfig) -> list[int]:
    """The stages, from 1 on, with blocks whose windows are shifted along an axis that needs padding."""
    stages = []
    for stage, (grid, depth) in enumerate(zip(config.grids(), config.depths, strict=True), start=1):
        axes = zip(grid, *config.fit_window(grid), strict=True)
        if depth > 1 and any(shift and tokens % side for tokens, side, shift in axes):
            stages.append(stage)
    return stages


def _buffers(config: SwinConfig, format: Format) -> dict[str, Tensor]:
    """The indices and masks that the library keeps in its files."""
    buffers: dict[str, Tensor] = {}
    for stage, (grid, depth) in enumerate(zip(config.grids(), config.depths, strict=True)):
        window, shift = config.fit_window(grid)
        table = window if format in SHRINKING else config.window
        mask = shift_mask(grid, window, shift)
        for block in range(depth):
            name = f"stages.{stage}.blocks.{block}"
            if format.called(f"{name}.{ROWS}"):
                buffers[f"{name}.{ROWS}"] = relative_rows(table, table)
            if format.called(f"{name}.{MASK}") and block % 2 and mask is not None:
                buffers[f"{name}.{MASK}"] = _as_scores(mask)
    return buffers


def _require_expressible(config: SwinConfig, to: str) -> None:
    """What the format cannot represent is named."""
    if len(config.size) != 2:
        raise _inexpressible(f"an input of {len(config.size)} axes", to)
    if config.eps != 1e-5:
        raise _inexpressible(f"eps={config.eps}", to)
    square = config.window[0] == config.window[1]
    if to in ("hf", "microsoft") and not square:
        raise _inexpressible(f"window={config.window}", to)
    if to == "hf" and any(min(grid) < config.window[0] for grid in config.grids()):
        what = f"windows of {config.window[0]} at size={config.size}, where a grid is shorter than one"
        raise _inexpressible(what, to)
    if to == "microsoft" and any(
        side % each for grid in config.grids() for side, each in zip(grid, config.fit_window(grid)[0], strict=True)
    ):
        raise _inexpressible(f"size={config.size}, whose windows need padding", to)
    if to == "torchvision" and config.channels != 3:
        raise _inexpressible(f"channels={config.channels}", to)


def _inexpressible(what: str, to: str) -> ConfigError:
    return ConfigError(f"{to} weights cannot represent {what}", do="choose another format, or keep it as regard")


def _settings(config: SwinConfig) -> dict[str, Any]:
    """A Swin Transformer in the words of transformers' config.json."""

    def one(values: tuple[int, ...]) -> int | list[int]:
        return values[0] if len(set(values)) == 1 else list(values)

    return {
        "architectures": ["SwinForImageClassification"],
        "model_type": "swin",
        "image_size": one(config.size),
        "patch_size": one(config.patch),
        "num_channels": config.channels,
        "embed_dim": config.width,
        "hidden_size": config.features,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window[0],
        "mlp_ratio": config.mlp_ratio,
        "layer_norm_eps": config.eps,
        "hidden_act": "gelu",
        "qkv_bias": True,
        "use_absolute_embeddings": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


SWIN = Family(
    own="stages.0.blocks.0.attention.positions.table",
    formats=SWIN_FORMATS,
    read=read,
    adapt=adapt,
    write=write,
    inflate=inflate_swin,
    compared=("patch",),
)
