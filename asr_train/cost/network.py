"""A cluster's network, simulated: who sends how many bytes to whom -> **seconds**.

in    ClusterSettings, and processes: generators that yield seconds to wait, or a Signal
out   the clock at the end of all processes; the bytes that left the nodes

Messages are flows. Flows that cross a link at the same time share it fairly (max-min fairness)
between events: the begin or end of a flow, the end of a wait. A sender's copies of one message to
many are one flow, which loads its links once per copy and arrives everywhere at once. Time depends
only on the arguments. Knows nothing of gradients, methods and networks to train.
"""

import heapq
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from asr_train.cost.cluster import ClusterSettings, bytes_per_second

Process = Generator["float | Signal", None, None]
SAME_TIME = 1e-12  # seconds; events closer than rounding errors are simultaneous
FULL = 1e-9  # share of its capacity that rounding may leave of a full link


class Links:
    """The links of a cluster's first `workers` workers; nodes are filled one after the other.

    Attributes:
        capacity_L: bytes per second of every link.
    Raises:
        ValueError: if the cluster has fewer workers.
    """

    def __init__(self, cluster: ClusterSettings, workers: int) -> None:
        if not 1 <= workers <= cluster.max_workers:
            raise ValueError(
                f"{workers} workers, but the cluster has {cluster.max_nodes} nodes of "
                f"{cluster.gpus_per_node} GPUs: ask for 1 to {cluster.max_workers}"
            )
        self.cluster = cluster
        self.workers = workers
        self.nodes = math.ceil(workers / cluster.gpus_per_node)
        inside = cluster.inside.bytes_per_second if cluster.inside else math.inf
        between = cluster.between.bytes_per_second if cluster.between else math.inf
        rates = [inside] * (2 * workers) + [bytes_per_second(cluster.bus_gbit_per_s)] * self.nodes
        rates += [between] * (2 * self.nodes) + [bytes_per_second(cluster.fabric_gbit_per_s)]
        self.capacity_L = np.array(rates)
        self._bus = 2 * workers
        self._out = self._bus + self.nodes
        self._in = self._out + self.nodes
        self._fabric = self._in + self.nodes
        self._loads: dict[tuple[int, tuple[int, ...]], Loads] = {}

    def node(self, worker: int) -> int:
        return worker // self.cluster.gpus_per_node

    def loads(self, source: int, targets: Sequence[int]) -> "Loads":
        """Return the loads of a message from `source` to each of `targets`, and its latency."""
        key = (source, tuple(targets))
        if key not in self._loads:
            self._loads[key] = self._count(source, [t for t in targets if t != source])
        return self._loads[key]

    def _count(self, source: int, targets: list[int]) -> "Loads":
        copies_L = np.zeros(len(self.capacity_L))
        home = self.node(source)
        near = [t for t in targets if self.node(t) == home]
        far = [self.node(t) for t in targets if self.node(t) != home]
        copies_L[source] = copies_L[self._bus + home] = len(near)
        copies_L[[self.workers + t for t in near]] = 1
        copies_L[self._out + home] = copies_L[self._fabric] = len(far)
        np.add.at(copies_L, [self._in + node for node in far], 1)
        link_E = np.flatnonzero((copies_L > 0) & np.isfinite(self.capacity_L))
        crossed = [(near, self.cluster.inside), (far, self.cluster.between)]
        latency = max((link.latency_seconds for used, link in crossed if used and link), default=0)
        return Loads(link_E, copies_L[link_E], latency, len(far))


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads of one message.

    Attributes:
        link_E, copies_E: the links it crosses, and how many copies of it cross each.
        latency_seconds: before its first byte arrives.
        leaving: copies that leave the sender's node.
    """

    link_E: NDArray[np.intp]
    copies_E: NDArray[np.float64]
    latency_seconds: float
    leaving: int


def fair_rates(
    capacity_L: NDArray[np.float64],
    flow_E: NDArray[np.intp],
    link_E: NDArray[np.intp],
    copies_E: NDArray[np.float64],
    flows: int,
) -> NDArray[np.float64]:
    """Return max-min fair rates by progressive filling: all rise until one of their links is full.

    Args:
        capacity_L: bytes per second of each link.
        flow_E, link_E, copies_E: flow `flow_E[e]` crosses link `link_E[e]` with this many copies.
        flows: their number; each crosses a link.
    Returns:
        bytes per second of one copy, for each flow.
    """
    rate_F = np.zeros(flows)
    rising_F = np.ones(flows, dtype=bool)
    left_L = capacity_L.copy()
    while True:
        load_L = np.bincount(link_E, copies_E * rising_F[flow_E], len(capacity_L))
        used_L = load_L > 0
        if not used_L.any():
            return rate_F
        rise = (left_L[used_L] / load_L[used_L]).min()
        rate_F[rising_F] += rise
        left_L -= rise * load_L
        full_L = used_L & (left_L <= FULL * capacity_L)
        rising_F[flow_E[full_L[link_E]]] = False


class Signal:
    """An event that happens once; processes may wait for it."""

    def __init__(self) -> None:
        self.fired = False
        self._waiting: list[Callable[[], None]] = []

    def fire(self) -> None:
        assert not self.fired
        self.fired = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def then(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the event happens: at once if it has happened."""
        if self.fired:
            resume()
        else:
            self._waiting.append(resume)


