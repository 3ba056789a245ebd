"""The table of tasks. Adding a task is a folder here and one row below; nothing is imported before it is needed.

`settings.py` of a task's folder is free of torch and has `Config` (a `RunConfig`), `RECIPES`, `recognise`, and the
options of commands: `LoadOptions`, `EvalOptions`, `PredictOptions`, `ExplainOptions`. What it may have is `Entry`'s to
say. `task.py` has `Task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import read_json
from regard.errors import ConfigError, DataError, RunError, did_you_mean, nearby_data
from regard.settings import RunConfig

if TYPE_CHECKING:
    from regard.task import Task


@dataclass(frozen=True)
class Entry:
    """One task: its name, which is its folder's, the command that trains it, and whether public weights are for it."""

    name: str
    command: str = "train"
    public_weights: bool = False
    """Whether weights that name no task, as published ones do, are read as this one's."""
    suffix: str = ""
    """What run folders are called after data and model."""

    @property
    def settings(self) -> Any:
        return import_module(f"regard.tasks.{self.name}.settings")

    @property
    def config(self) -> type[RunConfig]:
        return self.settings.Config

    @property
    def recipes(self) -> dict[str, Any]:
        return self.settings.RECIPES

    def decimals(self, figure: str) -> int:
        """How many a figure is printed with: four, as of shares, unless the task says otherwise."""
        return getattr(self.settings, "DECIMALS", {}).get(figure, 4)

    def help(self, about: str) -> str:
        """What the task adds to the help of a command, from its `HELP`: on the `run`, the `inputs`, or the `target`."""
        return getattr(self.settings, "HELP", {}).get(about, "")

    @property
    def probes(self) -> Any:
        """The options of probes of features on its data; None if there are none."""
        return getattr(self.settings, "ProbeOptions", None)

    def load(self) -> type[Task]:
        return import_module(f"regard.tasks.{self.name}.task").Task


TASKS = (
    Entry("translation", public_weights=True),
    Entry("survival"),
    Entry("regression"),
    Entry("multilabel"),
    Entry("panoptic"),
    Entry("detection", public_weights=True),
    Entry("classification", public_weights=True),
    Entry("pretraining", command="pretrain", suffix="-pretraining"),
)
"""In the order in which they are asked whether data is theirs: the most general last."""

DATA_NAMES = {"digits": "image", "dates": "text"}
"""Data that comes with the package, and what it holds."""
DEMOS = {"digits": "digits", "translate": "dates", "scenes": None, "brain": None}
"""The data of each demo; that of scenes and brain is made and written first."""


def find(name: str) -> Entry:
    for entry in TASKS:
        if entry.name == name:
            return entry
    raise ConfigError(f"there is no task called {name!r}", do=did_you_mean(name, [entry.name for entry in TASKS]))


def of_command(command: str) -> list[Entry]:
    """The tasks that a command trains."""
    return [entry for entry in TASKS if entry.command == command]


def helps(about: str) -> list[str]:
    """What each task adds to the help of a command."""
    return [text for entry in reversed(TASKS) if (text := entry.help(about))]


def choose(data: str | Path, settings: Mapping[str, Any], command: str = "train") -> tuple[Entry, str]:
    """The task of a run and why: the first of the command's tasks that takes the data and settings for its own."""
    require_data(data)
    _require_trainable(settings.get("model"))
    entry, why = _choose(data, settings, command)
    known = entry.config.names()
    for name in settings.keys() - known:
        others = [other.name for other in TASKS if name in other.config.names()]
        if others:
            what = f"{entry.name} has no setting {name!r}"
            has = "has" if len(others) == 1 else "have"
            raise ConfigError(what, where=data, do=f"{' and '.join(others)} {has} it; this data is read as {why}")
    held = DATA_NAMES.get(str(data))
    if held and held != entry.config.takes:
        what = f"{data} holds {held}s, and {entry.name} ({why}) takes {entry.config.takes}s"
        raise ConfigError(what, do=f"leave out what asks for {entry.name}, such as --model, or give other data")
    return entry, why


def _require_trainable(model: object) -> None:
    """An error, before data is read, for a model that no task trains."""
    from regard import registry

    if model in registry.MODELS and not any(_tasks_for(str(model))):
        predicts = registry.config_class(str(model)).predicts
        known = {entry.config.predicts: entry.name for entry in TASKS}
        raise ConfigError(
            f"{model} cannot be trained yet: it predicts {predicts}, and no task does",
            do=f"tasks train models that predict {' or '.join(known)}; `regard.create` and `regard convert` take it",
        )


def _tasks_for(model: str) -> list[Entry]:
    """The tasks whose networks predict what this model predicts."""
    from regard import registry

    return [entry for entry in TASKS if entry.config.predicts == registry.config_class(model).predicts]


def _choose(data: str | Path, settings: Mapping[str, Any], command: str) -> tuple[Entry, str]:
    candidates = of_command(command)
    named = settings.get("recipe")
    for entry in TASKS:
        if named in entry.recipes:
            if entry.command != command:
                raise ConfigError(f"the recipe {named!r} is not for this", do=f"use it with `regard {entry.command}`")
            return entry, f"the recipe {named}"
    if named is not None:
        recipes = [name for entry in candidates for name in entry.recipes]
        raise ConfigError(f"there is no recipe called {named!r}", do=did_you_mean(str(named), recipes))
    for entry in candidates:
        if why := entry.settings.recognise(Path(data).expanduser(), settings):
            return entry, why
    raise DataError("no task takes this data", where=data)


def for_settings(data: str | Path, settings: Mapping[str, Any]) -> Entry:
    """The task that settings are for, where the data is yet to be made."""
    return _choose(data, settings, "train")[0]


def require_data(data: str | Path) -> None:
    """An error, before anything is imported, if there is nothing there."""
    path = Path(data).expanduser()
    if str(data) in DATA_NAMES:
        return
    if "://" in str(data):
        raise DataError(f"{data} is an address; data is read from this machine only", do="download it first")
    if not path.exists():
        do = nearby_data(path) or "give a folder, .csv, .tsv, .npz or digits"
        raise DataError("there is no such data", where=path, do=do)
    if not (path.is_dir() or path.is_file()):
        raise DataError("this is neither a file nor a folder", where=path, do="data is read more than once: save it")


def of_run(path: str | Path) -> Entry | None:
    """The task that a run folder says it is of; None of anything else."""
    path = Path(path).expanduser()
    if not ((path / "config.json").is_file() and (path / "splits.csv").is_file()):
        return None
    stored = read_json(path / "config.json")
    if not isinstance(stored, dict) or not isinstance(stored.get("task"), str):
        raise RunError("these are not the settings of a run of this version", where=path / "config.json")
    try:
        return find(stored["task"])
    except ConfigError as error:
        raise RunError(error.what, where=path / "config.json", do=error.do) from None


def part_options(entry: Entry, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are for loading a model of this task, and the others."""
    loading = {field.name for field in fields(entry.settings.LoadOptions)}
    return (
        {name: value for name, value in given.items() if name in loading},
        {name: value for name, value in given.items() if name not in loading},
    )


def for_weights(name: str, model: str) -> Entry:
    """The task of a checkpoint; of public weights, which name none, the one that such models are published for."""
    from regard import registry

    if name:
        return find(name)
    able = [entry for entry in _tasks_for(model) if entry.public_weights]
    if not able:
        what = f"no task uses {model} yet: it predicts {registry.config_class(model).predicts}"
        raise RunError(what, do="`regard.create` and `regard convert` take these weights")
    return able[0]
