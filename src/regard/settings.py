"""The settings of a run: frozen dataclasses in groups, with flat, unique names.

- A `RunConfig` holds groups (`setting_groups.py`); each task has a subclass with the groups it uses and no others.
- Flags and keywords are flat (`--lr`, `lr=`); config.json keeps the groups.
- A name that no group has, and that is no field of the model, is refused with a suggestion.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

from regard import registry
from regard.config import fit_value, type_hints
from regard.errors import ConfigError, did_you_mean
from regard.image_groups import ImageData, ImageMachine, PictureData
from regard.setting_groups import Data, General, Group, Machine, Model, Optim

POSITIVE = frozenset({"size", "patch", "channels", "width", "depth", "depths", "heads", "mlp", "window"})
"""Fields of models that are numbers of at least 1."""

Origin = Literal["default", "recipe", "weights", "flag", "auto"]
OTHER_NAMES = {
    "learning_rate": "lr", "arch": "model", "architecture": "model", "backbone": "model", "imgsz": "size",
    "img_size": "size", "image_size": "size", "input_size": "size", "resolution": "size", "batch": "batch_size",
    "bs": "batch_size", "num_epochs": "epochs", "max_steps": "steps", "wd": "weight_decay",
    "num_workers": "workers", "output": "out", "output_dir": "out", "name": "out", "opt": "optimizer",
    "pretrained": "weights", "checkpoint": "weights", "val_split": "holdout", "augment": "policy", "grad_clip": "clip",
    "amp": "precision", "smoothing": "label_smoothing", "patch_size": "patch", "dim": "width", "embed_dim": "width",
    "num_heads": "heads", "layers": "depth", "num_layers": "depth", "window_size": "window",
    "num_classes": "classes", "nb_classes": "classes",
}  # fmt: skip
"""What settings are called elsewhere."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The hint for a setting that does not exist: what it is called here, or names that are close.

    >>> suggestion("learning_rate", ["lr", "warmup"])
    'it is called lr'
    """
    known = list(known)
    called = OTHER_NAMES.get(name.lower().replace("-", "_"))
    return f"it is called {called}" if called in known else did_you_mean(name, known)


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run. A task's subclass adds its groups: what is in none of them is refused."""

    task_name: ClassVar[str] = ""
    takes: ClassVar[str] = "image"
    """The kind of input that its models have."""
    predicts: ClassVar[str] = "classes"
    """The kind of output that its models have."""
    not_shape: ClassVar[frozenset[str]] = frozenset()
    """Fields of model configs that the task decides from the data."""
    general: General = field(default_factory=General)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        machine = self.machine
        if machine.compile and machine.checkpointing:
            raise ConfigError("compile and checkpointing do not go together", do="choose one of the two")
        if getattr(machine, "shard", False) and machine.compile:
            raise ConfigError("shard and compile do not go together", do="choose one of the two")

    @classmethod
    def of(cls, values: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """The defaults with these flat settings changed."""
        return cls().change({**(values or {}), **more})

    @classmethod
    def groups(cls) -> dict[str, type[Group]]:
        hints = type_hints(cls)
        return {f.name: hints[f.name] for f in fields(cls)}

    @classmethod
    def entries(cls) -> Iterator[tuple[str, Field[Any], Any]]:
        """Group, field and type of every setting but the model's shape."""
        for group, kind in cls.groups().items():
            hints = type_hints(kind)
            for entry in fields(kind):  # pyright: ignore[reportArgumentType]
                if entry.name != "shape":
                    yield group, entry, hints[entry.name]

    @classmethod
    def names(cls) -> set[str]:
        """Every setting there is, the fields of models included."""
        return {entry.name for _, entry, _ in cls.entries()} | cls.shape_fields().keys()

    @classmethod
    def opening(cls) -> dict[str, tuple[Field[Any], Any]]:
        """Field and type of each setting that says how data is read."""
        return {entry.name: (entry, kind) for _, entry, kind in cls.entries() if entry.metadata["opens"]}

    @classmethod
    def shape_fields(cls, model: str | None = None) -> dict[str, Any]:
        """Name and type of each settable field of the model's config; of all models of this kind if none is said."""
        types: dict[str, Any] = {}
        for kind in cls._model_configs(model):
            hints = type_hints(kind)
            types |= {f.name: types[f.name] | hints[f.name] if f.name in types else hints[f.name] for f in fields(kind)}
        return {name: kind for name, kind in types.items() if name not in cls.not_shape}

    @classmethod
    def shape_entries(cls, model: str | None = None) -> dict[str, Field[Any]]:
        """The same fields as the first family that has each of them defines it: for their help texts."""
        configs = cls._model_configs(model)
        return {f.name: f for kind in reversed(configs) for f in fields(kind) if f.name not in cls.not_shape}

    @classmethod
    def _model_configs(cls, model: str | None) -> list[type[Any]]:
        names = [model] if model else list(registry.MODELS)
        kinds = dict.fromkeys(registry.config_class(name) for name in names)
        return [kind for kind in kinds if model or kind.predicts == cls.predicts]

    def change(self, values: Mapping[str, Any], where: object = None) -> Self:
        """The same with some settings changed, each checked by its type and range."""
        home = {entry.name: (group, kind) for group, entry, kind in self.entries()}
        shape = self.shape_fields()
        changed: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name in home:
                group, kind = home[name]
                changed.setdefault(group, {})[name] = fit_value(value, kind, name, where)
            elif name in shape:
                held = changed.setdefault("model", {}).setdefault("shape", dict(self.model.shape))
                held[name] = None if value is None else fit_value(value, _loose(shape[name]), name, where)
                _check_positive(name, held[name])
            else:
                raise ConfigError(
                    f"{self.task_name or 'a run'} has no setting {name!r}",
                    where=where,
                    do=suggestion(name, [*home, *shape]),
                )
        return replace(self, **{group: replace(getattr(self, group), **new) for group, new in changed.items()})

    def flat(self) -> dict[str, Any]:
        """Every setting by its name, the model's shape included."""
        values = {entry.name: getattr(getattr(self, group), entry.name) for group, entry, _ in self.entries()}
        return values | dict(self.model.shape)

    def check_model(self, given: Mapping[str, Any]) -> None:
        """Refuse what the model has no field for, or cannot do."""
        name, kind = self.model.model, registry.config_class(self.model.model)
        if kind.predicts != self.predicts:
            able = [n for n in registry.MODELS if registry.config_class(n).predicts == self.predicts]
            raise ConfigError(
                f"{name} is not for {self.task_name}: it takes {kind.inputs}s and predicts {kind.predicts}",
                do=f"these are: {', '.join(able)}",
            )
        own = self.shape_fields(name)
        for field_name, value in given.items():
            if value is not None and field_name in self.shape_fields() and field_name not in own:
                raise ConfigError(
                    f"{name} has no {field_name}", do=f"of its shape these can be set: {', '.join(sorted(own))}"
                )
        if len(registry.find(name).size) == 2:
            for group, entry, _ in self.entries():
                if entry.metadata["volumes"] and getattr(getattr(self, group), entry.name) is not None:
                    flag = f"--{entry.name.replace('_', '-')}"
                    do = f"leave {flag} out, or choose a model for volumes, such as vit3d_nano"
                    raise ConfigError(f"{flag} is for volumes, and {name} takes pictures", do=do)
        if given.get("checkpointing") and not kind.can_checkpoint:
            raise ConfigError(f"{name} cannot recompute its activations", do="leave --checkpointing to transformers")
        if given.get("low_res") and not kind.any_size:
            do = "leave --low-res out, or choose another model"
            raise ConfigError(f"{name} takes inputs of one size, and low_res would give it smaller ones", do=do)

    def to_json(self, origins: Mapping[str, Origin]) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        for group, entry, _ in self.entries():
            value = getattr(getattr(self, group), entry.name)
            groups.setdefault(group, {})[entry.name] = {"value": value, "origin": origins[entry.name]}
        groups["model"] |= {n: {"value": v, "origin": origins[n]} for n, v in self.model.shape.items()}
        return groups

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], where: object) -> tuple[Self, dict[str, Origin]]:
        """What `to_json` wrote; a setting that it lacks has its default.

        Earlier versions wrote settings of some tasks that were always off: such a name is passed over.
        """
        entries = dict[str, Any]()
        try:
            for group, held in stored.items():
                if group not in cls.groups():
                    raise ConfigError(f"{cls.task_name} has no group {group!r} of settings")
                entries |= held
            known = cls.names()
            unset = {n for n, e in entries.items() if n not in known and not e["value"] and e["origin"] != "flag"}
            entries = {name: entry for name, entry in entries.items() if name not in unset}
            config = cls.of({name: entry["value"] for name, entry in entries.items()})
            origins: dict[str, Origin] = dict.fromkeys(config.flat(), "default")
            return config, origins | {name: entry["origin"] for name, entry in entries.items()}
        except ConfigError as error:
            raise ConfigError(error.what, where=where, do=error.do) from None
        except (TypeError, KeyError, AttributeError, ValueError):
            raise ConfigError("the settings are damaged", where=where) from None


def _check_positive(name: str, value: Any) -> None:
    """What no network can have none of, refused before any data is read."""
    numbers = value if isinstance(value, tuple) else (value,)
    if name in POSITIVE and any(isinstance(number, int) and number < 1 for number in numbers):
        raise ConfigError(f"{name} must be at least 1, not {' '.join(map(str, numbers))}")


def _loose(kind: Any) -> Any:
    """A size or patch may also be given as one number for all axes."""
    return int | kind if kind == tuple[int, ...] else kind


@dataclass(frozen=True)
class PictureRunConfig(RunConfig):
    """What every task on images has."""

    not_shape: ClassVar[frozenset[str]] = frozenset({"classes"})
    data: PictureData = field(default_factory=PictureData)
    machine: ImageMachine = field(default_factory=ImageMachine)

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.model.fields().get("size", 2)
        if min(size if isinstance(size, tuple) else (size,), default=2) < 2:
            raise ConfigError(f"size={size} leaves no image to see", do="give --size at least 2, such as 32 or 224")


@dataclass(frozen=True)
class ImageRunConfig(PictureRunConfig):
    """What tasks on images with one answer each have."""

    data: ImageData = field(default_factory=ImageData)
