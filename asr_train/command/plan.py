"""Recommend method, block and group size for a cluster: simulated frames/s, bytes and crossovers.

Also K-hat, the number of workers up to which dividing a minibatch pays (Seide et al., 2014).
Writes plan.md, plan.json and plan.png into the folder of out=.

  cluster=NAME     of conf/cluster, or a .yaml file            (p3.16xlarge)
  model=NAME       of conf/model, or a number of parameters: 24M   (lstm_5x768)
  workers=N        GPUs, at most 2048                          (64)
  minibatch=N      frames per worker and step, after the network's subsampling   (2048)
  tau=T            what GTC sends: as in strom2015's table 3 at that tau, 2 to 15   (4)
  density=P        or the share of the parameters: 0.001
  log=PATH         or the log.jsonl of a run with the same network, whose messages are replayed
  codec=NAME       packed32, tile16 or rice                    (packed32)
  blocks=N,N       steps between BMUF's exchanges, at most 10000   (25,50,100,200)
  groups=N,N       workers per group of BMUF-GTC              (2,4,8)
  methods=A,B      allreduce, gtc, onebit, gtc_async, bmuf_gtc, bmuf   (all)
  fps=N            frames/s of one GPU, measured; else by the cluster's file
  mels=N outputs=N seed=N   the network's                      (64, 3183, 1)
  out=FOLDER                                                   (plan)

example:
  asr-train plan cluster=p3.16xlarge model=lstm_5x768 workers=128
"""

import argparse
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2

from asr_train.cost.advice import NEAR, ORDER, Plan, PlanRequest, crossovers, fastest_with, plan
from asr_train.cost.calibrate import strom_2015
from asr_train.cost.cluster import read_cluster
from asr_train.cost.papers import read_paper
from asr_train.cost.plan import logged_parameters
from asr_train.facts import MAX_ELEMENTS, Traffic
from asr_train.files import replacing, write_json, write_text
from asr_train.places import IS_CHECKOUT, ROOT
from asr_train.provenance import commit, machine
from asr_train.report.tables import spell_bytes
from asr_train.schema import ModelSettings, build, unknown_key

CONF = Path(ROOT) / "conf"
DEFAULTS = {
    "cluster": "p3.16xlarge",
    "model": "lstm_5x768",
    "workers": "64",
    "minibatch": "2048",
    "tau": "",
    "density": "",
    "log": "",
    "codec": "packed32",
    "blocks": "25,50,100,200",
    "groups": "2,4,8",
    "methods": "",
    "fps": "",
    "mels": "64",
    "outputs": "3183",
    "seed": "1",
    "out": "plan",
}
FILES = ("cluster", "log")  # keys that may name a file
TAU = 4.0
SMALLEST = 1e-12  # of numbers, which its inverse limits above
MOST_WORKERS = 2048  # half an hour; with n times as many n^2 times as long, and as much memory
MOST_STEPS = 10_000  # of a block; an hour with 2048 workers
COMPARED = (2.0, 4.0, 9.0, 15.0)  # tau, of strom2015's table 3


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", metavar="KEY=VALUE", nargs="*")


def run(options: argparse.Namespace) -> int:
    given = parsed(options.settings)
    cluster = read_cluster(given["cluster"])
    request = requested(given)
    if cluster.max_workers >= request.workers > MOST_WORKERS:
        raise ValueError(
            f"workers is {request.workers}; every message is simulated, which takes too long for "
            f"more than {MOST_WORKERS}: plan with fewer, and see in the plan how speeds grow"
        )
    if request.block_steps[-1] > MOST_STEPS:
        raise ValueError(
            f"blocks has {request.block_steps[-1]}; every step is simulated, which takes too long "
            f"for blocks of more than {MOST_STEPS}: plan with shorter ones"
        )
    taus = {tau: density_at(tau) for tau in COMPARED} if fits_sparse(request) else {}
    found = plan(request, cluster, list(taus.values()))
    folder = Path(given["out"])
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": call(given),
        "machine": machine(),
    }
    text = markdown(request, cluster.gpu.name, found, taus, given, about)
    write_text(folder / "plan.md", text)
    plot(found, folder / "plan.png", f"{given['model']} on {given['cluster']}: simulated")
    write_json(folder / "plan.json", content(request, found, taus) | {"given": given, **about})
    print(text)
    print(f"written: {folder / 'plan.md'}, plan.json, plan.png")
    return 0


