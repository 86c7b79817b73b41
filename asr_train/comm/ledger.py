"""The **counts of asynchronous messages**, kept once for all workers of a process.

in    each message's sent elements, when it is read: int32 [K], as in kernels.threshold
out   weights by any workers' messages of a step; the base after a complete step, float32 [P]

A complete step moves the base of all workers alike. Of an open step, most workers have most
messages: what a worker lacks is taken back from the counts of all messages read here, if that takes
fewer elements than adding up what it has. Counts are integers, so the weights are the same to the
bit either way. Knows nothing of headers, time or transport.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from asr_train.kernels import decode, threshold

Words = dict[int, Tensor]  # by worker


class Ledger:
    """What the workers of a process share.

    Args:
        spare_P: float32 [P].
        spread: steps by which the workers' bases may differ: sums are kept for so long.
    Attributes:
        spare_P: to work in; each worker needs it only briefly.
    """

    def __init__(self, spare_P: Tensor, spread: int) -> None:
        self.spare_P, self.spread = spare_P, spread
        self._bases: dict[int, Tensor] = {}  # by the step that begins with it
        self._read: dict[int, Words] = {}  # by step
        self._counts: dict[int, Tensor] = {}  # of `_read`, by step; float32 [P], integers

    def forget(self) -> None:
        """Forget all messages and bases: steps are taken anew from a state that was restored."""
        self._bases, self._read, self._counts = {}, {}, {}

    def begin(self, step: int, weights_P: Tensor) -> Tensor:
        """Return the base to begin a step with; bases of other weights are forgotten."""
        base_P = self._bases.get(step)
        if base_P is None or not torch.equal(base_P, weights_P):
            base_P = weights_P.clone()
            self._bases = {step: base_P}
        return base_P

    def add(self, step: int, worker: int, words_K: Tensor) -> None:
        """Count a message, unless it was counted before."""
        read = self._read.setdefault(step, {})
        if worker in read:
            return
        read[worker] = words_K
        if step not in self._counts:
            self._counts[step] = torch.zeros_like(self.spare_P)
        threshold.decode(words_K, self._counts[step])

    def update(self, step: int, words: Words, tau: float, rate: float, weights_P: Tensor) -> None:
        """Compute kernels.decode.update with these workers' messages of a step."""
        read = self._read.get(step, {})
        lacking = [words_K for worker, words_K in read.items() if worker not in words]
        saved = _elements(words.values()) - _elements(lacking)
        if not words.keys() <= read.keys() or 2 * saved < len(weights_P):  # four passes over P
            decode.update(list(words.values()), tau, rate, weights_P)
            return
        torch.neg(self._counts[step], out=self.spare_P)
        for words_K in lacking:
            threshold.decode(words_K, self.spare_P)
        weights_P.add_(self.spare_P.mul_(tau), alpha=rate)

    def close(self, step: int, words: Words, tau: float, rate: float, base_P: Tensor) -> Tensor:
        """Return the base after a complete step: the one that another worker made, if it is kept.

        Args:
            words: of all workers.
            base_P: before the step; stays as it is.
        """
        if step + 1 not in self._bases:
            after_P = base_P.clone()
            self.update(step, words, tau, rate, after_P)
            self._bases[step + 1] = after_P
        for old in [s for s in self._read if s <= step - self.spread]:
            del self._read[old], self._counts[old]
        for old in [s for s in self._bases if s <= step - self.spread]:
            del self._bases[old]
        return self._bases[step + 1]


def _elements(messages: Iterable[Tensor]) -> int:
    return sum(map(len, messages))
