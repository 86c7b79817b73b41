"""Refusal of values: a class names its own field, and `at` prefixes the path of its group.

    build: Config --"gmm.tri.tree"--> TreeSettings checks --at("leaves")--> gmm.tri.tree.leaves

`build` sets the path of a class in the settings while the class checks itself. So a message names
the override that sets the value, even if a class occurs at several places.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real

LEFT_OUT = "left_out"  # metadata of a field that `plain` leaves out where it has its default
_WHERE = ContextVar("_WHERE", default="")  # the dotted path of the class being built


class SettingsError(ValueError):
    """A setting is unknown, has the wrong type or an impossible value."""


@contextmanager
def standing(where: str) -> Iterator[None]:
    """Set the path of the group in which fields are named."""
    before = _WHERE.set(where)
    try:
        yield
    finally:
        _WHERE.reset(before)


def at(name: str) -> str:
    """Return the dotted path of a field of the class being built; its name if built alone."""
    return dotted(_WHERE.get(), name)


def here() -> str:
    """Return the dotted path of the class being built."""
    return _WHERE.get() or "settings"


def dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)


def positive(**values: float | None) -> None:
    """Refuse numbers that are not; None is allowed where a field's type allows it."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, Real) and value > 0):
            raise SettingsError(f"{at(name)} is {value!r}; it must be positive")


def not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, Real) and value >= 0):
            raise SettingsError(f"{at(name)} is {value!r}; it must not be negative")


def within(low: float, high: float, **values: float | None) -> None:
    """Refuse numbers outside; None as in `positive`."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, Real) and low <= value <= high):
            raise SettingsError(f"{at(name)} is {value!r}; it must lie in [{low}, {high}]")


def interval(**values: list[float] | list[int]) -> None:
    for name, value in values.items():
        if len(value) != 2 or value[0] > value[1]:
            raise SettingsError(f"{at(name)} is {value}; it must be [lowest, highest]")
