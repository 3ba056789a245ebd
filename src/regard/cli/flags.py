"""Flags made from settings: only what the command line names is returned, so nothing can be confused with a default.

Which flags there are depends on the task: first the words that every run has are read, then the rest.
"""

from __future__ import annotations

import argparse
import shutil
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard import registry
from regard.config import fit_value
from regard.errors import ConfigError, close_names
from regard.setting_groups import Group
from regard.settings import OTHER_NAMES, RunConfig

ALIASES = {"weights": ("--from",)}
CONSTANTS = {"true": True, "false": False, "none": None}
_WEIGHTS = ("weights", "from", "checkpoint", "ckpt", "pretrained", "model", "run", "resume")
_INPUTS = ("data", "dataset", "data_dir", "data_path", "input", "image", "images", "img", "source", "folder")
BARE = {"run": _WEIGHTS, "runs": _WEIGHTS, "file": _WEIGHTS, "data": _INPUTS, "inputs": _INPUTS}
"""What others have flags for, and here is given by its place."""
MODEL_FIELDS = "fields of the model (default: its own)"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Each flag once: without its spelling by underscores, and the value after the last name only."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, 110))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "_" not in name]
        if not names:
            return super()._format_action_invocation(action)
        if action.nargs == 0:
            return ", ".join(names)
        return f"{', '.join(names)} {self._format_args(action, action.dest.upper())}"


Switch = argparse.BooleanOptionalAction
"""--NAME and --no-NAME: the one kind of flag that takes no value."""


class Parser(argparse.ArgumentParser):
    """Errors as ours; flags in full only; a usage line that names the positional arguments."""

    def __init__(self, command: str, about: str | None = None, more: str | None = None, quiet: bool = True):
        super().__init__(
            f"regard {command}", description=about, epilog=more, argument_default=argparse.SUPPRESS, allow_abbrev=False,
            formatter_class=HelpFormatter,
        )  # fmt: skip
        if quiet:
            self.add_argument("--quiet", action=Switch, help="Print results only.")

    def error(self, message: str) -> Any:
        raise ConfigError(message, do=f"see {self.prog} --help")

    def format_help(self) -> str:
        actions = self._get_positional_actions()
        words = [f"[{a.dest.upper()}]" if a.nargs == "?" else a.dest.upper() for a in actions]
        words = [f"{word} ..." if a.nargs in ("*", "+") else word for word, a in zip(words, actions, strict=True)]
        self.usage = " ".join([self.prog, *words, "[--flag VALUE ...]"])
        return super().format_help()


def add_setting(
    parser: Any, name: str, kind: Any, help: str | None, default: Any = None, replaced: bool = False
) -> None:
    """One flag, hidden where `help` is None. A switch is given as --NAME or --no-NAME.

    `replaced` says whether recipe or data may choose another default.
    """
    flag = "--" + name.replace("_", "-")
    flags = [*ALIASES.get(name, ()), flag, *([f"--{name}"] if "_" in name else [])]
    options: dict[str, Any] = {"dest": name, "help": argparse.SUPPRESS}
    if help is not None:
        options["help"] = _shown(help, default, replaced)
    if bool in _options(kind):
        parser.add_argument(*flags, action=Switch, **options)
    elif any(get_origin(option) is tuple for option in _options(kind)):
        parser.add_argument(*flags, nargs="+", type=_reader(kind, name), metavar="N", **options)
    else:
        parser.add_argument(*flags, type=_reader(kind, name), metavar=_metavar(kind), **options)


def _shown(help: str, default: Any, replaced: bool) -> str:
    """A help text with the default, unless the text says it or there is none."""
    if default in (None, MISSING, (), "") or "Default:" in help:
        return help.replace("%", "%%")
    value = f"{default:g}" if isinstance(default, float) else default
    chosen = "by recipe and data, else " if replaced else ""
    return f"{help.removesuffix('.')} (default: {chosen}{value}).".replace("%", "%%")


def at_least_one(word: str, least: int = 1) -> int:
    """The type of a flag that is a whole number of at least 1."""
    if not word.isdecimal() or int(word) < least:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least {least}")
    return int(word)


def at_least_two(word: str) -> int:
    return at_least_one(word, least=2)


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _choices(kind: Any) -> list[str]:
    return [str(value) for option in _options(kind) if get_origin(option) is Literal for value in get_args(option)]


def _metavar(kind: Any) -> str:
    if choices := _choices(kind):
        others = [option for option in _options(kind) if get_origin(option) is not Literal and option is not type(None)]
        return "{" + ",".join(choices + [option.__name__.upper() for option in others]) + "}"
    return next((o.__name__.upper() for o in _options(kind) if o is not type(None) and hasattr(o, "__name__")), "VALUE")


def _reader(kind: Any, name: str) -> Any:
    """From a word to a value of the hinted type; whether it fits is for the settings to say."""
    options = _options(kind)
    texts = str in options or bool(_choices(kind))

    def read(word: str) -> Any:
        if word in _choices(kind) or (texts and not {int, float} & set(options)):
            return None if word == "None" and type(None) in options and str not in options else word
        for number in (int, float):
            with suppress(ValueError):
                return number(word)
        return CONSTANTS.get(word.lower(), word)

    read.__name__ = name
    return read


def read_values(config: type[RunConfig], words: Sequence[str]) -> dict[str, list[Any]]:
    """Several values of each setting, from words such as lr=1e-3,5e-4."""
    kinds = {entry.name: kind for _, entry, kind in config.entries()} | config.shape_fields()
    made: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        name = name.replace("-", "_")
        if not values:
            raise ConfigError(f"{word!r} names no values", do="give a setting and its values, such as lr=1e-3,5e-4")
        made[name] = [_reader(kinds.get(name, str), name)(value) for value in values.split(",")]
    return made


