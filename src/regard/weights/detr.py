"""DETR in others' names: transformers', with its own ResNet or timm's inside, and the authors' release."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.config import make
from regard.errors import ConfigError, RunError
from regard.geometry import per_axis
from regard.networks.detr.config import MODERN, DETRConfig, configure
from regard.networks.detr.modern import PRIOR
from regard.networks.resnet.config import VARIANTS as RESNETS
from regard.weights.family import Family, Written
from regard.weights.files import Opened
from regard.weights.names import COUNTS, Format, Row, both
from regard.weights.notes import Notes, mismatch
from regard.weights.resnet import HF_RESNET, TORCHVISION_RESNET, count_blocks, sum_over_colours


def _backbone(format: Format, prefix: str) -> tuple[Row, ...]:
    """The rows of a ResNet's table but its head's, with its names inside a DETR."""
    rows = (row for row in format.rows if not row.ours.startswith("head."))
    return tuple(Row(f"backbone.{row.ours}", prefix + row.theirs, row.shape) for row in rows)


def _hf_attention(ours: str, theirs: str) -> tuple[Row, ...]:
    return *both(f"{ours}.qkv", f"{theirs}.[q_proj|k_proj|v_proj]"), *both(f"{ours}.out", f"{theirs}.out_proj")


def _hf_block(ours: str, theirs: str, last: str) -> tuple[Row, ...]:
    return (
        *_hf_attention(f"{ours}.attention", f"{theirs}.self_attn"),
        *both(f"{ours}.norm1", f"{theirs}.self_attn_layer_norm"),
        *both(f"{ours}.mlp.up", f"{theirs}.fc1"),
        *both(f"{ours}.mlp.down", f"{theirs}.fc2"),
        *both(f"{ours}.{last}", f"{theirs}.final_layer_norm"),
    )


def _boxes(theirs: str) -> tuple[Row, ...]:
    """The three layers of the boxes' MLP; ours counts the activations between them too."""
    return tuple(row for n in range(3) for row in both(f"boxes.{2 * n}", f"{theirs}.layers.{n}"))


_MASKS = (
    *both("masks.attention.q", "bbox_attention.q_linear"),
    *both("masks.attention.k", "bbox_attention.k_linear"),
    *both("masks.convs.{n}", "mask_head.lay{n+1}"),
    *both("masks.norms.{n}", "mask_head.gn{n+1}"),
    *both("masks.adapters.{n}", "mask_head.adapter{n+1}"),
    *both("masks.out", "mask_head.out_lay"),
)
"""The panoptic head, which has the same names everywhere; all others then begin with "detr."."""
_HF_BACKBONE = "model.backbone.conv_encoder.model."
_HF = (
    *both("project", "model.input_projection"),
    Row("queries.weight", "model.query_position_embeddings.weight"),
    *_hf_block("encoder.{n}", "model.encoder.layers.{n}", "norm2"),
    *_hf_block("decoder.{n}", "model.decoder.layers.{n}", "norm3"),
    *_hf_attention("decoder.{n}.cross", "model.decoder.layers.{n}.encoder_attn"),
    *both("decoder.{n}.norm2", "model.decoder.layers.{n}.encoder_attn_layer_norm"),
    *both("norm", "model.decoder.layernorm"),
    *both("head", "class_labels_classifier"),
    *_boxes("bbox_predictor"),
    *_MASKS,
)
_VERSION_5 = (
    (r"^model\.backbone\.model\.", _HF_BACKBONE),
    (r"\.o_proj\.", ".out_proj."),
    (r"\.mlp\.(fc\d)\.", r".\1."),
    (r"^bbox_attention\.([qk])_proj", r"bbox_attention.\1_linear"),
    (r"^mask_head\.conv(\d)\.conv", r"mask_head.lay\1"),
    (r"^mask_head\.conv(\d)\.norm", r"mask_head.gn\1"),
    *((rf"^mask_head\.fpn_stages\.{n}\.fpn_adapter", f"mask_head.adapter{n + 1}") for n in range(3)),
    *((rf"^mask_head\.fpn_stages\.{n}\.refine\.conv", f"mask_head.lay{n + 3}") for n in range(3)),
    *((rf"^mask_head\.fpn_stages\.{n}\.refine\.norm", f"mask_head.gn{n + 3}") for n in range(3)),
    (r"^mask_head\.output_conv", "mask_head.out_lay"),
)