def call(given: Mapping[str, str]) -> str:
    """Return the command that makes the same plan: of make in a checkout, else of the package."""
    pairs = [
        (key, os.path.abspath(value) if key in FILES and os.path.isfile(value) else value)
        for key, value in given.items()
        if value
    ]
    if IS_CHECKOUT:
        return shlex.join(["make", "plan", *(f"{key.upper()}={value}" for key, value in pairs)])
    return shlex.join(["asr-train", "plan", *(f"{key}={value}" for key, value in pairs)])


def parsed(arguments: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE arguments over the defaults; an empty value selects the default."""
    given = dict(DEFAULTS)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ValueError(f"{argument!r} is not KEY=VALUE; keys: {', '.join(DEFAULTS)}")
        if key not in DEFAULTS:
            raise ValueError(unknown_key(key, DEFAULTS))
        if value:
            given[key] = value
    named = [key for key in ("tau", "density", "log") if given[key]]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} all set what GTC sends; give one of them")
    return given


def requested(given: Mapping[str, str]) -> PlanRequest:
    tau = number(given, "tau") if given["tau"] else TAU
    if given["log"] and Path(given["log"]).is_dir():
        raise ValueError(f"log is {given['log']!r}, a folder; name the log.jsonl of a run")
    request = PlanRequest(
        parameters=parameters(given),
        minibatch_frames=number(given, "minibatch"),
        workers=whole(given, "workers"),
        density=number(given, "density") if given["density"] else density_at(tau),
        codec=given["codec"],
        block_steps=wholes(given, "blocks"),
        group_sizes=wholes(given, "groups"),
        kinds=kinds(given["methods"]),
        frames_per_second=number(given, "fps") if given["fps"] else None,
        log=given["log"] or None,
        activations=activations(given["model"]),
        seed=whole(given, "seed", least=0),
    )
    if fits_sparse(request):
        return request
    dense = tuple(kind for kind in request.kinds if not kind.is_sparse)
    if not dense:
        raise ValueError(f"methods is {given['methods']}; {without_gtc(request)}: allow others")
    return replace(request, kinds=dense)


def fits_sparse(request: PlanRequest) -> bool:
    """Return whether GTC's messages can number all parameters."""
    return request.parameters <= MAX_ELEMENTS


def without_gtc(request: PlanRequest) -> str:
    return (
        f"GTC numbers at most {MAX_ELEMENTS:,} parameters and the network has "
        f"{request.parameters:,.0f}"
    )


def number(given: Mapping[str, str], key: str) -> float:
    try:
        value = float(given[key])
    except ValueError:
        value = math.nan
    if not SMALLEST <= value <= 1 / SMALLEST:
        allowed = f"from {SMALLEST:g} to {1 / SMALLEST:g}"
        raise ValueError(f"{key} is {given[key]!r}; it must be a positive number, {allowed}")
    return value


def whole(given: Mapping[str, str], key: str, least: int = 1) -> int:
    if not given[key].isdecimal() or int(given[key]) < least:
        raise ValueError(f"{key} is {given[key]!r}; it must be an integer, {least} or more")
    return int(given[key])


def wholes(given: Mapping[str, str], key: str) -> tuple[int, ...]:
    parts = given[key].split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"{key} is {given[key]!r}; it must be integers: {DEFAULTS[key]}")
    return tuple(sorted({int(part) for part in parts}))


