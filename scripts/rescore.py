"""Score lattices with a larger language model.

    rescore.py tune exp/RUN/hyp.DEV.jsonl manifests/DEV.jsonl.gz conf/decode.yaml \\
        conf/normaliser.yaml lang/index.json lm/index.json exp/RUN-rescored/tuned.json
    rescore.py apply exp/RUN/hyp.SPLIT.jsonl exp/RUN-rescored/tuned.json lang/index.json \\
        lm/index.json exp/RUN-rescored/hyp.SPLIT.jsonl

`tune` chooses the large model's weight on DEV; `apply` writes the best words at that weight. Both
read lattices.SPLIT.zip beside the hypotheses.
"""

import asr_train.interrupt  # noqa: F401

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from asr_train.decode.lattice_archive import LatticeArchive
from asr_train.decode.rescore import Rescored, Rescorer, RescoringChoice, tune_rescoring
from asr_train.files import check_part, read_json, read_jsonl, write_json, write_jsonl
from asr_train.jobs import main, parallel_map
from asr_train.lang.arpa import read_arpa
from asr_train.lang.index import load_lang
from asr_train.schema import DecodeSettings, NormaliserSettings, load
from asr_train.score.normalise import load_normaliser


def rescore(what: str, *paths: str) -> str:
    if what not in STEPS:
        raise ValueError(f"rescore.py {what}: allowed are {' and '.join(STEPS)}; see its help")
    return STEPS[what](*paths)


def tune(
    hyp: str, manifest: str, conf: str, normaliser: str, language: str, models: str, output: str
) -> str:
    settings = load(DecodeSettings, conf)
    split = Split(hyp, language, models)
    transcripts = {row["id"]: row["supervisions"][0]["text"] for row in read_jsonl(manifest)}
    best, tried, at_end = tune_rescoring(
        lambda choices: ([each.words for each in row] for row, _ in split.rescored(choices)),
        [transcripts[row["id"]] for row in split.rows],
        settings.rescore_lm_weights,
        settings.rescore_penalties,
        settings.rescore_mbr,
        load_normaliser(load(NormaliserSettings, normaliser)),
    )
    errors = dict(tried)[best]
    run = Path(output).parent.name
    rows = [{**asdict(c), "errors": e.errors, "words": e.words} for c, e in tried]
    chosen = {"run": run, "of": split.header["run"], **asdict(best), "wer": errors.rate}
    write_json(output, {**chosen, "at_end": at_end, "tried": rows})
    return (
        f"rescore: {run}: LM weight {best.lm_weight:g}, penalty {best.penalty:g}, "
        f"{'MBR' if best.mbr else 'best path'}: "
        f"{errors.rate:.2%} WER on {split.header['split']} (of {len(tried)} choices)"
        + "".join(f"; the best value of decode.{name} is at the end of its list" for name in at_end)
    )


def apply(hyp: str, tuned: str, language: str, models: str, output: str) -> str:
    chosen = read_json(tuned)
    split = Split(hyp, language, models)
    header = split.header
    if chosen["of"] != header["run"]:
        raise ValueError(f"{tuned} is of the run {chosen['of']} but {hyp} is of {header['run']}")
    best = RescoringChoice(*(chosen[each.name] for each in fields(RescoringChoice)))
    rows, narrower, cut = [], [], 0
    for row, ((found,), seconds) in zip(split.rows, split.rescored([best], True), strict=True):
        if found.narrowed:
            narrower.append(found.beam)
        cut += found.cut > 0
        rows.append(
            {
                **row,
                "words": found.words,
                "words_at": times(row, found),
                "confidences": [round(c, 4) for c in found.confidences],
                "graph_cost": found.cost - found.acoustic_cost,
                "acoustic_cost": found.acoustic_cost,
                "seconds": round(row["seconds"] + seconds, 4),
            }
        )
    before, after = (sum(row["seconds"] for row in some) for some in (split.rows, rows))
    factor = header["real_time_factor"] * (after / before if before else 1.0)
    penalty = header["insertion_penalty"] + best.penalty  # the total, as in other runs
    about = {"run": chosen["run"], "split": header["split"], "real_time_factor": round(factor, 5)}
    about |= {"acoustic_scale": header["acoustic_scale"], **asdict(best)}
    about |= {"insertion_penalty": penalty, "narrowed": len(narrower), "cut": cut}
    write_jsonl(output, [about, *rows])
    changed = sum(r["words"] != was["words"] for r, was in zip(rows, split.rows, strict=True))
    return (
        f"rescore: {chosen['run']} {header['split']}: {changed} of {len(rows)} sentences changed, "
        f"{after - before:.1f} s in all processes"
        + (
            f"; the lattices of {len(narrower)} were narrowed to expand them, to "
            f"{min(narrower):.1f} nats at least"
            if narrower
            else ""
        )
        + (f"; {cut} have confidences of their likeliest words alone" if cut else "")
    )


def times(row: dict[str, Any], found: Rescored) -> list[list[Any]] | None:
    """Return a row's words with times and new confidences; None if others are found."""
    if found.words != row["words"] or row["words_at"] is None:
        return None
    pairs = zip(row["words_at"], found.confidences, strict=True)
    return [[*word_at[:3], round(sure, 4)] for word_at, sure in pairs]


class Split:
    """The hypotheses of a split, their lattices and both language models.

    Raises:
        ValueError: if there are no lattices or no such models.
    """

    def __init__(self, hyp: str, language: str, models: str) -> None:
        path, index, lang = Path(hyp), read_json(models), load_lang(language)
        self.header, *self.rows = read_jsonl(path)
        if "lattices" not in self.header:
            raise ValueError(
                f"{path} has no lattices; name its run in RESCORE, set decode.nbest, and run make "
                "again"
            )
        if index.get("big") is None:
            raise ValueError(f"{models} has no large model; set lm.big, for example by lm=fourgram")
        if lang.arpa is None:
            raise ValueError(
                f"the grammar of {language} is not an n-gram model, so no larger one can replace "
                "it; set lang=sentences, or leave RESCORE out"
            )
        kept = check_part(path.parent, self.header["lattices"], remake=path)
        big = check_part(Path(models).parent, index["big"], remake=models)
        self._lattices = LatticeArchive(kept, lang)
        names, weight = lang.lexicon.words, self.header["lm_weight"]
        self._rescorer = Rescorer(names, read_arpa(lang.arpa), read_arpa(big), weight)

    def rescored(
        self, choices: list[RescoringChoice], confidences: bool = False
    ) -> Iterator[tuple[list[Rescored], float]]:
        """Yield each utterance's result per choice, and seconds, in worker processes."""

        def one(number: int) -> tuple[list[Rescored], float]:
            start = time.perf_counter()
            lattices = self._lattices.of(number, self.rows[number]["pieces"])
            found = self._rescorer(lattices, choices, confidences)
            return found, time.perf_counter() - start

        numbers = range(len(self.rows))
        yield from parallel_map(one, numbers, f"rescoring {self.header['run']}")


STEPS: dict[str, Callable[..., str]] = {"tune": tune, "apply": apply}

if __name__ == "__main__":
    main(rescore, __doc__)
