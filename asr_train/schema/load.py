"""Plain data <-> settings: checks for unknown keys, wrong types and impossible values."""

import difflib
import math
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from asr_train.files import read_yaml
from asr_train.schema.fields import LEFT_OUT, SettingsError, dotted, standing

Settings = TypeVar("Settings")


def build(cls: type[Settings], values: Any, where: str = "") -> Settings:
    """Build the dataclass `cls` from nested dicts.

    Raises:
        SettingsError: names the dotted key, its value and what is allowed.
    """
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        raise SettingsError(f"{where or 'settings'} is {values!r}; it must hold {', '.join(known)}")
    for key in values:
        if key not in known:
            raise SettingsError(unknown_key(dotted(where, key), known))
    built = {}
    for name, f in known.items():
        if name in values:
            built[name] = _value(hints[name], values[name], dotted(where, name))
        elif f.default is MISSING and f.default_factory is MISSING:
            raise SettingsError(f"{dotted(where, name)} is missing; it must be set")
    with standing(where):
        return cls(**built)


def unknown_key(dotted: str, known: typing.Iterable[str]) -> str:
    """Return the message for an unknown key."""
    *groups, key = dotted.split(".")
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {'.'.join([*groups, near[0]])}? " if near else ""
    return f"{dotted} is not a setting; {hint}allowed there: {', '.join(known)}"


def load(cls: type[Settings], path: Path | str) -> Settings:
    """Build `cls` from a file written by `resolve.py`."""
    try:
        return build(cls, read_yaml(path))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def plain(settings: Any) -> Any:
    """Convert settings to nested dicts, which `build` reads: for files and hashes."""
    if is_dataclass(settings):
        values = ((f, getattr(settings, f.name)) for f in fields(settings))
        return {
            f.name: plain(value)
            for f, value in values
            if not (f.metadata.get(LEFT_OUT) and value == _default(f))
        }
    if isinstance(settings, Enum):
        return settings.name
    if isinstance(settings, dict):
        return {key: plain(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [plain(value) for value in settings]
    return settings


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return _value(inner, value, where)
    if is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        raise SettingsError(f"{where} is {value!r}; allowed: {', '.join(hint.__members__)}")
    if origin is list:
        if not isinstance(value, list):
            raise SettingsError(f"{where} is {value!r}; it must be a list such as [a, b]")
        return [_value(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise SettingsError(f"{where} is {value!r}; it must map names to values")
        return {str(k): _value(arguments[1], v, dotted(where, k)) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        kind = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
        raise SettingsError(f"{where} is {value!r}; it must be {kind.get(hint, hint)}")
    if hint is float and not math.isfinite(value):
        raise SettingsError(f"{where} is {value}; it must be a finite number")
    return value
