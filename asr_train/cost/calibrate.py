"""The papers' published speeds: conf/papers -> **rows** with what to simulate; and the fit.

A few constants that the papers do not print are fitted on the rows named here; all other rows are
predicted. Knows nothing of plots.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Any

import numpy as np

from asr_train.cost.cluster import ClusterSettings
from asr_train.cost.papers import read_paper
from asr_train.cost.plan import MessageSize, Scheme, Way, Work, simulate
from asr_train.facts import Traffic

Constants = dict[str, float]
LADKAT_MESSAGE_KB = 238.0  # of GTC at tau 8, as fitted: results/ladkat2019/speed.md
DOUBT = 0.075  # numbers of a row that differ by more contradict each other


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A speed that a paper prints.

    Attributes:
        published: frames per second relative to those of one worker, `reference`.
    """

    label: str
    work: Work
    method: Scheme
    workers: int
    published: float
    reference: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A paper's rows and constants.

    Attributes:
        start: the constants, with their values at the start of the search.
        fit_on: labels of the rows that they are fitted on.
        plain: the same constants from the hardware's data sheets.
        others: alternative choices of rows, to see how much depends on the choice.
        density: tau -> the share of elements that GTC sends in the paper's runs.
    """

    rows: tuple[Row, ...]
    start: Constants
    fit_on: tuple[str, ...]
    steps: int
    plain: Constants = field(default_factory=dict)
    others: tuple[tuple[str, ...], ...] = ()
    density: Callable[[float], float] | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants, and each row's simulated speed-up by its label."""

    constants: Constants
    simulated: dict[str, float]
    fit_on: tuple[str, ...]

    def errors(self, rows: Sequence[Row]) -> dict[str, float]:
        """Return relative errors of the rows that were not fitted on."""
        return {
            row.label: self.simulated[row.label] / row.published - 1
            for row in rows
            if row.label not in self.fit_on
        }


def mean_absolute(errors: Mapping[str, float]) -> float:
    return float(np.mean([abs(error) for error in errors.values()]))


# --- the papers' rows ---------------------------------------------------------------------------


def strom_2015() -> Case:
    """Return tables 2, 3 and 4 of Strom (2015): asynchronous, one K520 per node."""
    paper = read_paper("strom2015")
    alone = float(paper["baseline"]["frames_per_second"])
    million = float(paper["model"]["parameters_millions"])
    kilobytes = {float(row[0]): float(row[2]) for row in paper["table_3_threshold"]["rows"]}
    asynchronous = Scheme(traffic=Traffic.gtc_async, way=Way.direct)

    def row(label: str, workers: int, fps: float, size: float, millions: float) -> Row:
        work = Work(
            parameters=millions * 1e6,
            frames=1024,
            frame_seconds=millions / million / alone,
            messages=(MessageSize(size, size / 4),),  # a word of 32 bits per element
        )
        return Row(
            label=label,
            work=work,
            method=asynchronous,
            workers=workers,
            published=fps / alone,
            reference=alone,
        )

    rows = [
        row(f"table 2, {nodes} nodes", nodes, fps, 1e3 * kilobytes[4.0], million)
        for nodes, fps, *_ in paper["table_2_nodes"]["rows"]
        if nodes > 1
    ]
    rows += [
        row(f"table 3, tau {tau:g}", 40, fps, 1e3 * size, million)
        for tau, fps, size, *_ in paper["table_3_threshold"]["rows"]
        if tau != 4  # table 2's row of 40 nodes
    ]
    rows += [
        row(f"table 4, {name}", 40, fps, 4e6 * millions / ratio, millions)
        for name, millions, fps, ratio, *_ in paper["table_4_model_size"]["rows"]
        if millions != million  # table 2's row of 40 nodes
    ]
    return Case(
        rows=tuple(rows),
        start={"encode_ns": 1.0, "decode_ns": 6.0, "fabric_gbit_per_s": 25.0},
        plain={"encode_ns": 12 / 160, "decode_ns": 64 / 160, "fabric_gbit_per_s": 1e6},
        fit_on=("table 2, 10 nodes", "table 2, 80 nodes", "table 3, tau 2"),
        others=(
            ("table 2, 5 nodes", "table 2, 80 nodes", "table 2, 40 nodes"),
            ("table 2, 20 nodes", "table 2, 80 nodes", "table 3, tau 2"),
        ),
        steps=24,
        density=lambda tau: 1e3 * size_at(list(kilobytes.items()), tau) / (4e6 * million),
    )


