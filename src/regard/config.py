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
    checked = {key: fit_value(value, hints[key], f"{cls.__name__}.{key}", where) for key, value in values.items()}
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


def fit_value(value: Any, hint: Any, name: str, where: object) -> Any:
    """`value` as the hinted type, if it is one or can be read as one without loss; otherwise an error."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return fit_value(value, option, name, where)
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
                return tuple(fit_value(v, h, name, where) for v, h in zip(value, inner, strict=True))
    elif hint is float and type(value) is int and abs(value) <= 2**53:
        return float(value)
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(hint, type) and type(value) is hint:
        return value
    wanted = getattr(hint, "__name__", str(hint)) if origin is None else str(hint).replace("typing.", "")
    raise ConfigError(f"{name} cannot be {value!r}", where=where, do=f"give it a value of type {wanted}")


def require_positive(config: Any, *names: str) -> None:
    """An error for the first of these fields that is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(config, name)}")


def require_shares(config: Any, *names: str) -> None:
    """An error for the first of these fields that is no share: from 0 up to, not including, 1."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)} is out of range", do="give 0 up to, not including, 1")


@dataclass(frozen=True)
class Augment:
    """How training images are varied. Everything off leaves them as they are."""

    crop: Literal["none", "shift", "simple", "resized"] = "none"
    rotate: float = 0.0
    zoom: float = 0.0
    flip: bool = False
    policy: Literal["none", "rand", "trivial", "three"] = "none"
    strength: float = 0.3
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a training run. The command line's flags and the API's keywords are these."""

    labelled: ClassVar[bool] = True
    text: ClassVar[bool] = False

    model: str = "vit_s16"
    """Name of the model; `regard models` lists them. Like other defaults here, a recipe may set another."""
    weights: str | None = None
    """Start from these, with a new head (also --from): a file of any public format, or a run. It says the model."""
    recipe: str | None = None
    """Named settings: default, small_images, cifar, digits, paper_finetune, deit3 or plain; to pre-train, mae or
    mae_small; to translate, translate, translate_small or dates. Default: by the data."""
    out: str | None = None
    """Run folder to make. Default: runs/DATA-MODEL, with a number if that exists."""
    epochs: int = 100
    """Passes over the training images."""
    steps: int | None = None
    """Moves of the weights, in place of epochs: small data then trains as long as large."""
    images: int | None = None
    """Use only so many training images, as many of each class, drawn by `seed`; few are part of more. Default: all."""
    batch: int | Literal["auto"] = 64
    """Images a step, over all processes; auto: the most that a GPU can hold."""
    accumulate: int = 1
    """Steps whose gradients are added before the weights move: an effective batch of batch × accumulate."""
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """What moves the weights: AdamW; Muon for the blocks' matrices and AdamW for the rest; or SGD, momentum 0.9."""
    lr: float = 1e-3
    """Peak learning rate; warmed up, then a cosine to zero."""
    layer_decay: float = 1.0
    """Factor on the learning rate from each block to the one before it, such as 0.75; the head has the full rate."""
    freeze: int | Literal["all"] | None = None
    """Keep the stem and so many first blocks as they are, or all but the head."""
    lora: int | None = None
    """Keep all but the head as it is, and learn changes of this rank to the attention's queries and values."""
    weight_decay: float = 0.05
    """Pull towards zero, on matrices only."""
    warmup: float = 0.05
    """Share of the run over which the learning rate rises."""
    schedule: Literal["cosine", "inverse_sqrt"] = "cosine"
    """How the rate falls after that: by half a cosine to 0, or with one over the root of the step."""
    loss: Literal["softmax", "bce"] = "softmax"
    """Cross-entropy over all classes, or a binary one for each class by itself."""
    smoothing: float = 0.1
    """Label smoothing: probability spread over the wrong classes."""
    ema: float = 0.998
    """Decay of the moving average of weights that is evaluated and kept; 0 turns it off."""
    choose: Literal["best", "last"] = "best"
    """Whose weights are the run's: the epoch's that is best on the validation data, or the last one's, which need no
    choosing where the rate falls to zero and few images are held out."""
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
    """Patch size. Default: the model's own, as the next fields'; a model without such a field refuses it."""
    width: int | None = None
    """Embedding dimension; channels after the stem of a ResNet; hidden width of an MLP."""
    depth: int | None = None
    """Encoder blocks, or hidden layers of an MLP."""
    heads: int | None = None
    """Attention heads."""
    mlp: int | None = None
    """Hidden width of each block's MLP."""
    pool: Literal["class", "mean"] | None = None
    """What the head sees: the class token or the mean of the patches."""
    positions: Literal["learned", "axial", "sinusoidal", "conditional", "none"] | None = None
    """Position embedding."""
    rope: bool | None = None
    """Rotary position embedding (RoPE) of queries and keys, in addition to `positions`."""
    registers: int | None = None
    """Register tokens."""
    layer_scale: float | None = None
    """Initial value of a learned factor per channel on each branch, such as 1e-4. Default: no such factors."""
    norm: Literal["pre", "post"] | None = None
    """Where the norms of a block stand: before its branches, as in ViT, or after, as in the first Transformer."""
    stem: Literal["patch", "conv", "r50", "large", "small"] | None = None
    """What makes tokens: one linear projection of each patch, a few convolutions, or most of a ResNet-50. For a ResNet
    large or small; default: small for pictures of up to 64 pixels."""
    dropout: float | None = None
    """Dropout on tokens and branches."""
    drop_path: float | None = None
    """Stochastic depth at the last block, rising linearly from 0."""
    crop: Literal["none", "shift", "simple", "resized"] | None = None
    """Random crops; simple keeps the scale. Default: resized above 64 pixels, else shift (by an eighth); none in 3D."""
    rotate: float = 0.0
    """Largest random rotation in degrees."""
    zoom: float = 0.0
    """Largest random change of scale: 0.1 is 10 %."""
    flip: bool | None = None
    """Mirror each image every other epoch. Default: only colour pictures (left and right matter in scans and text)."""
    policy: Literal["none", "rand", "trivial", "three"] = "none"
    """RandAugment, TrivialAugment or DeiT III's 3-Augment (grey, solarised or blurred, and jittered colours)."""
    strength: float = 0.3
    """How strong RandAugment's operations are, as a share of the largest; level 10 of 10 is 1."""
    erase: float = 0.0
    """Share of images with a random box erased."""
    mixup: float = 0.0
    """Alpha of mixup; 0 turns it off."""
    cutmix: float = 0.0
    """Alpha of CutMix; 0 turns it off."""
    calm: float = 0.0
    """Share of the epochs, at the end and in whole ones, without mixup and CutMix: pictures as they will be met."""
    narrow: float = 0.0
    """Share of the epochs, at the beginning and in whole ones, that see the middle three quarters of each side (in
    whole patches): little more than half of the work. Pictures are moved before, by --crop shift to anywhere."""
    checkpointing: bool = False
    """Recompute activations: less memory, more time. Not together with compile."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to run. Default: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic. Default: bf16 on a GPU that has it, else fp32."""
    compile: bool | None = None
    """Compile the model. Default: on a GPU only."""
    workers: int | None = None
    """Loader processes. Default: none if the images fit in memory, else one fewer than cores, up to 16."""
    explain: int = 6
    """Test images explained in the report."""
    save_every: float = 30.0
    """Seconds between saves of the state that `regard resume` goes on from; more where saving is slow; 0: each step."""
    keep: int = 0
    """Weights of so many latest epochs kept, beside best and last."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradient is not finite is never made: stop there, or leave it out and count."""
    unreadable: float = 0.01
    """Share of images that may be unreadable: they are listed and left out. More, and nothing is trained."""
    shard: bool = False
    """Of several processes (torchrun), let each hold a part of the weights (FSDP2), not all of them (DDP)."""
    timeout: float = 600.0
    """Seconds after which a process that does not answer the others is taken for lost."""

    @property
    def images_a_step(self) -> int:
        """`batch`, once it has been found out."""
        assert self.batch != "auto"
        return self.batch


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


MODEL_FIELDS = (
    "size", "channels", "patch", "width", "depth", "heads", "mlp", "pool", "positions", "registers", "dropout",
    "drop_path", "layer_scale", "stem", "norm", "rope",
)  # fmt: skip
"""Settings of a run that are fields of its model's config, where that has them."""

Origin = Literal["default", "recipe", "weights", "flag", "auto"]
