"""The **collectives** among W workers, wherever they are hosted. Counts bits.

A process hosts one worker (`comm.processes`, under torchrun), all (`comm.loopback`), or some.
Collectives take one value per local worker, and return all workers' values in the order of workers,
or their sum in that order: so results are bit-identical however workers are spread over processes.
All processes call them in the same order, from one thread at a time.
"""

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

PARTS = ("compress", "transfer")  # parts of an exchange that are timed
LENGTH_BYTES = 8  # of a message's length, where it is exchanged first


class ExchangeError(ConnectionError):
    """Another process did not answer in time, or has ended."""


class ReplicaError(ValueError):
    """Workers that share a model have different weights."""


class Timed:
    """Counts seconds of this process.

    Attributes:
        seconds: so far, by `PARTS`.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the seconds spent inside; of a GPU's work, those that the host waits for."""
        began = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - began


class Exchange(Timed, ABC):
    """The workers `members`, of which this process hosts `local`.

    Attributes:
        members: all workers, by their numbers in the run.
        local: those hosted here; both are consecutive.
        device: of the tensors that collectives return.
        received_bits: by local worker, bits that it received from others, padding and lengths
            included, as if each worker had a process of its own: of a gather of B bytes
            8 (W - 1) B, of a sum 2 (W - 1) / W of its vector (reduce-scatter and all-gather).
        processes: number of processes that host them.
        seconds: of this process so far, by `PARTS`: `transfer` in collectives, which wait for the
            slowest, and what users of the exchange add.
    """

    processes = 1

    def __init__(self, members: range, local: range, device: torch.device) -> None:
        super().__init__()
        self.members, self.local, self.device = members, local, device
        self.received_bits = dict.fromkeys(local, 0)

    def count_received(self, message_bytes: int, *workers: int) -> None:
        """Count that local workers receive a message of this size from each other one.

        Args:
            workers: none: all that are hosted here.
        """
        for worker in workers or self.local:
            self.received_bits[worker] += 8 * (len(self) - 1) * message_bytes

    def count_sum(self, size: int, senders: Sequence[int], wire: torch.dtype) -> None:
        """Count what local workers receive while vectors of these senders are added up."""
        for worker in self.local:
            own = len(hosted(size, worker - self.members[0], len(self)))
            others = len(senders) - (worker in senders)
            self.received_bits[worker] += 8 * wire.itemsize * (others * own + size - own)

    def __len__(self) -> int:
        return len(self.members)

    # --- what subclasses implement ----------------------------------------------------------------

    @abstractmethod
    def _all(self, rows_LB: Tensor) -> Tensor:
        """Gather uint8 [local, B] to uint8 [members, B]."""

    @abstractmethod
    def _scatter(self, parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Scatter as `scatter`, without counting."""

    @abstractmethod
    def _sum(
        self, vectors: Iterable[Tensor], size: int, senders: Sequence[int], wire: torch.dtype
    ) -> Tensor:
        """Add up as `sum`, without counting."""

    @abstractmethod
    def groups(self, size: int) -> list["Exchange"]:
        """Cut the members into groups of `size`; return those that have a worker here."""

    # --- what is built on it ----------------------------------------------------------------------

    def gather(self, messages: Sequence[Tensor], capacity: int | None = None) -> list[Tensor]:
        """Gather the messages of all members.

        Args:
            messages: of the local workers in their order, uint8 [B]; lengths may differ.
            capacity: bytes that all messages are padded to, the same on all workers; None: the
                longest message's, which takes one more collective.
        Returns:
            One message per member; with a capacity, padded.
        """
        assert len(messages) == len(self.local)
        if capacity is not None:
            gathered = self._all(self._padded(messages, capacity))
            self.count_received(capacity)
            return list(gathered)
        sizes = torch.tensor([[len(message)] for message in messages])
        found = self._rows(sizes).flatten().tolist()
        gathered = self._all(self._padded(messages, max(found)))
        self.count_received(LENGTH_BYTES + max(found))
        return [row[:size] for row, size in zip(gathered, found, strict=True)]

    def scatter(self, parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Send each member its own part (all-to-all), for example of the parameters that it owns.

        Args:
            parts: by local worker and member, uint8 [B of that member]: a part's length depends on
                its receiver alone.
        Returns:
            By local worker, the parts that all members sent it, in their order.
        """
        assert len(parts) == len(self.local)
        for worker in self.local:
            self.count_received(len(parts[0][worker - self.members[0]]), worker)
        return self._scatter(parts)

    def sum(
        self,
        vectors: Iterable[Tensor],
        size: int,
        senders: Sequence[int] | None = None,
        wire: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return ((v0 + v1) + v2) + ... in the order of workers, in float32, on all members.

        Args:
            vectors: float32 [P] of the local senders, in their order; consumed one by one, and
                each may be overwritten when the next is requested.
            size: P.
            senders: the members that have a vector; None: all.
            wire: type that vectors, and then their sum, are rounded to before they are sent.
        """
        senders = list(self.members) if senders is None else list(senders)
        self.count_sum(size, senders, wire)
        return self._sum(vectors, size, senders, wire)

    def numbers(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """Gather a row of float64 from each worker; rows are equally long."""
        return self._rows(torch.tensor(rows, dtype=torch.float64)).tolist()

    def barrier(self) -> None:
        """Wait until all members have called this."""
        self.numbers([[0.0]] * len(self.local))  # unlike dist.barrier, on any backend and device

    def plain(self, rows: Sequence[Any]) -> list[Any]:
        """Gather plain data from each worker, as JSON."""
        contents = (np.frombuffer(json.dumps(row).encode(), np.uint8).copy() for row in rows)
        found = self.gather([torch.from_numpy(each_B).to(self.device) for each_B in contents])
        return [json.loads(bytes(message_B.cpu().numpy())) for message_B in found]

    def of_first(self, value: Any) -> Any:
        """Return the plain data that the first member's process passes, on all of them."""
        return self.plain([value] * len(self.local))[0]

    def check_same(self, checksums: Sequence[int], names: Sequence[str], what: str) -> None:
        """Check that all processes have the same checksums.

        Raises:
            ReplicaError: with the workers that differ from the first, and the first difference.
        """
        rows = self.plain([list(checksums)] * len(self.local))
        others = [w for w, row in zip(self.members, rows, strict=True) if row != rows[0]]
        differing = [name for name, *sums in zip(names, *rows, strict=True) if len(set(sums)) > 1]
        if others:
            raise ReplicaError(
                f"{what}: workers {', '.join(map(str, others))} have a different {differing[0]} "
                f"than worker {self.members[0]} ({len(differing)} of {len(names)} parameters "
                "differ); do all machines have the same software and hardware? The last "
                "checkpoint is valid"
            )

    def _rows(self, rows_LK: Tensor) -> Tensor:
        """Gather numbers of any type, [local, K] to [members, K]."""
        return self._all(rows_LK.to(self.device).view(torch.uint8)).view(rows_LK.dtype)

    def _padded(self, messages: Sequence[Tensor], size: int) -> Tensor:
        rows_LB = torch.zeros(len(messages), size, dtype=torch.uint8, device=self.device)
        for row_B, message_B in zip(rows_LB, messages, strict=True):
            row_B[: len(message_B)] = message_B
        return rows_LB


def hosted(workers: int, process: int, processes: int) -> range:
    """Return the workers that a process hosts, in shares as equal as possible."""
    return range(workers * process // processes, workers * (process + 1) // processes)


def added(vectors: Iterable[Tensor]) -> Tensor:
    """Return the sum of vectors, added from the left in float32."""
    rest = iter(vectors)
    total_P = next(rest).to(torch.float32, copy=True)
    for vector_P in rest:
        total_P += vector_P
    return total_P
