"""The collectives for **workers in several processes**, by torch.distributed (gloo or NCCL)."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from asr_train.comm.exchange import Exchange, ExchangeError, added, hosted
from asr_train.comm.loopback import Loopback

FEWEST_SECONDS = 1.0  # that a process waits to learn which others got no answer either


class Processes(Exchange):
    """Workers in several processes, which have joined torch.distributed.

    Args:
        members, hosts: all members, and the workers that each process of the run hosts.
        group: of torch.distributed; None: all processes.
        is_own: whether the group is for this alone.
    """

    def __init__(
        self,
        members: range,
        hosts: Sequence[range],
        device: torch.device,
        timeout_seconds: float,
        group: dist.ProcessGroup | None = None,
        is_own: bool = False,
    ) -> None:
        rank = dist.get_rank()
        super().__init__(members, _overlap(members, hosts[rank]), device)
        self.timeout_seconds = timeout_seconds
        self._hosts, self._group, self._is_own = list(hosts), group, is_own
        self._ranks = [r for r, host in enumerate(hosts) if _overlap(members, host)]
        self._shares = [_overlap(members, hosts[r]) for r in self._ranks]
        self._me = self._ranks.index(rank)
        self.processes = len(self._ranks)
        self._calls = 0

    def _all(self, rows_LB: Tensor) -> Tensor:
        return self._gathered(rows_LB, [len(share) for share in self._shares])

    def _gathered(self, own: Tensor, sizes: Sequence[int]) -> Tensor:
        """Gather rows, or elements, of which the p-th process has sizes[p]."""
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in self._ranks]
        with self._answered("all_gather"):
            dist.all_gather(found, padded, group=self._group)
        return torch.cat([f[:size] for f, size in zip(found, sizes, strict=True)])

    def _sum(
        self, vectors: Iterable[Tensor], size: int, senders: Sequence[int], wire: torch.dtype
    ) -> Tensor:
        """Add up one slice of the vectors per process, in order, and then gather all slices."""
        ours = sum(sender in self.local for sender in senders)
        # A single vector is sent from where it is; several have to be copied side by side
        kept = [v.to(wire) if ours == 1 else v.to(wire, copy=True) for v in vectors]
        assert len(kept) == ours
        slices = [hosted(size, p, len(self._ranks)) for p in range(len(self._ranks))]
        empty = torch.empty(0, dtype=wire, device=self.device)
        parts = [v[s.start : s.stop] for s in slices for v in kept]
        sent = kept[0] if ours == 1 else torch.cat([empty, *parts])
        my_size = len(slices[self._me])
        counts = [sum(sender in share for sender in senders) for share in self._shares]
        got = self._all_to_all(
            sent, [ours * len(s) for s in slices], [count * my_size for count in counts]
        )
        total = added(got.view(sum(counts), my_size)).to(wire)
        return self._gathered(total, [len(s) for s in slices]).float()

    def _scatter(self, parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        first = self.members.start
        sizes = [len(part) for part in parts[0]]
        ours = sum(sizes[worker - first] for worker in self.local)
        by_process = [own[w - first] for share in self._shares for w in share for own in parts]
        sent = [len(parts) * sum(sizes[w - first] for w in share) for share in self._shares]
        got = self._all_to_all(
            torch.cat(by_process), sent, [ours * len(share) for share in self._shares]
        )
        places = [w for share in self._shares for w in self.local for _ in share]
        cut = [sizes[w - first] for w in places]
        received: dict[int, list[Tensor]] = {worker: [] for worker in self.local}
        for worker, part in zip(places, got.split(cut), strict=True):
            received[worker].append(part)
        return list(received.values())

    def _all_to_all(self, sent: Tensor, out: Sequence[int], into: Sequence[int]) -> Tensor:
        """Send out[p] elements to the p-th process, in order, and receive into[p] from it."""
        got = torch.empty(sum(into), dtype=sent.dtype, device=self.device)
        with self._answered("all_to_all"):
            dist.all_to_all_single(got, sent, list(into), list(out), group=self._group)
        return got

    def groups(self, size: int) -> list[Exchange]:
        found: list[Exchange] = []
        for at in range(0, len(self), size):
            members = self.members[at : at + size]
            ranks = [r for r, host in enumerate(self._hosts) if _overlap(members, host)]
            is_here = dist.get_rank() in ranks
            if len(ranks) == 1:
                if is_here:
                    found.append(Loopback(members, self.device))
                continue
            # Of all processes, all make all groups, in the same order; else each makes its own
            if self._group is None or is_here:
                is_local = self._group is not None
                group = new_group(ranks, self.timeout_seconds, is_local)
            if is_here:
                where = (self._hosts, self.device, self.timeout_seconds, group)
                found.append(Processes(members, *where))
        return found

    def close(self) -> None:
        """Destroy the group, if it is for this alone; nothing can be exchanged after that."""
        if self._is_own and dist.is_initialized():  # else it has gone with all others
            dist.destroy_process_group(self._group)
            self._is_own = False

    @contextlib.contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        """Turn any failure inside into an ExchangeError that names the processes to blame."""
        self._calls += 1
        began = time.monotonic()
        try:
            with self.timed("transfer"):
                yield
        except RuntimeError as error:  # the base class of torch.distributed's errors
            waited = f" in {time.monotonic() - began:.1f} s"
            raise self.blamed(f"{what}, call {self._calls}", error, waited) from error

    def blamed(self, what: str, error: Exception, waited: str = "") -> ExchangeError:
        """Return the error of a failed collective, which names the processes that are silent."""
        silent = self._silent()
        who = f"process {', '.join(map(str, silent))}" if silent else "another process"
        return ExchangeError(
            f"{who} of {dist.get_world_size()} did not answer{waited} "
            f"(timeout_seconds is {self.timeout_seconds:g}; {what}: {_shortened(error)}); "
            "look at its output, then start again, from the last checkpoint"
        )

    def _silent(self) -> list[int]:
        """Return the processes that do not report within FEWEST_SECONDS that they wait, too."""
        with contextlib.suppress(Exception):  # the store may have ended with its process
            store = dist.distributed_c10d._get_default_store()
            store.set(f"asr_train/waiting/{dist.get_rank()}", "")
            time.sleep(FEWEST_SECONDS)
            keys = {rank: f"asr_train/waiting/{rank}" for rank in self._ranks}
            return [rank for rank, key in keys.items() if not store.check([key])]
        return []


def _shortened(error: Exception) -> str:
    """Return the first line of an error of torch and, as NCCL's reason is there, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("frame #", "Exception raised from"))]
    return " ... ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else type(error).__name__