HF_DETR = Format(
    "hf",
    (*_backbone(HF_RESNET, _HF_BACKBONE), *_HF),
    sign=("model.query_position_embeddings.weight", f"{_HF_BACKBONE}embedder.embedder.convolution.weight"),
    spellings=_VERSION_5,
)

HF_TIMM_DETR = Format(
    "hf",
    (*_backbone(TORCHVISION_RESNET, _HF_BACKBONE), *_HF),
    sign=("model.query_position_embeddings.weight", f"{_HF_BACKBONE}conv1.weight"),
    spellings=_VERSION_5,
)


def _attention(ours: str, theirs: str) -> tuple[Row, ...]:
    """torch.nn.MultiheadAttention, whose matrix for queries, keys and values is ours."""
    rows = (Row(f"{ours}.qkv.{kind}", f"{theirs}.in_proj_{kind}") for kind in ("weight", "bias"))
    return *rows, *both(f"{ours}.out", f"{theirs}.out_proj")


def _block(ours: str, theirs: str, norms: int) -> tuple[Row, ...]:
    return (
        *_attention(f"{ours}.attention", f"{theirs}.self_attn"),
        *both(f"{ours}.mlp.up", f"{theirs}.linear1"),
        *both(f"{ours}.mlp.down", f"{theirs}.linear2"),
        *(row for n in range(1, norms + 1) for row in both(f"{ours}.norm{n}", f"{theirs}.norm{n}")),
    )


ORIGINAL_DETR = Format(
    "detr",
    (
        *_backbone(TORCHVISION_RESNET, "backbone.0.body."),
        *both("project", "input_proj"),
        Row("queries.weight", "query_embed.weight"),
        *_block("encoder.{n}", "transformer.encoder.layers.{n}", norms=2),
        *_block("decoder.{n}", "transformer.decoder.layers.{n}", norms=3),
        *_attention("decoder.{n}.cross", "transformer.decoder.layers.{n}.multihead_attn"),
        *both("norm", "transformer.decoder.norm"),
        *both("head", "class_embed"),
        *_boxes("bbox_embed"),
        *_MASKS,
    ),
    sign=("query_embed.weight", "transformer.decoder.norm.weight", "backbone.0.body.conv1.weight"),
)

DETR_FORMATS = (HF_DETR, HF_TIMM_DETR, ORIGINAL_DETR)

# What a config.json may say, and the only value of it that is the network here.
_ONLY = {"position_embedding_type": "sine", "activation_function": "relu"}
_ONLY_BACKBONE = {"hidden_act": "relu", "downsample_in_first_stage": False, "downsample_in_bottleneck": False}


