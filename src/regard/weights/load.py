"""Weights of any known format as a checkpoint of ours: recognised, checked, adapted, and reported on.

What a file holds decides the shape of the model; `classes=` and `size=` change its head and positions,
nothing else gives way. Whatever was assumed, changed, left untrained or left out is in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import registry
from regard.config import CONFIGS, ModelConfig, ViTConfig, change, to_dict
from regard.data import Preparation
from regard.errors import ConfigError, RunError
from regard.geometry import grid_of, per_axis
from regard.networks import Network
from regard.nn.patches import resample_grid
from regard.weights.checkpoint import Checkpoint, parse_checkpoint
from regard.weights.files import FOLDER_FILES, open_file
from regard.weights.foreign import class_names, preparation_for, read_foreign, recognise, require_floats
from regard.weights.notes import LoadReport, Notes, unlike
from regard.weights.resnet import RESNET_FORMATS
from regard.weights.run import Run

SHAPE = {
    "vit": ("width", "depth", "heads", "mlp", "patch", "stem"),
    "resnet": ("width", "blocks", "kind"),
    "mlp": ("width", "depth"),
}
"""What a model's name promises, and a file must keep, by family."""


def open_weights(
    path: str | Path, name: str | None = None, classes: int | None = None, *, new_head: bool = False, **fields: Any
) -> tuple[Checkpoint, LoadReport]:
    """Weights and what they are the weights of, from a file of any known format, a run or a transformers folder.

    Given a `name`, the file must hold that model; `classes` and `size` other than the file's change its head
    and its positions; other `fields` of the config are set if the weights allow it. `new_head` removes the file's
    head even where it has as many classes.
    """
    opened, notes = open_file(find_file(path)), Notes()
    where = opened.path
    if "regard" in opened.metadata:
        stored = parse_checkpoint(opened.metadata, opened.tensors, where)
        held = _meta(stored.model, stored.config, where)
        config: ModelConfig = held.config
        counts = {key for key, tensor in held.state_dict().items() if not tensor.is_floating_point()}
        require_floats({key: tensor for key, tensor in stored.weights.items() if key not in counts}, where)
        state, names, preparation = dict(stored.weights), stored.classes, stored.preparation
        label, called, theirs = "regard", name or stored.model, str
    else:
        found = recognise(opened)
        state, config = read_foreign(opened, found, name, fields, notes)
        shape = to_dict(config) | ({"heads": 1} if isinstance(config, ViTConfig) else {})  # no shape depends on heads
        held = _meta(name_of(config), shape, where)
        names, preparation = class_names(opened, config.classes), preparation_for(opened, found, config, notes)
        label, called = found.name, name
        theirs = found.called if found in RESNET_FORMATS else str  # a ViT's tensors were compared as they were read
    body = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}  # a head may be replaced
    if differ := _differences(body, held, theirs, but="head."):  # before memory is asked for
        raise unlike(differ, where)
    state = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    target = _target(config, name, classes, fields, where)
    state, target, names = _adapt(state, config, target, names, new_head, notes)
    called = called or name_of(target)
    differ = [
        f"{field}: {getattr(target, field)} here, {getattr(config, field)} in the file"
        for field in ("patch", "heads", "norm", "positions", "rotary")  # which shapes alone may not show
        if getattr(config, field, None) != getattr(target, field, None)
    ]
    if differ := differ + _differences(state, _meta(called, to_dict(target), where)):
        raise unlike(differ, where)
    require_finite(state, where)
    notes.unused += opened.left
    numbers = sum(tensor.numel() for tensor in opened.tensors.values()) - notes.left
    told = (notes.assumed, notes.changed, notes.untrained, notes.unused)
    report = LoadReport(str(path), label, numbers, *map(tuple, told))
    return Checkpoint(called, to_dict(target), names, _prepare_for(target, preparation), {}, state), report


def find_file(path: str | Path) -> Path:
    """The file meant by a path: of a folder, its weights; of a run folder, its best checkpoint."""
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    held = [path / name for name in FOLDER_FILES if (path / name).is_file()]
    best = held[0] if held else Run.open(path).checkpoint()
    if not best.is_file():
        do = f"give a run that has finished an epoch, or a folder with one of {', '.join(FOLDER_FILES)}"
        raise RunError("the folder holds no weights", where=path, do=do)
    return best


def _prepare_for(target: ModelConfig, preparation: Preparation) -> Preparation:
    """The same normalisation for another size, or one mean and deviation for every channel if their number changed."""
    if preparation.channels == target.channels:
        return replace(preparation, size=target.size)
    mean, std = ((sum(v) / len(v),) * target.channels for v in (preparation.mean, preparation.std))
    return Preparation(target.size, target.channels, mean, std)


def _target(
    config: ModelConfig, name: str | None, classes: int | None, fields: dict[str, Any], where: Path
) -> ModelConfig:
    """The config asked for: the file's, but for what the name and the caller say."""
    named = None if name is None else registry.configure(name)
    if named is not None and type(named) is not type(config):
        raise unlike([f"{name} is asked for, and the file holds a {_family(config)}"], where)
    said = {} if named is None else {field: getattr(named, field) for field in SHAPE[_family(config)]}
    if isinstance(named, ViTConfig) and isinstance(config, ViTConfig) and len(named.patch) != len(config.patch):
        raise unlike([f"patch: {named.patch} here, {config.patch} in the file"], where)
    if classes is not None:
        said["classes"] = classes
    axes = {key: per_axis(fields[key], len(config.size), key) for key in ("size", "patch") if key in fields}
    return change(config, said | fields | axes, where)


