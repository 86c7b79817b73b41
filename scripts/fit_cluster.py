"""fit_cluster.py strom2015|ladkat2019 FOLDER

Fit the few constants of a simulated cluster on a few of the paper's own speeds, predict the others,
and write speed.md, speed.json and speed.png into FOLDER. Takes minutes on one core. The constants
are copied into conf/cluster by hand. Seide's speeds are tables of recipes/seide2014_1bit.
"""

import asr_train.interrupt  # noqa: F401

import time
from pathlib import Path
from typing import Any

from asr_train.cost import calibrate
from asr_train.cost.cluster import read_cluster
from asr_train.cost.papers import read_paper
from asr_train.files import hash_of, write_json, write_text
from asr_train.jobs import main
from asr_train.paper import estimates
from asr_train.paper.plot import scatter
from asr_train.provenance import commit, machine
from asr_train.schema import plain

CLUSTERS = {"strom2015": "ec2_g2", "ladkat2019": "p3.16xlarge"}
AIM = 0.15
UNITS = {
    "encode_ns": "ns per parameter: a step's work to make and send a message, beside computing",
    "decode_ns": "ns per element received",
    "fabric_gbit_per_s": "Gb/s that all nodes together get through the network between them",
    "jitter": "standard deviation of a step's computing time over its mean",
    "message_kb": "kB per message of GTC at tau 8 (the paper does not print it)",
}


def run(name: str, folder: str) -> None:
    if name not in CLUSTERS:
        raise ValueError(f"{name!r} is not a paper with speeds; known: {', '.join(CLUSTERS)}")
    strom = read_paper("strom2015")
    case, late = calibrate.strom_2015(strom), None
    if name == "ladkat2019":
        paper = read_paper(name)
        case, late = calibrate.ladkat_2019(paper, strom), calibrate.ladkat_2019(paper, strom, lag=1)
    cluster = read_cluster(CLUSTERS[name])
    began = time.perf_counter()
    fits = [calibrate.fit(case, cluster, rows) for rows in (case.fit_on, *case.others)]
    null = calibrate.null_model(case)
    content = {
        "paper": name,
        "table": "speed",
        "simulated": True,
        "columns": ["row", "paper", "simulated", "error %", "one constant", "error %", "used"],
        "rows": rows_of(case, fits[0], null),
        "fits": [fit_of(case, found) for found in fits],
        "one_constant": fit_of(case, null),
        "contradictions": calibrate.strom_contradictions(strom) if name == "strom2015" else {},
        "aim": AIM,
        "cluster": CLUSTERS[name],
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": f"scripts/fit_cluster.py {name} {folder}",
        "settings": hash_of(plain(cluster)),
        "machine": machine(),
    }
    bare = calibrate.Fit(case.plain, calibrate.predicted(case, cluster, case.plain), ())
    no_fabric = fits[0].constants | {"fabric_gbit_per_s": case.plain["fabric_gbit_per_s"]}
    found = calibrate.predicted(case, cluster, no_fabric)
    content["published_hardware_alone"] = fit_of(case, bare)
    content["without_fabric"] = {"constants": no_fabric, "simulated": found}
    if late is not None:
        content["one_step_late"] = fit_of(late, calibrate.fit(late, cluster, late.fit_on))
    content["seconds"] = round(time.perf_counter() - began, 1)
    target = Path(folder)
    write_text(target / "speed.md", markdown(case, content))
    plot(content, target / "speed.png")
    write_json(target / "speed.json", content)
    print((target / "speed.md").read_text())


def rows_of(
    case: calibrate.Case, found: calibrate.Fit, null: calibrate.Fit
) -> list[dict[str, Any]]:
    rows = estimates.rows_of(estimates.cells_of(case, found.simulated, null.simulated), "speedup")
    for shown, row in zip(rows, case.rows, strict=True):
        shown["ours"]["doubt"] = row.doubt
    return rows


def fit_of(case: calibrate.Case, found: calibrate.Fit) -> dict[str, Any]:
    errors = found.errors(case.rows)
    sure = {
        row.label: errors[row.label]
        for row in case.rows
        if row.label in errors and row.doubt is None
    }
    return {
        "fitted_on": list(found.fit_on),
        "constants": found.constants,
        "rows_predicted": len(errors),
        "mean_absolute_error": calibrate.mean_absolute(errors),
        "mean_absolute_error_without_doubtful_rows": calibrate.mean_absolute(sure),
        "largest_error": max(errors.values(), key=abs),
    }


# --- output --------------------------------------------------------------------------------------