def _overlap(a: range, b: range) -> range:
    first, last = max(a.start, b.start), min(a.stop, b.stop)
    return range(first, max(first, last))


def open_exchange(workers: int | None, device: torch.device, timeout_seconds: float) -> Exchange:
    """Return the exchange of a run, by the environment variables of torchrun.

    Args:
        workers: None: one per process.
    Raises:
        ValueError: if there are more processes than workers, or others for other workers.
    """
    processes = started()
    workers = processes if workers is None else workers
    if processes == 1:
        return Loopback(range(workers), device)
    join(workers, 1, device, timeout_seconds)
    hosts = [hosted(workers, p, processes) for p in range(processes)]
    return Processes(range(workers), hosts, device, timeout_seconds)


def started() -> int:
    """Return the number of processes that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(workers: int, stripes: int, device: torch.device, timeout_seconds: float) -> None:
    """Join torch.distributed, by the environment variables of torchrun.

    Raises:
        ValueError: if there are more processes than workers, or others for other workers.
        ExchangeError: if the others do not in time.
    """
    if workers * stripes < started():
        cut = f", whose networks are cut into {stripes} stripes" if stripes > 1 else ""
        raise ValueError(
            f"{started()} processes were started for {workers} workers{cut}; each process hosts at "
            f"least one: start {workers * stripes}, or raise WORKERS"
        )
    if not dist.is_initialized():
        _find_each_other(device, timeout_seconds)
    check_started_alike(workers, stripes, device)


def _find_each_other(device: torch.device, timeout_seconds: float) -> None:
    timeout = timedelta(seconds=timeout_seconds)
    backend = "nccl" if device.type == "cuda" else "gloo"
    # torchrun keeps its store over restarts, and with it the addresses of processes that were
    # killed: one that reads those waits in vain. So keys are of this start alone
    start, began = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), time.monotonic()
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        store = dist.PrefixStore(f"asr_train/{size}/{start}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        port = os.environ.get("MASTER_PORT")
        in_use = f", and with another MASTER_PORT than {port}" if "EADDRINUSE" in str(error) else ""
        waited = f"{time.monotonic() - began:.1f} s"
        raise ExchangeError(
            f"the {started()} processes did not find each other in {waited} "
            f"({_shortened(error)}); start all of them by torchrun{in_use}"
        ) from error


def check_started_alike(workers: int, stripes: int, device: torch.device) -> None:
    """Raise ValueError if other processes were started for other workers, or stripes."""
    mine = torch.tensor([workers, stripes], device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    first, *others = (tuple(row.tolist()) for row in rows)
    for process, found in enumerate(others, 1):
        if found != first:
            raise ValueError(
                f"process {process} was started for {found[0]} workers with {found[1]} stripes, "
                f"but process 0 for {first[0]} with {first[1]}; set the same WORKERS and STRIPES, "
                "or comm.workers and comm.stripes, on all machines"
            )


def new_group(
    ranks: Sequence[int], timeout_seconds: float, is_local: bool = False, backend: str | None = None
) -> dist.ProcessGroup:
    """Return a group of processes; with `is_local`, only these call this."""
    timeout = timedelta(seconds=timeout_seconds)
    group: dist.ProcessGroup = dist.new_group(
        list(ranks), timeout, backend, use_local_synchronization=is_local
    )
    return group


def of_group(
    process_group: dist.ProcessGroup | None, device: torch.device, timeout_seconds: float
) -> Processes:
    """Return an exchange of one worker per rank of a group, for scripts with groups of their own.

    Exchanges go through a new group of the same ranks, apart from the script's own collectives;
    ranks outside need not call this. torch names such a group by the number of groups that a rank
    is in: where these differ, exchanges go through the given group, with its own timeout.

    Args:
        process_group: all its ranks call this; None: all ranks.
    Raises:
        ValueError: if this rank is not in the group.
    """
    group = dist.distributed_c10d._get_default_group() if process_group is None else process_group
    if dist.get_rank(group) < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in process_group; make a hook, an optimizer and DDP "
            "only where it is"
        )
    members = sorted(dist.get_process_group_ranks(group))  # as new groups have them
    hosts = [range(0)] * dist.get_world_size()
    for worker, rank in enumerate(members):
        hosts[rank] = range(worker, worker + 1)
    own, is_local, is_named = group, process_group is not None, True
    if is_local:
        count = len(dist.distributed_c10d._world.pg_names)
        least = torch.tensor([count, -count], device=device)
        dist.all_reduce(least, dist.ReduceOp.MIN, group)
        is_named = int(least.sum()) == 0  # the least is the most
    if is_named:
        own = new_group(members, timeout_seconds, is_local, dist.get_backend(group))
    return Processes(range(len(members)), hosts, device, timeout_seconds, own, is_named)


def close_exchange() -> None:
    """Leave torch.distributed, if it was joined."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
