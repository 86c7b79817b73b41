"""report.py tables/wer.json [tables/exchange.json] [FILE...] report/index.html

Write tables, learning curves, utterances, data, settings and stage times as one HTML page without
network access. Beside it are its pictures as PNG and the table of alignments as ali.md, for
READMEs. FILE is any of
    ali/MODEL/SPLIT.report.json   in the order of the models
    exp/RUN/log.jsonl             steps of a network's training
    exp/RUN/passes.jsonl          passes of a Gaussian system's training
    exp/RUN/model.json            settings, beside run.json of a network
    exp/RUN/score.SPLIT.json      beside hyp.SPLIT.jsonl, which it was made from
    manifests/SPLIT.jsonl.gz      beside SPLIT.dropped.tsv; the first is TRAIN
    conf/score.yaml               needed for utterances, with the manifests of their splits
The environment names the recipe and its variables, from the root of the project (ASR_GOAL).
"""

import asr_train.interrupt  # noqa: F401

import base64
import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asr_train.choices import run_of
from asr_train.data.excerpt import address, flac
from asr_train.data.recordings import with_own_audio
from asr_train.data.remarks import read_remarks
from asr_train.files import read_json, read_jsonl, write_bytes, write_text
from asr_train.jobs import main, stage_times
from asr_train.provenance import call
from asr_train.report.card import data_card
from asr_train.report.page import Work, alignment_markdown, best_run, build_page
from asr_train.report.tables import Score, read_score
from asr_train.report.utterances import of_split, worst
from asr_train.schema import ScoreSettings, load
from asr_train.score.normalise import load_normaliser

Row = dict[str, Any]
HEARD = 20  # utterances whose sound is in the page
HEARD_BYTES = 4_000_000  # of all of them, before base64 adds a third
FILES = ("model.json", "run.json", "log.jsonl", "passes.jsonl", "tuned.json")  # that a run may have
OF_SPLIT = (("score", "txt"), ("score", "json"), ("hyp", "jsonl"), ("hyp", "ctm"))
NETWORK = ("model", "optim", "comm", "objective")  # groups of run.json's settings


def report(table: str, *paths: str) -> str:
    *inputs, output = paths
    work = Path(output).resolve().parent.parent
    wer = read_json(table)
    # Leave out this stage's own earlier time: a second page would differ from the first
    times = [row for row in stage_times(work) if row["stage"] != "report"]
    alignments = [read_json(path) for path in named(inputs, "ali/*/*.report.json")]
    html, pictures = build_page(
        recipe_name(work),
        wer,
        alignments,
        {path.parent.name: read_jsonl(path) for path in named(inputs, "exp/*/log.jsonl")},
        times,
        *(read_json(path) for path in named(inputs, "tables/exchange.json")),
        work=contents(inputs, wer, times, work, Path(output).parent),
    )
    for picture in pictures:
        write_bytes(Path(output).with_name(f"{picture.name}.png"), picture.png())
    if alignments:
        write_text(Path(output).with_name("ali.md"), alignment_markdown(alignments))
    write_text(output, html)
    return f"report: {output}: open it in a browser; its pictures are beside it as PNG"


def recipe_name(work: Path) -> str:
    """Return `digits` for `recipes/digits/work`; for any other folder, its own name."""
    return work.parent.name if work.parent.parent.name == "recipes" else work.name


def named(paths: Sequence[str], pattern: str) -> list[Path]:
    """Return the paths that end like the pattern."""
    return [Path(path) for path in paths if fnmatch.fnmatch(path, f"*{pattern}")]


def contents(
    inputs: Sequence[str], wer: Row, times: Sequence[Row], work: Path, folder: Path
) -> Work:
    """Return what the page has beside tables, logs and alignments.

    Args:
        folder: of the page.
    """
    manifests = named(inputs, "manifests/*.jsonl.gz")
    manifest_of = {path.name.removesuffix(".jsonl.gz"): path for path in manifests}
    cuts = {split: read_cuts(path) for split, path in manifest_of.items()}
    scores = [read_score(path) for path in named(inputs, "exp/*/score.*.json")]
    splits, heard, embedded = {}, {}, ""
    for path in named(inputs, "conf/score.yaml"):
        settings, rows = load(ScoreSettings, path), found_words(inputs, scores)
        normaliser = load_normaliser(settings.normaliser)
        for split in dict.fromkeys(score["split"] for score in scores):
            chosen = [score for score in scores if score["split"] == split]
            found = [rows[score["run"], split] for score in chosen]
            splits[split] = of_split(cuts[split], chosen, found, settings, normaliser)
            for utterance in splits[split]["utterances"]:
                utterance["audio"] = address(cuts[split][utterance["id"]], folder)
        best = best_run(wer)
        heard[best["split"]] = sounds(best, scores, cuts[best["split"]], rows)
        embedded = in_the_page(best, len(heard[best["split"]]))
    remarks = {
        split: [(r.utt_id, r.what, r.why, r.dropped) for r in read_remarks(path)]
        for split, path in manifest_of.items()
    }
    rows_of = {split: list(found.values()) for split, found in cuts.items()}
    runs = list(dict.fromkeys(row["ours"]["run"] for row in wer["rows"]))
    models = {run_of(path): path for path in named(inputs, "exp/*/model.json")}
    return Work(
        splits=splits,
        heard=heard,
        embedded=embedded,
        card=data_card(rows_of, remarks) if cuts else None,
        passes={p.parent.name: read_jsonl(p) for p in named(inputs, "exp/*/passes.jsonl")},
        runs=[of_run(run, models, scores, times, work, folder) for run in runs if models],
        command=call(),
    )


