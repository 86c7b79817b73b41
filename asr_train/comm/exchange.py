"""The **collectives** among W workers, whoever hosts them. Counts bits.

A process hosts some of the workers: one each under torchrun (`comm.processes`), all of them
(`comm.loopback`), or a few each. Collectives take one value per worker that is hosted here, and
give all workers' values in the order of workers, or their sum in that order: so the bits do not
depend on who hosts whom. Every process calls them in the same order, from one thread at a time.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

PARTS = ("compress", "transfer")  # of an exchange, whose seconds are counted


class ExchangeError(ConnectionError):
    """Another process did not answer in time, or is gone."""


class ReplicaError(ValueError):
    """Workers that share a model do not have the same one."""


class Exchange(ABC):
    """The workers `members`, of whom this process hosts `local`.

    Attributes:
        members: all of them, by their numbers in the run.
        local: those hosted here; both are consecutive.
        device: where tensors lie that come from here.
        wire_bits: by local worker, what it put on the wire, padding included; what goes to all
            counts once.
        processes: that host them.
        seconds: of this process so far: `transfer` in collectives, which wait for the slowest, and
            what users of the exchange add, each under a name of `PARTS`.
    """

    processes = 1

    def __init__(self, members: range, local: range, device: torch.device) -> None:
        self.members, self.local, self.device = members, local, device
        self.wire_bits = dict.fromkeys(local, 0)
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def __len__(self) -> int:
        return len(self.members)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the seconds inside; a GPU's as far as they are waited for."""
        began = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - began

    # --- what the two kinds differ in -------------------------------------------------------------

    @abstractmethod
    def _all(self, rows_LB: Tensor) -> Tensor:
        """uint8 [local, B] -> uint8 [members, B]."""

    @abstractmethod
    def _scatter(self, parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """As `scatter`, but counts nothing."""

    @abstractmethod
    def _sum(
        self, vectors: Iterable[Tensor], size: int, senders: Sequence[int], wire: torch.dtype
    ) -> Tensor:
        """As `sum`, but counts nothing."""

    @abstractmethod
    def barrier(self) -> None:
        """Until all are here."""

    @abstractmethod
    def groups(self, size: int) -> list["Exchange"]:
        """The members cut into groups of `size`: exchanges of those that have a worker here."""

    # --- what is built on it ----------------------------------------------------------------------

    def gather(self, messages: Sequence[Tensor], capacity: int | None = None) -> list[Tensor]:
        """Everybody's message.

        Args:
            messages: of the local workers in their order, uint8 [B]; lengths may differ.
            capacity: bytes that all messages are padded to, the same on all workers; None: they
                tell each other how long the longest is, which takes one more collective.
        Returns:
            A message a member; with a capacity, padded.
        """
        assert len(messages) == len(self.local)
        if capacity is not None:
            gathered = self._all(self._padded(messages, capacity))
            self._count(8 * capacity, self.local)
            return list(gathered)
        sizes = torch.tensor([len(message) for message in messages])[:, None].to(self.device)
        found = self._all(sizes.view(torch.uint8)).view(torch.int64).flatten().tolist()
        gathered = self._all(self._padded(messages, max(found)))
        self._count(8 * (8 + max(found)), self.local)
        return [row[:size] for row, size in zip(gathered, found, strict=True)]

    def scatter(self, parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Send each member its own part (all-to-all), as where each owns some of the parameters.

        Args:
            parts: by local worker and member, uint8 [B of that member]: how long a member's part is
                does not depend on who sends it.
        Returns:
            By local worker, the parts that all members sent it, in their order.
        """
        assert len(parts) == len(self.local)
        for worker, own in zip(self.local, parts, strict=True):
            others = (p for to, p in zip(self.members, own, strict=True) if to != worker)
            self._count(8 * sum(map(len, others)), [worker])
        return self._scatter(parts)

    def sum(
        self,
        vectors: Iterable[Tensor],
        size: int,
        senders: Sequence[int] | None = None,
        wire: torch.dtype = torch.float32,
    ) -> Tensor:
        """((v0 + v1) + v2) + ... in the order of workers, in float32; all members get it.

        Args:
            vectors: float32 [P] of those senders that are local, in their order; asked for one
                by one, and each may be overwritten when the next is asked for.
            size: P.
            senders: the members that have one; None: all.
            wire: what vectors, and then their sum, are rounded to before they are sent.
        """
        senders = list(self.members) if senders is None else list(senders)
        self._count(8 * wire.itemsize * size, [w for w in senders if w in self.local])
        return self._sum(vectors, size, senders, wire)

    def numbers(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """A row of float64 of each local worker -> those of all; rows are equally long."""
        rows_LK = torch.tensor(rows, dtype=torch.float64, device=self.device)
        return self._all(rows_LK.view(torch.uint8)).view(torch.float64).tolist()

    def broadcast(self, content: bytes | None) -> bytes:
        """What the first member's process says; the others say None."""
        is_first = self.members[0] in self.local
        assert (content is not None) == is_first
        empty = torch.zeros(0, dtype=torch.uint8, device=self.device)
        messages = [empty for _ in self.local]
        if content:
            head = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            messages[0] = head.to(self.device)
        return bytes(self.gather(messages)[0].cpu().numpy())

    def check_same(self, checksums: Sequence[int], names: Sequence[str], what: str) -> None:
        """All processes have the same checksums.

        Raises:
            ReplicaError: naming who differs from the first member, and where first.
        """
        rows_LN = torch.tensor(list(checksums), dtype=torch.int64, device=self.device)
        rows_LN = rows_LN.repeat(len(self.local), 1)
        all_WN = self._all(rows_LN.view(torch.uint8)).view(torch.int64).cpu()
        differs_WN = all_WN != all_WN[0]
        if not differs_WN.any():
            return
        others = [self.members[w] for w in differs_WN.any(1).nonzero().flatten().tolist()]
        first = int(differs_WN.any(0).nonzero()[0])
        raise ReplicaError(
            f"{what}: workers {', '.join(map(str, others))} have another {names[first]} than "
            f"worker {self.members[0]} ({int(differs_WN.any(0).sum())} of {len(names)} parameters "
            "differ); do all machines have the same software and hardware? The last checkpoint "
            "is sound"
        )

    def _count(self, bits: int, workers: Iterable[int]) -> None:
        for worker in workers:
            self.wire_bits[worker] += bits

    def _padded(self, messages: Sequence[Tensor], size: int) -> Tensor:
        rows_LB = torch.zeros(len(messages), size, dtype=torch.uint8, device=self.device)
        for row_B, message_B in zip(rows_LB, messages, strict=True):
            row_B[: len(message_B)] = message_B
        return rows_LB


def hosted(workers: int, process: int, processes: int) -> range:
    """The workers that a process hosts: as equal shares as there are."""
    return range(workers * process // processes, workers * (process + 1) // processes)


def added(vectors: Iterable[Tensor]) -> Tensor:
    """Their sum from the left, in float32."""
    total_P: Tensor | None = None
    for vector_P in vectors:
        if total_P is None:
            total_P = vector_P.to(torch.float32, copy=True)
        else:
            total_P += vector_P
    assert total_P is not None
    return total_P