def strom_contradictions() -> dict[str, str]:
    """Return rows of Strom (2015) whose minutes contradict their frames per second, and how.

    Epochs 2 to 10 are 9 times the training frames. No such row is fitted on. Also rows that are not
    simulated, as they repeat table 2's 40 nodes.
    """
    paper = read_paper("strom2015")
    frames = 9 * float(paper["task"]["training_frames"])
    columns = {
        "table 2, {:g} nodes": ("table_2_nodes", 0, 1, 2),
        "table 3, tau {:g}": ("table_3_threshold", 0, 1, 4),
        "table 4, {}": ("table_4_model_size", 0, 2, 4),
    }
    found = {}
    for label, (table, name, speed, time) in columns.items():
        for row in paper[table]["rows"]:
            implied = frames / (60 * row[time])
            if abs(row[speed] / implied - 1) > DOUBT:
                found[label.format(row[name])] = (
                    f"printed: {row[speed]:,} frames/s, but also {row[time]} minutes for epochs 2 "
                    f"to 10, which are {implied:,.0f} frames/s"
                )
    return found


def ladkat_2019(lag: int = 0) -> Case:
    """Return tables 1 and 2 of Ladkat et al. (2019): 8 V100 per node, frames of 30 ms.

    Table 3 of Strom (2015) relates a message's size to tau.

    Args:
        lag: steps by which messages may be late; the paper calls GTC synchronous.
    """
    paper, strom = read_paper("ladkat2019"), read_paper("strom2015")
    features = paper["task"]["features"]
    shift = 1e-3 * features["shift_ms"] * features["subsample"]
    minutes = paper["baseline"]["epoch_minutes_1_gpu"]
    alone = paper["task"]["training_hours"] * 3600 / shift / (60 * minutes)
    settings = paper["settings"]
    group = settings["group_size"]
    work = Work(
        parameters=1e6 * paper["model"]["parameters_millions"],
        frames=settings["minibatch_frames"],
        frame_seconds=1 / alone,
    )
    kilobytes = [(row[0], row[2]) for row in strom["table_3_threshold"]["rows"]]
    tau_of = {Traffic.gtc: settings["gtc_tau"], Traffic.bmuf_gtc: settings["two_tier_tau"]}
    size_of = {kind: size_at(kilobytes, tau) for kind, tau in tau_of.items()}

    def row(table: str, name: str, workers: int, block: int, speedup: float) -> Row:
        kind = Traffic[name.lower()]
        size = size_of.get(kind, 0.0) / size_of[Traffic.gtc]  # scaled by the constant message_kb
        shown = f"block {block}" if table == "table 2" else f"{workers} GPUs"
        return Row(
            label=f"{table}, {name.replace('_', '-')}, {shown}",
            work=replace(work, messages=(MessageSize(size, size / 4),)),
            method=Scheme(
                traffic=kind,
                way=Way.ring if kind is Traffic.bmuf else Way.direct,
                lag=0 if kind is Traffic.bmuf else lag,
                block_steps=block,
                group_size=group if kind is Traffic.bmuf_gtc else 1,
            ),
            workers=workers,
            published=speedup,
            reference=alone,
        )

    block = settings["block_size"]
    rows = [
        row("table 1", name, gpus, block, speedup)
        for name, gpus, speedup, *_ in paper["table_1_workers"]["rows"]
    ]
    rows += [
        row("table 2", name, 128, size, speedup)
        for name, size, speedup, *_ in paper["table_2_block_size"]["rows"]
        if size != block  # table 1's rows of 128 GPUs
    ]
    return Case(
        rows=tuple(rows),
        start={"jitter": 0.15, "fabric_gbit_per_s": 25.0, "message_kb": 250.0},
        plain={
            "jitter": 0.02,
            "fabric_gbit_per_s": 1e6,
            "message_kb": size_of[Traffic.gtc]
            * paper["model"]["parameters_millions"]
            / strom["model"]["parameters_millions"],
        },
        fit_on=("table 1, GTC, 16 GPUs", "table 1, GTC, 64 GPUs", "table 2, BMUF, block 25"),
        others=(
            ("table 1, GTC, 32 GPUs", "table 1, GTC, 128 GPUs", "table 1, BMUF, 128 GPUs"),
            ("table 1, BMUF-GTC, 32 GPUs", "table 1, GTC, 64 GPUs", "table 2, BMUF-GTC, block 25"),
        ),
        steps=30,
        density=lambda tau: (
            1e3
            * LADKAT_MESSAGE_KB
            * size_at(kilobytes, tau)
            / size_of[Traffic.gtc]
            / (4 * work.parameters)
        ),
    )