def kinds(names: str) -> tuple[Traffic, ...]:
    allowed = {kind.value: kind for kind in ORDER}
    unknown = [name for name in names.split(",") if name and name not in allowed]
    if unknown:
        raise ValueError(f"methods has {unknown[0]!r}; allowed: {', '.join(allowed)}")
    return tuple(allowed[name] for name in names.split(",") if name) or ORDER


def density_at(tau: float) -> float:
    """Return the share of elements that strom2015 sent at that tau, with 32 bits each."""
    density = strom_2015().density
    assert density is not None
    return density(tau)


def parameters(given: Mapping[str, str]) -> float:
    """Return the number of parameters, of a model in conf/model or as given."""
    name = given["model"]
    try:
        count = 1e6 * float(name[:-1]) if name.endswith("M") else float(name)
    except ValueError:
        from asr_train.model.store import num_parameters  # loads torch

        settings = model_settings(name)
        return num_parameters(settings, whole(given, "mels"), whole(given, "outputs"))
    if not 1 <= count <= 1 / SMALLEST:
        raise ValueError(
            f"model is {name!r}; a number of parameters must be at least 1, as 24M, and at most "
            f"{1 / SMALLEST:g}"
        )
    return count


def activations(name: str) -> float:
    """Return the values per frame between hidden layers of a DNN; 0 for another network."""
    if not (CONF / "model" / f"{name}.yaml").exists():
        return 0.0
    dnn = model_settings(name).dnn
    return 0.0 if dnn is None else float((dnn.layers - 1) * dnn.width)


def model_settings(name: str) -> ModelSettings:
    """Load a file of conf/model, on top of those in its defaults list."""
    from asr_train.compose import of_group  # loads Hydra

    path = CONF / "model" / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml")))
        raise ValueError(f"model {name!r} is neither a number of parameters nor one of {known}")
    return build(ModelSettings, of_group("model", name), "model")


# --- output --------------------------------------------------------------------------------------


def content(request: PlanRequest, found: Plan, taus: Mapping[float, float]) -> dict[str, Any]:
    return {
        "simulated": True,
        "request": asdict(request) | {"kinds": [kind.value for kind in request.kinds]},
        "alone": asdict(found.alone),
        "options": [
            {"method": o.method.name, "way": o.method.way.value, **asdict(o.speed)}
            for o in found.options
        ],
        "advised": found.advised.method.name,
        "curves": {name: [asdict(s) for s in speeds] for name, speeds in found.curves.items()},
        "crossovers": [{"from_workers": w, "method": name} for w, name in crossovers(found.curves)],
        "densities": [
            {"tau": tau, "density": density, **asdict(found.densities[density])}
            for tau, density in taus.items()
        ],
        "optimal_workers": [
            {
                "minibatch_frames": one.frames,
                "workers": {kind.value: finite(k) for kind, k in one.nodes.items()},
                "stripes": None if one.stripes is None else finite(one.stripes),
            }
            for one in found.optima
        ],
    }


def finite(nodes: float) -> float | None:
    """Return None for infinitely many, which JSON cannot say."""
    return nodes if math.isfinite(nodes) else None


