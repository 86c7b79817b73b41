"""decode.py exp/RUN/model.json exp/RUN/tuned.json lang/index.json feats/SPLIT.jsonl.gz
    [conf/scales/RUN.yaml] OUTPUT

OUTPUT is exp/RUN/hyp.SPLIT.jsonl: a line of settings, then the words of every utterance. Beside it,
hyp.SPLIT.ctm has the words' times and, with lattices, nbest.SPLIT.jsonl the alternatives. The
lattices themselves are in lattices.SPLIT.zip if conf/scales/RUN.yaml wants them.
"""

import asr_train.interrupt  # noqa: F401

from dataclasses import asdict, fields, replace
from pathlib import Path

from asr_train.checks import spelled
from asr_train.choices import run_of
from asr_train.data.features import Utterance, open_feats
from asr_train.decode.first_pass import adaptation_line, adapted
from asr_train.decode.lattice_archive import write_lattices
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.scorer import Scorer, known_states
from asr_train.decode.words import Alternatives, Choice, Effort, Recogniser, transcribe
from asr_train.files import part, read_json, read_yaml, write_jsonl
from asr_train.interop.ctm import write_ctm
from asr_train.interop.times import found as words_of
from asr_train.jobs import main
from asr_train.lang.index import Lang, load_lang
from asr_train.search.graph import Graph, load_graph


def decode(model: str, tuned: str, language: str, features: str, *paths: str) -> str:
    *scales, output = paths
    keep = any(read_yaml(path).get("lattices", False) for path in scales)
    feats, lang = open_feats(features), load_lang(language)
    scorer = load_scorer(model, feats, lang)
    choice, first, effort, graph = _tuned(Path(tuned), scorer, lang)
    about = None
    if scorer.adapt is not None:
        scorer, about = adapted(scorer, lang, graph, first, effort, feats.utterances)
    shift = feats.settings.shift_seconds
    recognise = Recogniser(scorer, lang, graph, choice, effort, shift, keep=keep)
    path = Path(output)
    split = path.name.removeprefix("hyp.").removesuffix(".jsonl")
    pairs = transcribe(recognise, feats.utterances, f"decoding with {scorer.run}")
    listed, kept = path.with_name(f"nbest.{split}.jsonl"), path.with_name(f"lattices.{split}.zip")
    if keep:
        pairs = write_lattices(kept, lang, pairs)
    found, alternatives = [], []
    for hypothesis, others in pairs:
        found.append(hypothesis)
        if others is not None:
            alternatives.append(others)
    seconds = sum(h.seconds for h in found) + (about["earlier_seconds"] if about else 0)
    factor = seconds / sum(u.seconds for u in feats.utterances)
    run = run_of(path)
    header = {"run": run, "split": split, "real_time_factor": round(factor, 5)}
    header |= {**asdict(choice), "speakers": about}
    oracle = None
    if alternatives:
        write_jsonl(listed, (a.row() for a in alternatives))
        header["nbest"] = part(listed, path.parent)
        if keep:
            header["lattices"] = part(kept, path.parent)
        oracle = oracle_of(feats.utterances, alternatives)
        header |= {"oracle": oracle} if oracle else {}
    rows = [asdict(h) for h in found]
    timed = [words_of(row, u.row) for row, u in zip(rows, feats.utterances, strict=True)]
    write_ctm(path.with_suffix(".ctm"), timed)
    write_jsonl(path, [header, *rows])
    for name, file in {"nbest": listed, "lattices": kept}.items():
        if name not in header:  # of an earlier call
            file.unlink(missing_ok=True)
    missed = [h.id for h in found if not h.final]
    cut = [h.pieces for h in found if h.pieces > 1]
    untimed = [h.id for h in found if h.words_at is None]
    return (
        f"decode: {run} {split}: {spelled(len(found), 'utterance')}, real-time factor {factor:.4f} "
        f"(highest {max(h.real_time_factor for h in found):.4f})"
        + (f"; {_oracle_line(oracle, effort.nbest)}" if oracle else "")
        + (f"; {adaptation_line(about)}" if about else "")
        + (f"; {len(cut)} long recordings in {sum(cut)} pieces, cut at pauses" if cut else "")
        + (f"; the search reached no final state in {len(missed)}: {missed[:5]}" if missed else "")
        + (f"; no times for {len(untimed)}, evenly spread: {untimed[:5]}" if untimed else "")
    )


def oracle_of(
    utterances: list[Utterance], alternatives: list[Alternatives]
) -> dict[str, int] | None:
    """Return the oracle errors of a split, and the reference words of the utterances that have any.

    Recordings decoded in pieces have none, nor have utterances without a transcript.
    """
    known = [
        (len(u.words.split()), a.oracle_errors, a.list_errors)
        for u, a in zip(utterances, alternatives, strict=True)
        if a.oracle_errors is not None
    ]
    names = ("words", "lattice_errors", "list_errors")
    return dict(zip(names, map(sum, zip(*known, strict=True)), strict=True)) if known else None


def _oracle_line(oracle: dict[str, int], nbest: int) -> str:
    words = oracle["words"]
    return (
        f"oracle WER of the lattices {oracle['lattice_errors'] / words:.2%}, "
        f"of {nbest}-best lists {oracle['list_errors'] / words:.2%}"
    )


def _tuned(path: Path, scorer: Scorer, lang: Lang) -> tuple[Choice, Choice, Effort, Graph]:
    """Read what the tune stage wrote: choice, the first pass's choice, effort and graph.

    Raises:
        ValueError: if they are damaged, or belong to another run, choice or language.
    """
    chosen, about = read_json(path), path.parent / "graph" / "HCLG.json"
    made = read_json(about)
    try:
        if chosen["run"] != path.parent.name:
            raise ValueError(
                f"{path} is of the run {chosen['run']} but lies in the folder of {path.parent.name}"
            )
        for key in ("run", "insertion_penalty", "lm_weight"):
            if made[key] != chosen[key]:
                raise ValueError(f"{about} has {key} {made[key]} but {path} has {chosen[key]}")
        choice = Choice(*(chosen[f.name] for f in fields(Choice)))
        effort = Effort(*(chosen[f.name] for f in fields(Effort)))
        first = replace(choice, acoustic_scale=chosen["first_pass_scale"])
        graph = load_graph(about, lang, known_states(scorer), effort.nbest > 0)
        return choice, first, effort, graph
    except (ValueError, KeyError) as error:
        reason = f"{path} or {about} lacks {error}" if isinstance(error, KeyError) else str(error)
        # Even if the graph is at fault: make depends on tuned.json
        raise ValueError(f"{reason.split(';')[0]}; delete {path} and run make again") from error


if __name__ == "__main__":
    main(decode, __doc__)