SUB_BATCH_FIT = (256, 8192)  # frames; the rows of table 1 that T_sub is fitted on


def sub_batch() -> Work:
    """Return a step of the 1-bit paper, T_sub(n), with one frame; `seconds(share=n)` has n frames.

    18.2 ms of it, passes over all parameters, are printed. The rest, n T_frm(n) = start + n frame,
    is fitted on SUB_BATCH_FIT of table 1. Activations between layers are the ICASSP paper's.
    """
    paper, icassp = map(read_paper, ("seide2014_1bit", "seide2014_parallelizability"))
    seconds = {row[0]: 1e-3 * row[1] for row in paper["table_1_subbatch"]["rows"]}
    low, high = SUB_BATCH_FIT
    each = (seconds[high] - seconds[low]) / (high - low)
    fixed = 1e-3 * paper["cost"]["fixed_ms_no_parallelism"]
    return Work(
        parameters=1e6 * paper["model"]["parameters_millions"],
        frames=1,
        frame_seconds=each,
        fixed_seconds=fixed,
        start_seconds=seconds[low] - low * each - fixed,
        activations=icassp["model"]["activations_passed_per_frame"],
    )


def seide_2014(server: bool = False) -> Case:
    """Return tables 4 and 5 of Seide et al. (2014, 1-bit), speeds in thousands of frames/s.

    Two constants are fitted on the rows with 2k and 92k frames of table 4 without double buffering;
    T_sub is table 1's.

    Args:
        server: table 5 on one server of 8 GPUs; else table 4, and table 5 on servers of 2 GPUs.
            Where table 4 was measured is not printed; it is taken as the latter.
    """
    paper, work = read_paper("seide2014_1bit"), sub_batch()

    def row(label: str, data: int, model: int, frames: float, kfps: float, double: bool) -> Row:
        traffic = Traffic.onebit if data > 1 else Traffic.none
        return Row(
            label=label,
            work=replace(work, frames=frames / data),
            method=Scheme(traffic=traffic, lag=int(double and data > 1), stripes=model),
            workers=data,
            published=kfps,
            reference=1e3,
        )

    rows = []
    small = paper["table_4_kfps_by_minibatch"]
    for name, *values in small["rows"] if not server else []:
        for size, kfps in zip(small["columns"][1:], values, strict=True):
            if kfps is not None:
                frames = 1024 * float(size[:-1])
                rows.append(row(f"table 4, {name}, {size}", 4, 2, frames, kfps, name == "DB"))
    table = paper["table_5_data_x_model_kfps"]
    for name, *values in table["rows"]:
        data, model = map(int, name.split("x"))
        for column, kfps in zip(table["columns"][1:], values, strict=True):
            size, place = column[1:].split("_")
            if kfps is not None and (place == "8gpu") == server:
                rows.append(row(f"table 5, {name}, {column}", data, model, int(size), kfps, True))
    start = {"lambda_conn": 2.0, "exchange_ms": 10.0}
    return Case(
        rows=tuple(rows),
        start={} if server else start,
        fit_on=() if server else ("table 4, no DB, 2k", "table 4, no DB, 92k"),
        steps=10,
    )


