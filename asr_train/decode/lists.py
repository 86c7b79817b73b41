"""Lists of values to choose from on DEV: which one is best, and how a list grows at its end."""

GROWN = 8  # values that a list may grow by


def least(counts: list[int | None]) -> int:
    """Where the fewest errors are: the middle of the longest run of neighbours that tie.

    Args:
        counts: errors by value, in the order of the values; None: not tried.
    """
    fewest = min(count for count in counts if count is not None)
    runs: list[list[int]] = [[]]
    for at, count in enumerate(counts):
        if count == fewest:
            runs[-1].append(at)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    return longest[len(longest) // 2]


def extend(values: list[float], at: int, geometric: bool) -> None:
    """Add a value before the first or after the last, which is `at`, as far away as its neighbour.

    A list that grows by a factor keeps the last one.
    """
    last, near = (values[0], values[1]) if at == 0 else (values[-1], values[-2])
    new = last * last / near if geometric else 2 * last - near
    values.insert(0 if at == 0 else len(values), float(f"{new:.4g}"))