class Count(Signal):
    """An event that happens after `number` calls of `down`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number
        if number == 0:
            self.fire()

    def down(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.fire()


class Simulation:
    """A clock, the processes that it drives, and the network that they share.

    Attributes:
        now: seconds since the beginning.
        left_nodes: bytes that left their sender's node, so far.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.now = 0.0
        self.left_nodes = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()  # of timers: simultaneous ones fire in order
        self._running = 0
        self._flows: list[tuple[Loads, Signal]] = []
        self._left_F = np.zeros(0)  # bytes of a copy
        self._rate_F: NDArray[np.float64] | None = np.zeros(0)  # None: must be recomputed

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._number), call))

    def spawn(self, process: Process) -> Signal:
        """Start a process; the signal fires at its end."""
        ended = Signal()
        self._running += 1
        self._resume(process, ended)
        return ended

    def _resume(self, process: Process, ended: Signal) -> None:
        while True:
            try:
                awaited = next(process)
            except StopIteration:
                self._running -= 1
                ended.fire()
                return
            if isinstance(awaited, Signal):
                if not awaited.fired:
                    awaited.then(lambda: self._resume(process, ended))
                    return
            elif awaited > 0:
                self.after(awaited, lambda: self._resume(process, ended))
                return

    def send(self, source: int, targets: Sequence[int], size: float) -> Signal:
        """Send `size` bytes to each target; the signal fires on arrival."""
        loads = self.links.loads(source, targets)
        arrived = Signal()
        self.left_nodes += size * loads.leaving
        if loads.latency_seconds > 0:
            self.after(loads.latency_seconds, lambda: self._begin(loads, size, arrived))
        else:
            self._begin(loads, size, arrived)
        return arrived

    def _begin(self, loads: Loads, size: float, arrived: Signal) -> None:
        if size <= 0 or not len(loads.link_E):  # no link that could be full
            arrived.fire()
            return
        self._flows.append((loads, arrived))
        self._left_F = np.append(self._left_F, size)
        self._rate_F = None

    def run(self) -> float:
        """Run until no event is left; return the time.

        Raises:
            RuntimeError: if processes wait for an event that cannot happen.
        """
        while self._timers or self._flows:
            done = self._advance()
            for arrived in done:
                arrived.fire()
            while self._timers and self._timers[0][0] <= self.now + SAME_TIME:
                heapq.heappop(self._timers)[2]()
        if self._running:
            raise RuntimeError(f"{self._running} simulated processes wait for each other forever")
        return self.now

    def _advance(self) -> list[Signal]:
        """Advance the clock to the next event; return the flows that end there."""
        seconds = self._timers[0][0] - self.now if self._timers else math.inf
        if not self._flows:
            self.now += seconds
            return []
        rate_F = self._rate_F = self._rates() if self._rate_F is None else self._rate_F
        ends_F = self._left_F / rate_F
        seconds = min(seconds, float(ends_F.min()))
        self.now += seconds
        done_F = ends_F <= seconds * (1 + FULL) + SAME_TIME
        self._left_F = self._left_F - rate_F * seconds
        if not done_F.any():
            return []
        done = [self._flows[i][1] for i in np.flatnonzero(done_F)]
        self._flows = [self._flows[i] for i in np.flatnonzero(~done_F)]
        self._left_F = self._left_F[~done_F]
        self._rate_F = None
        return done

    def _rates(self) -> NDArray[np.float64]:
        """Return each flow's rate; flows with the same loads have one rate, computed once."""
        kinds: dict[int, int] = {}  # Loads by identity: Links caches them
        kind_F = [kinds.setdefault(id(loads), len(kinds)) for loads, _ in self._flows]
        loads_K = {kind: loads for kind, (loads, _) in zip(kind_F, self._flows, strict=True)}
        flows_K = np.bincount(kind_F).astype(float)
        kind_E = np.repeat(np.arange(len(kinds)), [len(loads_K[k].link_E) for k in loads_K])
        link_E = np.concatenate([loads_K[k].link_E for k in loads_K])
        copies_E = np.concatenate([loads_K[k].copies_E for k in loads_K]) * flows_K[kind_E]
        rate_K = fair_rates(self.links.capacity_L, kind_E, link_E, copies_E, len(kinds))
        return rate_K[kind_F]


