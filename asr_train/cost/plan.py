"""A network to train, a method, a cluster -> **Speed**: step seconds, frames/s, bytes, speed-up.

Every step of every worker is simulated: its computing time is drawn from a seed, its messages cross
`cost.network`. All results are simulated and must be labelled so. Knows nothing of accuracy.

    sgd         one worker
    allreduce   dense gradients, summed round a ring or along a tree, every step
    gtc         messages from all to all, every step: round a ring, or from peer to peer
    gtc_async   the same from peer to peer, without waiting for messages
    onebit      one bit per element: parts to their owners, sums back (Seide et al., 2014)
    bmuf        an all-reduce of weights every `block_steps` steps (Ladkat et al., 2019)
    bmuf_gtc    gtc inside groups, bmuf across one worker of each, then a broadcast in the group
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from asr_train.cost.cluster import ClusterSettings
from asr_train.cost.network import (
    Collective,
    Count,
    Links,
    Process,
    Signal,
    Simulation,
    alone,
    broadcast,
    direct_allgather,
    ring_allgather,
    ring_allreduce,
    tree_allreduce,
)
from asr_train.facts import HEADER_BYTES, Method, Traffic
from asr_train.files import DamagedFileError, read_json, read_jsonl

FLOPS = 6  # per parameter and frame: a multiply-add forward, two backward
QUEUE = 4  # messages of a worker of gtc_async in flight; it waits while there are more
BYTES = 4  # per float32


class Way(Enum):
    """The algorithm of a collective."""

    ring = "ring"
    tree = "tree"  # for sums only
    direct = "direct"  # for messages only: from peer to peer


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """What is exchanged, and when.

    Attributes:
        way: of gtc's messages (ring, direct) and of sums (ring, tree).
        lag: steps by which gtc's messages from peer to peer (for onebit: half a step each) may be
            late: a message of step s is needed before step s + 1 + lag.
        block_steps, group_size: of bmuf and bmuf_gtc.
        stripes: GPUs per worker; the layers of its network are cut into so many stripes (Seide et
            al., 2014), each of which exchanges with the same stripe of the other workers.
    """

    traffic: Traffic
    way: Way = Way.ring
    lag: int = 0
    block_steps: int = 50
    group_size: int = 1
    stripes: int = 1

    @property
    def name(self) -> str:
        blocks = f", block {self.block_steps}" if self.traffic.has_blocks else ""
        groups = f", groups of {self.group_size}" if self.traffic is Traffic.bmuf_gtc else ""
        stripes = f", {self.stripes} stripes" if self.stripes > 1 else ""
        double = ", double buffering" * (self.traffic is Traffic.onebit and self.lag > 0)
        return self.traffic.value + double + groups + blocks + stripes


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The size of a gtc message."""

    size: float  # bytes
    elements: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A worker's step.

    Attributes:
        parameters: of the network.
        frames: of a minibatch, per worker.
        frame_seconds, fixed_seconds, start_seconds: a step on one GPU takes
            frames * frame_seconds + fixed_seconds + start_seconds. Stripes share the first two.
        activations: values per frame that cross between layers; stripes exchange them.
        messages: of gtc; step s sends the s-th, cyclically.
    """

    parameters: float
    frames: float
    frame_seconds: float
    fixed_seconds: float = 0.0
    start_seconds: float = 0.0
    activations: float = 0.0
    messages: tuple[MessageSize, ...] = ()

    def seconds(self, share: float = 1.0, stripes: int = 1) -> float:
        """Return the computing time of a step with this share of the minibatch."""
        split = self.fixed_seconds + share * self.frames * self.frame_seconds
        return split / stripes + self.start_seconds

    @property
    def dense_bytes(self) -> float:
        return BYTES * self.parameters

    def message(self, step: int) -> MessageSize:
        return self.messages[step % len(self.messages)]


@dataclass(frozen=True, slots=True)
class Speed:
    """Simulated speed; bytes are means over steps.

    Attributes:
        step_seconds: on average, including exchanges between blocks.
        speedup: frames per second relative to one worker without exchange.
        sent_bytes: per worker and step: its message, once, however many receive it.
        node_bytes: per step, out of a node's network interface.
    """

    workers: int
    step_seconds: float
    frames_per_second: float
    speedup: float
    sent_bytes: float
    node_bytes: float


# --- messages -----------------------------------------------------------------------------------


def coded_message(parameters: float, density: float, codec: str) -> MessageSize:
    """Return the size of a message of `density * parameters` elements as comm.codec writes it.

    Args:
        density: share of the parameters that are sent per step, in (0, 1].
        codec: packed32, tile16 or rice; two bits per parameter at most.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density is {density}; it must lie in (0, 1]")
    elements = density * parameters
    bits = {
        "packed32": 32 * elements,
        "tile16": 16 * elements + 16 * math.ceil(parameters / 2**15),
        "rice": (math.log2(1 / density) + 2.5) * elements,  # approximately
    }
    if codec not in bits:
        raise ValueError(f"codec is {codec!r}; allowed: {', '.join(bits)}")
    return MessageSize(HEADER_BYTES + min(bits[codec], 2 * parameters) / 8, elements)


