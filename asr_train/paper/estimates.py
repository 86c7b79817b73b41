"""Printed constants, the cost model -> the tables of Seide et al. (2014) that need **no training**.

Every number of ours here is estimated in closed form or simulated, and labelled so. A few constants
are fitted on the rows named; the others are predicted. Beside them stands one constant, as a
yardstick. Knows nothing of runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from asr_train.cost import calibrate, optimum
from asr_train.cost.cluster import read_cluster
from asr_train.cost.papers import read_paper
from asr_train.cost.plan import Scheme, Work
from asr_train.facts import Traffic
from asr_train.paper.plot import scatter
from asr_train.provenance import made
from asr_train.report.exchange import digits
from asr_train.report.tables import aligned, as_markdown

Printed = Mapping[str, Any]
Estimates = dict[str, Any]  # what a function of TABLES returns: rows, and how they were made
ICASSP, ONE_BIT = "seide2014_parallelizability", "seide2014_1bit"
COLUMNS = ["row", "used", "paper", "ours", "error %", "one constant", "error %"]


def row_of(
    label: str, printed: float, ours: float, null: float, used: str, key: str = "value"
) -> dict[str, Any]:
    """Return a row, for JSON: a number that a paper prints, ours, and one constant's.

    Args:
        used: "fitted", "predicted", or "marked": predicted, but left out of the mean error.
        key: names the paper's number and ours.
    """
    numbers = {
        **{key: ours, "error": ours / printed - 1},
        **{"one_constant": null, "one_constant_error": null / printed - 1, "used": used},
    }
    return {"label": label, "paper": {key: printed}, "ours": numbers, "measured": False}


# --- On parallelizability (ICASSP) --------------------------------------------------------------


def icassp_estimates() -> Estimates:
    """Return K-hat and speed-ups from equations 2 and 3: printed constants only."""
    paper = read_paper(ICASSP)
    node, rows = optimum.printed_node(paper), paper["estimates"]
    mean = geometric_mean([row["optimal_nodes"] for row in rows])
    share = geometric_mean(
        [row["speedup"] / round(row["optimal_nodes"]) for row in rows if "speedup" in row]
    )
    of_floats = {
        row["minibatch"]: row.get("lambda_conn", 1)
        for row in rows
        if row["kind"] == "data_parallel"
    }
    nodes_of, speed_of, notes = [], [], []
    for row in rows:
        kind, frames, lambda_conn = row["kind"], row["minibatch"], row.get("lambda_conn", 1)
        name = f"{kind.replace('_', ' ')}, {frames:,} frames"
        count = round(row["optimal_nodes"])
        used = "predicted"
        if kind == "model_parallel":
            lambda_conn = paper["hardware"]["lambda_conn_3_gpus"]
            nodes = optimum.model_parallel(node, lambda_conn)
            faster = optimum.model_parallel_speedup(node, count, frames, lambda_conn)
        else:
            size = 4.0
            if kind == "data_parallel_8bit":
                size, used = 1.0, "marked"
                lambda_conn = of_floats[frames]
                needed = optimum.lambda_conn_for(node, row["optimal_nodes"], frames, size)
                notes.append(
                    f"{name}: lambda_conn is not printed; that of 4-byte values "
                    f"({lambda_conn:g}) is taken. The printed {row['optimal_nodes']} nodes need "
                    f"{needed:.1f}."
                )
            nodes = optimum.data_parallel(node, frames, size, lambda_conn)
            faster = optimum.data_parallel_speedup(node, count, frames, size, lambda_conn)
        nodes_of.append(row_of(f"{name}: nodes", row["optimal_nodes"], nodes, mean, used))
        if "speedup" in row:
            label = f"{name}: speed-up with {count}"
            speed_of.append(row_of(label, row["speedup"], faster, share * count, used))
    eta = paper["hardware"]["eta_mbs"]["512_over_1024"]
    small = optimum.data_parallel(node, 1024, 4, eta=eta)
    return {
        "rows": nodes_of + speed_of,
        "unit": "nodes, and times one GPU",
        "kind": "in closed form, from printed constants alone (equations 2 and 3)",
        "one_constant": f"{mean:.2g} nodes for every row; speed-ups: {share:.2g} times the nodes "
        "(geometric means of what is printed)",
        "constants": [],
        "notes": [
            "Speed-ups are at the printed number of nodes, rounded: T_calc(1) over the longer of "
            "T_calc(K) and T_comm(K). Ours are not rounded otherwise.",
            f"Data parallel, 1,024 frames: with eta_mbs {eta:g} (512 over 1,024 frames) K-hat is "
            f"{small:.2f}, so the printed 1.5 lies between.",
            *notes,
            "Marked rows are left out of the mean error.",
            "The printed speed-up of 1.1 with 2 nodes and 4,096 frames does not follow from the "
            "printed equations, as the others do.",
        ],
    }


def icassp_table_1() -> Estimates:
    """Return frames/s with layers cut over 2 and 3 GPUs: one constant fitted."""
    paper = read_paper(ICASSP)
    case = striped_case(paper)
    cluster = read_cluster("k20x_server")
    found = calibrate.fit(case, cluster, case.fit_on)
    null = calibrate.null_model(case)
    printed_lambda = paper["hardware"]["lambda_conn_3_gpus"]
    constant = found.constants["lambda_conn"]
    assert cluster.inside is not None
    rate = 1e-9 * cluster.inside.bytes_per_second
    rows = {row[0]: row[1:] for row in paper["table_1_model_parallel_fps"]["rows"]}
    parts = sum(1e6 / rows[name][0] for name in rows if "only" in name)
    three = sum(1e6 / rows[name][2] for name in rows if "only" in name)
    whole = rows["K20X end-to-end"]
    return {
        "rows": rows_of(case, found.simulated, null.simulated, by_reference=True),
        "unit": "frames/s",
        "kind": "simulated from the printed speeds of one GPU (model parallelism of cost/plan.py)",
        "one_constant": f"{null.constants['efficiency']:.2g} times the GPUs times one GPU's speed, "
        "from the fitted row",
        "constants": [
            f"lambda_conn {constant:.3g} over b = {rate:.3g} GB/s (printed): only their quotient, "
            f"{rate / constant:.3g} GB/s for activations, is determined by the row. Printed: "
            f"lambda_conn {printed_lambda:g} with 3 GPUs; the same value is used with 2 and 3. "
            f"Fitted on: {', '.join(case.fit_on)}"
        ],
        "notes": [
            "A minibatch has 1,024 frames. Stripes share the computing and then exchange "
            f"activations, {paper['model']['activations_passed_per_frame']:,} values per frame "
            "forward and as many backward; nothing is hidden. Updates exchange nothing.",
            "That computing in small stripes loses efficiency (eta_mbs, eta_strp) is left out, so "
            "that updates are simulated too fast.",
            f"The three parts take {parts:.1f} us per frame on one GPU, where end-to-end takes "
            f"{1e6 / whole[0]:.1f}; on three {three:.1f} and {1e6 / whole[2]:.1f}.",
        ],
    }


def striped_case(paper: Printed) -> calibrate.Case:
    """Return the ICASSP paper's table 1: a minibatch of 1,024 frames on 2 and 3 GPUs."""
    frames = 1024
    activations = paper["model"]["activations_passed_per_frame"]
    exchanged = {"forward prop only": 0.5, "error back-prop only": 0.5, "param update only": 0.0}
    rows = []
    for name, alone, *others in paper["table_1_model_parallel_fps"]["rows"]:
        share = exchanged.get(name.partition(" ")[2], 1.0)
        work = Work(
            parameters=1e6 * paper["model"]["parameters_millions"],
            frames=frames,
            frame_seconds=1 / alone,
            activations=share * activations,
        )
        for gpus, speed in zip((2, 3), others, strict=False):
            if speed is not None:
                rows.append(
                    calibrate.Row(
                        label=f"{name}, {gpus} GPUs",
                        work=work,
                        method=Scheme(traffic=Traffic.none, stripes=gpus),
                        workers=1,
                        published=speed / alone,
                        reference=alone,
                    )
                )
    return calibrate.Case(
        rows=tuple(rows),
        start={"lambda_conn": 2.0},
        fit_on=("K20X end-to-end, 2 GPUs",),
        steps=2,
    )


