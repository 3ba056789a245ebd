"""From a recipe, the user's settings and the data to complete settings, with the origin of each. Free of torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import registry
from regard.errors import ConfigError, RunError
from regard.settings import Origin, RunConfig
from regard.tasks import Entry

if TYPE_CHECKING:
    from regard.data.dataset import Dataset
    from regard.task import Task

SIZES = {"width", "depth", "heads", "mlp"}
"""What makes one model of a family larger than another."""


def check_settings(entry: Entry, settings: Mapping[str, Any]) -> RunConfig:
    """Refuse what can be seen to be wrong before any data is read; the defaults with these settings. Needs no torch."""
    config = entry.config.of(settings)
    if settings.get("steps") is not None and settings.get("epochs") is not None:
        raise ConfigError("both steps and epochs are given", do="give one of them")
    if settings.get("minutes") is not None and (settings.get("steps") or settings.get("epochs")):
        raise ConfigError("minutes is given beside steps or epochs", do="give one of them")
    if "model" in settings:
        registry.find(config.model.model)
        config.check_model(settings)
    for _, field, _ in config.entries():
        path = settings.get(field.name) if field.metadata["weights"] else None
        if path and not Path(path).expanduser().exists():
            do = f"give {field.metadata['weights']} a file of weights, or a run"
            raise RunError("there are no such weights", where=path, do=do)
    return config


def check_repeats(seeds: int, folds: int, jobs: int, retrain: int, dry_run: bool, nested: bool) -> None:
    """Refuse numbers of runs that do not go together."""
    if folds != 1 and seeds != 1:
        raise ConfigError("folds and seeds are given", do="leave out --seeds or --folds")
    for name, given in (("jobs", jobs != 1), ("retrain", retrain != 0), ("nested", nested)):
        if given and folds == 1:
            raise ConfigError(f"{name} is for several folds", do=f"give --folds, or leave --{name} out")
    if seeds != 1 and dry_run:
        raise ConfigError("a dry run is of one seed", do="leave out --dry-run or --seeds")


def settle(
    entry: Entry,
    task: type[Task],
    dataset: Dataset,
    settings: Mapping[str, Any],
    start: Any = None,
    given: list[str | None] | None = None,
) -> tuple[RunConfig, dict[str, Origin], str]:
    """The run's settings with nothing left open, where each came from, and why the defaults are what they are.

    The user's settings win over the shape of the weights that the run starts from, that over the recipe, the recipe
    over the defaults; what is still open comes from the data and the machine. `given` are splits in place of the data's
    own.
    """
    shape = {name: value for name, value in start.shape.items() if name not in entry.config.not_shape} if start else {}
    settings = {name: value for name, value in settings.items() if value is not None or name not in shape}
    gpu = pick_device(settings.get("device") or "auto") != "cpu"
    choice = task.choose(dataset, start, settings, gpu, given)
    defaults, recipe = entry.config(), entry.recipes[choice.recipe]()
    base = defaults.flat()
    origins: dict[str, Origin] = dict.fromkeys(base, "default")
    origins |= {n: "recipe" for n, value in recipe.flat().items() if n not in base or value != base[n]}
    if settings.get("epochs") is not None or settings.get("minutes") is not None:
        recipe = recipe.change({"steps": None})
    model = str(settings.get("model") or shape.get("model") or choice.values.get("model") or recipe.model.model)
    recipe, dropped = _for_model(recipe, model)
    origins |= dict.fromkeys(dropped, "default")
    origins |= dict.fromkeys(choice.values, "auto")
    config = recipe.change({**choice.values, **shape, **settings, "recipe": choice.recipe, "model": model})
    origins["recipe"] = "auto"
    origins |= dict.fromkeys(shape, "weights")
    origins |= dict.fromkeys(settings, "flag")
    config.check_model({**shape, **settings})
    out = free_folder(f"runs/{dataset.name}-{model}{entry.suffix}")
    for name, value in ({"out": out} | machine_defaults(config) | task.from_data(config, dataset)).items():
        if config.flat().get(name) in (None, "auto"):
            config, origins[name] = config.change({name: value}), "auto"
    return config, origins, choice.why


def _for_model(recipe: RunConfig, model: str) -> tuple[RunConfig, list[str]]:
    """The recipe without what is the shape of its own model, if another one is asked for, and what that was."""
    own = recipe.model.model
    if model == own:
        return recipe, []
    kind, config_class = registry.config_class(own), registry.config_class(model)
    kept = set(recipe.model.shape) - SIZES if kind is config_class else {"size", "channels", "dropout", "drop_path"}
    fields = recipe.shape_fields(model)
    dropped = [name for name in recipe.model.shape if name not in kept or name not in fields]
    changes: dict[str, Any] = dict.fromkeys(dropped)
    if recipe.flat().get("low_res") and not config_class.any_size:
        changes["low_res"], dropped = 0.0, [*dropped, "low_res"]
    return recipe.change(changes), dropped


def pick_device(asked: str) -> str:
    """The device asked for; for "auto", a GPU if there is one."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if asked == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there.get(asked):
        have = ", ".join(name for name, is_there in there.items() if is_there)
        raise ConfigError(f"there is no device {asked!r} here", do=f"there is {have}")
    return asked


def free_folder(path: str) -> str:
    """`path`, or `path-2`, `path-3`, … if that is taken."""
    free, number = path, 1
    while os.path.exists(free):
        number += 1
        free = f"{path}-{number}"
    return free


def machine_defaults(config: RunConfig) -> dict[str, Any]:
    """Device, precision and compile for this machine."""
    import torch

    device = pick_device(config.machine.device)
    gpu = device == "cuda"
    shard, kind = getattr(config.machine, "shard", False), registry.config_class(config.model.model)
    return {
        "device": device,
        "precision": "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32",
        "compile": gpu and kind.can_compile and not config.machine.checkpointing and not shard,
    }