def sending_shares(
    phases: Sequence[Mapping[str, Any]], workers: int, rows: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Return the share of workers that had minibatches, by row of a log's training steps.

    In the first parts of training (`phases`, of optim) some may have none. Those of sparse messages
    then send empty ones, which the log's means over all workers include.

    Args:
        workers: of rows that do not say it.
    """
    if not phases or not rows:
        return [1.0] * len(rows)
    ends = {row["epoch"]: row["frames"] for row in rows}  # the last of each epoch
    whole = max(ends[epoch] - ends.get(epoch - 1, 0) for epoch in ends)
    shares, before = [], 0.0
    for row in rows:
        now = row["epoch"] - 1 + (row["frames"] - ends.get(row["epoch"] - 1, 0)) / whole
        part: Mapping[str, Any] = next((p for p in phases if (before + now) / 2 < p["until"]), {})
        there = row.get("workers", workers)
        shares.append(min(there, part.get("workers") or there) / there)
        before = now
    return shares


def logged_messages(path: Path | str) -> tuple[MessageSize, ...]:
    """Return the messages of a run's log.jsonl, one per row in which elements were sent: the mean
    over the row's steps and the workers that had minibatches.

    Raises:
        ValueError: if it is no log, or what the run sent is not only messages of GTC, as run.json
            beside it says.
    """
    about = Path(path).with_name("run.json")
    try:
        run = read_json(about) if about.exists() else {"settings": {}}
        steps = [row for row in read_jsonl(path) if "sent_bits" in row]
    except DamagedFileError as error:  # whose advice is for files of make, not for a user's
        why = str(error).split("; ")[0]
        raise ValueError(
            f"{path} is not the log.jsonl of a run: {why}; name one that is"
        ) from error
    method = Method[run["settings"]["comm"]["method"]] if run["settings"] else None
    phases = run["settings"].get("optim", {}).get("phases", [])
    shares = sending_shares(phases, run.get("workers", 1), steps)
    rows = [
        (row["sent_bits"] / share, row["elements_sent"] / share)
        for row, share in zip(steps, shares, strict=True)
        if row.get("elements_sent") and row.get("threshold")
    ]
    if method not in (None, Method.gtc, Method.gtc_async):
        raise ValueError(
            f"{path} is a log of {method.value}; take that of a run of gtc or gtc_async"
        )
    if not rows:
        raise ValueError(
            f"{path} has no row with a threshold and sent elements; take the log of a run of gtc "
            "or gtc_async with several workers"
        )
    return tuple(MessageSize(bits / 8, elements) for bits, elements in rows)


def logged_parameters(path: Path | str) -> float:
    """Return the number of parameters of the network of a run's log.jsonl."""
    row = next(row for row in read_jsonl(path) if row.get("compression_ratio"))
    return float(row["compression_ratio"] * row["sent_bits"] / 32)


# --- simulation ---------------------------------------------------------------------------------


def simulate(
    cluster: ClusterSettings,
    work: Work,
    method: Scheme,
    workers: int,
    steps: int = 40,
    seed: int = 1,
    known: "Known | None" = None,
) -> Speed:
    """Simulate workers of `method.stripes` GPUs each, without the first steps that fill a pipeline.

    Args:
        steps: to average over, at least; bmuf takes whole blocks, at least two, and gtc_async
            whole bursts. If there are more messages, evenly spaced ones are sent.
        known: cached results of collectives for the same cluster; is extended.
    Raises:
        ValueError: if the cluster has fewer workers.
    """
    assert workers == 1 or method.traffic is not Traffic.none
    assert workers % method.group_size == 0
    return _Run(cluster, work, method, workers, steps, seed, {} if known is None else known).speed()


Known = dict[object, tuple[float, float]]  # seconds of a collective, bytes that leave nodes


class _Run:
    """One simulated training; `marks` are the times at which each worker begins each step."""

    def __init__(
        self,
        cluster: ClusterSettings,
        work: Work,
        method: Scheme,
        workers: int,
        steps: int,
        seed: int,
        known: Known,
    ) -> None:
        self._known = known
        self.cluster, self.work, self.method, self.workers = cluster, work, method, workers
        self.stripes = method.stripes
        self.links = Links(cluster, workers * self.stripes)
        self.sim = Simulation(self.links)
        is_halved = method.traffic is Traffic.onebit and method.lag > 0 and workers > 1
        self.parts = 2 if is_halved else 1  # of a minibatch: double buffering halves it
        self.warm = 0
        is_async = method.traffic is Traffic.gtc_async
        if is_async or method.lag:
            self.warm = 4 + 2 * max(method.lag, QUEUE if is_async else 0)
        if is_async:  # whole bursts: messages that wait together for a link arrive together
            steps = math.ceil(steps / (QUEUE + 1)) * (QUEUE + 1)
        if method.traffic.has_blocks:
            blocks = max(2, round(steps / method.block_steps))
            self.warm, steps = 0, blocks * method.block_steps
        self.steps = (self.warm + steps) * self.parts
        if (sizes := len(work.messages)) > self.steps:  # of a long log: from all of it
            chosen = (work.messages[step * sizes // self.steps] for step in range(self.steps))
            self.work = replace(work, messages=tuple(chosen))
        self.seconds_WS = self._draw(seed)
        self.marks: list[list[float]] = [[] for _ in range(workers)]
        self.extra_left = 0.0  # bytes out of nodes in cached collectives

    def _draw(self, seed: int) -> np.ndarray:
        """Draw log-normal step times with the cluster's jitter, per worker.

        Half batches of one minibatch have the same factor: jitter is that of a whole step. A single
        worker waits for no other: its steps all take the mean.
        """
        mean = self.work.seconds(1 / self.parts, self.stripes)
        if self.workers == 1:
            return np.full((1, self.steps), mean)
        variance = math.log1p(self.cluster.gpu.jitter**2)
        minibatches = self.steps // self.parts
        rngs = [np.random.default_rng([seed, w]) for w in range(self.workers)]
        normal_WM = np.stack([rng.standard_normal(minibatches) for rng in rngs])
        drawn_WM = np.exp(math.sqrt(variance) * normal_WM - variance / 2)
        return mean * drawn_WM.repeat(self.parts, axis=1)

    def speed(self) -> Speed:
        """Run the simulation to its end."""
        for process in self._processes():
            self.sim.spawn(process)
        self.sim.run()
        warm = self.warm * self.parts
        seconds = np.mean([marks[self.steps] - marks[warm] for marks in self.marks])
        counted = (self.steps - warm) / self.parts
        step_seconds = float(seconds) / counted
        whole = self.work.seconds() / self.work.seconds(1 / self.parts, self.stripes)
        alone_seconds = whole * float(self.seconds_WS[:, warm:].mean())
        frames = self.workers * self.work.frames
        left = self.sim.left_nodes + self.extra_left
        return Speed(
            workers=self.workers,
            step_seconds=step_seconds,
            frames_per_second=frames / step_seconds,
            speedup=self.workers * alone_seconds / step_seconds,
            sent_bytes=self._sent_bytes(),
            node_bytes=left / (self.steps / self.parts) / self.links.nodes,
        )

    def _sent_bytes(self) -> float:
        dense, traffic = self.work.dense_bytes, self.method.traffic
        if self.workers == 1:
            return 0.0
        if traffic is Traffic.allreduce:
            return dense
        if traffic is Traffic.onebit:
            return dense / 32 * self.parts  # all stripes together
        blocks = dense / self.method.block_steps if traffic.has_blocks else 0.0
        group = self.method.group_size
        if traffic is Traffic.bmuf or (traffic.in_groups and group == 1):
            return blocks
        return blocks / group + float(np.mean([m.size for m in self.work.messages]))

    # --- one process per worker ---

    def _compute(self, worker: int, step: int) -> Process:
        """Compute a step; its stripes send each other activations, forward and backward."""
        yield float(self.seconds_WS[worker, step])
        if self.stripes > 1:
            frames = self.work.frames / self.parts
            values = self.work.activations * frames * self.cluster.lambda_conn
            ranks = range(worker * self.stripes, (worker + 1) * self.stripes)
            yield direct_allgather(self.sim, ranks, 2 * BYTES * values / self.stripes)

    def send(self, worker: int, targets: Sequence[int], size: float) -> Signal:
        """Send a worker's message, each stripe its part to the same stripes of `targets`."""

        def send(stripe: int) -> Signal:
            ranks = _stripe(targets, stripe, self.stripes)
            return self.sim.send(worker * self.stripes + stripe, ranks, size / self.stripes)

        return self._by_stripe(send)

    def _by_stripe(self, start: Callable[[int], Signal]) -> Signal:
        """Start an exchange for each stripe; the signal fires when all are over."""
        if self.stripes == 1:
            return start(0)
        over = Count(self.stripes)
        for stripe in range(self.stripes):
            start(stripe).then(over.down)
        return over

    def _processes(self) -> Iterator[Process]:
        everyone = range(self.workers)
        traffic, block_steps = self.method.traffic, self.method.block_steps
        if self.workers == 1 or traffic is Traffic.gtc:
            group = _Group(self, everyone)
            yield from (self._synchronous(w, group) for w in everyone)
        elif traffic in (Traffic.allreduce, Traffic.bmuf):
            barrier = Barrier(self.workers, lambda: self._sum(everyone))
            every = block_steps if traffic.has_blocks else 1
            yield from (self._synchronous(w, _Group(self, [w]), barrier, every) for w in everyone)
        elif traffic is Traffic.bmuf_gtc:
            size = self.method.group_size
            leaders = range(0, self.workers, size)
            barrier = Barrier(self.workers, lambda: self._two_tiers(leaders))
            for leader in leaders:
                group = _Group(self, range(leader, leader + size))
                yield from (self._synchronous(w, group, barrier, block_steps) for w in group.ranks)
        elif traffic is Traffic.gtc_async:
            inbox = Unread(self.workers)
            yield from (self._asynchronous(w, inbox) for w in everyone)
        else:
            first, second = ([Count(self.workers) for _ in range(self.steps)] for _ in range(2))
            yield from (self._one_bit(w, first, second) for w in everyone)

    def _synchronous(
        self, worker: int, group: "_Group", barrier: "Barrier | None" = None, block_steps: int = 1
    ) -> Process:
        """Wait for the group's messages of a step before the step in which they are due.

        With a barrier, meet all workers there after each block.
        """
        encode, decode = self._encode_seconds(), self.cluster.gpu.decode_ns * 1e-9
        members, lag = len(group.ranks), self.method.lag
        read = 0  # steps of which the messages have been read

        def read_until(step: int) -> Process:
            nonlocal read
            while members > 1 and read < step:
                yield group.arrived[read]
                yield decode * (members - 1) * self.work.message(read).elements
                read += 1

        for step in range(self.steps + 1):
            if barrier is not None and step and step % block_steps == 0:
                yield from read_until(step)
                yield barrier.arrive()
            else:
                yield from read_until(step - lag)
            self.marks[worker].append(self.sim.now)
            if step == self.steps:
                return
            yield from self._compute(worker, step)
            if members > 1:
                yield encode
                group.send(worker, step)

    def _asynchronous(self, worker: int, inbox: "Unread") -> Process:
        """Read available messages; wait only if too many of the worker's own are in flight."""
        encode, decode = self._encode_seconds(), self.cluster.gpu.decode_ns * 1e-9
        sent: list[Signal] = []
        for step in range(self.steps + 1):
            if step > QUEUE:
                yield sent[step - 1 - QUEUE]
            yield decode * inbox.take(worker)
            self.marks[worker].append(self.sim.now)
            if step == self.steps:
                return
            yield from self._compute(worker, step)
            yield encode
            message = self.work.message(step)
            arrived = self.send(worker, range(self.workers), message.size)
            arrived.then(lambda w=worker, n=message.elements: inbox.put(w, n))  # type: ignore[misc]
            sent.append(arrived)

    def _one_bit(self, worker: int, first: Sequence[Count], second: Sequence[Count]) -> Process:
        """Send parts to their owners, which add them up and send the quantised sums to all."""
        everyone, lag = range(self.workers), self.method.lag
        part = self.work.dense_bytes / 32 / self.workers

        def exchange(step: int) -> Process:
            self.send(worker, everyone, part).then(first[step].down)
            yield first[step]
            yield 1e-3 * self.cluster.gpu.exchange_ms
            self.send(worker, everyone, part).then(second[step].down)

        for step in range(self.steps + 1):
            if step - 1 - lag >= 0:
                yield second[step - 1 - lag]
            self.marks[worker].append(self.sim.now)
            if step == self.steps:
                return
            yield from self._compute(worker, step)
            # Encoding and decoding, a pass over all parameters each
            yield 2 * self._encode_seconds()
            self.sim.spawn(exchange(step))

    def _encode_seconds(self) -> float:
        return self.cluster.gpu.encode_ns * 1e-9 * self.work.parameters / self.stripes

    # --- exchanges ---

    def _sum(self, ranks: Sequence[int]) -> Signal:
        reduce = tree_allreduce if self.method.way is Way.tree else ring_allreduce
        # The other workers wait for its end
        return self.collective(reduce, ranks, self.work.dense_bytes, quiet=True)

    def _two_tiers(self, leaders: Sequence[int]) -> Signal:
        def both() -> Process:
            yield self._sum(leaders)
            done = Count(len(leaders))
            for leader in leaders:
                ranks = range(leader, leader + self.method.group_size)
                over = self.collective(broadcast, ranks, self.work.dense_bytes, quiet=False)
                over.then(done.down)
            yield done

        return self.sim.spawn(both())

    def collective(
        self, start: Collective, ranks: Sequence[int], size: float, quiet: bool
    ) -> Signal:
        """Start a collective of `size` bytes, each stripe with its share of them.

        Args:
            quiet: there is no other traffic; then equal ones are simulated once.
        """

        def begin(sim: Simulation) -> Signal:
            return self._by_stripe(
                lambda stripe: start(sim, _stripe(ranks, stripe, self.stripes), size / self.stripes)
            )

        if not quiet:
            return begin(self.sim)
        if len(ranks) < self.workers and self.stripes == 1:  # nodes are alike
            first = self.links.node(ranks[0]) * self.cluster.gpus_per_node
            ranks = [rank - first for rank in ranks]
        key = (start, size, self.workers, self.stripes, tuple(ranks))
        if key not in self._known:
            self._known[key] = alone(self.links, begin)
        seconds, left = self._known[key]
        self.extra_left += left
        over = Signal()
        self.sim.after(seconds, over.fire)
        return over

    def private(self, ranks: Sequence[int]) -> bool:
        """Return whether `ranks` share no link with other workers that may send meanwhile."""
        if len(ranks) == self.workers:
            return True
        if self.stripes > 1:
            return False
        at_home = self.links.node(ranks[0]) == self.links.node(ranks[-1])
        whole_node = len(ranks) == self.cluster.gpus_per_node
        return at_home and (whole_node or self.cluster.bus_gbit_per_s is None)


def _stripe(workers: Sequence[int], stripe: int, stripes: int) -> list[int]:
    """Return the GPUs that hold a stripe of these workers' networks."""
    return [worker * stripes + stripe for worker in workers]


class Barrier:
    """A barrier followed by an exchange, for whose end all workers wait.

    Args:
        size: the number of workers.
        exchange: starts the exchange.
    """

    def __init__(self, size: int, exchange: Callable[[], Signal]) -> None:
        self._size, self._exchange = size, exchange
        self._here = 0
        self._over = Signal()

    def arrive(self) -> Signal:
        over = self._over
        self._here += 1
        if self._here == self._size:
            self._here, self._over = 0, Signal()
            self._exchange().then(over.fire)
        return over


class _Group:
    """Workers that send each other messages in every step.

    Attributes:
        arrived: a signal per step for the arrival of all of its messages.
    """

    def __init__(self, run: _Run, ranks: Sequence[int]) -> None:
        self.ranks, self._run = ranks, run
        self._direct = run.method.way is Way.direct
        self._counts = [Count(len(ranks)) for _ in range(run.steps)]  # of messages, or of senders
        self.arrived: Sequence[Signal] = self._counts
        if not self._direct:
            self.arrived = [Signal() for _ in range(run.steps)]

    def send(self, worker: int, step: int) -> None:
        """Send a message: directly when the worker is ready; round a ring when all are."""
        run, count = self._run, self._counts[step]
        size = run.work.message(step).size
        if self._direct:
            run.send(worker, self.ranks, size).then(count.down)
            return
        count.down()
        if count.fired:
            over = run.collective(ring_allgather, self.ranks, size, run.private(self.ranks))
            over.then(self.arrived[step].fire)


class Unread:
    """Elements that each worker has received but not read."""

    def __init__(self, workers: int) -> None:
        self._came = 0.0
        self._own = [0.0] * workers
        self._read = [0.0] * workers

    def put(self, sender: int, elements: float) -> None:
        """Add elements received by all workers but the sender."""
        self._came += elements
        self._own[sender] += elements

    def take(self, worker: int) -> float:
        elements = self._came - self._own[worker] - self._read[worker]
        self._read[worker] += elements
        return elements
