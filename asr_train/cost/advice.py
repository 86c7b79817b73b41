"""A request (network, cluster, workers) -> **Plan**: recommended method, blocks and groups.

Only speed is simulated. Of methods that are about equally fast, the one nearest to plain SGD is
advised: in the papers, long blocks and many separate models lose most accuracy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from asr_train.cost.cluster import ClusterSettings
from asr_train.cost.optimum import Optimum, optimum
from asr_train.cost.plan import (
    FLOPS,
    Known,
    MessageSize,
    Scheme,
    Speed,
    Way,
    Work,
    coded_message,
    logged_messages,
    simulate,
)
from asr_train.facts import Traffic

NEAR = 0.9  # share of the fastest method's frames/s above which a method nearer to SGD is advised
NEAR_BLOCK = 0.95  # share of the longest block's frames/s above which a shorter block is advised
STEPS = 20  # simulated at least, without blocks
DRAWS = 1280  # of a step's computing time, at least
MINIBATCHES = (1024, 4096, 16384)  # frames of all workers; those of Seide et al. (2014)
# By similarity to SGD with all workers' frames in one minibatch
ORDER = (
    Traffic.none,
    Traffic.allreduce,
    Traffic.gtc,
    Traffic.onebit,
    Traffic.gtc_async,
    Traffic.bmuf_gtc,
    Traffic.bmuf,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """The input of a plan, all of it positive.

    Attributes:
        parameters, minibatch_frames: of the network; frames per worker and step.
        frames_per_second: of one GPU, measured; None: from the cluster's peak and efficiency.
        density, codec: of gtc's messages; or `log`, a run's log.jsonl, whose messages are replayed.
        block_steps, group_sizes, kinds: to choose from.
        activations: values per frame that cross between the network's layers; 0: not known.
    """

    parameters: float
    minibatch_frames: float
    workers: int
    density: float
    codec: str
    block_steps: tuple[int, ...]
    group_sizes: tuple[int, ...]
    kinds: tuple[Traffic, ...] = ORDER
    frames_per_second: float | None = None
    log: str | None = None
    activations: float = 0.0
    seed: int = 1

    def messages(self, density: float | None = None) -> tuple[MessageSize, ...]:
        if density is None and self.log is not None:
            return logged_messages(self.log)
        sent = self.density if density is None else density
        return (coded_message(self.parameters, sent, self.codec),)

    def work(self, cluster: ClusterSettings, density: float | None = None) -> Work:
        """Return a worker's step on this cluster."""
        frame_seconds = FLOPS * self.parameters / cluster.gpu.flops
        fixed, start = cluster.gpu.fixed_ms * 1e-3, cluster.gpu.start_ms * 1e-3
        if cluster.gpu.fixed_parameters is not None:
            fixed *= self.parameters / cluster.gpu.fixed_parameters
        if self.frames_per_second is not None:
            frame_seconds, fixed, start = 1 / self.frames_per_second, 0.0, 0.0
        return Work(
            parameters=self.parameters,
            frames=self.minibatch_frames,
            frame_seconds=frame_seconds,
            fixed_seconds=fixed,
            start_seconds=start,
            activations=self.activations,
            messages=self.messages(density),
        )