def markdown(
    request: PlanRequest,
    gpu: str,
    found: Plan,
    taus: Mapping[float, float],
    given: Mapping[str, str],
    about: Mapping[str, str],
) -> str:
    """Return plan.md, as plan.md.j2 lays it out."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("asr_train.command", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    filters = {"whole": "{:,.0f}".format, "bytes": spell_bytes, "times": times}
    environment.filters |= filters | {"fastest_with": fastest_with}
    planned_sizes = {1} | {option.method.group_size for option in found.options}
    sizes = sorted(set(request.group_sizes) - planned_sizes)
    paper = read_paper("ladkat2019")
    printed, blocks = (
        {(row[0], row[1]): f"{row[-1]:+g}" for row in paper[table]["rows"]}
        for table in ("table_1_workers", "table_2_block_size")
    )
    return environment.get_template("plan.md.j2").render(
        request=request,
        gpu=gpu,
        found=found,
        best=found.advised,
        near=f"{NEAR:.0%}",
        sent=sent(request, given),
        fewer=fewer_are_faster(found),
        left_out=sizes if Traffic.bmuf_gtc in request.kinds else [],
        counts=[speed.workers for speed in max(found.curves.values(), key=len)],
        rates={
            name: {speed.workers: speed.frames_per_second for speed in speeds}
            for name, speeds in found.curves.items()
        },
        crossovers=crossovers(found.curves),
        optima=optima(request, found) if found.optima else None,
        taus=taus,
        printed=printed,
        blocks=blocks,
        given=given,
        about=about,
    )


def times(speedup: float) -> str:
    return f"{speedup:.1f}" if speedup >= 1 else f"{speedup:.2g}"


def fewer_are_faster(found: Plan) -> str:
    """Return a sentence that names the fastest number of workers; "" if it is that requested."""
    name, speeds = max(found.curves.items(), key=lambda c: max(s.frames_per_second for s in c[1]))
    most = max([*speeds, found.alone], key=lambda speed: speed.frames_per_second)
    if most.frames_per_second <= max(o.speed.frames_per_second for o in found.options):
        return ""
    with_them = f"{most.workers} ({name}) reach" if most.workers > 1 else "one reaches"
    return f" **Fewer workers are faster**: {with_them} {most.frames_per_second:,.0f} frames/s."


def sent(request: PlanRequest, given: Mapping[str, str]) -> str:
    """Return a sentence about GTC's messages; "" if no method that was asked for has any."""
    if not any(kind.is_sparse for kind in kinds(given["methods"])):
        return ""
    if not fits_sparse(request):
        return f"Methods with GTC are left out: {without_gtc(request)}."
    if request.log is not None:
        theirs = logged_parameters(request.log)
        text = (
            f"GTC's messages are those of {request.log}, one row of it per step, of a network of "
            f"{theirs / 1e6:.3g} M parameters."
        )
        if abs(theirs / request.parameters - 1) < 0.01:
            return text
        elements = sum(m.elements for m in request.messages()) / len(request.messages())
        return (
            f"{text} **Messages of this network have other sizes**: plan with model={theirs:.0f}, "
            f"or with density={elements / theirs:.2g}, the share of elements in that log."
        )
    return f"GTC sends {request.density:.2g} of the elements, {request.codec}."


def optima(request: PlanRequest, found: Plan) -> dict[str, Any]:
    """Return K-hat by method, estimated in closed form: no jitter, no latency."""
    names = [
        f"{k.value}, block {max(request.block_steps)}" if k.has_blocks else k.value
        for k in found.optima[0].nodes
    ]
    striped = found.optima[0].stripes is not None
    rows = [
        (one.frames, [*one.nodes.values(), *([] if one.stripes is None else [one.stripes])])
        for one in found.optima
    ]
    return {
        "columns": names + ["stripes"] * striped,
        "rows": [
            (frames, [f"{k:,.1f}" if math.isfinite(k) else "any" for k in nodes])
            for frames, nodes in rows
        ],
        "hidden": any(map(math.isinf, (k for _, nodes in rows for k in nodes))),
    }


def plot(found: Plan, path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5))
    axes = figure.subplots()
    most = max(speed.workers for speeds in found.curves.values() for speed in speeds)
    rate = found.alone.frames_per_second
    axes.plot([1, most], [rate, most * rate], color="0.6", linewidth=0.8, label="linear")
    for name, speeds in found.curves.items():
        counts, rates = zip(*((s.workers, s.frames_per_second) for s in speeds), strict=True)
        axes.plot(counts, rates, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="frames/s", title=title)
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=8)
    figure.tight_layout()
    with replacing(path) as part:
        figure.savefig(part, dpi=100)