class UnknownSizeError(ValueError):
    """The paper has no messages of this threshold."""


def size_at(kilobytes: Sequence[tuple[float, float]], tau: float) -> float:
    """Interpolate a message's size at tau, linearly in both logarithms.

    Raises:
        UnknownSizeError: if tau is outside the known thresholds.
    """
    known = sorted(kilobytes)
    taus, sizes = (np.log([pair[i] for pair in known]) for i in range(2))
    if not known[0][0] <= tau <= known[-1][0]:
        raise UnknownSizeError(
            f"tau is {tau}; sizes are known from {known[0][0]} to {known[-1][0]}"
        )
    return float(np.exp(np.interp(math.log(tau), taus, sizes)))


# --- simulating and fitting ----------------------------------------------------------------------


def with_constants(
    cluster: ClusterSettings, work: Work, constants: Constants
) -> tuple[ClusterSettings, Work]:
    """Return cluster and work with these constants."""
    own: dict[str, Any] = {k: x for k, x in constants.items() if hasattr(cluster, k)}
    of_gpu: dict[str, Any] = {k: x for k, x in constants.items() if hasattr(cluster.gpu, k)}
    cluster = replace(cluster, gpu=replace(cluster.gpu, **of_gpu), **own)
    if (kilobytes := constants.get("message_kb")) is not None:
        times = 1e3 * kilobytes
        scaled = tuple(MessageSize(times * m.size, times * m.elements) for m in work.messages)
        work = replace(work, messages=scaled)
    return cluster, work


def simulated(row: Row, cluster: ClusterSettings, constants: Constants, steps: int) -> float:
    """Return the row's simulated speed-up."""
    cluster, work = with_constants(cluster, row.work, constants)
    speed = simulate(cluster, work, row.method, row.workers, steps)
    return speed.frames_per_second / row.reference


def null_model(case: Case, fit_on: Sequence[str] = ()) -> Fit:
    """Predict all speed-ups with one constant, as a yardstick for the simulator.

    The speed-up is proportional to the GPUs over the parameters. The constant is the geometric mean
    over the rows of `fit_on`; without, that of the first fitted row.
    """
    size = case.rows[0].work.parameters
    ideal = {
        row.label: row.workers * row.method.stripes * size / row.work.parameters
        for row in case.rows
    }
    labels = fit_on or case.fit_on[:1]
    shares = [row.published / ideal[row.label] for row in case.rows if row.label in labels]
    constant = geometric_mean(shares)
    speedups = {label: constant * speedup for label, speedup in ideal.items()}
    return Fit({"efficiency": constant}, speedups, case.fit_on)


def fit(case: Case, cluster: ClusterSettings, fit_on: Sequence[str]) -> Fit:
    """Fit the constants on the rows of `fit_on`, by least squares of logarithms."""
    from scipy.optimize import least_squares  # slow to import, and every make reads this module

    by_label, names = {row.label: row for row in case.rows}, list(case.start)
    rows = [by_label[label] for label in fit_on]

    def misses(logs: np.ndarray) -> np.ndarray:
        constants = dict(zip(names, np.exp(logs), strict=True))
        times = [simulated(row, cluster, constants, case.steps) / row.published for row in rows]
        return np.array([math.log(x) for x in times])

    begin = np.log([case.start[name] for name in names])
    found = least_squares(
        misses,
        begin,
        bounds=(begin - math.log(10), begin + math.log(10)),
        diff_step=0.05 / np.maximum(np.abs(begin), 0.05),  # 5 % of each constant
        xtol=1e-3,
        ftol=1e-4,
        max_nfev=12,
    )
    constants = {name: float(np.exp(x)) for name, x in zip(names, found.x, strict=True)}
    return Fit(constants, predicted(case, cluster, constants), tuple(fit_on))


def predicted(case: Case, cluster: ClusterSettings, constants: Constants) -> dict[str, float]:
    return {row.label: simulated(row, cluster, constants, case.steps) for row in case.rows}
