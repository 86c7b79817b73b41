"""Lists of values to choose from on DEV: the best value, and extension of a list at its end."""

from itertools import groupby

GROWN = 8  # values by which a list may be extended


def least(counts: list[int | None]) -> int:
    """Return the index with the fewest errors: the middle of the longest run of ties.

    Args:
        counts: errors by value, in the order of the values; None: not tried.
    """
    fewest = min(count for count in counts if count is not None)
    runs = groupby(range(len(counts)), lambda at: counts[at] == fewest)
    longest = max((list(run) for is_least, run in runs if is_least), key=len)
    return longest[len(longest) // 2]


def extend(values: list[float], at: int, geometric: bool) -> None:
    """Add a value beyond the end `at`, at the distance of its neighbour.

    A geometric list keeps its factor.
    """
    last, near = (values[0], values[1]) if at == 0 else (values[-1], values[-2])
    new = last * last / near if geometric else 2 * last - near
    values.insert(0 if at == 0 else len(values), float(f"{new:.4g}"))
