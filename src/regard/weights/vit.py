"""Vision Transformers: other libraries' tensors as ours, ours as theirs, and ours for another input."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import make
from regard.errors import ConfigError, RunError
from regard.geometry import grid_of, per_axis
from regard.networks.vit.config import SIZES, VARIANTS, ViTConfig, configure
from regard.networks.vit.network import make_cnn
from regard.nn.patches import resample_grid
from regard.weights.family import Family, Written
from regard.weights.files import Opened
from regard.weights.inflate import as_table, change_channels, inflate_vit
from regard.weights.names import Format
from regard.weights.notes import Notes, mismatch
from regard.weights.others import reasons
from regard.weights.timm_config import POOLS, stored_arguments, stored_pool
from regard.weights.vit_names import DINOV2, FORMATS, GOOGLE, HF, HF_DEIT, HF_DINOV2, TIMM

# width, depth, heads, mlp of published sizes that are not built by name here. g, G: Zhai et al. (2022), Table 2.
# SoViT-400m: Alabdulmohsin et al. (2023).
LARGER = {"g": (1408, 40, 16, 6144), "G": (1664, 48, 16, 8192), "So400m": (1152, 27, 16, 4304)}


def read(
    opened: Opened, format: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> tuple[dict[str, Tensor], ViTConfig]:
    """Our state dict and the config it fits, from another's tensors."""
    state, unknown = format.read(opened.tensors)
    _fill_biases(state, notes)
    spare = [key for key in unknown if re.fullmatch(format.spare, format.respell(key))]
    differ = [f"{format.called(key)}: not in the file" for key in _needed(state) if key not in state]
    differ += [f"{key}: not in the model" for key in unknown if key not in spare]
    if differ:
        raise mismatch(differ, opened.path, reasons(unknown))
    _require_axes(state, format, opened.path)
    up, down = state["blocks.0.mlp.up.weight"], state["blocks.0.mlp.down.weight"]
    if down.ndim == 2 and len(up) == 2 * down.shape[1]:
        raise RunError("its MLP is gated (SwiGLU); ours is not", where=opened.path)
    for key in spare:
        notes.leave(key, opened.tensors[key])
    _read_distilled(state, format, notes)
    if format is TIMM:
        _read_pool(state, opened, notes)
    config = _infer(state, opened, format, name, fields, notes)
    state["patches.project.weight"] = state["patches.project.weight"].flatten(1)
    _place_positions(state, config)
    _read_head(state, format, notes)
    return state, config


def _fill_biases(state: dict[str, Tensor], notes: Notes) -> None:
    """Where no block has biases of queries, keys and values, zeros are the same."""
    weights = [key for key in state if re.fullmatch(r"blocks\.\d+\.attention\.qkv\.weight", key)]
    biases = {key: key.replace("weight", "bias") for key in weights}
    if weights and not any(bias in state for bias in biases.values()):
        state.update({bias: torch.zeros(len(state[key])) for key, bias in biases.items() if state[key].ndim})
        notes.changed.append("biases of queries, keys and values are zeros: the file has none")


def _read_distilled(state: dict[str, Tensor], format: Format, notes: Notes) -> None:
    """DeiT's second token and its head. Without that head it is a register, but for its position."""
    taught = [key for key in ("head.teacher.weight", "head.teacher.bias") if key in state]
    if "distillation_token" in state and len(taught) == 2 and "head.weight" in state:
        return
    for key in taught:
        notes.leave(format.called(key) or key, state.pop(key))
    if "distillation_token" in state:
        others = state.get("registers", torch.empty(0, len(state["norm.weight"])))
        state["registers"] = torch.cat([state.pop("distillation_token"), others])
        notes.changed.append("DeiT's distillation token is a register here, its position added to it: it has no head")


def _read_pool(state: dict[str, Tensor], opened: Opened, notes: Notes) -> None:
    """What the head reads. A class token that it does not read is a register."""
    pool = stored_pool(stored_arguments(opened.settings, opened.path), opened.path)
    if pool is None:
        reads = "class token" if "class_token" in state else "mean of the patches"
        notes.assumed.append(f"the head reads the {reads}: the file does not say")
    elif pool == "class" and "class_token" not in state:
        raise mismatch(["cls_token: not in the file, though its pooling is 'token'"], opened.path)
    elif pool == "mean" and "class_token" in state:
        others = state.get("registers", torch.empty(0, len(state["norm.weight"])))
        state["registers"] = torch.cat([state.pop("class_token"), others])
        notes.changed.append("the class token is a register here: the head reads the mean of the patches")


