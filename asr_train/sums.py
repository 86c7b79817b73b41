"""Statistics that add up, field by field."""

from dataclasses import fields
from typing import Self


class Summed:
    """Base of a dataclass whose instances add up."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return type(self)(*(own + more for own, more in pairs))
