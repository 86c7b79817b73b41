"""The memory of what a function returns."""

import tracemalloc


def held(make):
    """Return the bytes that `make()` still holds when it has returned, and its highest amount."""
    make()  # what it imports and caches once does not count
    tracemalloc.start()
    try:
        made = make()  # noqa: F841 - held while it is counted
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
