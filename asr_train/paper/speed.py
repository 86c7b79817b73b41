"""A row of a paper's table and the paper's hardware -> its **simulated speed**.

Network, minibatch, workers, block, group and the share of sent elements (at 32 bits each) are all
the paper's: a density of ours belongs to a network of ours. So a printed row has the speed in
results/PAPER/speed.md. Knows nothing of accuracy.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

from asr_train.cost import plan
from asr_train.cost.calibrate import Case, UnknownSizeError, ladkat_2019, strom_2015
from asr_train.cost.cluster import ClusterSettings
from asr_train.cost.plan import BYTES, MessageSize, Way, Work
from asr_train.facts import Traffic
from asr_train.paper.rows import RowSettings
from asr_train.report.exchange import Trained, measured
from asr_train.schema import CommSettings, build

CASES: dict[str, Callable[[], Case]] = {"strom2015": strom_2015, "ladkat2019": ladkat_2019}


def case_of(paper: str) -> Case | None:
    """Return the case fitted on the paper's speeds; None for a paper without."""
    return CASES[paper]() if paper in CASES else None


def simulated(
    case: Case | None,
    cluster: ClusterSettings,
    row: RowSettings,
    usual: Mapping[str, Any],
    printed: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Simulate the row at the paper's scale; None if its workers, network or messages are unknown.

    None also without a case: the paper prints no speeds.

    Args:
        usual: default values of the run's rows.
        printed: all that is printed in the row.
        settings: of the exchange in our run (comm), for what rows do not set.
    Returns:
        The speed and what it was simulated for; `speedup` is relative to one worker of the paper's
        first network, as in the paper.
    """
    if case is None:
        return None
    comm = at_paper_scale(settings, {**usual, **row.set})
    own_network = printed is None and any(key.startswith("model.") for key in row.set)
    if comm.workers is None or own_network:
        return None
    method = method_of(comm, comm.workers, case, printed is not None)
    # Groups of one send nothing
    group = method.group_size if method.traffic.in_groups else comm.workers
    share = None
    if method.traffic.is_sparse and group > 1:
        assert comm.gtc is not None
        assert case.density is not None
        ratio = (printed or {}).get("compression_ratio")
        try:
            share = 1 / ratio if ratio else case.density(comm.gtc.threshold)
        except UnknownSizeError:
            return None
    work = work_of(case, printed, share or 0.0)
    speed = plan.simulate(cluster, work, method, comm.workers, case.steps)
    return {
        "method": method.name,
        "workers": comm.workers,
        "parameters": work.parameters,
        "minibatch_frames": work.frames,
        "density": share,
        "frames_per_second": speed.frames_per_second,
        "speedup": speed.frames_per_second / case.rows[0].reference,
    }


def at_paper_scale(comm: Mapping[str, Any], values: Mapping[str, Any]) -> CommSettings:
    """Return a run's settings with the paper's values instead of the scaled ones."""
    settings = deepcopy(dict(comm))
    for key, value in values.items():
        group, *path = key.split(".")
        if group == "comm":
            inner = settings
            for part in path[:-1]:
                inner = inner[part]
            inner[path[-1]] = value
    return build(CommSettings, settings, "comm")


def method_of(comm: CommSettings, workers: int, case: Case, is_printed: bool) -> plan.Scheme:
    """Return the simulator's method, as it was fitted.

    GTC of a printed row is the paper's: Strom's workers do not wait for each other, even if ours
    did. In a row of our own they wait if ours did.
    """
    traffic = comm.method.traffic
    all_ahead = all(row.method.traffic.is_asynchronous for row in case.rows)
    if traffic is Traffic.gtc and is_printed and all_ahead:
        traffic = Traffic.gtc_async
    return plan.Scheme(
        traffic=traffic,
        way=Way.direct if traffic.is_sparse else Way.ring,
        lag=comm.halves(workers) - 1,
        block_steps=comm.block_steps or 1,
        group_size=comm.group_of(workers) if traffic.in_groups else 1,
    )


def work_of(case: Case, printed: Mapping[str, Any] | None, share: float) -> Work:
    """Return a worker's step with the paper's network, or with that of the printed row.

    Its seconds are proportional to the parameters, as in `calibrate`.
    """
    first = case.rows[0].work
    parameters = 1e6 * (printed or {}).get("parameters_millions", first.parameters / 1e6)
    elements = share * parameters
    return replace(
        first,
        parameters=parameters,
        frame_seconds=first.frame_seconds * parameters / first.parameters,
        messages=(MessageSize(BYTES * elements, elements),) if elements else (),
    )


def density(run: Trained) -> float | None:
    """Return the elements per worker and step of GTC's messages over all parameters, or None.

    The log of bmuf_gtc also counts a block's weights: all of them, for one worker per group.
    """
    found, comm = measured(run), run.comm
    density: float | None = found["density"]
    if density is None or not comm.method.traffic.in_groups:
        return density
    assert comm.bmuf is not None
    ends = [0, *(row["step"] for row in run.log if "dev_accuracy" in row)]
    if ends[-1] < found["steps"]:
        ends.append(found["steps"])
    # The end of an epoch ends a block
    blocks = sum(-(-(b - a) // comm.bmuf.block_steps) for a, b in pairwise(ends))
    weights = blocks / found["steps"] / comm.group_of(found["workers"])
    return max(0.0, density - weights) or None