def rows_of(
    case: calibrate.Case,
    ours: Mapping[str, float],
    null: Mapping[str, float],
    by_reference: bool = False,
    key: str = "value",
) -> list[dict[str, Any]]:
    """Return the rows of a case's speed-ups; `by_reference`: in the unit of one worker's speed."""
    return [
        row_of(
            row.label,
            round(times * row.published, 6),  # as printed
            times * ours[row.label],
            times * null[row.label],
            "fitted" if row.label in case.fit_on else "predicted",
            key,
        )
        for row in case.rows
        for times in [row.reference if by_reference else 1.0]
    ]


# --- 1-bit SGD (Interspeech) --------------------------------------------------------------------


def one_bit_table_1() -> Estimates:
    """Return T_sub(n): a line through two rows."""
    paper = read_paper(ONE_BIT)
    found, rows = calibrate.sub_batch(), paper["table_1_subbatch"]["rows"]
    each = geometric_mean([row[1] / row[0] for row in rows if row[0] in calibrate.SUB_BATCH_FIT])
    fixed = paper["cost"]["fixed_ms_no_parallelism"]
    least, time, printed = rows[0]
    return {
        "rows": [
            row_of(
                f"{frames:,} frames",
                milliseconds,
                1e3 * (found.fixed_seconds + found.start_seconds + frames * found.frame_seconds),
                each * frames,
                "fitted" if frames in calibrate.SUB_BATCH_FIT else "predicted",
            )
            for frames, milliseconds, _ in rows
        ],
        "unit": "ms per sub-batch, T_sub(n)",
        "kind": "in closed form: T_sub(n) = fixed + start + n * seconds per frame",
        "one_constant": f"{1e3 * each:.0f} us per frame, the geometric mean of the fitted rows",
        "constants": [
            f"start {1e3 * found.start_seconds:.3g} ms, {1e6 * found.frame_seconds:.4g} us per "
            f"frame; fixed {fixed:g} ms is printed. Fitted on: "
            + " and ".join(f"{frames:,} frames" for frames in calibrate.SUB_BATCH_FIT)
        ],
        "notes": [
            f"The printed microseconds per frame are T_frm(n) = (T_sub(n) - {fixed:g} ms) / n. "
            f"With {least} frames that is {1e3 * (time - fixed) / least:.0f}, where {printed} is "
            "printed."
        ],
    }


