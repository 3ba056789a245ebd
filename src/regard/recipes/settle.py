"""From a recipe, the user's settings and a look at the data to one complete RunConfig, origins kept."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import fields
from typing import Any

from regard.config import MODEL_FIELDS, Origin, PretrainConfig, RunConfig, change, to_dict
from regard.data import CROPS, Scan
from regard.errors import ConfigError, RunError
from regard.networks.mae.config import MAEConfig
from regard.recipes import find
from regard.registry import config_class
from regard.registry import find as find_model
from regard.weights import find_file

SMALL_SIDE = 64


def check_settings(settings: dict[str, Any], kind: type[RunConfig] = RunConfig) -> None:
    """Refuse what can be seen to be wrong before any data is read."""
    config = change(kind(), settings, "settings")
    if config.recipe:
        _recipe(config.recipe, kind)
    if isinstance(config, PretrainConfig):
        MAEConfig.of(config)
        for name in settings:
            if name in _FOR_LABELS or (name == "batch" and config.batch == "auto"):
                raise ConfigError(
                    f"{name} is not for pre-training: images have no labels and are varied by crops and flips only"
                    if name != "batch"
                    else "batch='auto' is not for pre-training",
                    do=f"leave --{name} out",
                )
    if "model" in settings:
        _check_family(config.model, settings)
    if settings.get("steps") is not None and settings.get("epochs") is not None:
        raise ConfigError("both steps and epochs are given", do="give one of them")
    pick_device(config.device)
    check_values(config)
    if config.weights and not (file := find_file(config.weights)).is_file():
        raise RunError("there are no such weights", where=file, do="give --from a file of weights, or a run")


def settle(
    scan: Scan,
    settings: dict[str, Any],
    shape: dict[str, Any] | None = None,
    kind: type[RunConfig] = RunConfig,
) -> tuple[RunConfig, dict[str, Origin]]:
    """The run's settings with nothing left open, and where each came from.

    The user's settings win over the `shape` of weights that the run starts from, that over the recipe, the
    recipe over the defaults; what is still open is taken from the data and the machine.
    """
    config, shape = change(kind(), settings, "settings"), shape or {}
    settings = {name: value for name, value in settings.items() if value is not None or name not in shape}
    named = config.recipe or ("paper_finetune" if shape else _fitting_recipe(scan))
    recipe = _recipe(named, kind)
    origins: dict[str, Origin] = dict.fromkeys(to_dict(config), "default")
    origins["recipe"] = "auto"
    for name, value in to_dict(recipe).items():
        if value != getattr(kind(), name):
            origins[name] = "recipe"
    config = change(recipe, shape | settings | {"recipe": named}, "settings")
    origins |= dict.fromkeys(shape, "weights")
    origins |= dict.fromkeys(settings, "flag")
    _check_family(config.model, settings)
    for name in _foreign_to(config.model, recipe):
        if name not in settings:
            config = change(config, {name: getattr(kind(), name)})
            origins[name] = "default"
    for name, value in _from_data(config, scan).items():
        if getattr(config, name) in (None, "auto"):
            config = change(config, {name: value})
            origins[name] = "auto"
    check_values(config)
    return config, origins


def _own_fields(model: str) -> list[str]:
    """The settings that are fields of this model's config."""
    kind = config_class(model)
    if kind.inputs != "image":
        raise ConfigError(f"{model} is not for images", do="`regard models` lists those that have an input size")
    own = {f.name for f in fields(kind)}
    return [name for name in MODEL_FIELDS if name in own]


def _check_family(model: str, settings: dict[str, Any]) -> None:
    """Refuse the user's settings that the model has no field for."""
    own = _own_fields(model)
    for name in MODEL_FIELDS:
        if settings.get(name) is not None and name not in own:
            raise ConfigError(f"{model} has no {name}", do=f"of its shape these can be set: {', '.join(own)}")
    if settings.get("checkpointing") and find_model(model).family != "vit":
        raise ConfigError(f"{model} cannot recompute its activations", do="leave --checkpointing to transformers")
    if settings.get("narrow") and _of_one_size(model):
        do = "leave --narrow out, or choose another model"
        raise ConfigError(f"{model} takes inputs of one size, and narrow would give it smaller ones", do=do)


def _foreign_to(model: str, recipe: RunConfig) -> list[str]:
    """A recipe's settings that make no sense for this model: the shape of its own, where that is of another family,
    and windows, where that takes inputs of one size."""
    if find_model(model).family == find_model(recipe.model).family:
        return []
    windows = ["narrow"] * _of_one_size(model)
    shared = [name for name in ("size", "channels", "dropout", "drop_path") if name in _own_fields(model)]
    return windows + [name for name in MODEL_FIELDS if getattr(recipe, name) is not None and name not in shared]


def _of_one_size(model: str) -> bool:
    """Whether it takes no inputs of another size than its own."""
    return find_model(model).family == "mlp"


def _fitting_recipe(scan: Scan) -> str:
    small = max((max(size) for size in scan.sizes), default=0) <= SMALL_SIDE
    if not scan.source.labelled:
        return "mae_small" if small else "mae"
    if scan.source.kind == "digits":
        return "digits"
    return "small_images" if small else "default"