Shown = Literal["all", "common", "none"]


def add_settings(
    parser: Parser, configs: Sequence[type[RunConfig]], shown: Shown = "all", model: str | None = None,
    replaced: Collection[str] = (),
) -> None:  # fmt: skip
    """The flags of the settings of one task or several, in groups; `shown` says which are in the help.

    Of several tasks all flags are read; a task refuses those that it does not have. A default is shown where the tasks
    agree on it, and whether recipe or data may have `replaced` it. With `model`, the fields of its config alone, and
    nothing of volumes if it takes pictures.
    """
    pictures = model is not None and len(registry.find(model).size) == 2
    places: dict[str, Any] = {}
    defaults: dict[str, set[Any]] = {}
    for config in configs:
        for _, entry, _ in config.entries():
            defaults.setdefault(entry.name, set()).add(entry.default)
    seen: set[str] = set()

    def add(title: str, name: str, kind: Any, about: Mapping[str, Any], default: Any) -> None:
        if name in seen:
            return
        seen.add(name)
        of_others = pictures and about.get("volumes")
        if shown == "none" or of_others or (shown == "common" and not about.get("common")):
            return add_setting(parser, name, kind, None)
        if title not in places:
            places[title] = parser.add_argument_group(title)
        add_setting(places[title], name, kind, about.get("help", ""), default, name in replaced)

    for config in configs:
        for group, entry, kind in config.entries():
            default = entry.default if len(defaults[entry.name]) == 1 else None
            add(config.groups()[group].title, entry.name, kind, entry.metadata, default)
            if entry.name == "model":
                kinds = config.shape_fields(model)
                for name, field in sorted(config.shape_entries(model).items()):
                    wide = int | kinds[name] if kinds[name] == tuple[int, ...] else kinds[name]
                    add(MODEL_FIELDS if shown == "all" else "model", name, wide, field.metadata, None)


def add_opening(parser: Parser, configs: Iterable[type[RunConfig]], there: Collection[str] = ()) -> set[str]:
    """The flags that say how data is read, but for those that are `there`; the names of all."""
    names: set[str] = set()
    for config in configs:
        for name, (entry, kind) in config.opening().items():
            if name not in names and name not in there:
                add_setting(parser, name, kind, entry.metadata["help"], entry.default)
            names.add(name)
    return names


def add_options(parser: Any, groups: Iterable[tuple[str, type[Group]]]) -> set[str]:
    """The flags of the options that tasks have for a command, and their names."""
    seen: set[str] = set()
    places: dict[str, Any] = {}
    for title, group in groups:
        hints = get_type_hints(group)
        for entry in fields(group):  # pyright: ignore[reportArgumentType]
            if entry.name in seen:
                continue
            seen.add(entry.name)
            place = places[title] = places.get(title) or parser.add_argument_group(title)
            add_setting(place, entry.name, hints[entry.name], entry.metadata["help"], entry.default)
    return seen


def checked_options(group: type[Group], given: dict[str, Any], task: str) -> dict[str, Any]:
    """The options that a task has for a command, checked; others are refused by name."""
    hints = get_type_hints(group)
    for name in given:
        if name not in hints or name == "title":
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is not for {task}", do=f"leave --{flag} out")
    values = {name: fit_value(value, hints[name], name, None) for name, value in given.items()}
    group(**values)
    return values


def parse(parser: Parser, words: Sequence[str]) -> dict[str, Any]:
    """What the words name; a flag that does not exist is an error with a suggestion."""
    switches = {flag for action in parser._actions if action.nargs == 0 for flag in action.option_strings}
    _refuse_values(switches, words)
    values, rest = parser.parse_known_args(list(words))
    positional = [action.dest for action in parser._get_positional_actions()]
    given = {name: value if name in positional else _single(value) for name, value in vars(values).items()}
    if rest:
        flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        word = next((word for word in rest if word.startswith("--")), rest[0])
        name = word.partition("=")[0]
        if not name.startswith("--"):
            switch = word.lower() in CONSTANTS
            do = "a switch takes no value: give --NAME or --no-NAME" if switch else f"see {parser.prog} --help"
            raise ConfigError(f"{word!r} is one word too many", do=do)
        raise _no_such_flag(parser.prog, name, flags, positional)
    return given


def _refuse_values(switches: Collection[str], words: Iterable[str]) -> None:
    """An error for a word such as --flip=True."""
    for word in words:
        flag, equals, value = word.partition("=")
        if equals and flag in switches:
            name = flag[2:].removeprefix("no-").removeprefix("no_")
            do = f"a switch takes no value: give --{name} or --no-{name}"
            raise ConfigError(f"{flag} is a switch, and {value!r} is given as its value", do=do)


def _no_such_flag(prog: str, flag: str, flags: Iterable[str], positional: Sequence[str]) -> ConfigError:
    """The error for a flag that a command does not have: what it is called here, or which names are close."""
    known = {option[2:].replace("-", "_"): option for option in flags if "_" not in option}
    wanted = flag[2:].replace("-", "_")
    called = known.get(OTHER_NAMES.get(wanted, ""))
    close = [known[option] for option in close_names(wanted, known)]
    bare = next((name for name in positional if wanted in {name, *BARE.get(name, ())}), None)
    if called:
        do = f"it is called {called}"
    elif bare:
        do = f"it is given without a flag: {prog} {' '.join(name.upper() for name in positional)}"
    else:
        do = f"did you mean {' or '.join(close)}?" if close else f"see {prog} --help"
    return ConfigError(f"there is no flag {flag} here", do=do)


def _single(value: Any) -> Any:
    """One number for all axes, or a tuple."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 else tuple(value)
    return value