def markdown(case: calibrate.Case, content: dict[str, Any]) -> str:
    first, null = content["fits"][0], content["one_constant"]
    error, count = first["mean_absolute_error"], len(case.rows)
    reached = "reached" if error <= AIM else "missed"
    fitted = (
        f"{len(case.start)} constants were fitted on {len(first['fitted_on'])} of {count} "
        f"rows; the other {first['rows_predicted']} are predicted."
    )
    lines = [
        f"# {case.name}: speeds, simulated",
        "",
        f"Speed-ups over one worker in frames/s: the paper's, and those **simulated** for its "
        f"hardware (conf/cluster/{content['cluster']}.yaml). {fitted} Nothing here was measured "
        "by us.",
        "",
        f"**Mean absolute error of the predicted rows: {error:.1%}** (largest "
        f"{first['largest_error']:+.1%}; aim {AIM:.0%}: {reached}). "
        f"**One constant instead of a simulator: {null['mean_absolute_error']:.1%}** (largest "
        f"{null['largest_error']:+.1%}). It predicts {null['constants']['efficiency']:.3g} times "
        "the number of workers, over the size of the network relative to the first row's"
        ", and was taken from the first fitted row.",
        "",
        "| row | paper | simulated | error % | one constant | error % | used |",
        "|---|---:|---:|---:|---:|---:|---|",
        *(line_of(row) for row in content["rows"]),
        "",
    ]
    if content["contradictions"]:
        lines += ["The paper contradicts itself by more than 7 % in these rows:", ""]
        lines += [f"- {label}: {doubt}." for label, doubt in content["contradictions"].items()]
        sure = "mean_absolute_error_without_doubtful_rows"
        lines += [
            "",
            f"Without those among the predicted rows, the simulator's error is {first[sure]:.1%}, "
            f"that of one constant {null[sure]:.1%}.",
            "",
        ]
    lines += fitted_lines(case, content)
    lines += [
        *NOTES[case.name](content),
        "",
        f"Made {content['date']} at commit {content['commit']}, settings {content['settings']}, "
        f"on {content['machine']}, in {content['seconds']:.0f} s: `{content['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def fitted_lines(case: calibrate.Case, content: dict[str, Any]) -> list[str]:
    """Format the constants, and how much depends on the rows that they are fitted on."""
    lines = [
        "## Constants",
        "",
        "| constant | fitted | data sheet or usual | what it is |",
        "|---|---:|---:|---|",
    ]
    for key, value in content["fits"][0]["constants"].items():
        usual = case.plain[key]
        shown = "no limit" if key.startswith("fabric") else f"{usual:.3g}"
        lines.append(f"| {key} | {value:.3g} | {shown} | {UNITS[key]} |")
    bare, late = content["published_hardware_alone"], content.get("one_step_late")
    return [
        *lines,
        "",
        "## How much depends on the rows chosen",
        "",
        "| fitted on | constants | error of the others | largest |",
        "|---|---|---:|---:|",
        *(choice(found) for found in content["fits"]),
        *([choice(late, "as the first, but messages may come a step late")] if late else []),
        f"| nothing: published hardware alone | {constants(bare['constants'])} | "
        f"{bare['mean_absolute_error']:.1%} | {bare['largest_error']:+.1%} |",
        "",
    ]


def line_of(row: dict[str, Any]) -> str:
    ours = row["ours"]
    mark = " (doubtful)" if ours["doubt"] else ""
    return (
        f"| {row['label']} | {row['paper']['speedup']:.4g} | {ours['speedup']:.1f} | "
        f"{100 * ours['error']:+.1f} | {ours['one_constant']:.1f} | "
        f"{100 * ours['one_constant_error']:+.1f} | {ours['used']}{mark} |"
    )


def choice(found: dict[str, Any], name: str = "") -> str:
    return (
        f"| {name or '; '.join(found['fitted_on'])} | {constants(found['constants'])} | "
        f"{found['mean_absolute_error']:.1%} | {found['largest_error']:+.1%} |"
    )


def constants(values: calibrate.Constants) -> str:
    return ", ".join(f"{key} {value:.3g}" for key, value in values.items() if value < 1e5)


def strom_notes(content: dict[str, Any]) -> list[str]:
    bare = content["without_fabric"]["simulated"]["table 2, 80 nodes"]
    return [
        "## Remarks",
        "",
        "- Every node sends its message to every other, and waits only when several of its own "
        "are under way; it computes meanwhile.",
        f"- Only one row, 80 nodes, is slowed by the network: without a limit shared by all nodes "
        f"it would reach {bare:.1f}. That limit therefore rests on one row, which is among "
        "those fitted; each node's own 1 Gb/s would not slow it. The paper does not say what it "
        "is (an oversubscribed core, lost packets, the cost of so many messages).",
        "- Message sizes are the paper's (tables 3 and 4); that of 40 nodes is taken for all "
        "numbers of nodes.",
        "- Table 4 is predicted from the number of parameters alone.",
    ]


def ladkat_notes(content: dict[str, Any]) -> list[str]:
    bare = content["without_fabric"]["simulated"]
    return [
        "## Remarks",
        "",
        "- GTC's speed halves from 64 to 128 GPUs: the time of a step grows with the square of "
        "their number, as does the number of messages. So something that all nodes share is full; "
        f"with only each node's 25 Gb/s, 64 and 128 GPUs would reach "
        f"{bare['table 1, GTC, 64 GPUs']:.1f} and {bare['table 1, GTC, 128 GPUs']:.1f}. The same "
        "limit, fitted on a row of BMUF, fits BMUF's blocks.",
        "- Messages go from peer to peer as soon as each worker is ready, and all wait for all: "
        "synchronous, as the paper says. Those of early workers travel while late ones compute. "
        "Were messages allowed to come a step late, the rows would need three times the jitter "
        "and fit about as well: these speeds cannot tell.",
        "- The jitter stands for all that differs from step to step (padding, utterances of "
        "different length, reading from S3). It explains GTC's loss at 16 GPUs, that in groups of "
        "8, and part of why longer blocks pay.",
        "- The paper's rows are not smooth themselves: BMUF is less efficient with 32 GPUs "
        "(88 %) than with 64 (91 %).",
    ]


NOTES = {"strom2015": strom_notes, "ladkat2019": ladkat_notes}


def plot(content: dict[str, Any], path: Path) -> None:
    groups = {}
    for used in ("fitted", "predicted"):
        chosen = [row for row in content["rows"] if row["ours"]["used"] == used]
        groups[used] = [(row["paper"]["speedup"], row["ours"]["speedup"]) for row in chosen]
    title = f"{content['paper']}: simulated"
    labels = {"xlabel": "speed-up, the paper", "ylabel": "speed-up, simulated"}
    scatter(groups, path, **labels, title=title, band=AIM)


if __name__ == "__main__":
    main(run, __doc__ or "")
