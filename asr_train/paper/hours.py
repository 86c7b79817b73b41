"""Minibatches that a run chose, the paper's hardware -> **simulated hours** of its training.

For tables 3 and 6 of Seide et al. (2014, 1-bit): data x model parallelism on servers of two GPUs,
with the constants fitted on table 4. The minibatch that a run was set to stands for the paper's
1,024 frames, those chosen later for as many times that. Time for trying minibatch sizes is left
out. Knows nothing of accuracy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

from asr_train.cost.calibrate import Case, Constants, fit, seide_2014, with_constants
from asr_train.cost.cluster import ClusterSettings, read_cluster
from asr_train.cost.plan import Scheme, simulate
from asr_train.facts import Traffic
from asr_train.paper.rows import HoursSettings

SET_FRAMES = 1024  # of all workers together
FRAMES_AN_HOUR = 360_000


def training_hours(
    log: Sequence[Mapping[str, Any]],
    set_frames: int,
    cold_start: float,
    halves: int,
    parallel: str,
    settings: HoursSettings,
) -> float | None:
    """Return the simulated hours of the paper's training; None without a log of steps.

    Args:
        log: of our run, rows with `step` and `frames` so far.
        set_frames: of a minibatch of all workers, in the settings of the table's baseline.
        cold_start: share of the run that one worker trained.
        halves: into so many steps a minibatch of several workers was cut.
        parallel: data x model parallelism as printed: "10x2"; "1": one GPU.
    """
    sizes = _sizes(log, set_frames, cold_start, halves)
    if not sizes:
        return None
    data, _, stripes = parallel.partition(" ")[0].partition("x")
    case, cluster, constants = _fitted(settings.cluster)
    usual = case.rows[0].work
    larger = 1e6 * settings.parameters_millions / usual.parameters
    grown = ("parameters", "frame_seconds", "fixed_seconds", "start_seconds")
    work = replace(usual, **{key: larger * getattr(usual, key) for key in grown})
    work = replace(work, activations=larger**0.5 * usual.activations)  # as the width
    cluster, work = with_constants(cluster, work, constants)
    whole = settings.passes * settings.speech_hours * FRAMES_AN_HOUR
    seconds = 0.0
    for frames, share, cold in sizes:
        workers = 1 if cold else int(data)
        method = Scheme(
            traffic=Traffic.onebit if workers > 1 else Traffic.none,
            lag=int(workers > 1 and halves > 1),
            stripes=int(stripes or 1),
        )
        own = replace(work, frames=frames / workers)
        speed = simulate(cluster, own, method, workers, case.steps)
        seconds += share * whole / speed.frames_per_second
    return seconds / 3600


@cache
def _fitted(name: str) -> tuple[Case, ClusterSettings, Constants]:
    """Return the paper's rows, the cluster, and its constants as those rows tell them."""
    case, cluster = seide_2014(), read_cluster(name)
    return case, cluster, fit(case, cluster, case.fit_on).constants


def _sizes(
    log: Sequence[Mapping[str, Any]], set_frames: int, cold_start: float, halves: int
) -> list[tuple[float, float, bool]]:
    """Return the paper's frames per minibatch, their share, and whether it is the cold start.

    Intervals between rows of equal minibatches are one.
    """
    rows = [(row["step"], row["frames"]) for row in log if row.get("frames") and row.get("step")]
    found: dict[tuple[float, bool], float] = {}
    for (first, before), (step, frames) in pairwise([(0, 0), *rows]):
        if step > first:
            total = rows[-1][1]
            is_cold = before / total < cold_start
            size = (frames - before) / (step - first) * SET_FRAMES / set_frames
            key = (float(f"{size * (1 if is_cold else halves):.2g}"), is_cold)
            found[key] = found.get(key, 0.0) + (frames - before) / total
    return [(size, share, cold) for (size, cold), share in found.items()]
