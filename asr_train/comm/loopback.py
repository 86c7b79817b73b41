"""The collectives for **W workers in one process**: nothing has to be moved.

They return the same values as `processes.Processes`, bit for bit, and count the same bits: so one
CPU or GPU reproduces a run of 128 workers exactly.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from asr_train.comm.exchange import Exchange, added


class Loopback(Exchange):
    """All members are local."""

    def __init__(self, members: range, device: torch.device) -> None:
        super().__init__(members, members, device)

    def _all(self, rows_LB: Tensor) -> Tensor:
        return rows_LB

    def _scatter(self, parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [list(received) for received in zip(*parts, strict=True)]

    def _sum(
        self, vectors: Iterable[Tensor], size: int, senders: Sequence[int], wire: torch.dtype
    ) -> Tensor:
        return added(vector_P.to(wire) for vector_P in vectors).to(wire).float()

    def groups(self, size: int) -> list[Exchange]:
        places = range(0, len(self), size)
        return [Loopback(self.members[at : at + size], self.device) for at in places]
