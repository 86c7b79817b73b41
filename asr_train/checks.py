"""Same shape, finite, positive: raise with the name and both values. Too many lost; counts.

Works on anything with `shape` and `dtype` (NumPy arrays, torch tensors); imports neither.
"""

from typing import Any


def check_same(where: str, **arrays: Any) -> None:
    """All arrays have the first one's shape and dtype, else ValueError."""
    (first, a), *others = arrays.items()
    for name, b in others:
        if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
            raise ValueError(
                f"{where}: {first} is {a.dtype} {list(a.shape)} "
                f"but {name} is {b.dtype} {list(b.shape)}; they must agree"
            )


def check_positive(name: str, value: float) -> None:
    """`value` is a number above zero, else ValueError."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be positive")


def check_shape(name: str, array: Any, *shape: int | None) -> None:
    """`array` has these sizes (None: any), else ValueError."""
    found = tuple(array.shape)
    if len(found) != len(shape) or any(
        w is not None and w != f for w, f in zip(shape, found, strict=True)
    ):
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ValueError(f"{name} has shape {list(found)}; it must be [{wanted}]")


def too_many_lost(lost: int, utterances: int, limit: float) -> bool:
    """More than the share `limit` of the utterances; a single one of several is never too many."""
    return lost > limit * utterances and not (lost == 1 < utterances and limit > 0)


def spelled(count: int, what: str) -> str:
    """`1 speaker`, `2 speakers`, `2 speakers of train`."""
    noun, *rest = what.split(" ", 1)
    return " ".join([str(count), noun if count == 1 else f"{noun}s", *rest])
