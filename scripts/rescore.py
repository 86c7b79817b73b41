"""Score n-best lists with a larger language model.

    rescore.py tune exp/RUN/hyp.DEV.jsonl manifests/DEV.jsonl.gz conf/decode.yaml \\
        conf/normaliser.yaml lm/index.json exp/RUN-rescored/tuned.json
    rescore.py apply exp/RUN/hyp.SPLIT.jsonl exp/RUN-rescored/tuned.json lm/index.json \\
        exp/RUN-rescored/hyp.SPLIT.jsonl

`tune` chooses the large model's weight on DEV; `apply` writes the best words at that weight.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asr_train.decode.rescore import Listed, Logprobs, Reweighed, tune_rescoring
from asr_train.files import check_part, read_json, read_jsonl, write_json, write_jsonl
from asr_train.jobs import main, parallel_map
from asr_train.lang.arpa import read_arpa
from asr_train.schema import DecodeSettings, NormaliserSettings, load
from asr_train.score.normalise import load_normaliser

CHUNK = 50  # lists per task of a worker process


def rescore(what: str, *paths: str) -> str:
    if what not in STEPS:
        raise ValueError(f"rescore.py {what}: allowed are {' and '.join(STEPS)}; see its help")
    return STEPS[what](*paths)


def tune(hyp: str, manifest: str, conf: str, normaliser: str, models: str, output: str) -> str:
    settings = load(DecodeSettings, conf)
    header, lists = listed(hyp, models)
    transcripts = {row["id"]: row["supervisions"][0]["text"] for row in read_jsonl(manifest)}
    best, tried, at_end = tune_rescoring(
        lists,
        transcripts,
        settings.rescore_lm_weights,
        settings.rescore_penalties,
        load_normaliser(load(NormaliserSettings, normaliser)),
    )
    errors = dict(tried)[best]
    run = Path(output).parent.name
    rows = [{**asdict(c), "errors": e.errors, "words": e.words} for c, e in tried]
    chosen = {"run": run, "of": header["run"], **asdict(best), "wer": errors.rate}
    write_json(output, {**chosen, "at_end": at_end, "tried": rows})
    return (
        f"rescore: {run}: LM weight {best.lm_weight:g}, penalty {best.penalty:g}: "
        f"{errors.rate:.2%} WER on {header['split']} (of {len(tried)} choices)"
        + "".join(f"; the best of decode.{name} is at its end" for name in at_end)
    )


def apply(hyp: str, tuned: str, models: str, output: str) -> str:
    chosen = read_json(tuned)
    header, lists = listed(hyp, models)
    if chosen["of"] != header["run"]:
        raise ValueError(f"{tuned} is of the run {chosen['of']} but {hyp} is of {header['run']}")
    best = Reweighed(chosen["lm_weight"], chosen["penalty"])
    rows = []
    for row, each in zip(read_jsonl(hyp)[1:], lists, strict=True):
        if row["id"] != each.id:
            raise ValueError(f"{hyp} has {row['id']} where its n-best lists have {each.id}")
        words, cost = each.best(best)
        same = words == row["words"]
        costs = {"graph_cost": cost - row["acoustic_cost"]} if same else {"graph_cost": cost}
        if not same:  # the acoustic cost and the times are those of another path
            costs |= {"acoustic_cost": 0.0, "words_at": None}
        rows.append({**row, "words": words, **costs})
    kept = {k: header[k] for k in ("split", "real_time_factor", "acoustic_scale")}
    penalty = header["insertion_penalty"] + best.penalty  # the total, as in other runs
    about = {"run": chosen["run"], **kept, **asdict(best), "insertion_penalty": penalty}
    write_jsonl(output, [about, *rows])
    changed = sum(r["words_at"] is None for r in rows)
    return f"rescore: {chosen['run']} {header['split']}: {changed} of {len(rows)} sentences changed"


def listed(hyp: str, models: str) -> tuple[dict[str, Any], list[Listed]]:
    """Return the header of the hypotheses, and their n-best lists under both models."""
    path, index = Path(hyp), read_json(models)
    header = read_jsonl(path)[0]
    if "nbest" not in header:
        raise ValueError(f"{path} has no n-best lists; set decode.nbest, and run make again")
    if index.get("big") is None:
        raise ValueError(f"{models} has no large model; set lm.big, for example by lm=fourgram")
    rows = read_jsonl(check_part(path.parent, header["nbest"], remake=path))
    old = logprobs(check_part(Path(models).parent, index["small"], remake=models))
    new = logprobs(check_part(Path(models).parent, index["big"], remake=models))
    chunks = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]

    def some(chunk: list[dict[str, Any]]) -> list[Listed]:
        return [Listed.of(row, old, new, header["lm_weight"]) for row in chunk]

    found = parallel_map(some, chunks, f"rescoring {header['run']}")
    return header, [each for some_lists in found for each in some_lists]


def logprobs(arpa: Path) -> Logprobs:
    """Return a function for natural log-probabilities of sentences by an ARPA file."""
    model = read_arpa(arpa)
    return lambda sentences: model.logprobs(sentences) * math.log(10)


STEPS: dict[str, Callable[..., str]] = {"tune": tune, "apply": apply}

if __name__ == "__main__":
    main(rescore, __doc__)
