"""Settings as frozen dataclasses: made with checks, written to JSON and read back, never guessed at."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import ConfigError, RunError, did_you_mean

T = TypeVar("T")


@cache
def type_hints(cls: type[Any]) -> Mapping[str, Any]:
    """The types of a class's fields: resolved once, since that takes longer than all checks of a run's settings."""
    return types.MappingProxyType(get_type_hints(cls))


def make(cls: type[T], values: dict[str, Any], where: object = None) -> T:
    """A config of class `cls` from plain values, each checked against its field's type.

    An unknown key or a value of the wrong type is an error that names it.
    """
    hints = type_hints(cls)
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
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise RunError("this is no file", where=path)
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
        words = [word for option in args if get_origin(option) is Literal for word in get_args(option)]
        if isinstance(value, str) and words and str not in args:
            raise ConfigError(f"{name} cannot be {value!r}", where=where, do=did_you_mean(value, words))
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
    raise ConfigError(f"{name} cannot be {value!r}", where=where, do=f"give it {in_words(hint)}")


NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def in_words(hint: Any) -> str:
    """What fits a type, for people.

    >>> in_words(int | None), in_words(float), in_words(int | tuple[int, ...]), in_words(int | Literal["auto"])
    ('a whole number', 'a number', 'a whole number or several', 'a whole number or auto')
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in args if option is not type(None)]
        many = [n > 0 and get_origin(option) is tuple for n, option in enumerate(options)]
        return " or ".join("several" if m else in_words(option) for m, option in zip(many, options, strict=True))
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin is tuple:
        return f"several values, each {in_words(args[0])}"
    return NAMES.get(hint, f"a value of type {getattr(hint, '__name__', hint)}")


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