def _needed(state: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that every ViT has, for the number of blocks in the file."""
    depth = 1 + max((int(key.split(".")[1]) for key in state if key.startswith("blocks.")), default=0)
    layers = ("norm1", "attention.qkv", "attention.out", "norm2", "mlp.up", "mlp.down")
    layers = ["patches.project", *(f"blocks.{n}.{layer}" for n in range(depth) for layer in layers), "norm"]
    return ["positions.table", *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))]


def _require_axes(state: Mapping[str, Tensor], format: Format, where: Path) -> None:
    """Check the tensors that give the sizes: number of axes, not empty, equal widths."""
    axes = {"norm.weight": 1, "patches.project.weight": 4, "patches.root.weight": 4, "blocks.0.mlp.up.weight": 2,
            "head.weight": 2, "positions.table": 2, "class_token": 2, "registers": 2,
            "distillation_token": 2}  # fmt: skip
    odd = [key for key, count in axes.items() if key in state and (state[key].ndim != count or not state[key].numel())]
    rows = [key for key in ("positions.table", "class_token", "registers", "distillation_token") if key in state]
    odd = odd or [key for key in rows if state[key].shape[1] != len(state["norm.weight"])]
    if odd:
        raise mismatch([f"{format.called(key)}: {tuple(state[key].shape)} in the file" for key in odd], where)


def _infer(
    state: dict[str, Tensor], opened: Opened, format: Format, name: str | None, fields: dict[str, Any], notes: Notes
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
    eps = settings.get("layer_norm_eps", format.eps)
    if "layer_norm_eps" not in settings and format in (HF, HF_DEIT):
        notes.assumed.append(f"LayerNorm's eps is transformers' usual {format.eps:g}: no config.json beside it says")
    final = state.get("head.weight")
    return make(
        ViTConfig,
        {
            "size": _input_size(state, format, opened, patch, fields.get("size"), notes),
            "patch": patch,
            "channels": state["patches.root.weight"].shape[1] if hybrid else kernel.shape[1],
            "classes": 1000 if final is None else len(final),
            "width": width,
            "depth": depth,
            "heads": _heads(state, opened, name, fields, notes),
            "mlp": len(state["blocks.0.mlp.up.weight"]),
            "pool": "class" if "class_token" in state or format.needs_class else "mean",
            "registers": len(state["registers"]) if "registers" in state else 0,
            "distilled": "distillation_token" in state,
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
    if "num_heads" in (stored := stored_arguments(opened.settings, opened.path)):
        return stored["num_heads"]
    for key, tensor in opened.tensors.items():
        if key.endswith("/query/kernel") and tensor.ndim == 3:
            return tensor.shape[1]
    if "heads" in fields:
        return fields["heads"]
    if name in VARIANTS:
        return configure(name).heads
    width, mlp = len(state["norm.weight"]), len(state["blocks.0.mlp.up.weight"])
    known = {size: heads for size, (w, _, heads, m) in (SIZES | LARGER).items() if (w, m) == (width, mlp)}
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


def _input_size(
    state: dict[str, Tensor], format: Format, opened: Opened, patch: tuple[int, ...], size: Any, notes: Notes
) -> tuple[int, ...]:
    """The input size whose patches the position table is for: the file's, else a square, else `size`.

    Some tables have a row for the class token and some have none: 16 rows are 4 × 4 patches, or a class token and
    3 × 5. Where a file could mean either, only `size` decides.
    """
    rows, prefixes = len(state["positions.table"]), _prefix_rows(state, format, opened)
    squares = {n: math.isqrt(rows - n) for n in prefixes if rows > n and math.isqrt(rows - n) ** 2 == rows - n}
    undecided = len(squares) > 1 or (format is TIMM and prefixes == [1, 0] and 0 in squares)

    def fitting(wanted: Any) -> tuple[int, ...] | None:
        sides = per_axis(tuple(wanted) if isinstance(wanted, list) else wanted, 2, "size") if wanted else None
        return sides if sides and rows - math.prod(grid_of(sides, patch)) in prefixes else None

    stored = fitting(opened.settings.get("image_size") or opened.timm_settings.get("input_size", ())[1:])
    asked = fitting(size)
    if stored or (asked and (undecided or not squares)):
        return stored or asked or ()
    do = "give size= (--size) as the model was trained; to use it at another size, first convert it to regard"
    if not squares:
        raise RunError(f"{rows} positions make no square", where=opened.path, do=do)
    if undecided:
        ways = [f"{side}×{side} patches and {n or 'no'} other tokens" for n, side in squares.items()]
        ways += [f"{side - 1}×{side + 1} patches and a class token" for side in squares.values() if len(squares) == 1]
        raise RunError(f"{rows} positions may be {' or '.join(ways)}", where=opened.path, do=do)
    (side,) = squares.values()
    if not format.square:
        notes.assumed.append(f"positions are {side}×{side} patches: the file does not say")
    return tuple(side * p for p in patch)


def _prefix_rows(state: Mapping[str, Tensor], format: Format, opened: Opened) -> list[int]:
    """Numbers of rows that the position table may have for tokens before the patches."""
    classed = int("class_token" in state)
    others = len(state.get("registers", ())) + len(state.get("distillation_token", ()))
    counts = {"class": classed, "none": 0, "all": classed + others}
    kinds = format.prefix
    if format is GOOGLE and any(name.endswith("posembed_input/pos_embedding") for name in opened.tensors):
        kinds = ("class",)  # only big_vision, which has another name for it, adds positions before the class token
    return list(dict.fromkeys(counts[kind] for kind in kinds))


def _place_positions(state: dict[str, Tensor], config: ViTConfig) -> None:
    """Position rows for what the head reads and each patch; those for registers are added to the registers."""
    table, patches = state["positions.table"], math.prod(grid_of(config.size, config.patch))
    classed, prefix = config.prefix, len(table) - patches
    if prefix > classed:
        state["registers"] = state["registers"] + table[classed:prefix]
    front = table[:classed] if prefix else torch.zeros(classed, config.width)
    state["positions.table"] = torch.cat([front, table[prefix:]])


def _read_head(state: dict[str, Tensor], format: Format, notes: Notes) -> None:
    if format is HF_DINOV2 and "head.weight" in state:
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
    if "distillation_token" in state:
        for kind in ("weight", "bias"):
            state[f"head.label.{kind}"] = state.pop(f"head.{kind}")


def adapt(state: dict[str, Tensor], config: ViTConfig, target: ViTConfig, notes: Notes) -> None:
    """Positions for another grid, and a projection for other channels."""
    old, new = grid_of(config.size, config.patch), grid_of(target.size, target.patch)
    if old != new and config.patch == target.patch and config.positions in ("learned", "axial"):
        if config.positions == "learned":
            table, first = state["positions.table"], config.prefix
            state["positions.table"] = torch.cat([table[:first], resample_grid(table[first:], old, new)])
        else:
            for n, (a, b) in enumerate(zip(old, new, strict=True)):
                state[f"positions.axes.{n}"] = resample_grid(state[f"positions.axes.{n}"], (a,), (b,))
        sides = ["×".join(map(str, grid)) for grid in (old, new)]
        notes.changed.append(f"positions are resampled from {sides[0]} to {sides[1]} patches")
    if config.channels != target.channels and config.stem == "patch":
        change_channels(state, config.channels, target.channels, notes)
    if target.cnn and (config.cnn, config.channels) != (target.cnn, target.channels):
        _start_cnn(state, target, notes)


def _start_cnn(state: dict[str, Tensor], target: ViTConfig, notes: Notes) -> None:
    """Random weights for the convolutional network beside the transformer, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make_cnn(target).state_dict()
    for key in [key for key in state if key.startswith("cnn.")]:
        del state[key]
    state.update({f"cnn.{key}": tensor for key, tensor in made.items()})
    notes.untrained.append(f"the weights of {target.cnn}, beside the transformer, are random")


def write(weights: Mapping[str, Tensor], config: ViTConfig, to: str) -> Written:
    """Our tensors in the names of `to`, and the settings its files hold."""
    target = _choose(config, to)
    tensors, notes = write_names(weights, config, target)
    header: dict[str, Any] = {
        "num_attention_heads": config.heads,
        "layer_norm_eps": config.eps,
        "image_size": list(config.size),
    }
    settings = header | _settings(config, target)
    if target is TIMM:
        header["global_pool"] = {ours: theirs for theirs, ours in POOLS.items()}[config.pool]
    return Written(tensors, settings, header, notes)


def _choose(config: ViTConfig, to: str) -> Format:
    """transformers has one model without registers and LayerScale, another with them, and a DeiT with two heads."""
    if to == "hf" and config.distilled:
        return HF_DEIT
    if to == "hf":
        return HF_DINOV2 if config.registers or config.layer_scale is not None else HF
    return next(f for f in FORMATS if f.name == to)


def write_names(
    weights: Mapping[str, Tensor], config: ViTConfig, target: Format
) -> tuple[dict[str, Tensor], list[str]]:
    """The same model as `target`'s tensors, and notes; a model it cannot represent is an error."""
    notes: list[str] = []
    state = {key: tensor.detach().cpu().float() for key, tensor in weights.items()}
    _require_expressible(config, target)
    state["positions.table"] = as_table(state, config, notes)
    for key in [key for key in state if key.startswith("positions.axes")]:
        del state[key]
    if config.head == "mlp":
        for kind in ("weight", "bias"):
            state[f"hidden.{kind}"] = state.pop(f"head.0.{kind}")
            state[f"head.{kind}"] = state.pop(f"head.2.{kind}")
    if config.distilled:
        for kind in ("weight", "bias"):
            state[f"head.{kind}"] = state.pop(f"head.label.{kind}")
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
    """The first field that the format cannot represent is named, with the formats that can."""
    wanted = {
        "distilled": "distillation_token" if config.distilled else None,
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
            raise _inexpressible(f"{field}={getattr(config, field)!r}", target, f"these can: {others}, regard")
    if config.distilled and (config.registers or (target is HF_DEIT and config.layer_scale is not None)):
        raise _inexpressible("distilled=True beside registers or LayerScale", target, "keep it as regard")
    if len(config.size) != 2:
        raise _inexpressible(f"an input of {len(config.size)} axes", target, "keep it as regard")
    if config.cnn:
        raise _inexpressible(f"cnn={config.cnn!r}", target, "keep it as regard")
    for field, own in {"norm": "post", "stem": "conv", "positions": "conditional", "rope": True}.items():
        if getattr(config, field) == own:
            do = "no other format here can: keep it as regard, or train with --recipe plain"
            raise _inexpressible(f"{field}={own!r}", target, do)
    if config.pool == "mean" and target.needs_class:
        raise _inexpressible("pool='mean'", target, "these can: google, timm, regard")
    grid = grid_of(config.size, config.patch)
    if target.square and (grid[0] != grid[1] or config.patch[0] != config.patch[1]):
        raise _inexpressible(f"size={config.size}", target, "its models are square; these are not: google, hf, timm")
    if target is HF_DINOV2 and config.mlp % config.width:
        raise _inexpressible(f"mlp={config.mlp}", target, "there it is a multiple of the width; use timm or dinov2")


def _inexpressible(what: str, target: Format, do: str) -> ConfigError:
    return ConfigError(f"{target.name} weights cannot represent {what}", do=do)


def _settings(config: ViTConfig, target: Format) -> dict[str, Any]:
    """A ViT in the words of transformers' config.json."""
    kind, architecture = {HF: ("vit", "ViTForImageClassification"),
                          HF_DEIT: ("deit", "DeiTForImageClassificationWithTeacher")}.get(
        target, ("dinov2", "Dinov2ForImageClassification"))  # fmt: skip
    if kind == "dinov2" and config.registers:
        kind, architecture = "dinov2_with_registers", "Dinov2WithRegistersForImageClassification"
    settings: dict[str, Any] = {
        "architectures": [architecture],
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
    }
    if target in (HF, HF_DEIT):
        settings["intermediate_size"] = config.mlp
    else:
        settings |= {"mlp_ratio": config.mlp // config.width, "use_swiglu_ffn": False}
        settings |= {"num_register_tokens": config.registers} if config.registers else {}
    return settings


VIT = Family(
    own="patches.project.weight",
    formats=FORMATS,
    read=read,
    adapt=adapt,
    write=write,
    inflate=inflate_vit,
    compared=("patch", "heads", "norm", "positions", "rope"),
    unshaped={"heads": 1},
)
