"""Weights of other libraries: which format they are in, and what the files say about classes and images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data import Preparation
from regard.errors import RunError
from regard.networks.config import ImageConfig
from regard.weights.families import FAMILIES, NAMES
from regard.weights.family import Family
from regard.weights.files import Opened
from regard.weights.names import COUNTS, IMAGENET, INDEX, Format, detect, without_prefix
from regard.weights.notes import Notes, shortened
from regard.weights.others import name_of_other, refuse_others
from regard.weights.timm_config import label_names


def recognise(opened: Opened) -> tuple[Opened, Family, Format]:
    """The family and the format of a file's names, and the file without what stands before them.

    An error says how a file differs from the nearest format.
    """
    refuse_others(opened)
    for family in FAMILIES.values():
        if match := detect(opened.tensors, family.formats):
            format, prefixes = match
            if len(prefixes) > 1:
                what = f"the file holds {len(prefixes)} networks: {', '.join(prefixes)}"
                raise RunError(what, where=opened.path, do="save one of them alone")
            return replace(opened, tensors=without_prefix(opened.tensors, prefixes[0])), family, format
    if {family.own for family in FAMILIES.values()} & set(opened.tensors):
        what = "the file holds Regard's own tensors without what says which model they are of"
        raise RunError(what, where=opened.path, do="write it by regard.save(model, path)")
    formats = [known for family in FAMILIES.values() for known in family.formats]
    nearest = min(formats, key=lambda candidate: len(candidate.read(opened.tensors)[1]))
    spelt = {nearest.respell(name) for name in opened.tensors}
    differ = [f"{name}: not in the file" for name in nearest.sign if name not in spelt]
    differ += [f"{name}: not in the model" for name in nearest.read(opened.tensors)[1]]
    other = name_of_other(opened)
    raise RunError(
        f"the file holds no Vision Transformer, Swin, ResNet or DETR that is known here{other and f', but {other}'}; "
        f"from the nearest, {nearest.name}'s, it differs in\n    " + "\n    ".join(shortened(differ)),
        where=opened.path,
        do=f"formats tried: {', '.join(NAMES)}",
    )


def read_foreign(
    opened: Opened, family: Family, format: Format, name: str | None, fields: dict[str, Any], notes: Notes
) -> tuple[dict[str, Tensor], ImageConfig]:
    """Our state dict and the config it fits, from another's tensors."""
    known = {key: t for key, t in opened.tensors.items() if format.knows(key) and not key.endswith((COUNTS, INDEX))}
    require_floats(known, opened.path)
    dtypes = {str(t.dtype).removeprefix("torch.") for t in opened.tensors.values() if t.is_floating_point()}
    if dtypes - {"float32"}:
        notes.changed.append(f"{', '.join(sorted(dtypes))} in the file is float32 in the model")
    assert family.read is not None  # it has formats
    return family.read(opened, format, name, fields, notes)


def require_floats(tensors: Mapping[str, Tensor], where: Path) -> None:
    """An error for quantised weights: integers and 8-bit floats need a scale, which is not read here."""
    plain = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    odd = [f"{key} ({str(t.dtype).removeprefix('torch.')})" for key, t in tensors.items() if t.dtype not in plain]
    if odd:
        what = f"{len(odd)} weights are not floating-point numbers of 16 bits or more, such as {odd[0]}"
        raise RunError(what, where=where, do="give the file from before the weights were quantised")


def require_finite(state: Mapping[str, Tensor], where: object) -> None:
    """An error that names a tensor with NaN or infinity."""
    bad = [key for key, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        do = "the training that wrote it diverged: take an earlier checkpoint"
        raise RunError(f"{len(bad)} tensors hold NaN or infinity, such as {bad[0]}", where=where, do=do)


def class_names(opened: Opened, classes: int) -> tuple[str, ...]:
    """As the config.json says, else numbers; ImageNet has two of "crane": such names get their number too."""
    labels = opened.settings.get("id2label") or label_names(opened.settings)
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


def preparation_for(opened: Opened, format: Format, config: ImageConfig, notes: Notes) -> Preparation:
    """How its images are normalised: as the files beside it say, else as usual for the format."""
    beside = opened.preprocessor or opened.timm_settings
    said: list[Any] = [beside.get("image_mean", beside.get("mean")), beside.get("image_std", beside.get("std"))]
    if not beside.get("do_normalize", True):
        mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    elif all(_numbers(v, config.channels) for v in said) and min(said[1]) > 0:
        mean, std = (tuple(map(float, v)) for v in said)
    else:
        mean, std = IMAGENET if opened.settings.get("model_type") == "deit" else format.statistics
        if config.channels != 3:
            mean, std = ((sum(v) / len(v),) * config.channels for v in (mean, std))
        notes.assumed.append(f"images are normalised by mean {mean} and deviation {std}, as usual for {format.name}")
    factor = beside.get("rescale_factor", 1 / 255) if beside.get("do_rescale", True) else 1
    if not _numbers([factor], 1) or factor < 1e-6:
        raise RunError(f"rescale_factor cannot be {factor!r}", where=opened.path.with_name("preprocessor_config.json"))
    if abs(255 * factor - 1) > 1e-3:  # theirs is of pixels in 0..255, ours in 0..1: (255 f x - m) / s
        mean, std = (tuple(n / (255 * factor) for n in v) for v in (mean, std))
        notes.changed.append(f"pixels are not divided by 255 but times {factor:g}: as mean {mean}, deviation {std}")
    return Preparation(config.size, config.channels, mean, std)