def _one_bit(table: str) -> Estimates:
    """Return table 4 or 5, on servers of two GPUs and on one of eight, by their labels."""
    cases = [calibrate.seide_2014(), calibrate.seide_2014(server=True)]
    hardware = [read_cluster(name) for name in ("k20x_farm", "k20x_server")]
    found = calibrate.fit(cases[0], hardware[0], cases[0].fit_on)
    ours = found.simulated | calibrate.predicted(cases[1], hardware[1], found.constants)
    both = replace(cases[0], rows=cases[0].rows + cases[1].rows)
    null = calibrate.null_model(both, both.fit_on)
    rows = [
        row | {"label": row["label"].removeprefix(f"{table}, ")}
        for row in rows_of(both, ours, null.simulated)
        if row["label"].startswith(f"{table}, ")
    ]
    values = found.constants
    own = "" if table == "table 4" else " rows of table 4"
    return {
        "rows": rows,
        "unit": "thousand frames/s",
        "kind": "simulated (cost/plan.py; conf/cluster/k20x_farm.yaml and k20x_server.yaml)",
        "one_constant": f"{null.constants['efficiency']:.3g} thousand frames/s per GPU, the "
        "geometric mean of table 4's fitted rows",
        "constants": [
            f"lambda_conn {values['lambda_conn']:.3g}: times that activations between the two GPUs "
            f"of a model take over the link's time; exchange {values['exchange_ms']:.3g} ms per "
            "exchange beside the links (waits, adding up, AdaGrad), which double buffering hides, "
            "where the paper prints 3 to 10 ms for the exchange. Fitted on"
            f"{own}: {' and '.join(cases[0].fit_on)}"
        ],
        "notes": [
            "T_sub(n) is table 1's; 9 ms more per exchange with quantisation; links and "
            "activations are as printed. Two GPUs of a model share the work but not the start of a "
            "pass; half batches pay the fixed part and the start twice."
        ],
    }


