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
from asr_train.files import hash_of, write_json, write_text
from asr_train.jobs import main
from asr_train.paper import estimates
from asr_train.provenance import commit, machine
from asr_train.schema import plain

CLUSTERS = {"strom2015": "ec2_g2", "ladkat2019": "p3.16xlarge"}
AIM = 0.15
UNITS = {
    "encode_ns": "ns per parameter, a step's work to make and send a message, beside computing",
    "decode_ns": "ns per element received",
    "fabric_gbit_per_s": "Gb/s that all nodes together get through the network between them",
    "jitter": "standard deviation of a step's computing time over its mean",
    "message_kb": "kB per message of GTC at tau 8 (the paper does not print it)",
}


def run(name: str, folder: str) -> None:
    if name not in CLUSTERS:
        raise ValueError(f"{name!r} is not a paper with speeds; known: {', '.join(CLUSTERS)}")
    case, late = calibrate.strom_2015(), None
    if name == "ladkat2019":
        case, late = calibrate.ladkat_2019(), calibrate.ladkat_2019(lag=1)
    cluster = read_cluster(CLUSTERS[name])
    began = time.perf_counter()
    fits = [calibrate.fit(case, cluster, rows) for rows in (case.fit_on, *case.others)]
    null = calibrate.null_model(case)
    bare = calibrate.Fit(case.plain, calibrate.predicted(case, cluster, case.plain), ())
    no_fabric = fits[0].constants | {"fabric_gbit_per_s": case.plain["fabric_gbit_per_s"]}
    doubts = calibrate.strom_contradictions() if name == "strom2015" else {}
    more: dict[str, Any] = {
        "fits": [fit_of(case, found, doubts) for found in fits],
        "one_constant": fit_of(case, null, doubts),
        "contradictions": doubts,
        "aim": AIM,
        "cluster": CLUSTERS[name],
        "published_hardware_alone": fit_of(case, bare, doubts),
        "without_fabric": {
            "constants": no_fabric,
            "simulated": calibrate.predicted(case, cluster, no_fabric),
        },
    }
    if late is not None:
        more["one_step_late"] = fit_of(late, calibrate.fit(late, cluster, late.fit_on), doubts)
    more["seconds"] = round(time.perf_counter() - began, 1)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": f"scripts/fit_cluster.py {name} {folder}",
        "settings": hash_of(plain(cluster)),
        "machine": machine(),
    }
    found = {
        "rows": estimates.rows_of(case, fits[0].simulated, null.simulated),
        "unit": "times one worker's frames/s",
        "kind": f"simulated for the paper's hardware (conf/cluster/{CLUSTERS[name]}.yaml)",
        "one_constant": f"{null.constants['efficiency']:.3g} times the number of workers, over the "
        "size of the network relative to the first row's, from the first fitted row",
        "constants": [constant(case, key, value) for key, value in fits[0].constants.items()],
        "notes": notes(name, more),
    }
    content = estimates.content_of(found, name, "speed", f"{name}: speeds", about)
    target = Path(folder)
    write_text(target / "speed.md", estimates.markdown(content))
    estimates.plot(content, target / "speed.png")
    rows = estimates.rows_of(case, fits[0].simulated, null.simulated, key="speedup")
    write_json(target / "speed.json", content | more | {"rows": rows})
    print((target / "speed.md").read_text())


def fit_of(case: calibrate.Case, found: calibrate.Fit, doubts: dict[str, str]) -> dict[str, Any]:
    errors = found.errors(case.rows)
    sure = {label: error for label, error in errors.items() if label not in doubts}
    return {
        "fitted_on": list(found.fit_on),
        "constants": found.constants,
        "rows_predicted": len(errors),
        "mean_absolute_error": calibrate.mean_absolute(errors),
        "mean_absolute_error_without_doubtful_rows": calibrate.mean_absolute(sure),
        "largest_error": max(errors.values(), key=abs),
    }


# --- output --------------------------------------------------------------------------------------


