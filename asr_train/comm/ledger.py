"""The **counts of asynchronous messages**, kept once for all workers of a process.

in    each message's sent elements: int32 [K], as in kernels.threshold
out   the weights by any workers' messages of some steps; the base after a complete step

All float32 [P]. A complete step moves the base of all workers alike. Of an open step, most workers
have most messages: what a worker lacks is taken back from the counts of all messages, if that takes
fewer elements than adding up what it has. Counts are integers, and those of steps with the same
threshold and rate are added up before they are multiplied: so the weights are the same to the bit
for the same messages. Knows nothing of headers, time or transport.
"""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from asr_train.kernels import decode, threshold

Rate = Callable[[int], float]  # step -> learning rate per frame, the same on all workers


class Ledger:
    """Messages and bases of the open steps.

    Args:
        size: P.
    Attributes:
        spare_P: float32 [P], to work in; each worker needs it only briefly.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.spare_P = torch.zeros(size, device=device)
        self._bases: dict[int, Tensor] = {}  # by the step that begins with it
        self._words: dict[int, dict[int, Tensor]] = {}  # by step and worker
        self._counts_NP = torch.zeros((0, size), device=device)  # of `_words`
        self._rows: dict[int, int] = {}  # of `_counts_NP`, by step
        self._taus: dict[int, float] = {}  # by step

    def forget(self) -> None:
        """Forget all messages and bases."""
        self._bases, self._words, self._rows, self._taus = {}, {}, {}, {}

    def begin(self, step: int, weights_P: Tensor, rate: Rate) -> None:
        """Take these weights as the only base; a quantum of step n is worth tau(n) * rate(n)."""
        self._bases, self._rate = {step: weights_P.clone()}, rate

    def base(self, step: int) -> Tensor:
        """Return the base that a step begins with: the weights by all messages of those before."""
        return self._bases[step]

    def add(self, step: int, worker: int, words_K: Tensor, tau: float) -> None:
        """Keep and count a worker's message of a step, its only one; tau is that of the step."""
        if step not in self._words:
            self._taus[step] = tau
            self._words[step], self._rows[step] = {}, self._free_row()
            self._counts_NP[self._rows[step]].zero_()
        assert worker not in self._words[step]
        self._words[step][worker] = words_K
        threshold.decode(words_K, self._counts_NP[self._rows[step]])

    def weights(self, step: int, known: Mapping[int, Collection[int]], out_P: Tensor) -> None:
        """Write the base of a step, moved by messages of it and of later steps.

        Args:
            known: the workers whose messages count, by step.
        """
        base_P = self._bases[step]
        sums: dict[tuple[float, float], tuple[list[int], list[Tensor], list[Tensor]]] = {}
        for number, workers in sorted(known.items()):
            if not workers:
                continue
            words = self._words[number]
            worth = self._taus[number], self._rate(number)
            rows, plus, minus = sums.setdefault(worth, ([], [], []))
            lacking = [words_K for worker, words_K in words.items() if worker not in workers]
            if 2 * len(lacking) < len(words):
                rows.append(self._rows[number])
                minus += lacking
            else:
                plus += [words_K for worker, words_K in words.items() if worker in workers]
        for (tau, rate), (rows, plus, minus) in sums.items():
            decode.combine(base_P, self._counts_NP, rows, plus, minus, tau, rate, out_P)
            base_P = out_P
        if base_P is not out_P:
            out_P.copy_(base_P)

    def close(self, step: int) -> None:
        """Make the next step's base from all messages of this one, which are all here."""
        self._bases[step + 1] = torch.empty_like(self.spare_P)
        self.weights(step, {step: self._words[step]}, self._bases[step + 1])

    def drop(self, before: int) -> None:
        """Forget the messages and bases of all steps before this one."""
        for kept in (self._bases, self._words, self._rows, self._taus):
            for old in [step for step in kept if step < before]:
                del kept[old]

    def _free_row(self) -> int:
        """Return a row that no step uses; add one if there is none."""
        free = min(set(range(len(self._rows) + 1)) - set(self._rows.values()))
        if free == len(self._counts_NP):
            self._counts_NP = torch.cat([self._counts_NP, torch.zeros_like(self.spare_P)[None]])
        return free