@dataclass(frozen=True, slots=True)
class Option:
    method: Scheme
    speed: Speed


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan; all speeds are simulated.

    Attributes:
        alone: one worker.
        options: every method, block and group size, with the requested number of workers.
        advised: one of them.
        curves: each kind's best by name, with 1, 2, 4, ... workers up to the requested number.
        densities: gtc's speed by the share of elements sent.
        optima: K-hat by method, for MINIBATCHES and the requested minibatch of all workers; none
            on a cluster of one GPU.
    """

    alone: Speed
    options: tuple[Option, ...]
    advised: Option
    curves: Mapping[str, tuple[Speed, ...]]
    densities: Mapping[float, Speed]
    optima: tuple[Optimum, ...]


def methods(request: PlanRequest) -> list[Scheme]:
    """Return all methods that are possible with this number of workers.

    Raises:
        ValueError: if none of the requested kinds is possible.
    """
    found = [method for method in _all_methods(request) if method.traffic in request.kinds]
    if not found:
        names = ", ".join(kind.value for kind in request.kinds)
        raise ValueError(
            f"workers is {request.workers}, with which none of {names} is possible; take another "
            "number, or allow further methods or groups"
        )
    return found


def _all_methods(request: PlanRequest) -> Iterator[Scheme]:
    if request.workers == 1:
        yield Scheme(traffic=Traffic.none)
        return
    yield Scheme(traffic=Traffic.allreduce)
    yield Scheme(traffic=Traffic.allreduce, way=Way.tree)
    yield Scheme(traffic=Traffic.gtc)
    yield Scheme(traffic=Traffic.gtc_async, way=Way.direct)
    yield Scheme(traffic=Traffic.onebit, way=Way.direct)
    yield Scheme(traffic=Traffic.onebit, way=Way.direct, lag=1)
    for block_steps in request.block_steps:
        yield Scheme(traffic=Traffic.bmuf, block_steps=block_steps)
        for size in request.group_sizes:
            if 1 < size < request.workers and request.workers % size == 0:
                yield Scheme(traffic=Traffic.bmuf_gtc, block_steps=block_steps, group_size=size)


def plan(request: PlanRequest, cluster: ClusterSettings, densities: Sequence[float]) -> Plan:
    """Simulate all options, and the kinds with fewer workers.

    Args:
        densities: shares of elements sent, for comparison.
    Raises:
        ValueError: if the cluster has too few workers, or numbers are inconsistent.
    """
    work = request.work(cluster)
    known: Known = {}

    def speed(method: Scheme, workers: int, work: Work = work) -> Speed:
        steps = max(STEPS, DRAWS // workers)
        return simulate(cluster, work, method, workers, steps, request.seed, known)

    options = tuple(Option(method, speed(method, request.workers)) for method in methods(request))
    curves = {}
    for best in best_of_each_kind(options):
        counts = [w for w in worker_counts(request.workers) if w % best.method.group_size == 0]
        fewer = [speed(best.method, workers) for workers in counts[:-1]]
        curves[best.method.name] = (*fewer, best.speed)
    sparse = Scheme(traffic=Traffic.gtc) if request.workers > 1 else Scheme(traffic=Traffic.none)
    return Plan(
        alone=speed(Scheme(traffic=Traffic.none), 1),
        options=options,
        advised=advised(options),
        curves=curves,
        densities={
            density: speed(sparse, request.workers, request.work(cluster, density))
            for density in densities
        },
        optima=tuple(
            optimum(cluster, work, frames, max(request.block_steps))
            for frames in sorted({*MINIBATCHES, request.workers * request.minibatch_frames})
            if cluster.max_workers > 1
        ),
    )


def worker_counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most`."""
    return sorted({2**k for k in range(most.bit_length())} | {most})


def best_of_each_kind(options: Sequence[Option]) -> list[Option]:
    """Return each kind's fastest option, or one nearly as fast that is nearer to SGD.

    Of a kind with options that are about as fast as any, it is one of these.
    """
    fast = near_the_fastest(options, NEAR)
    best = []
    for kind in ORDER:
        of_kind = [option for option in options if option.method.traffic is kind]
        if of_kind:
            best.append(nearest([o for o in of_kind if o in fast] or of_kind, NEAR_BLOCK))
    return best


def advised(options: Sequence[Option]) -> Option:
    """Return the kind's best option nearest to SGD that is about as fast as any."""
    return best_of_each_kind(near_the_fastest(options, NEAR))[0]


def near_the_fastest(options: Sequence[Option], share: float) -> list[Option]:
    """Return the options that reach this share of the highest frames/s."""
    enough = share * max(option.speed.frames_per_second for option in options)
    return [option for option in options if option.speed.frames_per_second >= enough]


def nearest(options: Sequence[Option], share: float) -> Option:
    """Return the option nearest to SGD that reaches this share of the highest frames/s.

    Options are compared by ORDER, then no double buffering, then shorter blocks, then larger
    groups, then speed.
    """
    return min(
        near_the_fastest(options, share),
        key=lambda o: (
            ORDER.index(o.method.traffic),
            o.method.lag,
            o.method.block_steps,
            -o.method.group_size,
            -o.speed.frames_per_second,
        ),
    )


def crossovers(curves: Mapping[str, Sequence[Speed]]) -> list[tuple[int, str]]:
    """Return the numbers of workers from which on another method is the fastest, and its name."""
    fastest: dict[int, tuple[float, str]] = {}
    for name, speeds in curves.items():
        for speed in speeds:
            usual, _ = fastest.get(speed.workers, (0.0, ""))
            if speed.workers > 1 and speed.frames_per_second > usual:
                fastest[speed.workers] = speed.frames_per_second, name
    by_count = ((workers, name) for workers, (_, name) in sorted(fastest.items()))
    return [next(same) for _, same in groupby(by_count, itemgetter(1))]


def fastest_with(speeds: Sequence[Speed]) -> int:
    """Return the number of workers with the highest frames/s."""
    return max(speeds, key=lambda speed: speed.frames_per_second).workers
