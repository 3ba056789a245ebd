"""The defaults that depend on the data and the machine: network, size and length of training.

Measured in benchmarks/results/small_data.md; explained in docs/training.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from regard import registry, tasks
from regard.errors import ConfigError, DataError, counted
from regard.image_groups import ImageData
from regard.task import Choice

if TYPE_CHECKING:
    from regard.data import ImageDataset

SMALL_SIDE = 64
"""Pixels up to which pictures are small."""
LEAST_SIDE = 8
"""Pixels below which nothing is left of a larger picture."""
USUAL_SIDE = 224
"""Pixels that published networks see."""
MANY_PHOTOS = 50_000
"""Photographs from which the default is a larger network."""
FEW_WEIGHTS_LR = 1e-3
"""Learning rate where only the head or low-rank changes are trained: there is nothing to forget."""

CPU_DEPTH = 2
"""Blocks of the default ViT on a CPU: in the same time two learn more than four, since they see more epochs."""
CPU_MILLISECONDS = {"vit_nano": 2.0, "vit_nano16": 3.4}
"""Of the default networks on two cores of an older Xeon, per training image, at 32 × 32 and 128 × 128 pixels. Two of an
EPYC take 1.7 and 2.1 (benchmarks/results/small_data.md)."""


@dataclass(frozen=True)
class Facts:
    """What the choice depends on: the number of training images, their commonest size, and whether there is a GPU."""

    images: int
    size: tuple[int, ...]
    gpu: bool
    resized: bool = False
    """Whether the size is not the images' own, but one that is asked for."""

    @property
    def small(self) -> bool:
        return max(self.size) <= SMALL_SIDE

    def describe(self) -> str:
        size = f"{'at' if self.resized else 'of'} {' × '.join(map(str, self.size))}"
        return f"{self.images:,} training images {size} on a {'GPU' if self.gpu else 'CPU'}"


def facts(dataset: ImageDataset, asked: Mapping[str, Any], gpu: bool, given: list[str | None] | None = None) -> Facts:
    """What the defaults depend on; a size that is asked for counts, not that of the files."""
    size = dataset.sizes.most_common(1)[0][0] if dataset.sizes else (SMALL_SIDE,)
    wanted = asked.get("size")
    if wanted:
        size = (wanted,) * len(size) if isinstance(wanted, int) else tuple(wanted)
    return Facts(_training_images(dataset, asked, given), size, gpu, resized=bool(wanted))


def _training_images(dataset: ImageDataset, asked: Mapping[str, Any], given: list[str | None] | None) -> int:
    """How many are left when val and test are cut, as they will be."""
    from regard.data.splits import split

    usual = ImageData()
    seed, share = asked.get("split_seed") or usual.split_seed, asked.get("holdout") or usual.holdout
    try:
        names, _ = split(dataset, seed, share, given=given)
    except DataError:  # which is raised again, with what to do, when the data is split
        return len(dataset)
    return min(names.count("train"), asked.get("images") or len(names))


def fitting_size(held: Mapping[str, Any], dataset: ImageDataset) -> tuple[int, ...] | None:
    """The input size for trained weights of this config, where their own does not suit the images."""
    if not held.get("patch") or not dataset.sizes:
        return None
    return choose_finetune_size(tuple(held["size"]), tuple(held["patch"]), dataset.sizes.most_common(1)[0][0])


def require_useful_size(size: tuple[int, ...], patch: tuple[int, ...] | None, images: tuple[int, ...]) -> None:
    """Refuse an input size that shows nothing of larger pictures, or has one patch only and so nothing to attend to.

    >>> require_useful_size((8, 8), (4, 4), (208, 288)), require_useful_size((7, 7), (1, 1), (7, 7))
    (None, None)
    """
    if len(size) != 2:
        return
    least = tuple(max(LEAST_SIDE, 2 * side) for side in patch or (1, 1))
    shrunk = any(side < min(LEAST_SIDE, own) for side, own in zip(size, images, strict=True))
    alone = patch is not None and all(side <= one for side, one in zip(size, patch, strict=True))
    if shrunk or alone:
        given, smallest = (" × ".join(map(str, sides)) for sides in (size, least))
        why = "has one patch only" if alone else "shows too little of images of " + " × ".join(map(str, images))
        raise ConfigError(f"size: an input of {given} pixels {why}", do=f"give --size at least {smallest}")


def size_like(old: tuple[int, ...], size: tuple[int, ...], cell: tuple[int, ...]) -> tuple[int, ...]:
    """An input of the proportions of `old`, about as many pixels as `size`, and whole cells.

    >>> size_like((600, 9000), (128, 128), (16, 16))
    (32, 496)
    >>> size_like((40, 400), (16, 16), (4, 4))
    (8, 52)
    """
    scale = math.sqrt(math.prod(size) / math.prod(old))
    cells = zip(old, cell, strict=True)
    return tuple(each * max(math.ceil(LEAST_SIDE / each), round(scale * side / each)) for side, each in cells)


