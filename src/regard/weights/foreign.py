"""Others' tensors as ours: which format they are in, the model they make, and the places where the two differ."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import ModelConfig, ViTConfig, make
from regard.data import Preparation
from regard.errors import RunError
from regard.geometry import grid_of, per_axis
from regard.networks.vit import SIZES, configure
from regard.weights.files import Opened
from regard.weights.names import FORMATS, HF, HF_DINOV2, IMAGENET, NAMES, Format, detect
from regard.weights.notes import Notes, shortened, unlike
from regard.weights.resnet import COUNTS, RESNET_FORMATS, read_resnet


def recognise(opened: Opened) -> Format:
    """The format of a file's names; an error says how it differs from the nearest."""
    found = detect(opened.tensors) or detect(opened.tensors, RESNET_FORMATS)
    if found is not None:
        return found
    if {"patches.project.weight", "root.weight", "layers.0.linear.weight"} & set(opened.tensors):
        what = "the file holds Regard's own tensors without what says which model they are of"
        raise RunError(what, where=opened.path, do="write it by regard.save(model, path)")
    nearest = min((*FORMATS, *RESNET_FORMATS), key=lambda candidate: len(candidate.read(opened.tensors)[1]))
    spelt = {nearest.respell(name) for name in opened.tensors}
    differ = [f"{name}: not in the file" for name in nearest.sign if name not in spelt]
    differ += [f"{name}: not in the model" for name in nearest.read(opened.tensors)[1]]
    raise RunError(
        "the file holds no Vision Transformer or ResNet that is known here; "
        f"from the nearest, {nearest.name}'s, it differs in\n    " + "\n    ".join(shortened(differ)),
        where=opened.path,
        do=f"formats tried: {', '.join(NAMES)}",
    )


def read_foreign(
    opened: Opened, found: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> tuple[dict[str, Tensor], ModelConfig]:
    """Our state dict and the config it fits, from another's tensors."""
    known = {key: t for key, t in opened.tensors.items() if found.knows(key) and not key.endswith(COUNTS)}
    require_floats(known, opened.path)
    dtypes = {str(t.dtype).removeprefix("torch.") for t in opened.tensors.values() if t.is_floating_point()}
    if dtypes - {"float32"}:
        notes.changed.append(f"{', '.join(sorted(dtypes))} in the file is float32 in the model")
    if found in RESNET_FORMATS:
        return read_resnet(opened, found, fields.get("size"), notes)
    state, unknown = found.read(opened.tensors)
    spare = [key for key in unknown if re.fullmatch(found.spare, found.respell(key))]
    differ = [f"{found.called(key)}: not in the file" for key in _needed(state) if key not in state]
    differ += [f"{key}: not in the model" for key in unknown if key not in spare]
    if differ:
        raise unlike(differ, opened.path)
    _require_axes(state, found, opened.path)
    for key in spare:
        notes.leave(key, opened.tensors[key])
    if "distilled" in state:  # the second token differs from a register only in having a position
        others = state.get("registers", torch.empty(0, len(state["norm.weight"])))
        state["registers"] = torch.cat([state.pop("distilled"), others])
        notes.changed.append("DeiT's distillation token is a register here, its position added to it")
        if any("dist" in key for key in spare):
            notes.assumed.append(
                "the class token alone answers; DeiT averages that with the distillation token's answer"
            )
    config = _infer(state, opened, found, name, fields, notes)
    state["patches.project.weight"] = state["patches.project.weight"].flatten(1)
    _place_positions(state, config)
    _read_head(state, found, notes)
    return state, config


def require_floats(tensors: Mapping[str, Tensor], where: Path) -> None:
    """Whole numbers and eight bits stand for others by a scale that is not read here."""
    plain = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    odd = [f"{key} ({str(t.dtype).removeprefix('torch.')})" for key, t in tensors.items() if t.dtype not in plain]
    if odd:
        what = f"{len(odd)} weights are not floating-point numbers of 16 bits or more, such as {odd[0]}"
        raise RunError(what, where=where, do="give the file from before the weights were quantised")


def _needed(state: Mapping[str, Tensor]) -> list[str]:
    """What every ViT has, in as many blocks as there is anything of."""
    depth = 1 + max((int(key.split(".")[1]) for key in state if key.startswith("blocks.")), default=0)
    layers = ("norm1", "attention.qkv", "attention.out", "norm2", "mlp.up", "mlp.down")
    layers = ["patches.project", *(f"blocks.{n}.{layer}" for n in range(depth) for layer in layers), "norm"]
    return ["positions.table", *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))]


