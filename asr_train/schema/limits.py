"""Permitted ranges of numbers: annotations of a class state them, and `Checked` enforces them.

    layers: Count                                   an integer above 0
    dropout: Annotated[float, between(0, 0.9)]

None is allowed where a field's type allows it; of lists and mappings, each value is checked.
"""

import types
import typing
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Annotated, Any, TypeVar

from asr_train.schema.fields import SettingsError, at


def positive(**values: float | None) -> None:
    """Raise SettingsError for numbers that are not; None is allowed, as a type may allow it."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, Real) and value > 0):
            raise SettingsError(f"{at(name)} is {value!r}; it must be positive")


def not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, Real) and value >= 0):
            raise SettingsError(f"{at(name)} is {value!r}; it must not be negative")


def within(low: float, high: float, **values: float | None) -> None:
    """Raise SettingsError for numbers outside [low, high]; None as in `positive`."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, Real) and low <= value <= high):
            raise SettingsError(f"{at(name)} is {value!r}; it must lie in [{low}, {high}]")


def interval(**values: list[float] | list[int]) -> None:
    for name, value in values.items():
        if len(value) != 2 or value[0] > value[1]:
            raise SettingsError(f"{at(name)} is {value}; it must be [lowest, highest]")


def between(low: float, high: float) -> Callable[..., None]:
    """Return `within` of these limits, for an annotation."""
    return partial(within, low, high)


Count = Annotated[int, positive]
Natural = Annotated[int, not_negative]  # 0, too
Positive = Annotated[float, positive]
NotNegative = Annotated[float, not_negative]
Share = Annotated[float, between(0, 1)]
Number = TypeVar("Number")
Interval = Annotated[list[Number], interval]


class Checked:
    """Base of settings that refuse values: first by the limits of each, then what `check` does."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            _refuse(hint, name, getattr(self, name))
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""


def _refuse(hint: Any, name: str, value: Any) -> None:
    """Apply all limits in an annotation to what they are for: a value, its elements, or both."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for limit in hint.__metadata__:
            limit(**{name: value})
        _refuse(hint.__origin__, name, value)
    elif origin is list:
        for each in value:
            _refuse(arguments[0], name, each)
    elif origin is dict:
        for key, each in value.items():
            _refuse(arguments[1], f"{name}.{key}", each)
    elif origin in (typing.Union, types.UnionType) and value is not None:
        _refuse(arguments[0], name, value)