def _recipe(name: str, kind: type[RunConfig]) -> RunConfig:
    recipe = find(name)
    if type(recipe) is not kind:
        command = "pretrain" if isinstance(recipe, PretrainConfig) else "train"
        raise ConfigError(f"the recipe {name!r} is not for this", do=f"use it with `regard {command}`")
    return recipe


def _from_data(config: RunConfig, scan: Scan) -> dict[str, Any]:
    """A value for every setting that may be left open."""
    import torch

    sizes = sorted(scan.sizes, key=lambda size: -scan.sizes[size])
    axes, own = len(sizes[0]), find_model(config.model).size
    if {len(size) for size in sizes} != {len(own)}:
        kind = {2: "pictures, such as vit_s16", 3: "volumes, such as vit3d_nano"}[axes]
        wanted = "weights of a model" if config.weights else "a --model"
        raise ConfigError(
            f"{config.model} reads inputs with {len(own)} axes and the data has {axes}",
            do=f"choose {wanted} for {kind}",
        )
    one_size = len(sizes) == 1 and all(side <= most for side, most in zip(sizes[0], own, strict=True))
    size = sizes[0] if one_size else own
    device = pick_device(config.device)
    gpu = device == "cuda"
    crop = "none" if axes != 2 else "resized" if max(sizes[0]) > SMALL_SIDE else "shift"
    in_memory = bool(scan.cache) and (config.crop or crop) not in CROPS
    # Where processes are spawned, a plain script without a __main__ guard would run itself again in each.
    forks = multiprocessing.get_start_method(allow_none=True) in (None, "fork") and sys.platform == "linux"
    workers = min(16, max(0, (os.cpu_count() or 1) - 1)) if forks else 0
    return {
        "size": size,
        "channels": scan.channels,
        "crop": crop,
        "flip": scan.channels == 3 and axes == 2,
        "device": device,
        "precision": "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32",
        "compile": gpu and not config.checkpointing and not config.shard,
        "workers": 0 if in_memory else workers,
        "out": free_folder(f"runs/{scan.source.name}-{config.model}{'' if config.labelled else '-pretrained'}"),
    }


def pick_device(wish: str) -> str:
    """The device asked for; for "auto", a GPU if there is one."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wish == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there.get(wish):
        have = ", ".join(name for name, is_there in there.items() if is_there)
        raise ConfigError(f"there is no device {wish!r} here", do=f"there is {have}")
    return wish


def free_folder(wish: str) -> str:
    """`wish`, or `wish-2`, `wish-3`, … if that is taken."""
    path, number = wish, 1
    while os.path.exists(path):
        number += 1
        path = f"{wish}-{number}"
    return path


_FOR_LABELS = (
    "smoothing", "rotate", "zoom", "policy", "erase", "mixup", "cutmix", "weights", "loss", "layer_decay", "freeze",
    "lora", "strength", "calm", "narrow",
)  # fmt: skip
_AT_LEAST = dict.fromkeys(("epochs", "batch", "accumulate", "steps", "images", "lora", "timeout"), 1) | dict.fromkeys(
    (
        "lr", "weight_decay", "clip", "mixup", "cutmix", "rotate", "zoom", "seed", "split_seed", "explain", "workers",
        "keep", "save_every",
    ), 0,
)  # fmt: skip
_BELOW = {
    "unreadable": 1,
    "smoothing": 1,
    "ema": 1,
    "warmup": 1,
    "zoom": 1,
    "calm": 1,
    "narrow": 1,
    "holdout": 0.5,
    "seed": 2**31,
    "split_seed": 2**31,
}


def check_values(config: RunConfig) -> None:
    """Values of the right type that still make no sense."""
    for name, least in _AT_LEAST.items():
        if (value := getattr(config, name)) not in (None, "auto") and value < least:
            raise ConfigError(f"{name}={value} is too small", do=f"give --{name} at least {least}")
    for name, most in _BELOW.items():
        if not 0 <= getattr(config, name) < most:
            raise ConfigError(
                f"{name}={getattr(config, name)} is out of range", do=f"give 0 up to, not including, {most}"
            )
    for name in ("erase", "strength"):
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{name}={getattr(config, name)} is no share", do="give 0 to 1")
    if not 0 < config.layer_decay <= 1:
        raise ConfigError(f"layer_decay={config.layer_decay} is out of range", do="give 1 or less, such as 0.75")
    if isinstance(config.freeze, int) and config.freeze < 0:
        raise ConfigError(f"freeze={config.freeze} is negative", do="give a number of blocks, or all")
    if config.freeze is not None and config.lora is not None:
        raise ConfigError("lora keeps all but the head as it is, so freeze has nothing to add", do="choose one of them")
    for name in ("freeze", "lora"):
        if getattr(config, name) is not None and config.weights is None:
            raise ConfigError(f"{name} would keep random weights as they are", do="give trained ones by --from")
    if config.compile and config.checkpointing:
        raise ConfigError("compile and checkpointing do not go together", do="choose one of the two")
    if config.shard and config.compile:
        raise ConfigError("shard and compile do not go together", do="choose one of the two")
    if config.holdout == 0:
        raise ConfigError("holdout=0 leaves nothing to choose and test on", do="give a share such as 0.15")