def read(
    opened: Opened, format: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> tuple[dict[str, Tensor], DETRConfig]:
    """Our state dict and the config it fits, from another library's tensors. The caller compares both."""
    _require_known(opened)
    state, unknown = format.read(opened.tensors)
    state = {key: tensor for key, tensor in state.items() if not key.endswith(COUNTS)}  # fixed norms count nothing
    needed = {"backbone.root.weight": 4, "queries.weight": 2, "encoder.0.mlp.up.weight": 2}
    differ = [
        f"{format.called(key)}: not in the file, or no tensor of {axes} axes"
        for key, axes in needed.items()
        if key not in state or state[key].ndim != axes
    ]
    if differ := differ + [f"{key}: not in the model" for key in unknown]:
        raise mismatch(differ, opened.path)
    root, final = state["backbone.root.weight"], state.get("head.weight")
    queries, width = state["queries.weight"].shape
    inside = {key.removeprefix("backbone."): t for key, t in state.items() if key.startswith("backbone.")}
    values = {
        "size": _size(opened, fields.get("size"), notes),
        "channels": root.shape[1],
        "classes": 91 if final is None else len(final) - 1,
        "queries": queries,
        "width": width,
        "depth": _depth(state, "encoder"),
        "decoder_depth": _depth(state, "decoder"),
        "heads": _heads(state, opened, name, fields, notes),
        "mlp": len(state["encoder.0.mlp.up.weight"]),
        "dropout": opened.settings.get("dropout", 0.1),
        "backbone_width": len(root),
        "blocks": count_blocks(inside, opened.path),
        "kind": "bottleneck" if "stages.0.0.conv3.weight" in inside else "basic",
        "dilated": _dilated(opened, name, fields, notes),
        "masks": "masks.out.weight" in state,
        "frozen_norms": True,
    }
    return state, make(DETRConfig, values, opened.path)


def _require_known(opened: Opened) -> None:
    """An error for settings that are another network's."""
    settings = opened.settings
    backbone = settings.get("backbone_config")
    for said, only in ((settings, _ONLY), (backbone if isinstance(backbone, dict) else {}, _ONLY_BACKBONE)):
        for key, value in only.items():
            if said.get(key, value) != value:
                what = f"its {key} is {said[key]!r}; ours is {value!r}"
                raise RunError(what, where=opened.path, do="no other kind of DETR is known here")
    for key in ("attention_heads", "ffn_dim"):
        both_sides = {settings.get(f"{side}_{key}") for side in ("encoder", "decoder")} - {None}
        if len(both_sides) > 1:
            raise RunError(f"encoder and decoder differ in {key}; ours have the same", where=opened.path)


def _depth(state: Mapping[str, Tensor], stack: str) -> int:
    """Blocks of a stack; a gap in their numbers shows as missing tensors."""
    return 1 + max((int(m.group(1)) for key in state if (m := re.match(rf"{stack}\.(\d+)\.", key))), default=0)


def _heads(state: dict[str, Tensor], opened: Opened, name: str | None, fields: dict[str, Any], notes: Notes) -> int:
    """Only the mask head shows the number of heads: its first convolution has a channel for each."""
    if (first := state.get("masks.convs.0.bias")) is not None:
        return first.numel() - state["queries.weight"].shape[1]
    said = opened.settings.get("encoder_attention_heads", fields.get("heads"))
    if said is not None:
        return said
    if name is not None:
        return configure(name).heads
    notes.assumed.append("8 heads, as every published DETR has: the file does not say")
    return 8


def _dilated(opened: Opened, name: str | None, fields: dict[str, Any], notes: Notes) -> bool:
    """No tensor shows whether the last stage is dilated."""
    said = opened.settings.get("dilation", fields.get("dilated"))
    if said is not None:
        return said
    if name is not None:
        return configure(name).dilated
    notes.assumed.append("the last stage is not dilated (DC5): the file does not say; detr_r50_dc5 is a name")
    return False


def _size(opened: Opened, size: Any, notes: Notes) -> tuple[int, ...]:
    """No tensor depends on the size: what the caller or the files beside it say, else what is usual."""
    beside = opened.preprocessor.get("size")
    said = [size, opened.settings.get("image_size")]
    if isinstance(beside, dict):
        said += [[beside.get(key) for key in keys] for keys in (("shortest_edge", "longest_edge"), ("height", "width"))]
    elif beside:
        said += [[beside, opened.preprocessor.get("max_size", beside)]]
    for value in said:
        if value and (isinstance(value, int) or all(value)):
            return per_axis(tuple(value) if isinstance(value, list) else value, 2, "size")
    usual = DETRConfig().size
    notes.assumed.append(f"its pictures are of up to {usual[0]} × {usual[1]}: neither the file nor one beside it says")
    return usual


def adapt(state: dict[str, Tensor], config: DETRConfig, target: DETRConfig, notes: Notes) -> None:
    """The first convolution for grey input, batch norms that are fixed or not, and what knows the classes."""
    _adapt_classes(state, config, target, notes)
    if (config.channels, target.channels) == (3, 1):
        sum_over_colours(state, "backbone.root.weight", notes)
    if config.frozen_norms == target.frozen_norms:
        return
    for key in [key for key in state if key.startswith("backbone.") and key.endswith(".running_var")]:
        counts = key.replace("running_var", COUNTS)
        if target.frozen_norms:
            del state[counts]
        else:
            state[counts] = torch.tensor(0)
    notes.changed.append(f"the backbone's batch norms are {'fixed' if target.frozen_norms else 'trained'}")


def _adapt_classes(state: dict[str, Tensor], config: DETRConfig, target: DETRConfig, notes: Notes) -> None:
    """Beside the head, which the caller replaces: those of modern mode. A head of sigmoids begins with rare classes."""
    others = {"proposals": "anchors.proposer.head", "denoising queries": "anchors.denoiser.labels"}
    for what, name in others.items():
        old = [key for key in state if key.startswith(f"{name}.")]
        if not old or config.classes == target.classes:
            continue
        notes.leave(f"the file's classes of {what}", *(state[key] for key in old))
        for key in old:
            size = target.classes if what == "denoising queries" else target.logits
            state[key] = torch.zeros(size, *state[key].shape[1:])
    if target.classification != "softmax":
        for name in ("head", others["proposals"]):
            if f"{name}.weight" in state and not state[f"{name}.weight"].any():
                state[f"{name}.bias"] = torch.full((target.logits,), -math.log((1 - PRIOR) / PRIOR))


def write(weights: Mapping[str, Tensor], config: DETRConfig, to: str) -> Written:
    """Our tensors as `to` names them, with what else its files say."""
    if to not in ("hf", "detr"):
        raise ConfigError(f"{to} weights cannot represent a DETR", do="these can: hf, detr, regard")
    if modern := [name for name in MODERN if getattr(config, name) != getattr(DETRConfig, name)]:
        raise ConfigError(f"{to} weights cannot represent a DETR with {modern[0]}", do="keep it as regard")
    timm = _timm_name(config) if to == "hf" and config.dilated else None
    format = ORIGINAL_DETR if to == "detr" else HF_TIMM_DETR if timm else HF_DETR
    state = {key: tensor.detach().cpu() for key, tensor in weights.items() if not key.endswith(COUNTS)}
    tensors, unknown = format.write(state, config)
    if unknown:
        raise RunError(f"{to} has no name for {unknown[0]}")
    if config.masks:
        kept = ("mask_head.", "bbox_attention.")
        tensors = {name if name.startswith(kept) else f"detr.{name}": tensor for name, tensor in tensors.items()}
    notes = [] if config.frozen_norms else ["the backbone's batch norms are fixed there"]
    header = {
        "encoder_attention_heads": config.heads, "dilation": config.dilated, "dropout": config.dropout,
        "image_size": list(config.size),
    }  # fmt: skip
    return Written(tensors, _settings(config, timm) | header, header, notes, complete=True)


def _timm_name(config: DETRConfig) -> str:
    """What timm calls the backbone; in transformers only timm's can be dilated."""
    for name, (kind, width, blocks, _) in RESNETS.items():
        if (config.kind, config.backbone_width, config.blocks) == (kind, width, blocks):
            return name
    raise ConfigError(
        "hf weights cannot represent a dilated ResNet of this shape: there it must be one of timm's",
        do="these can: detr, regard",
    )


def _settings(config: DETRConfig, timm: str | None) -> dict[str, Any]:
    """The shape in the words of transformers' config.json."""
    backbone, stages = config.backbone(), range(len(config.blocks))
    own = {
        "model_type": "resnet",
        "num_channels": config.channels,
        "embedding_size": config.backbone_width,
        "hidden_sizes": [backbone.features // 2**n for n in reversed(stages)],
        "depths": list(config.blocks),
        "layer_type": config.kind,
        "hidden_act": "relu",
        "downsample_in_bottleneck": False,
        "out_features": [f"stage{n + 1}" for n in stages],
    }
    return {
        "architectures": ["DetrForSegmentation" if config.masks else "DetrForObjectDetection"],
        "model_type": "detr",
        "use_timm_backbone": timm is not None,
        "backbone": timm,
        "backbone_config": None if timm else own,
        "use_pretrained_backbone": False,
        "num_channels": config.channels,
        "num_queries": config.queries,
        "d_model": config.width,
        "encoder_layers": config.depth,
        "decoder_layers": config.decoder_depth,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.mlp,
        "decoder_ffn_dim": config.mlp,
        "activation_function": "relu",
        "position_embedding_type": "sine",
    }


DETR = Family(
    own="queries.weight",
    formats=DETR_FORMATS,
    read=read,
    adapt=adapt,
    write=write,
    compared=("heads", "dilated", *MODERN),
)