# --- collectives: all of `ranks` start now; the signal fires at the end of the last --------------

Collective = Callable[[Simulation, Sequence[int], float], Signal]


def ring_allreduce(sim: Simulation, ranks: Sequence[int], size: float) -> Signal:
    """Sum `size` bytes of each rank, for all: parts of 1/p go round the ring twice."""
    p = len(ranks)
    return _ring(sim, ranks, size / p, rounds=2 * (p - 1))


def ring_allgather(sim: Simulation, ranks: Sequence[int], size: float) -> Signal:
    """Send `size` bytes of each rank to all: handed on round the ring."""
    return _ring(sim, ranks, size, rounds=len(ranks) - 1)


def direct_allgather(sim: Simulation, ranks: Sequence[int], size: float) -> Signal:
    """Send `size` bytes of each rank to all, from peer to peer, all at once."""
    all_arrived = Count(len(ranks))
    for rank in ranks:
        sim.send(rank, ranks, size).then(all_arrived.down)
    return all_arrived


def broadcast(sim: Simulation, ranks: Sequence[int], size: float) -> Signal:
    """Send the first rank's bytes to all: the number of ranks that have them doubles each round."""
    return sim.spawn(_doubling(sim, ranks, size, outward=True))


def tree_allreduce(sim: Simulation, ranks: Sequence[int], size: float) -> Signal:
    """Sum at the first rank by halving, then `broadcast`."""

    def both() -> Process:
        yield sim.spawn(_doubling(sim, ranks, size, outward=False))
        yield broadcast(sim, ranks, size)

    return sim.spawn(both())


def _ring(sim: Simulation, ranks: Sequence[int], size: float, rounds: int) -> Signal:
    """Let each rank send `size` bytes to its neighbour in each round, after its round before."""
    p = len(ranks)
    arrived_RP = [[Signal() for _ in ranks] for _ in range(rounds)]  # at the receiver i

    def member(i: int) -> Process:
        for arrived_P in arrived_RP:
            arrived = arrived_P[(i + 1) % p]
            sim.send(ranks[i], [ranks[(i + 1) % p]], size).then(arrived.fire)
            yield arrived
            yield arrived_P[i]

    ended = Count(p)
    for i in range(p):
        sim.spawn(member(i)).then(ended.down)
    return ended


def _doubling(sim: Simulation, ranks: Sequence[int], size: float, outward: bool) -> Process:
    """Run the rounds of exchange between i and i + 2^k."""
    p = len(ranks)
    rounds = [2**k for k in range(math.ceil(math.log2(p)))]
    for hop in rounds if outward else reversed(rounds):
        pairs = [(ranks[i], ranks[i + hop]) for i in range(min(hop, p - hop))]
        arrived = Count(len(pairs))
        for near, far in pairs:
            source, target = (near, far) if outward else (far, near)
            sim.send(source, [target], size).then(arrived.down)
        yield arrived


def alone(links: Links, start: Callable[[Simulation], Signal]) -> tuple[float, float]:
    """Return the seconds of a collective alone on the network, and the bytes that leave nodes."""
    sim = Simulation(links)
    start(sim)
    return sim.run(), sim.left_nodes