def choose_model(facts: Facts) -> str:
    """The default network: on a CPU one that trains in minutes.

    >>> choose_model(Facts(1_700, (208, 277), gpu=True)), choose_model(Facts(1_700, (208, 277), gpu=False))
    ('vit_mini16', 'vit_nano16')
    """
    if len(facts.size) == 3:
        return "vit3d_nano"
    if facts.small:
        return "vit_mini4" if facts.gpu else "vit_nano"
    if not facts.gpu:
        return "vit_nano16"
    return "vit_mini16" if facts.images < MANY_PHOTOS else "vit_s16"


def choose_epochs(facts: Facts) -> int:
    """Few images are seen more often than many, but in all fewer images are seen; on a CPU half as many.

    >>> [choose_epochs(Facts(n, (224, 224), gpu=True)) for n in (300, 1_700, 10_000, 50_000)]
    [300, 146, 60, 40]
    >>> [choose_epochs(Facts(n, (224, 224), gpu=False)) for n in (300, 1_700, 10_000, 50_000)]
    [150, 73, 30, 20]
    """
    epochs = min(300, max(40, round(6000 / math.sqrt(max(facts.images, 1)))))
    return epochs if facts.gpu else epochs // 2


def choose_regularisation(facts: Facts, model: str) -> dict[str, float]:
    """On a CPU, where small networks are trained for a short time: none of what keeps large ones from memorising.

    >>> choose_regularisation(Facts(1_700, (208, 277), gpu=False), "vit_nano16")
    {'mixup': 0.0, 'cutmix': 0.0, 'drop_path': 0.0}
    """
    if facts.gpu:
        return {}
    off = {"mixup": 0.0, "cutmix": 0.0}
    return off | ({"drop_path": 0.0} if hasattr(registry.config_class(model), "drop_path") else {})