def one_bit_table_4() -> Estimates:
    """Return 4 x 2 GPUs by minibatch, with and without double buffering."""
    found = _one_bit("table 4")
    table_5 = {row[0]: row[1:] for row in read_paper(ONE_BIT)["table_5_data_x_model_kfps"]["rows"]}
    printed = {row["label"]: row["paper"]["value"] for row in found["rows"]}
    largest = 92 * 1.024 / printed["no DB, 92k"] - 92 * 1.024 / printed["DB, 92k"]
    found["notes"] += [
        "Where the table was measured is not printed; servers of two GPUs are taken. Table 5 "
        f"prints {table_5['4x2'][0]:g} and {table_5['4x2'][1]:g} for 2,880 frames, and "
        f"{table_5['4x2'][2]:g} and {table_5['4x2'][3]:g} for 16,384, where this table has "
        f"{printed['DB, 2.8k']:g} and {printed['DB, 16k']:g}.",
        f"Double buffering saves {1e3 * largest:.0f} ms per minibatch of 92k frames, but can "
        "hide no more than the exchange, of 3 to 10 ms as printed. It must hide something else "
        "that grows with the minibatch, which the simulator does not have; so it is too slow "
        "there.",
    ]
    return found


def one_bit_table_5() -> Estimates:
    """Return data x model parallelism: the constants of table 4."""
    found = _one_bit("table 5")
    paper = read_paper(ONE_BIT)
    sub = paper["table_1_subbatch"]["rows"][-1]
    alone = {row[0]: row for row in paper["table_5_data_x_model_kfps"]["rows"]}["1x1"]
    case = calibrate.seide_2014(server=True)
    wide = replace(read_cluster("k20x_server"), bus_gbit_per_s=224.0)
    row = next(row for row in case.rows if row.label == "table 5, 4x2, n16384_8gpu")
    faster = calibrate.simulated(row, wide, {}, case.steps)
    seconds = calibrate.sub_batch().frame_seconds
    short, long = (1e-3 * ms for ms in paper["cost"]["comm_over_Z_ms"])
    least = {
        frames: [optimum.one_bit(frames, seconds, exchange, 0.0) for exchange in (long, short)]
        for frames in (2880, 16384)
    }
    bounds = " and ".join(f"{a:.0f} to {b:.0f} ({n:,} frames)" for n, (a, b) in least.items())
    found["notes"] += [
        f"One GPU: {alone[3]:g} thousand frames/s with minibatches of 16,384, but "
        f"{sub[0] / sub[1]:.2f} by table 1 with {sub[0]:,}: the two tables differ by 5 % or "
        "more, so 1x1 is simulated too fast.",
        "One server of eight GPUs: 14 GB/s of all GPUs together are printed for four, and "
        "assumed for eight. Activations of four models then share it; with twice as much, 4x2 "
        f"would reach {faster:.1f} with 16,384 frames.",
        "K-hat by equation 4 in closed form, with the printed "
        f"{1e3 * long:g} to {1e3 * short:g} ms per exchange: at least {bounds} nodes of one "
        f"GPU, by {1e6 * seconds:.4g} us per frame alone. T_post and T_upd are left out; both "
        "raise it. The table has at most 16 nodes, so by the printed numbers every "
        "exchange is hidden.",
    ]
    return found


