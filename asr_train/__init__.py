"""Recipes for hybrid speech acoustic models: from recordings to a word error rate.

Recogniser    a trained model that decodes recordings and aligns texts; loaded when first used
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asr_train.bundle.recogniser import Recogniser

__all__ = ["Recogniser"]


def __getattr__(name: str) -> Any:
    if name == "Recogniser":  # with what it needs, which takes seconds to import
        from asr_train.bundle.recogniser import Recogniser

        return Recogniser
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
