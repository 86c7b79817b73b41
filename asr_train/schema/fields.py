"""Refusal of values: a class names its own field, and `at` prefixes the path of its group.

    build: Config --"gmm.tri.tree"--> TreeSettings checks --at("leaves")--> gmm.tri.tree.leaves

`build` sets the path of a class in the settings while the class checks itself. So a message names
the override that sets the value, even if a class occurs at several places.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
