"""From a recipe, the user's settings and a look at the data to one complete RunConfig, origins kept."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from regard.config import Origin, PretrainConfig, RunConfig, change, to_dict
from regard.data import Scan
from regard.errors import ConfigError
from regard.recipes import find
from regard.registry import find as find_model

SMALL_SIDE = 64


def check_settings(settings: dict[str, Any], kind: type[RunConfig] = RunConfig) -> None:
    """Refuse what can be seen to be wrong before any data is read."""
    config = change(kind(), settings, "settings")
    if config.recipe:
        _recipe(config.recipe, kind)
    if isinstance(config, PretrainConfig):
        config.autoencoder()
        for name in settings:
            if name in _FOR_LABELS:
                raise ConfigError(
                    f"{name} is not for pre-training: images have no labels and are varied by crops and flips only",
                    do=f"leave --{name} out",
                )
    find_model(config.model)
    pick_device(config.device)
    _check(config)


def settle(
    scan: Scan, settings: dict[str, Any], kind: type[RunConfig] = RunConfig
) -> tuple[RunConfig, dict[str, Origin]]:
    """The run's settings with nothing left open, and where each came from.

    The user's settings win over the recipe, the recipe over the defaults; what is still open is taken
    from the data and the machine.
    """
    config = change(kind(), settings, "settings")
    named = config.recipe or _fitting_recipe(scan)
    recipe = _recipe(named, kind)
    origins: dict[str, Origin] = dict.fromkeys(to_dict(config), "default")
    origins["recipe"] = "auto"
    for name, value in to_dict(recipe).items():
        if value != getattr(kind(), name):
            origins[name] = "recipe"
    config = change(recipe, settings | {"recipe": named}, "settings")
    origins |= dict.fromkeys(settings, "flag")
    for name, value in _from_data(config, scan).items():
        if getattr(config, name) in (None, "auto"):
            config = change(config, {name: value})
            origins[name] = "auto"
    _check(config)
    return config, origins


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
        raise ConfigError(
            f"{config.model} reads inputs with {len(own)} axes and the data has {axes}",
            do=f"choose a --model for {kind}",
        )
    one_size = len(sizes) == 1 and all(side <= most for side, most in zip(sizes[0], own, strict=True))
    size = sizes[0] if one_size else own
    device = pick_device(config.device)
    gpu = device == "cuda"
    crop = "none" if axes != 2 else "resized" if max(sizes[0]) > SMALL_SIDE else "shift"
    in_memory = bool(scan.cache) and (config.crop or crop) != "resized"
    # Where processes are spawned, a plain script without a __main__ guard would run itself again in each.
    forks = multiprocessing.get_start_method(allow_none=True) in (None, "fork") and sys.platform == "linux"
    workers = min(8, max(0, (os.cpu_count() or 1) - 1)) if forks else 0
    return {
        "size": size,
        "channels": scan.channels,
        "crop": crop,
        "flip": scan.channels == 3 and axes == 2,
        "device": device,
        "precision": "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32",
        "compile": gpu and not config.checkpointing,
        "workers": 0 if in_memory else workers,
        "out": _free_folder(f"runs/{scan.source.name}-{config.model}{'' if config.labelled else '-pretrained'}"),
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


def _free_folder(wish: str) -> str:
    """`wish`, or `wish-2`, `wish-3`, … if that is taken."""
    path, number = wish, 1
    while os.path.exists(path):
        number += 1
        path = f"{wish}-{number}"
    return path


_FOR_LABELS = ("smoothing", "rotate", "zoom", "policy", "erase", "mixup", "cutmix")
_AT_LEAST = {"epochs": 1, "batch": 1, "accumulate": 1, "timeout": 1} | dict.fromkeys(
    (
        "lr",
        "weight_decay",
        "clip",
        "mixup",
        "cutmix",
        "rotate",
        "zoom",
        "seed",
        "split_seed",
        "explain",
        "workers",
        "keep",
    ),
    0,
)
_BELOW = {
    "unreadable": 1,
    "smoothing": 1,
    "ema": 1,
    "warmup": 1,
    "zoom": 1,
    "holdout": 0.5,
    "seed": 2**31,
    "split_seed": 2**31,
}


def _check(config: RunConfig) -> None:
    """Values of the right type that still make no sense."""
    for name, least in _AT_LEAST.items():
        if (value := getattr(config, name)) is not None and value < least:
            raise ConfigError(f"{name}={value} is too small", do=f"give --{name} at least {least}")
    for name, most in _BELOW.items():
        if not 0 <= getattr(config, name) < most:
            raise ConfigError(
                f"{name}={getattr(config, name)} is out of range", do=f"give 0 up to, not including, {most}"
            )
    if not 0 <= config.erase <= 1:
        raise ConfigError(f"erase={config.erase} is no share", do="give 0 to 1")
    if config.compile and config.checkpointing:
        raise ConfigError("compile and checkpointing do not go together", do="choose one of the two")
    if config.holdout == 0:
        raise ConfigError("holdout=0 leaves nothing to choose and test on", do="give a share such as 0.15")
