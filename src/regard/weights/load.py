"""Opens weights of any known format as a checkpoint: detects the format, checks, adapts and reports.

The file decides the shape of the model; `classes=` and `size=` change its head and positions, and nothing else can
be changed. The report lists what was assumed, changed, left untrained or not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import registry
from regard.config import change, read_json, to_dict
from regard.data import Preparation
from regard.errors import ConfigError, RunError
from regard.geometry import per_axis
from regard.networks.base import Network
from regard.networks.config import ImageConfig, NetworkConfig
from regard.weights.checkpoint import Checkpoint, header, parse_checkpoint
from regard.weights.families import FAMILIES
from regard.weights.files import FOLDER_FILES, open_file
from regard.weights.foreign import (
    class_names,
    preparation_for,
    read_foreign,
    recognise,
    require_finite,
    require_floats,
)
from regard.weights.inflate import Inflation
from regard.weights.notes import LoadReport, Notes, mismatch
from regard.weights.run import Run
from regard.weights.seq2seq import MARIAN_MODEL, read_marian

_USES = {
    "classes": "`regard train`, `regard predict` and `regard eval` take these weights",
    "words": "`regard predict`, `regard explain` and `regard eval` take these weights",
    "boxes": "`regard train` on data with boxes, `regard predict` and `regard eval` take these weights",
}

AXES = "size", "patch", "window"
"""Fields with a number per axis of the input."""


def open_weights(
    path: str | Path,
    name: str | None = None,
    classes: int | None = None,
    *,
    new_head: bool = False,
    predicts: str | None = None,
    inflation: Inflation | None = None,
    **fields: Any,
) -> tuple[Checkpoint, LoadReport]:
    """A checkpoint and a report, from a weights file of any known format, a run folder or a transformers folder.

    Given a `name`, the file must hold that model; `classes` and `size` other than the file's change its head
    and its positions; other `fields` of the config are set if the weights allow it. `new_head` removes the file's
    head even where it has as many classes. `predicts` is what the network must predict, such as "classes".

    Where the name is of a network for volumes and the file's is for pictures, the weights are inflated: `inflation`
    says how kernels of patches fill their depth (see `weights/inflate.py`).
    """
    opened, notes = open_file(find_file(path)), Notes()
    where, stored, label = opened.path, None, "regard"
    if "regard" in opened.metadata:
        stored = parse_checkpoint(opened.metadata, opened.tensors, where)
    elif _is_marian(opened.settings):
        stored, label = read_marian(opened, name, notes), "marian"
    if stored is not None:
        held = _meta(stored.model, stored.config, where, tensors=len(stored.weights))
        _require_predicts(stored.model, held.config, predicts, where)
        if held.config.inputs == "text":
            _require_unchanged(stored, {"name": name, "classes": classes} | fields, where)
            if differ := _differences(stored.weights, held):
                raise mismatch(differ, where)
            require_finite(stored.weights, where)
            return stored, notes.report(str(path), label, opened)
        config: ImageConfig = held.config
        counts = {key for key, tensor in held.state_dict().items() if not tensor.is_floating_point()}
        require_floats({key: tensor for key, tensor in stored.weights.items() if key not in counts}, where)
        state, names, preparation = dict(stored.weights), stored.classes, stored.preparation
        called, theirs = name or stored.model, str
        stored_for = ("", {}, {}) if new_head else (stored.task, stored.details, stored.progress)
    else:
        opened, family, format = recognise(opened)
        asked = fields if _axes(name) == 2 else {key: value for key, value in fields.items() if key not in AXES}
        state, config = read_foreign(opened, family, format, name, asked, notes)
        _require_predicts(f"{format.name} weights", config, predicts, where)
        held = _meta(name_of(config), to_dict(config) | family.unshaped, where)
        names, preparation = class_names(opened, config.classes), preparation_for(opened, format, config, notes)
        label, called, theirs, stored_for = format.name, name, format.called, ("", {}, {})
    body = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}  # a head may be replaced
    if differ := _differences(body, held, theirs, but="head."):  # before memory is asked for
        raise mismatch(differ, where)
    state = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in state.items()}
    config = _inflate(state, config, name, fields, inflation, notes, where)
    changed = None if stored is not None and name == stored.model else name  # its own changes of shape stay
    target = _target(config, changed, classes, fields, where)
    state, target, names = _adapt(state, config, target, names, new_head, notes)
    called = called or name_of(target)
    differ = [
        f"{field}: {getattr(target, field)} here, {getattr(config, field)} in the file"
        for field in FAMILIES[config.family].compared
        if getattr(config, field) != getattr(target, field)
    ]
    if differ := differ + _differences(state, _meta(called, to_dict(target), where)):
        raise mismatch(differ, where)
    require_finite(state, where)
    assert preparation is not None
    prepared, (task, details, progress) = _prepare_for(target, preparation), stored_for
    if notes.inflated:  # voxels have units of their own
        prepared = Preparation(target.size, target.channels, (0.0,) * target.channels, (1.0,) * target.channels)
    checkpoint = Checkpoint(called, to_dict(target), names, prepared, progress, state, task, details)
    return checkpoint, notes.report(str(path), label, opened)


def identify(path: str | Path) -> tuple[str, str]:
    """The task and the model that a file names, without reading its weights; empty where it names none."""
    file = find_file(path)
    about, beside = header(file), file.with_name("config.json")
    if not about and beside.is_file() and _is_marian(read_json(beside)):
        return "", MARIAN_MODEL
    return str(about.get("task", "")), str(about.get("model", ""))


def _require_predicts(model: str, config: NetworkConfig, wanted: str | None, where: Path) -> None:
    if wanted and config.predicts != wanted:
        what = f"{model} takes {config.inputs}s and predicts {config.predicts}; here a network must predict {wanted}"
        raise RunError(what, where=where, do=_USES[config.predicts])


def _is_marian(settings: Any) -> bool:
    return isinstance(settings, dict) and settings.get("model_type") == "marian"


def _require_unchanged(stored: Checkpoint, asked: dict[str, Any], where: Path) -> None:
    """Nothing can be changed about a network for text."""
    for option, value in asked.items():
        if value is not None and value != getattr(stored, option, None) and (option, value) != ("name", stored.model):
            raise ConfigError(f"{option} cannot be changed in these weights", where=where, do=f"leave {option} out")


def find_file(path: str | Path) -> Path:
    """The file meant by a path: of a folder, its weights; of a run folder, its best checkpoint."""
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    held = [path / name for name in FOLDER_FILES if (path / name).is_file()]
    if held and not (path / "splits.csv").is_file():
        return held[0]
    run = Run.open(path)
    best = run.checkpoint()
    if not best.is_file():
        do = f"give a run that has finished an epoch, or a folder with one of {', '.join(FOLDER_FILES)}"
        raise RunError("the folder holds no weights", where=path, do=do)
    about, stored = header(best), run.read_config().task  # an unreadable header is for the reader of weights to say
    if about and about.get("task") != stored:
        what = f"config.json and checkpoint are of two tasks: {stored!r} and {about.get('task')!r}"
        raise RunError(what, where=path, do="put the run's own config.json back")
    return best


def fingerprint(path: str | Path) -> str:
    """SHA-256 of the weights' file."""
    with find_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prepare_for(target: ImageConfig, preparation: Preparation) -> Preparation:
    """The same normalisation for another size. If the number of channels changes, all get the mean over channels."""
    if preparation.channels == target.channels:
        return replace(preparation, size=target.size)
    mean, std = ((sum(v) / len(v),) * target.channels for v in (preparation.mean, preparation.std))
    return Preparation(target.size, target.channels, mean, std)


