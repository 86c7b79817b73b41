"""The **collectives** among W workers; only here is torch.distributed called. Counts bits.

A process hosts some of the workers: one each under torchrun, all of them in `comm.loopback`, or a
few each. Collectives take one value a worker that is hosted here, and give all workers' values in
the order of workers, or their sum in that order: so the bits do not depend on who hosts whom.
Every process calls them in the same order, from one thread at a time.
"""

import contextlib
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

PARTS = ("compress", "transfer")  # of an exchange, whose seconds are counted
FEWEST_SECONDS = 1.0  # that a process waits to hear who else has not been answered


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
        awaited_since: before this time nobody waits for the exchange, and no seconds count.
    """

    processes = 1

    def __init__(self, members: range, local: range, device: torch.device) -> None:
        self.members, self.local, self.device = members, local, device
        self.wire_bits = dict.fromkeys(local, 0)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.awaited_since = -math.inf

    def __len__(self) -> int:
        return len(self.members)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the seconds inside; a GPU's as far as they are waited for."""
        began = time.perf_counter()
        yield
        began = max(began, self.awaited_since)
        self.seconds[part] += max(0.0, time.perf_counter() - began)

    # --- what the two kinds differ in -------------------------------------------------------------

    @abstractmethod
    def _all(self, rows_LB: Tensor) -> Tensor:
        """uint8 [local, B] -> uint8 [members, B]."""

    @abstractmethod
    def _sum(
        self, vectors: Iterable[Tensor], size: int, senders: Sequence[int], wire: torch.dtype
    ) -> Tensor:
        """As `sum`, but counts nothing."""

    @abstractmethod
    def barrier(self) -> None:
        """Until all are here."""

    @abstractmethod
    def teams(self, size: int) -> list["Exchange"]:
        """The members cut into teams of `size`: exchanges of those that have a worker here."""

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


