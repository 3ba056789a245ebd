"""Settings as frozen dataclasses: made with checks, written to JSON and read back, never guessed at."""

from __future__ import annotations

import dataclasses
import json
import types
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import ConfigError, RunError, did_you_mean

T = TypeVar("T")


def make(cls: type[T], values: dict[str, Any], where: object = None) -> T:
    """A config of class `cls` from plain values, each checked against its field's type.

    An unknown key or a value of the wrong type is an error that names it.
    """
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]  # pyright: ignore[reportArgumentType]
    for key in values:
        if key not in names:
            raise ConfigError(f"{cls.__name__} has no field {key!r}", where=where, do=did_you_mean(key, names))
    checked = {key: _fit(value, hints[key], f"{cls.__name__}.{key}", where) for key, value in values.items()}
    return cls(**checked)


def change(config: T, values: dict[str, Any], where: object = None) -> T:
    """The same config with some fields changed, checked as in `make`."""
    old = {f.name: getattr(config, f.name) for f in fields(config)}  # pyright: ignore[reportArgumentType]
    return make(type(config), old | values, where)


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values, ready for JSON (tuples become lists there and come back as tuples)."""
    return dataclasses.asdict(config)


def read_json(path: Path, most: int = 2**24) -> Any:
    """The contents of a JSON file of up to `most` bytes; anything else is an error that says where."""
    try:
        size = path.stat().st_size
        if size > most:
            raise RunError(f"the file is too large to be settings: {size:,} bytes, more than {most:,}", where=path)
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError("a file is missing", where=path, do="if this is a run, it did not finish") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep nesting too
        raise RunError(f"not a JSON file: {error}", where=path) from None


def _fit(value: Any, hint: Any, name: str, where: object) -> Any:
    """`value` as the hinted type, if it is one or can be read as one without loss; otherwise an error."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _fit(value, option, name, where)
            except ConfigError:
                continue
    elif origin is Literal:
        if value in args:
            return value
        do = did_you_mean(str(value), map(str, args))
        raise ConfigError(f"{name} cannot be {value!r}", where=where, do=do)
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            inner = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
            if len(inner) == len(value):
                return tuple(_fit(v, h, name, where) for v, h in zip(value, inner, strict=True))
    elif hint is float and type(value) is int and abs(value) <= 2**53:
        return float(value)
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(hint, type) and type(value) is hint:
        return value
    wanted = getattr(hint, "__name__", str(hint)) if origin is None else str(hint).replace("typing.", "")
    raise ConfigError(f"{name} cannot be {value!r}", where=where, do=f"give it a value of type {wanted}")


@dataclass(frozen=True)
class ViTConfig:
    """A Vision Transformer's shape. `size`, `patch` and the grid have as many axes as the input."""

    size: tuple[int, ...] = (224, 224)
    patch: tuple[int, ...] = (16, 16)
    channels: int = 3
    classes: int = 1000
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    pool: Literal["class", "mean"] = "class"
    positions: Literal["learned", "axial", "sinusoidal", "none"] = "learned"
    registers: int = 0
    head: Literal["linear", "mlp"] = "linear"
    dropout: float = 0.0
    drop_path: float = 0.0
    layer_scale: float | None = None
    stem: Literal["patch", "conv", "r50"] = "patch"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("channels", "classes", "width", "depth", "heads", "mlp"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} makes no model", do=f"give {name} at least 1")
        if self.registers < 0:
            raise ConfigError(f"registers={self.registers} is negative")
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is out of range", do="give 0 up to, not including, 1")
        if not 0 < self.eps < 1:
            raise ConfigError(f"eps={self.eps} is out of range", do="give a small number above 0, such as 1e-6")


@dataclass(frozen=True)
class MAEConfig:
    """What makes a masked autoencoder of a Vision Transformer; the decoder's MLPs are four times as wide as it is."""

    mask: float = 0.75
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalise: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.mask < 1:
            raise ConfigError(f"mask={self.mask} is no share that hides some patches", do="give one between 0 and 1")
        for name in ("decoder_width", "decoder_depth", "decoder_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} makes no decoder", do=f"give {name} at least 1")