def constant(case: calibrate.Case, key: str, value: float) -> str:
    usual = "no limit" if key.startswith("fabric") else f"{case.plain[key]:.3g}"
    return f"{key} {value:.3g} (data sheet or usual: {usual}), {UNITS[key]}"


def notes(name: str, more: dict[str, Any]) -> list[str]:
    """Say where the paper contradicts itself, how much depends on the rows chosen, and the rest."""
    first, null = more["fits"][0], more["one_constant"]
    sure = "mean_absolute_error_without_doubtful_rows"
    reached = "reached" if first["mean_absolute_error"] <= AIM else "missed"
    choices = [("; ".join(found["fitted_on"]), found) for found in more["fits"]]
    if "one_step_late" in more:
        choices.append(("the first, but messages may come a step late", more["one_step_late"]))
    choices.append(("nothing, published hardware alone", more["published_hardware_alone"]))
    doubtful = [f"{label}: {doubt}." for label, doubt in more["contradictions"].items()]
    if doubtful:
        doubtful.append(
            "Without these rows, in which the paper contradicts itself by more than "
            f"{calibrate.DOUBT:.1%}, the mean absolute error of the predicted ones is "
            f"{first[sure]:.1%}; of one constant: {null[sure]:.1%}."
        )
    return [
        f"Aim: {AIM:.0%}, {reached}. Largest error: {first['largest_error']:+.1%}; of one "
        f"constant: {null['largest_error']:+.1%}.",
        *doubtful,
        *(f"Fitted on {rows}: {values_of(found)}." for rows, found in choices),
        *NOTES[name](more),
        f"The fits took {more['seconds']:.0f} s.",
    ]


def values_of(found: dict[str, Any]) -> str:
    """Format the constants and the errors of a fit."""
    values = [f"{key} {value:.3g}" for key, value in found["constants"].items() if value < 1e5]
    errors = f"{found['mean_absolute_error']:.1%}, largest {found['largest_error']:+.1%}"
    return f"{', '.join(values)}; error of the others {errors}"


def strom_notes(content: dict[str, Any]) -> list[str]:
    bare = content["without_fabric"]["simulated"]["table 2, 80 nodes"]
    return [
        "Every node sends its message to every other, and waits only when several of its own "
        "are under way; it computes meanwhile.",
        f"Only one row, 80 nodes, is slowed by the network: without a limit shared by all nodes "
        f"it would reach {bare:.1f}. That limit therefore rests on one row, which is among "
        "those fitted; each node's own 1 Gb/s would not slow it. The paper does not say what it "
        "is (an oversubscribed core, lost packets, the cost of so many messages).",
        "Message sizes are the paper's (tables 3 and 4); that of 40 nodes is taken for all "
        "numbers of nodes.",
        "Table 4 is predicted from the number of parameters alone.",
    ]


def ladkat_notes(content: dict[str, Any]) -> list[str]:
    bare = content["without_fabric"]["simulated"]
    return [
        "GTC's speed halves from 64 to 128 GPUs: the time of a step grows with the square of "
        "their number, as does the number of messages. So something that all nodes share is full; "
        f"with only each node's 25 Gb/s, 64 and 128 GPUs would reach "
        f"{bare['table 1, GTC, 64 GPUs']:.1f} and {bare['table 1, GTC, 128 GPUs']:.1f}. The same "
        "limit, fitted on a row of BMUF, fits BMUF's blocks.",
        "Messages go from peer to peer as soon as each worker is ready, and all wait for all: "
        "synchronous, as the paper says. Those of early workers travel while late ones compute. "
        "Were messages allowed to come a step late, the rows would need three times the jitter "
        "and fit about as well: these speeds cannot tell.",
        "The jitter stands for all that differs from step to step (padding, utterances of "
        "different length, reading from S3). It explains GTC's loss at 16 GPUs, that in groups of "
        "8, and part of why longer blocks pay.",
        "The paper's rows are not smooth themselves: BMUF is less efficient with 32 GPUs "
        "(88 %) than with 64 (91 %).",
    ]


NOTES = {"strom2015": strom_notes, "ladkat2019": ladkat_notes}


if __name__ == "__main__":
    main(run, __doc__ or "")