def _adapt(
    state: dict[str, Tensor],
    config: ModelConfig,
    target: ModelConfig,
    names: tuple[str, ...],
    new_head: bool,
    notes: Notes,
) -> tuple[dict[str, Tensor], ModelConfig, tuple[str, ...]]:
    """The head and the positions as asked for; what else differs is for the comparison to refuse."""
    last = "head.2.weight" if getattr(config, "head", None) == "mlp" else "head.weight"
    if new_head or last not in state or target.classes != config.classes:
        why = f"the file's is for {config.classes}" if last in state else "the file has none"
        if last in state and target.classes == config.classes:
            why = "the file's is removed"
        notes.untrained.append(f"the head for {target.classes} classes is all zeros: {why}")
        old_head = [key for key in state if key.startswith("head.")]
        if old_head:
            notes.leave("the file's head", *(state[key] for key in old_head))
        state = {key: tensor for key, tensor in state.items() if key not in old_head}
        if isinstance(target, ViTConfig):
            target = replace(target, head="linear")
        state["head.weight"] = torch.zeros(target.classes, target.features)
        state["head.bias"] = torch.zeros(target.classes)
        names = tuple(map(str, range(target.classes)))
    if isinstance(config, ViTConfig) and isinstance(target, ViTConfig):
        _adapt_patches(state, config, target, notes)
    elif (config.channels, target.channels, getattr(config, "kind", "bit")) in ((3, 1, "basic"), (3, 1, "bottleneck")):
        state["root.weight"] = state["root.weight"].sum(dim=1, keepdim=True)
        notes.changed.append("the first convolution is summed over colours: grey input answers as grey in colour did")
    return state, target, names


def _adapt_patches(state: dict[str, Tensor], config: ViTConfig, target: ViTConfig, notes: Notes) -> None:
    """Positions for another grid, and a projection for grey input."""
    old, new = grid_of(config.size, config.patch), grid_of(target.size, target.patch)
    if old != new and config.patch == target.patch and config.positions in ("learned", "axial"):
        if config.positions == "learned":
            table, first = state["positions.table"], int(config.pool == "class")
            state["positions.table"] = torch.cat([table[:first], resample_grid(table[first:], old, new)])
        else:
            for n, (a, b) in enumerate(zip(old, new, strict=True)):
                state[f"positions.axes.{n}"] = resample_grid(state[f"positions.axes.{n}"], (a,), (b,))
        sides = ["×".join(map(str, grid)) for grid in (old, new)]
        notes.changed.append(f"positions are resampled from {sides[0]} to {sides[1]} patches")
    if (config.channels, target.channels, config.stem) == (3, 1, "patch"):
        kernel = state["patches.project.weight"]
        state["patches.project.weight"] = kernel.unflatten(1, (3, -1)).sum(dim=1)
        notes.changed.append("the patch projection is summed over colours: grey input answers as grey in colour did")


def _meta(name: str, config: dict[str, Any], where: Path) -> Network:
    """The model without its numbers; settings from a file may be nonsense."""
    try:
        with torch.device("meta"):
            return registry.build(name, **config)
    except ConfigError as error:
        raise RunError(f"the file makes no model: {error.what}", where=where, do=error.do) from None
    except (RuntimeError, TypeError, OverflowError, ValueError) as error:
        raise RunError(f"the file is damaged: its settings make no model ({error})", where=where) from None


def _differences(
    state: Mapping[str, Tensor], model: Network, theirs: Callable[[str], str | None] = str, but: str = "\0"
) -> list[str]:
    """None if every tensor of the model is there in its shape, and nothing else is; `but` for names that begin so.

    `theirs` says what the file calls a tensor.
    """
    own = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if not key.startswith(but)}
    held = {key: tuple(tensor.shape) for key, tensor in state.items()}
    differ = [f"{theirs(n)}: {own[n]} here, {held[n]} in the file" for n in own if n in held and own[n] != held[n]]
    differ += [f"{theirs(n)}: not in the file" for n in own if n not in held]
    return differ + [f"{theirs(n)}: not in the model" for n in held if n not in own]


def require_finite(state: Mapping[str, Tensor], where: object) -> None:
    """An error that names what a diverged training left."""
    bad = [key for key, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        do = "the training that wrote it diverged: take an earlier checkpoint"
        raise RunError(f"{len(bad)} tensors hold NaN or infinity, such as {bad[0]}", where=where, do=do)


def _family(config: ModelConfig) -> str:
    return next(family for family, kind in CONFIGS.items() if isinstance(config, kind))


def name_of(config: ModelConfig) -> str:
    """The variant of this shape; the plainest with as many axes if there is none, all its fields being said anyway.

    >>> name_of(ViTConfig()), name_of(ViTConfig(patch=(14, 14), width=384, heads=6, mlp=1536))
    ('vit_b16', 'vit_s14')
    """
    family = _family(config)
    for name, entry in registry.MODELS.items():
        if entry.family == family:
            own = registry.configure(name)
            if all(getattr(own, field) == getattr(config, field) for field in SHAPE[family]):
                return name
    return "vit3d_nano" if family == "vit" and len(config.size) == 3 else f"{family}_nano"