@dataclass(frozen=True)
class Augment:
    """How training images are varied. Everything off leaves them as they are."""

    crop: Literal["none", "shift", "resized"] = "none"
    rotate: float = 0.0
    zoom: float = 0.0
    flip: bool = False
    policy: Literal["none", "rand", "trivial"] = "none"
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a training run. The command line's flags and the API's keywords are these."""

    labelled: ClassVar[bool] = True

    model: str = "vit_s16"
    """Name of the model; `regard models` lists them. Like other defaults here, a recipe may set another."""
    recipe: str | None = None
    """Named settings to start from: default, small_images, cifar or digits; to pre-train, mae or mae_small.
    Default: by the data."""
    out: str | None = None
    """Run folder to make. Default: runs/DATA-MODEL, with a number if that exists."""
    epochs: int = 100
    """Passes over the training images."""
    batch: int = 64
    """Images a step."""
    accumulate: int = 1
    """Steps whose gradients are added before the weights move: an effective batch of batch × accumulate."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """What moves the weights: AdamW, or Muon for the blocks' matrices and AdamW for the rest."""
    lr: float = 1e-3
    """Peak learning rate; warmed up, then a cosine to zero."""
    weight_decay: float = 0.05
    """Pull towards zero, on matrices only."""
    warmup: float = 0.05
    """Share of the run over which the learning rate rises."""
    smoothing: float = 0.1
    """Label smoothing: probability spread over the wrong classes."""
    ema: float = 0.998
    """Decay of the moving average of weights that is evaluated and kept; 0 turns it off."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    seed: int = 0
    """Decides initial weights, order and augmentation. The same seed gives the same weights on a CPU."""
    split_seed: int = 0
    """Decides the split where the data names none, apart from `seed` so that seeds can be compared."""
    holdout: float = 0.15
    """Share of images cut off for val (and for test) where the data names no such split."""
    size: int | tuple[int, ...] | None = None
    """Input size: one number, or height and width (and depth). Default: from the images."""
    channels: int | None = None
    """1 for grey, 3 for colour. Default: from the images."""
    patch: int | tuple[int, ...] | None = None
    """Patch size. Default: the model's own, as the next fields'."""
    width: int | None = None
    """Numbers a token."""
    depth: int | None = None
    """Encoder blocks."""
    heads: int | None = None
    """Attention heads."""
    mlp: int | None = None
    """Hidden width of each block's MLP."""
    pool: Literal["class", "mean"] | None = None
    """What the head sees: the class token or the mean of the patches."""
    positions: Literal["learned", "axial", "sinusoidal", "none"] | None = None
    """Position embedding."""
    registers: int | None = None
    """Register tokens."""
    stem: Literal["patch", "conv", "r50"] | None = None
    """What makes tokens: one linear projection of each patch, a few convolutions, or most of a ResNet-50."""
    dropout: float | None = None
    """Dropout on tokens and branches."""
    drop_path: float | None = None
    """Stochastic depth at the last block, rising linearly from 0."""
    crop: Literal["none", "shift", "resized"] | None = None
    """Random crops. Default: resized for more than 64 pixels, else shift (an eighth of the side); none in 3D."""
    rotate: float = 0.0
    """Largest random rotation in degrees."""
    zoom: float = 0.0
    """Largest random change of scale: 0.1 is 10 %."""
    flip: bool | None = None
    """Mirror half of the images. Default: only colour pictures (left and right matter in scans and text)."""
    policy: Literal["none", "rand", "trivial"] = "none"
    """RandAugment or TrivialAugment."""
    erase: float = 0.0
    """Share of images with a random box erased."""
    mixup: float = 0.0
    """Alpha of mixup; 0 turns it off."""
    cutmix: float = 0.0
    """Alpha of CutMix; 0 turns it off."""
    checkpointing: bool = False
    """Recompute activations: less memory, more time. Not together with compile."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run. Default: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic. Default: bf16 on a GPU that has it, else fp32."""
    compile: bool | None = None
    """Compile the model. Default: on a GPU only."""
    workers: int | None = None
    """Loader processes. Default: none if the images fit in memory, else one fewer than cores, up to 8."""
    explain: int = 6
    """Test images explained in the report."""
    keep: int = 0
    """Weights of so many latest epochs kept, beside best and last."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradient is not finite is never made: stop there, or leave it out and count."""
    unreadable: float = 0.01
    """Share of images that may be unreadable: they are listed and left out. More, and nothing is trained."""
    timeout: float = 600.0
    """Seconds after which a process that does not answer the others is taken for lost."""


@dataclass(frozen=True)
class PretrainConfig(RunConfig):
    """Everything that decides a run of pre-training by masked patches: a training run's settings, and these."""

    labelled: ClassVar[bool] = False

    mask: float = 0.75
    """Share of each image's patches that is hidden and has to be filled in."""
    decoder_width: int = 512
    """Numbers a token in the decoder, which fills them in and is not used afterwards."""
    decoder_depth: int = 8
    """Blocks of the decoder."""
    decoder_heads: int = 16
    """Attention heads of the decoder."""
    normalise: bool = True
    """Fill in pixels relative to the mean and deviation of their own patch; if not, pixels as they are."""

    def autoencoder(self) -> MAEConfig:
        return MAEConfig(self.mask, self.decoder_width, self.decoder_depth, self.decoder_heads, self.normalise)


Origin = Literal["default", "recipe", "flag", "auto"]