def choose_finetune_epochs(facts: Facts) -> int:
    """From trained weights a quarter of that: there is less to learn, and more to forget.

    >>> [choose_finetune_epochs(Facts(n, (224, 224), gpu=True)) for n in (300, 1_700, 10_000, 50_000)]
    [87, 36, 15, 7]
    """
    epochs = min(100, max(5, round(1500 / math.sqrt(max(facts.images, 1)))))
    return epochs if facts.gpu else max(5, epochs // 2)


def choose_finetune_size(
    trained: tuple[int, ...], patch: tuple[int, ...], images: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The input size for weights whose own is larger than the images show: 224, or the images' shorter side.

    None if the weights' own size is right. Smaller images are enlarged to it: the weights know objects of that size.

    >>> choose_finetune_size((518, 518), (14, 14), (208, 277)), choose_finetune_size((224, 224), (16, 16), (32, 32))
    ((224, 224), None)
    >>> choose_finetune_size((518, 518), (14, 14), (384, 512))
    (392, 392)
    """
    side = max(USUAL_SIDE, min(images))
    if len(trained) != 2 or len(images) != 2 or min(trained) <= side:
        return None
    return tuple(-(-side // each) * each for each in patch)


def said_length(chosen: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The chosen number of epochs, unless another length is asked for.

    >>> said_length({"epochs": 1}, {}), said_length({"epochs": 73}, {"minutes": 10}), said_length({}, {})
    (', 1 epoch', '', '')
    """
    other = any(asked.get(name) is not None for name in ("epochs", "steps", "minutes"))
    return "" if other or "epochs" not in chosen else f", {counted(chosen['epochs'], 'epochs')}"


def said_minutes(model: str, chosen: Mapping[str, Any], facts: Facts) -> str:
    """Roughly how long the default network trains on a CPU for the chosen number of epochs.

    >>> small, many = (Facts(n, (208, 277), gpu=False) for n in (1_700, 50_000))
    >>> said_minutes("vit_nano16", {"epochs": 73}, small), said_minutes("vit_mini16", {"epochs": 73}, small)
    (', about 7 minutes on two cores', '')
    >>> said_minutes("vit_nano16", {"epochs": 20}, many)
    ', about 57 minutes on two cores (with --minutes 10, ten)'
    >>> said_minutes("vit_nano", {"epochs": 67, "size": (64, 64)}, Facts(2_000, (64, 64), gpu=False))
    ', about 18 minutes on two cores'
    """
    if facts.gpu or "epochs" not in chosen or model not in CPU_MILLISECONDS:
        return ""
    pixels = math.prod(chosen["size"]) / 32**2 if model == "vit_nano" and "size" in chosen else 1.0
    minutes = max(1, round(chosen["epochs"] * facts.images * pixels * CPU_MILLISECONDS[model] / 60_000))
    shorter = " (with --minutes 10, ten)" if minutes > 30 else ""
    return f", about {counted(minutes, 'minutes')} on two cores{shorter}"


def choose_size(model: str, facts: Facts) -> tuple[int, ...] | None:
    """Of a ResNet made for small pictures and named for photographs: what the default network sees; else None.

    >>> [choose_size("resnet_nano", Facts(1_700, size, gpu=False)) for size in ((208, 277), (32, 32))]
    [(128, 128), None]
    """
    own, usual = registry.find(model), registry.find(choose_model(facts)).size
    if own.family != "resnet" or facts.small or len(usual) != 2 or max(own.size) >= max(usual):
        return None
    return usual


def choose_shape(model: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of a ViT from scratch: a residual stem, positions by convolution and rotation, mean pooling; else nothing.

    A stem that the model has of its own stays, as do patches that convolutions of stride 2 cannot make.

    >>> choose_shape("vit_s16", {})["stem"], choose_shape("resnet18", {})
    ('residual', {})
    """
    if registry.find(model).family != "vit":
        return {}
    plain = registry.configure(model)
    patch, axes = asked.get("patch") or plain.patch, len(plain.size)
    sides = set(patch) if isinstance(patch, tuple | list) else {patch}
    halves = len(sides) == 1 and all(side > 1 and side & (side - 1) == 0 for side in sides)
    each = (asked.get("width") or plain.width) // (asked.get("heads") or plain.heads)
    shape: dict[str, Any] = {"pool": "mean", "positions": "conditional"}
    if each % 2 == 0 and each >= 2 * axes:
        shape["rope"] = True
    if plain.stem == "patch" and axes == 2 and halves:
        shape["stem"] = "residual"
    return shape


def choose_defaults(
    task: Any, dataset: Any, start: Any, asked: Mapping[str, Any], gpu: bool, given: list[str | None] | None
) -> Choice:
    """The recipe of a task on images, what the data changes in it, and why in one line."""
    recipe, known = asked.get("recipe"), facts(dataset, asked, gpu, given)
    if recipe is None:
        recipe = task.finetune if start else task.from_scratch
    if recipe == task.plain and not start:
        own = {"model": choose_model(known)} if len(known.size) == 3 else {}
        values = {**(task.plain_small if known.small else {}), **own}
        if "drop_path" not in _fields_of(asked.get("model") or values.get("model")):
            values.pop("drop_path", None)
        return Choice(recipe, values)
    if recipe == task.finetune and start:
        volumes = {} if len(known.size) == 2 else {"policy": "none"}
        values: dict[str, Any] = {"epochs": choose_finetune_epochs(known), **volumes}
        if asked.get("freeze") == "all" or asked.get("lora"):
            values["lr"] = FEW_WEIGHTS_LR
        length = said_length(values, asked)
        return Choice(recipe, values, f"for {known.describe()} and trained weights: their network{length}")
    if recipe != task.from_scratch:
        return Choice(recipe, {}, f"{recipe}: the network stays as the weights have it" if start else "")
    values = {"epochs": choose_epochs(known)}
    if len(known.size) != 2:
        values["policy"] = "none"
    if start:
        why = f"for {known.describe()} and trained weights: their network{said_length(values, asked)}"
        return Choice(recipe, values, why)
    model = str(asked.get("model") or choose_model(known))
    values |= {"model": model} | choose_shape(model, asked) | choose_regularisation(known, model)
    if "model" not in asked and model in CPU_MILLISECONDS:
        values["depth"] = CPU_DEPTH
    if "model" not in asked and known.small and len(dataset.sizes) == 1:
        values["size"] = known.size
    if usual := choose_size(model, known):
        fits = len(dataset.sizes) == 1 and all(side <= most for side, most in zip(known.size, usual, strict=True))
        values["size"] = known.size if fits else usual
    known_names = tasks.find(task.name).config.names()
    values = {name: value for name, value in values.items() if name in known_names and name not in asked}
    stem = " with a residual stem" if values.get("stem") else ""
    blocks = f" of {values['depth']} blocks" if values.get("depth") else ""
    length = said_length(values, asked)
    if length and not (asked.keys() & {"model", *_fields_of(model)}):
        length += said_minutes(model, values, known)
    other = f"; --recipe {task.plain}: the network as published" if stem else ""
    return Choice(recipe, values, f"for {known.describe()}: {model}{blocks}{stem}{length}{other}")


def _fields_of(model: str | None) -> set[str]:
    """The fields of a model's config; of none that is said, those of a ViT."""
    return {entry.name for entry in fields(registry.config_class(model or "vit_nano"))}