class Processes(Exchange):
    """Workers in several processes, of which torch.distributed (gloo or NCCL) knows.

    Args:
        members, hosts: all members, and those that each process of the run hosts.
        group: of torch.distributed; None: all processes.
    """

    def __init__(
        self,
        members: range,
        hosts: Sequence[range],
        device: torch.device,
        timeout_seconds: float,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        rank = dist.get_rank()
        super().__init__(members, _overlap(members, hosts[rank]), device)
        self.timeout_seconds = timeout_seconds
        self._hosts, self._group = list(hosts), group
        self._ranks = [r for r, host in enumerate(hosts) if _overlap(members, host)]
        self._shares = [_overlap(members, hosts[r]) for r in self._ranks]
        self._me = self._ranks.index(rank)
        self.processes = len(self._ranks)
        self._calls = 0

    def _all(self, rows_LB: Tensor) -> Tensor:
        most = max(len(share) for share in self._shares)
        padded = rows_LB.new_zeros(most, rows_LB.shape[1])
        padded[: len(rows_LB)] = rows_LB
        found = [torch.empty_like(padded) for _ in self._ranks]
        with self._answered("all_gather"):
            dist.all_gather(found, padded, group=self._group)
        return torch.cat([f[: len(s)] for f, s in zip(found, self._shares, strict=True)])

    def _sum(
        self, vectors: Iterable[Tensor], size: int, senders: Sequence[int], wire: torch.dtype
    ) -> Tensor:
        """Each process adds up one slice of the vectors in order, and then all get all slices."""
        ours = sum(sender in self.local for sender in senders)
        # With one vector here, it lies as it is to be sent; more have to be copied side by side
        kept = [v.to(wire) if ours == 1 else v.to(wire, copy=True) for v in vectors]
        assert len(kept) == ours
        slices = [hosted(size, p, len(self._ranks)) for p in range(len(self._ranks))]
        none = torch.empty(0, dtype=wire, device=self.device)
        parts = [v[s.start : s.stop] for s in slices for v in kept]
        sent = kept[0] if ours == 1 else torch.cat([none, *parts])
        my_size = len(slices[self._me])
        counts = [sum(sender in share for sender in senders) for share in self._shares]
        got = torch.empty(sum(counts) * my_size, dtype=wire, device=self.device)
        with self._answered("all_to_all"):
            dist.all_to_all_single(
                got,
                sent,
                [count * my_size for count in counts],
                [ours * len(s) for s in slices],
                group=self._group,
            )
        total = _added(got.view(sum(counts), my_size)).to(wire)
        widest = max(len(s) for s in slices)
        padded = torch.zeros(widest, dtype=wire, device=self.device)
        padded[:my_size] = total
        found = [torch.empty_like(padded) for _ in slices]
        with self._answered("all_gather"):
            dist.all_gather(found, padded, group=self._group)
        return torch.cat([f[: len(s)] for f, s in zip(found, slices, strict=True)]).float()

    def barrier(self) -> None:
        self.numbers([[0.0]] * len(self.local))  # unlike dist.barrier, on any backend and device

    def teams(self, size: int) -> list[Exchange]:
        from asr_train.comm.loopback import Loopback

        found: list[Exchange] = []
        for first in range(self.members.start, self.members.stop, size):
            members = range(first, min(first + size, self.members.stop))
            ranks = [r for r, host in enumerate(self._hosts) if _overlap(members, host)]
            if len(ranks) == 1:
                if self._me == self._ranks.index(ranks[0]):
                    found.append(Loopback(members, self.device))
                continue
            # All processes make all groups, in the same order
            group = dist.new_group(ranks, timeout=timedelta(seconds=self.timeout_seconds))
            if dist.get_rank() in ranks:
                where = (self._hosts, self.device, self.timeout_seconds, group)
                found.append(Processes(members, *where))
        return found

    @contextlib.contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        """Whatever fails inside becomes an ExchangeError that says who did not answer."""
        self._calls += 1
        began = time.monotonic()
        try:
            with self.timed("transfer"):
                yield
        except RuntimeError as error:  # of which torch.distributed's own errors are kinds
            waited = time.monotonic() - began
            silent = self._silent()
            who = f"process {', '.join(map(str, silent))}" if silent else "another process"
            reason = str(error).split("\n")[0]
            raise ExchangeError(
                f"{who} of {dist.get_world_size()} did not answer in {waited:.1f} s "
                f"(comm.timeout_seconds is {self.timeout_seconds:g}; {what}, call {self._calls}: "
                f"{reason}); look at its output, then start again: training goes on from the "
                "last checkpoint"
            ) from error

    def _silent(self) -> list[int]:
        """The processes that do not say within a moment that they, too, wait in vain."""
        with contextlib.suppress(Exception):  # the store may be gone with the process that held it
            store = dist.distributed_c10d._get_default_store()
            store.set(f"asr_train/waiting/{dist.get_rank()}", "")
            time.sleep(FEWEST_SECONDS)
            keys = {rank: f"asr_train/waiting/{rank}" for rank in self._ranks}
            return [rank for rank, key in keys.items() if not store.check([key])]
        return []


def _overlap(a: range, b: range) -> range:
    first, last = max(a.start, b.start), min(a.stop, b.stop)
    return range(first, max(first, last))


def _added(vectors: Iterable[Tensor]) -> Tensor:
    """Their sum from the left, in float32."""
    total_P: Tensor | None = None
    for vector_P in vectors:
        if total_P is None:
            total_P = vector_P.to(torch.float32, copy=True)
        else:
            total_P += vector_P
    assert total_P is not None
    return total_P


def open_exchange(workers: int | None, device: torch.device, timeout_seconds: float) -> Exchange:
    """The exchange of a run, by what torchrun says in the environment.

    Args:
        workers: None: one a process.
    Raises:
        ValueError: if there are more processes than workers.
    """
    from asr_train.comm.loopback import Loopback

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    workers = processes if workers is None else workers
    if workers < processes:
        raise ValueError(
            f"{processes} processes were started for {workers} workers; each process hosts at "
            f"least one: start {workers}, or raise WORKERS"
        )
    if processes == 1:
        return Loopback(range(workers), device)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # an error, not an abort
    if not dist.is_initialized():
        try:
            _join("nccl" if device.type == "cuda" else "gloo", timedelta(seconds=timeout_seconds))
        except (RuntimeError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise ExchangeError(
                f"the {processes} processes did not find each other in {timeout_seconds:g} s "
                f"({reason}); start all of them by torchrun"
            ) from error
    hosts = [hosted(workers, p, processes) for p in range(processes)]
    return Processes(range(workers), hosts, device, timeout_seconds)


def _join(backend: str, timeout: timedelta) -> None:
    """Join torch.distributed under keys of this start alone.

    torchrun keeps its store over restarts, and with it the addresses of processes that were killed:
    who reads one of those waits for a dead process.
    """
    store, rank, processes = next(dist.rendezvous("env://", timeout=timeout))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"asr_train/{processes}/{start}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes, timeout=timeout)


def close_exchange() -> None:
    """Leave torch.distributed, if it was joined."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
