"""Checks that raise with a name and both values: shape, finiteness, sign, lost utterances.

Works on anything with `shape` and `dtype` (NumPy arrays, torch tensors); imports neither.
"""

import os
import unicodedata
from collections.abc import Sequence
from typing import Any


def check_same(where: str, **arrays: Any) -> None:
    """Raise ValueError unless all arrays have the first one's shape and dtype."""
    (first, a), *others = arrays.items()
    for name, b in others:
        if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
            raise ValueError(
                f"{where}: {first} is {a.dtype} {list(a.shape)} "
                f"but {name} is {b.dtype} {list(b.shape)}; they must agree"
            )


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless `value` is positive."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be positive")


def check_shape(name: str, array: Any, *shape: int | None) -> None:
    """Raise ValueError unless `array` has these sizes (None: any)."""
    found = tuple(array.shape)
    if len(found) != len(shape) or any(
        w is not None and w != f for w, f in zip(shape, found, strict=True)
    ):
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ValueError(f"{name} has shape {list(found)}; it must be [{wanted}]")


def printable(path: str) -> str:
    """Return a file's name as it can be printed and written: its bytes need not be UTF-8."""
    return path.encode(errors="backslashreplace").decode()


def check_text(where: object, text: str) -> None:
    """Raise ValueError for control characters in a text, other than white space.

    Joiners, as in Persian, are not printable, but part of the spelling.
    """
    for char in "".join(text.split()):
        if unicodedata.category(char) in ("Cc", "Cs"):
            raise ValueError(f"{where} has the control character {char!r}; delete it there")


def without_lone_marks(text: str) -> str:
    """Drop marks that follow neither letter nor digit, and those that make a digit an emoji."""
    kept, last = [], ""
    for char in text:
        category = unicodedata.category(char)
        of_emoji = category == "Me" or "\ufe00" <= char <= "\ufe0f"
        if category[0] != "M" or last == "L" or (last == "N" and not of_emoji):
            kept.append(char)
        if category[0] != "M" and category != "Cf":  # joiners may stand between
            last = category[0]
    return "".join(kept)


def keep_inputs(output: str, *inputs: str | None) -> None:
    """Refuse an output that would replace one of the inputs, whatever the path of either.

    Raises:
        ValueError: if it would.
    """
    for name in inputs:
        if name not in (None, "-") and os.path.realpath(name) == os.path.realpath(output):
            raise ValueError(f"the output {output} would replace an input; name another file")


def too_many_lost(lost: int, utterances: int, limit: float) -> bool:
    """Return whether more than the share `limit` is lost; one of several is never too many."""
    return lost > limit * utterances and not (lost == 1 < utterances and limit > 0)


def spelled(count: int, what: str) -> str:
    """Spell a count: `1 speaker`, `2 speakers`, `2 speakers of train`."""
    noun, *rest = what.split(" ", 1)
    return " ".join([str(count), noun if count == 1 else f"{noun}s", *rest])


def few(names: Sequence[str]) -> str:
    """List up to 8 names, and the number of others."""
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest


def inputs_named(system: dict[str, str] | None) -> str:
    """Name what a network reads: log-mel, or the frames of a speaker-adaptive system.

    Args:
        system: its "run" and the "sha256" of its Gaussians; None: log-mel.
    """
    if system is None:
        return "log-mel"
    return f"fMLLR features of {system['run']} (SHA-256 {system['sha256'][:12]}...)"