def _target(
    config: ImageConfig, name: str | None, classes: int | None, fields: dict[str, Any], where: Path
) -> ImageConfig:
    """The requested config: the file's, changed by the model's name and the caller's fields."""
    named = None if name is None else registry.configure(name)
    if named is not None and type(named) is not type(config):
        raise mismatch([f"{name} is asked for, and the file holds a {config.family}"], where)
    said = {} if named is None else {field: getattr(named, field) for field in config.named_fields}
    if named is not None and len(named.size) != len(config.size):
        raise mismatch(
            [f"{name} takes inputs of {len(named.size)} axes, the file's model of {len(config.size)}"], where
        )
    if classes is not None:
        said["classes"] = classes
    axes = {key: per_axis(fields[key], len(config.size), key) for key in AXES if key in fields}
    try:
        return change(config, said | fields | axes, where)
    except ConfigError as error:
        if named is None or "size" in fields:
            raise
        raise mismatch([f"{name} at the file's size: {error.what}"], where) from None  # such as its larger patches


def _axes(name: str | None) -> int:
    """Of the inputs of the named model; files of other libraries are of networks for pictures."""
    return 2 if name is None else len(registry.find(name).size)


def _inflate(
    state: dict[str, Tensor],
    config: Any,
    name: str | None,
    fields: dict[str, Any],
    inflation: Inflation | None,
    notes: Notes,
    where: Path,
) -> ImageConfig:
    """Weights for pictures, changed in place for the volumes of the named model; the config they then fit."""
    inflate = FAMILIES[config.family].inflate
    if not (name and inflate and (len(config.size), _axes(name)) == (2, 3)):
        if inflation is not None:
            do = "leave it out, or name a model for volumes, such as vit3d_s16, and give weights of one for pictures"
            raise ConfigError(f"inflation={inflation!r} has nothing to inflate here", where=where, do=do)
        return config
    like = registry.configure(name, **{key: fields[key] for key in AXES if key in fields})
    if type(like) is not type(config):
        return config  # which is refused with the name
    for field, only in {"stem": "patch", "rope": False, "cnn": None}.items():
        if getattr(config, field, only) != only:
            what = f"weights with {field}={getattr(config, field)!r} cannot be inflated to volumes"
            raise ConfigError(what, where=where, do=f"give weights of a network with {field}={only!r}")
    if config.patch != like.patch[:2]:
        sides = " ".join(map(str, (*config.patch, like.patch[2])))
        what = f"{name} has patches of {like.patch}, and those of the weights are {config.patch}"
        raise mismatch([what], where, do=f"give --patch {sides}")
    plane = {"size": like.size[:2]} | ({"window": like.window[:2]} if hasattr(like, "window") else {})
    flat = change(config, plane, where)
    FAMILIES[config.family].adapt(state, config, flat, notes)
    notes.inflated = True
    made = inflate(state, flat, like, inflation or "mean", notes)
    notes.changed.append("volumes are to be normalised by their own mean and deviation, not by those of the pictures")
    return made