def _require_axes(state: Mapping[str, Tensor], found: Format, where: Path) -> None:
    """The tensors that sizes are read off have as many axes as they should, none empty, and rows of one width."""
    axes = {"norm.weight": 1, "patches.project.weight": 4, "patches.root.weight": 4, "blocks.0.mlp.up.weight": 2,
            "head.weight": 2, "positions.table": 2, "class_token": 2, "registers": 2, "distilled": 2}  # fmt: skip
    odd = [key for key, count in axes.items() if key in state and (state[key].ndim != count or not state[key].numel())]
    rows = [key for key in ("positions.table", "class_token", "registers", "distilled") if key in state]
    odd = odd or [key for key in rows if state[key].shape[1] != len(state["norm.weight"])]
    if odd:
        raise unlike([f"{found.called(key)}: {tuple(state[key].shape)} in the file" for key in odd], where)


def _infer(
    state: dict[str, Tensor], opened: Opened, found: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> ViTConfig:
    """The config whose model has tensors of these shapes."""
    settings, where = opened.settings, opened.path
    kernel, width = state["patches.project.weight"], len(state["norm.weight"])
    hybrid = "patches.root.weight" in state
    act = settings.get("hidden_act", "gelu")
    if act != "gelu":
        raise RunError(f"its activation is {act!r}; ours is the exact gelu", where=where)
    patch = (16 * kernel.shape[2], 16 * kernel.shape[3]) if hybrid else tuple(kernel.shape[2:])
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    eps = settings.get("layer_norm_eps", found.eps)
    if "layer_norm_eps" not in settings and found is HF:
        notes.assumed.append(f"LayerNorm's eps is transformers' usual {found.eps:g}: no config.json beside it says")
    grid = _grid(state, found, opened, patch, fields.get("size"))
    final = state.get("head.weight")
    return make(
        ViTConfig,
        {
            "size": tuple(g * p for g, p in zip(grid, patch, strict=True)),
            "patch": patch,
            "channels": state["patches.root.weight"].shape[1] if hybrid else kernel.shape[1],
            "classes": 1000 if final is None else len(final),
            "width": width,
            "depth": depth,
            "heads": _heads(state, opened, name, fields, notes),
            "mlp": len(state["blocks.0.mlp.up.weight"]),
            "pool": "class" if "class_token" in state or found.needs_class else "mean",
            "registers": len(state["registers"]) if "registers" in state else 0,
            "layer_scale": 1.0 if "blocks.0.scale1.scale" in state else None,
            "head": "mlp" if "hidden.weight" in state else "linear",
            "stem": "r50" if hybrid else "patch",
            "eps": eps,
        },
        where,
    )


def _heads(state: dict[str, Tensor], opened: Opened, name: str | None, fields: dict[str, Any], notes: Notes) -> int:
    """Read where the file or the config.json beside it says; else the name's; else those of a known size."""
    if "num_attention_heads" in opened.settings:
        return opened.settings["num_attention_heads"]
    for key, tensor in opened.tensors.items():
        if key.endswith("/query/kernel") and tensor.ndim == 3:
            return tensor.shape[1]
    if "heads" in fields:
        return fields["heads"]
    if name is not None:
        return configure(name).heads
    width, mlp = len(state["norm.weight"]), len(state["blocks.0.mlp.up.weight"])
    known = {size: heads for size, (w, _, heads, m) in SIZES.items() if (w, m) == (width, mlp)}
    if known:
        (size, heads), *others = known.items()  # of two such sizes the usual one stands first
        but = "".join(f" (ViT-{other} has {n}: give heads= or a name)" for other, n in others)
        notes.assumed.append(f"{heads} heads, as ViT-{size} has{but}: the file does not say")
        return heads
    if width % 64:
        raise RunError(
            f"the file does not say how many heads share its width of {width}",
            where=opened.path,
            do="give heads= or a name",
        )
    notes.assumed.append(f"{width // 64} heads of 64, as most have: neither the file nor a known size says")
    return width // 64


def _grid(
    state: dict[str, Tensor], found: Format, opened: Opened, patch: tuple[int, ...], size: Any
) -> tuple[int, ...]:
    """How the patches of the position table lie: as the config.json says, else a square, else as `size` would have it.

    Some tables have rows for the tokens before the patches and some have none, so that 16 rows may be 4 × 4 patches
    or a class token and 3 × 5. What can be read in two ways is not guessed at.
    """
    rows, classed = len(state["positions.table"]), int("class_token" in state)
    counts = {"class": classed, "none": 0, "all": classed + len(state.get("registers", ()))}
    patches = [rows - n for n in dict.fromkeys(counts[kind] for kind in found.prefix) if rows > n]
    said = opened.settings.get("image_size") or _timm_settings(opened).get("input_size", ())[1:]
    grids = [grid_of(per_axis(tuple(wanted) if isinstance(wanted, list) else wanted, 2, "size"), patch)
             for wanted in (said, size) if wanted]  # fmt: skip
    if said and math.prod(grids[0]) in patches:
        return grids[0]
    squares = [(math.isqrt(n),) * 2 for n in patches if math.isqrt(n) ** 2 == n]
    if len(squares) == 1 and math.prod(squares[0]) == patches[0]:
        return squares[0]
    ways = dict.fromkeys([*squares, *(grid for grid in grids if math.prod(grid) in patches)])
    if len(ways) == 1:
        return next(iter(ways))
    if not ways:
        raise RunError(f"{rows} positions make no square", where=opened.path, do="give size= as the model was trained")
    several = " or ".join("×".join(map(str, grid)) for grid in ways)
    do = "give size= as the model was trained, or none; change the size of what `regard convert --to regard` writes"
    raise RunError(f"{rows} positions may be of {several} patches", where=opened.path, do=do)


def _timm_settings(opened: Opened) -> dict[str, Any]:
    """What timm keeps about the images of a published model."""
    stored = opened.settings.get("pretrained_cfg")
    return stored if isinstance(stored, dict) and isinstance(stored.get("input_size"), list) else {}


def _place_positions(state: dict[str, Tensor], config: ViTConfig) -> None:
    """One row for the class token and one a patch: others' rows are added to the tokens they are for."""
    table, patches = state["positions.table"], math.prod(grid_of(config.size, config.patch))
    classed, prefix = int(config.pool == "class"), len(table) - patches
    if prefix > classed:
        state["registers"] = state["registers"] + table[classed:prefix]
    front = table[:classed] if prefix else torch.zeros(classed, config.width)
    state["positions.table"] = torch.cat([front, table[prefix:]])


def _read_head(state: dict[str, Tensor], found: Format, notes: Notes) -> None:
    if found is HF_DINOV2 and "head.weight" in state:
        width = len(state["norm.weight"])  # it reads the class token and the mean of the patches
        own, mean = state["head.weight"][:, :width], state["head.weight"][:, width:]
        if mean.any():
            parts = state.pop("head.weight"), state.pop("head.bias")
            notes.leave("classifier", *parts, why=": it also reads the mean of the patches, which ours does not")
        else:
            notes.left += mean.numel()  # zeros
            state["head.weight"] = own
    if "hidden.weight" in state:
        for kind in ("weight", "bias"):
            state[f"head.0.{kind}"] = state.pop(f"hidden.{kind}")
            if f"head.{kind}" in state:
                state[f"head.2.{kind}"] = state.pop(f"head.{kind}")


def class_names(opened: Opened, classes: int) -> tuple[str, ...]:
    """As the config.json says, else numbers; ImageNet has two of "crane": such names get their number too."""
    labels = opened.settings.get("id2label")
    if not isinstance(labels, dict) or set(labels) != set(map(str, range(classes))):
        return tuple(map(str, range(classes)))
    names = [str(labels[str(n)]) for n in range(classes)]
    while len(set(names)) < classes:  # again if what a number makes of a name was another's
        times = Counter(names)
        names = [f"{name} ({n})" if times[name] > 1 else name for n, name in enumerate(names)]
    return tuple(names)


def _numbers(value: Any, count: int) -> bool:
    """A list of so many finite numbers."""
    return (
        isinstance(value, list) and len(value) == count and all(type(n) in (int, float) and abs(n) < 1e3 for n in value)
    )


def preparation_for(opened: Opened, found: Format, config: ModelConfig, notes: Notes) -> Preparation:
    """How its images are normalised: as the files beside it say, else as usual for the format."""
    beside = opened.preprocessor or _timm_settings(opened)
    said: list[Any] = [beside.get("image_mean", beside.get("mean")), beside.get("image_std", beside.get("std"))]
    if not beside.get("do_normalize", True):
        mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    elif all(_numbers(v, config.channels) for v in said) and min(said[1]) > 0:
        mean, std = (tuple(map(float, v)) for v in said)
    else:
        mean, std = IMAGENET if opened.settings.get("model_type") == "deit" else found.statistics
        if config.channels != 3:
            mean, std = ((sum(v) / len(v),) * config.channels for v in (mean, std))
        notes.assumed.append(f"images are normalised by mean {mean} and deviation {std}, as usual for {found.name}")
    factor = beside.get("rescale_factor", 1 / 255) if beside.get("do_rescale", True) else 1
    if not _numbers([factor], 1) or factor < 1e-6:
        raise RunError(f"rescale_factor cannot be {factor!r}", where=opened.path.with_name("preprocessor_config.json"))
    if abs(255 * factor - 1) > 1e-3:  # theirs is of pixels in 0..255, ours in 0..1: (255 f x - m) / s
        mean, std = (tuple(n / (255 * factor) for n in v) for v in (mean, std))
        notes.changed.append(f"pixels are not divided by 255 but times {factor:g}: as mean {mean}, deviation {std}")
    return Preparation(config.size, config.channels, mean, std)
