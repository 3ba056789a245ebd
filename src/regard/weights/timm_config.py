"""The config.json of timm's published models: pooling, heads and class names; other networks are refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from regard.errors import RunError

POOLS = {"token": "class", "avg": "mean"}

# Arguments of timm's models that names and shapes of tensors show, that only training needs, or that are read below.
_KNOWN_ARGS = {
    "img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "class_token",
    "no_embed_class", "reg_tokens", "init_values", "qkv_bias", "proj_bias", "qk_norm", "scale_attn_norm",
    "scale_mlp_norm", "pre_norm", "final_norm", "fc_norm", "dynamic_img_size", "dynamic_img_pad",
    "strict_img_size", "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "weight_init", "depths", "window_size", "fix_init", "num_heads", "global_pool", "act_layer",
}  # fmt: skip
# What the architecture's name says and no tensor shows.
_OTHERS = {
    r"quickgelu": "quick GELU",
    r"resnet(aa|blur)": "blurring before a stride",
    r"(base_patch32|giantopt_patch16|so400m_patch16)_siglip|large_patch16_siglip_(gap_)?512": "GELU by tanh",
}
_HEADS = {"vit_base_patch16_gap_224": 16}


def stored_arguments(settings: dict[str, Any], where: Path, activation: str = "gelu") -> dict[str, Any]:
    """What a config.json of timm says of the network beside its tensors; what ours cannot be is an error."""
    arguments = settings.get("model_args")
    arguments = dict(arguments) if isinstance(arguments, dict) else {}
    name = str(settings.get("architecture", ""))
    for pattern, other in _OTHERS.items():
        if re.search(pattern, name):
            raise RunError(f"its architecture is {name}: {other} is not known here", where=where)
    if arguments.get("act_layer") not in (None, activation):
        raise RunError(f"its activation is {arguments['act_layer']!r}; ours is {activation}", where=where)
    if unknown := sorted(set(arguments) - _KNOWN_ARGS):
        what = f"config.json sets {unknown[0]}={arguments[unknown[0]]!r} in model_args, which is not known here"
        raise RunError(what, where=where)
    if isinstance(settings.get("global_pool"), str):
        arguments.setdefault("global_pool", settings["global_pool"])
    if name in _HEADS:
        arguments.setdefault("num_heads", _HEADS[name])
    return arguments


def stored_pool(arguments: dict[str, Any], where: Path) -> str | None:
    """What the head reads, in our words; None where the file does not say."""
    pool = arguments.get("global_pool")
    if pool is not None and pool not in POOLS:
        what = f"its pooling is {pool!r}; ours is the class token ('token') or the mean of the patches ('avg')"
        raise RunError(what, where=where)
    return pool and POOLS[pool]


def label_names(settings: dict[str, Any]) -> dict[str, str]:
    """Names of classes by number, as config.json lists them; a dictionary may leave numbers out."""
    names = settings.get("label_names")
    if not names and isinstance(settings.get("pretrained_cfg"), dict):
        names = settings["pretrained_cfg"].get("label_names")
    pairs = names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else ()
    return {str(number): str(name) for number, name in pairs}
