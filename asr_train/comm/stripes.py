"""**Model parallelism**: D x M processes, of which M hold a stripe each of the same workers' nets.

    rank d M + m    the m-th stripe of the d-th part of the workers: those of a model are neighbours

A stripe's exchange is among the D processes that have the same stripe; to it, a stripe is a model
like any other. What the stripes of a model have to tell each other beside activations (which are
the network's own) goes through the classes here.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from asr_train.comm.exchange import Exchange, hosted
from asr_train.comm.loopback import Loopback
from asr_train.comm.processes import Processes, join, new_group, started

Item = TypeVar("Item")


class Stripes:
    """Where this process stands in a run whose models are cut; torch.distributed was joined.

    Args:
        workers: of the run.
        count: M, stripes of a model.
    Attributes:
        index: this process's stripe, from 0.
        mesh: all processes, [D, M], with dimensions `data` and `model`.
        exchange: of all workers, among the processes that have this stripe.
        everyone: each worker's stripes in the place of workers; what is the run's, not a stripe's,
            such as the end of a checkpoint.
    """

    def __init__(
        self, workers: int, count: int, device: torch.device, timeout_seconds: float
    ) -> None:
        rank, processes = dist.get_rank(), dist.get_world_size()
        rows = processes // count
        self.count, self.index = count, rank % count
        ranks_DM = torch.arange(processes).view(rows, count)
        # torch requires all processes to make all groups, in the same order
        data = [new_group(ranks, timeout_seconds) for ranks in ranks_DM.T.tolist()]
        model = [new_group(ranks, timeout_seconds) for ranks in ranks_DM.tolist()]
        own = [data[self.index], model[rank // count]]
        self.mesh = DeviceMesh.from_group(
            own, device.type, mesh=ranks_DM, mesh_dim_names=("data", "model")
        )
        hosts = [hosted(workers, r // count, rows) for r in range(processes)]
        self.exchange: Exchange = Loopback(range(workers), device)
        if rows > 1:
            same = [h if r % count == self.index else range(0) for r, h in enumerate(hosts)]
            self.exchange = Processes(range(workers), same, device, timeout_seconds, own[0])
        self._places = [(r % count, worker) for r, host in enumerate(hosts) for worker in host]
        ends = [sum(map(len, hosts[: r + 1])) for r in range(processes)]
        parts = [range(end - len(host), end) for end, host in zip(ends, hosts, strict=True)]
        self.everyone = Processes(range(ends[-1]), parts, device, timeout_seconds)

    def ordered(self, found: Sequence[Item]) -> list[Item]:
        """Return what `everyone` gathered by stripe, and by worker within one."""
        places = sorted(range(len(found)), key=lambda place: self._places[place])
        return [found[place] for place in places]

    def total(self, number: Tensor) -> Tensor:
        """Return the sum over the stripes of a model; in place."""
        dist.all_reduce(number, group=self.mesh.get_group("model"))
        return number

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """Turn a failed exchange among the stripes of a model into an ExchangeError.

        The network exchanges activations, and errors, by torch's own collectives.
        """
        try:
            yield
        except RuntimeError as error:  # of gloo; those of NCCL are DistError
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                raise self.everyone.blamed("activations", error) from error
            raise


def open_stripes(workers: int, count: int, device: torch.device, timeout_seconds: float) -> Stripes:
    """Return the stripes of a run, by the environment variables of torchrun.

    Raises:
        ValueError: if the processes do not make whole models, or are more than the workers' models.
    """
    processes = started()
    if processes % count:
        raise ValueError(
            f"{processes} processes were started, but comm.stripes is {count}: a worker's network "
            f"takes {count}; start a multiple of it, for example by make STRIPES={count}"
        )
    join(workers, count, device, timeout_seconds)
    return Stripes(workers, count, device, timeout_seconds)