def read_cuts(manifest: Path) -> dict[str, Row]:
    return {cut["id"]: with_own_audio(cut, manifest) for cut in read_jsonl(manifest)}


# --- utterances and sounds ----------------------------------------------------------------------


def found_words(inputs: Sequence[str], scores: Sequence[Score]) -> dict[tuple[str, str], Row]:
    """Return, by run and split, the rows of hyp.SPLIT.jsonl by utterance."""
    return {
        (score["run"], score["split"]): {
            row["id"]: row for row in read_jsonl(path.with_name(f"hyp.{score['split']}.jsonl"))[1:]
        }
        for path, score in zip(named(inputs, "exp/*/score.*.json"), scores, strict=True)
    }


def sounds(
    best: Row, scores: Sequence[Score], cuts: Mapping[str, Row], rows: Mapping[Any, Row]
) -> dict[str, Row]:
    """Return the sounds of the best run's worst utterances; a recording that is gone has none."""
    split = best["split"]
    runs = [score["run"] for score in scores if score["split"] == split]
    (score,) = (s for s in scores if s["split"] == split and s["run"] == best["run"])
    found: dict[str, Row] = {}
    left = HEARD_BYTES
    for utt_id in worst([score], HEARD):
        content = flac(cuts[utt_id])
        if content is None or len(content) > left:
            continue
        left -= len(content)
        said = cuts[utt_id]["supervisions"][0].get("alignment", {}).get("word")
        found[utt_id] = {
            "flac": base64.b64encode(content).decode(),
            "rate": cuts[utt_id]["recording"]["sampling_rate"],
            "said": said and [[word, start, seconds] for word, start, seconds, *_ in said],
            "found": {run: rows[run, split][utt_id].get("words_at") for run in runs},
        }
    return found


def in_the_page(best: Row, count: int) -> str:
    return (
        f"The sounds of {count} utterances of {best['split']} are in the page: those with the most "
        f"errors by {best['run']}. All others are played from the files of the corpus."
    )


# --- runs ---------------------------------------------------------------------------------------


def of_run(
    run: str,
    models: Mapping[str, Path],
    scores: Sequence[Score],
    times: Sequence[Row],
    work: Path,
    folder: Path,
) -> Row:
    """Return a run's settings, commands and files.

    A run that only decodes otherwise (bigram, pronprobs, rescored, a model of one epoch) has its
    model's.
    """
    base = (
        run if run in models else re.sub(r"((-bigram|-pronprobs|-rescored)+|/epochs/\d+)$", "", run)
    )
    model = models.get(run) or models[base]
    about = model.with_name("run.json")
    trained = read_json(about) if about.exists() else {}
    settings = {k: v for k, v in trained.get("settings", {}).items() if k in NETWORK}
    stored = read_json(model)
    if "gmm" in stored:
        settings = {"gmm": stored["gmm"]}
    if base != run:
        settings["decoding"] = run.removeprefix(base).strip("-/")
    own = [score for score in scores if score["run"] == run]
    for score in own[:1]:
        keys = ("acoustic_scale", "insertion_penalty", "lm_weight")
        settings["decode"] = {key: score[key] for key in keys}
    if "workers" in trained:
        settings["workers"] = trained["workers"]
    facts = [("model", f"exp/{base}")]
    if trained:
        versions = {"commit": trained.get("commit", "unknown")} | trained.get("versions", {})
        facts.append(("versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
    facts += [("device", trained.get("device_name") or trained["device"])] if trained else []
    mine = (f"exp/{run}/", f"exp/{base}/model.json")
    splits = [score["split"] for score in own]
    facts += [
        (row["output"], row["command"].replace(f"{work}/", ""))
        for row in times
        if row["output"].startswith(mine) and "command" in row
        if "/epochs/" in run or "/epochs/" not in row["output"]
        if (of := re.search(r"/(?:hyp|score)\.([^/]+)\.jsonl?$", row["output"])) is None
        or of[1] in splits  # not of a test set of earlier calls
    ]
    return {
        "name": run,
        "settings": dict(flat(settings)),
        "facts": facts,
        "files": list(links(model, work / "exp" / run, splits, folder)),
    }


def flat(settings: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield `optim.rate` and its value as text; nothing for a group that is not used."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from flat(value, f"{name}.{key}" if name else key)
    elif settings is not None:
        yield name, f"{settings:g}" if isinstance(settings, float) else str(settings)


def links(model: Path, own: Path, splits: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and address, relative to the page, of the files of a run that exist.

    Args:
        own: the run's folder; what it lacks of a model's files is beside its model.
    """
    stored = read_json(model)
    network = [stored["file"]] if "file" in stored else []
    of_model = [*FILES, *network, *(part["path"] for part in stored.get("parts", []))]
    of_split = [f"{kind}.{split}.{suffix}" for split in splits for kind, suffix in OF_SPLIT]
    paths = [own / name if (own / name).exists() else model.with_name(name) for name in of_model]
    for path in [*paths, *(own / name for name in of_split)]:
        if path.exists():
            at = os.path.relpath(path.resolve(), folder.resolve())
            yield path.name, quote(at)


if __name__ == "__main__":
    main(report, __doc__)