TABLES: dict[tuple[str, str], Callable[[], Estimates]] = {
    (ICASSP, "estimates"): icassp_estimates,
    (ICASSP, "table_1_model_parallel_fps"): icassp_table_1,
    (ONE_BIT, "table_1_subbatch"): one_bit_table_1,
    (ONE_BIT, "table_4_kfps_by_minibatch"): one_bit_table_4,
    (ONE_BIT, "table_5_data_x_model_kfps"): one_bit_table_5,
}


# --- output -------------------------------------------------------------------------------------


def estimated(paper: str, table: str, title: str, about: Mapping[str, str]) -> dict[str, Any]:
    """Make a table, for JSON.

    Args:
        paper, table: names in conf/papers.
        about: date, commit, settings, machine and command.
    Raises:
        ValueError: if the table is not one of TABLES.
    """
    if (paper, table) not in TABLES:
        known = ", ".join(sorted(name for key, name in TABLES if key == paper))
        raise ValueError(f"{paper} has no table {table} that needs no training; known: {known}")
    return content_of(TABLES[paper, table](), paper, table, title, about)


def content_of(
    found: Estimates, paper: str, table: str, title: str, about: Mapping[str, str]
) -> dict[str, Any]:
    known = [row for row in found["rows"] if row["ours"]["used"] == "predicted"]
    errors: dict[str, float] = {"predicted": len(known)}
    for name, key in (("mean_absolute_error", "error"), ("one_constant", "one_constant_error")):
        errors[name] = calibrate.mean_absolute({row["label"]: row["ours"][key] for row in known})
    return {
        **{"paper": paper, "table": table, "title": title, "simulated": True, "columns": COLUMNS},
        **{key: found[key] for key in ("unit", "kind", "one_constant", "constants", "notes")},
        **{"errors": errors, "rows": found["rows"], **about},
    }


def texts(table: Mapping[str, Any]) -> list[list[str]]:
    """Format the rows."""
    return [
        [
            row["label"],
            row["ours"]["used"],
            f"{row['paper']['value']:,g}",
            digits(row["ours"]["value"]),
            _percent(row["ours"]["error"]),
            digits(row["ours"]["one_constant"]),
            _percent(row["ours"]["one_constant_error"]),
        ]
        for row in table["rows"]
    ]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def summary(table: Mapping[str, Any]) -> str:
    errors = table["errors"]
    return (
        f"Mean absolute error of {errors['predicted']} predicted numbers: "
        f"{errors['mean_absolute_error']:.1%}; of one constant: {errors['one_constant']:.1%}."
    )


def markdown(table: Mapping[str, Any]) -> str:
    """Format the table as Markdown."""
    notes = [
        f"Ours: {table['kind']}. **Nothing here was measured or trained by us.** Unit: "
        f"{table['unit']}.",
        f"**{summary(table)}** One constant: {table['one_constant']}.",
        *(f"Constants: {line}." for line in table["constants"]),
        *table["notes"],
        f"{made(dict(table))[:-1]}: `{table['command']}`.",
    ]
    return as_markdown(f"{table['title']} (simulated)", table["columns"], texts(table), notes)


def plain(table: Mapping[str, Any]) -> str:
    """Format the table for a terminal."""
    lines = [table["columns"], *texts(table)]
    return f"{table['title']}, simulated; {table['unit']}\n{aligned(lines)}{summary(table)}\n"


def plot(table: Mapping[str, Any], path: Path) -> None:
    """Write a PNG: ours and the one constant over the printed numbers."""
    rows = table["rows"]
    groups = {"one constant": [(r["paper"]["value"], r["ours"]["one_constant"]) for r in rows]}
    for used in ("fitted", "predicted", "marked"):
        chosen = [row for row in rows if row["ours"]["used"] == used]
        groups[used] = [(row["paper"]["value"], row["ours"]["value"]) for row in chosen]
    xlabel = f"the paper: {table['unit']}"
    scatter(groups, path, xlabel=xlabel, ylabel="ours, simulated", title=table["title"])