def _adapt(
    state: dict[str, Tensor],
    config: ImageConfig,
    target: ImageConfig,
    names: tuple[str, ...],
    new_head: bool,
    notes: Notes,
) -> tuple[dict[str, Tensor], ImageConfig, tuple[str, ...]]:
    """Adapt head and positions. Other differences are refused by the comparison that follows."""
    last = f"{config.last_layer}.weight"
    if new_head or last not in state or target.classes != config.classes:
        why = f"the file's is for {config.classes}" if last in state else "the file has none"
        if last in state and target.classes == config.classes:
            why = "the file's is removed"
        notes.untrained.append(f"the head for {target.classes} classes is all zeros: {why}")
        old_head = [key for key in state if key.startswith("head.")]
        if old_head:
            notes.leave("the file's head", *(state[key] for key in old_head))
        state = {key: tensor for key, tensor in state.items() if key not in old_head}
        target = target.with_linear_head()
        for layer in target.last_layers:
            state[f"{layer}.weight"] = torch.zeros(target.logits, target.features)
            state[f"{layer}.bias"] = torch.zeros(target.logits)
        names = tuple(map(str, range(target.classes)))
    FAMILIES[config.family].adapt(state, config, target, notes)
    return state, target, names


def _meta(name: str, config: dict[str, Any], where: Path, tensors: int | None = None) -> Network:
    """The model on the meta device. Settings from a file may be invalid, such as more blocks than tensors."""
    try:
        if tensors is not None and registry.configure(name, **config).block_count > tensors:
            raise RunError("the checkpoint is damaged: settings and weights do not fit together", where=where)
        with torch.device("meta"):
            return registry.build(name, **config)
    except ConfigError as error:
        raise RunError(f"the file's settings are not valid: {error.what}", where=where, do=error.do) from None
    except (RuntimeError, TypeError, OverflowError, ValueError) as error:
        raise RunError(f"the file is damaged: its settings are not valid ({error})", where=where) from None


def _differences(
    state: Mapping[str, Tensor], model: Network, theirs: Callable[[str], str | None] = str, but: str = "\0"
) -> list[str]:
    """How tensors and model differ: missing, unknown, or of another shape. Names that begin with `but` are skipped.

    `theirs` says what the file calls a tensor.
    """
    own = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if not key.startswith(but)}
    held = {key: tuple(tensor.shape) for key, tensor in state.items()}
    differ = [f"{theirs(n)}: {own[n]} here, {held[n]} in the file" for n in own if n in held and own[n] != held[n]]
    differ += [f"{theirs(n)}: not in the file" for n in own if n not in held]
    return differ + [f"{theirs(n)}: not in the model" for n in held if n not in own]


def name_of(config: ImageConfig) -> str:
    """The name of the variant with this shape; else that of the nearest with as many axes, as the config holds all.

    >>> from regard.networks.vit.config import ViTConfig
    >>> name_of(ViTConfig()), name_of(ViTConfig(patch=(14, 14), width=384, heads=6, mlp=1536))
    ('vit_b16', 'vit_s14')
    """
    family = {name: entry for name, entry in registry.MODELS.items() if entry.family == config.family}

    def shared(name: str) -> tuple[bool, int]:
        usual = registry.configure(name)
        equal = [getattr(usual, field) == getattr(config, field) for field in config.named_fields]
        return all(equal), sum(equal)

    exact = [name for name in family if shared(name)[0]]
    axes = [name for name, entry in family.items() if len(entry.size) == len(config.size)]
    return exact[0] if exact else max(axes or family, key=lambda name: shared(name)[1])
