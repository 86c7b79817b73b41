"""score.py exp/RUN/hyp.SPLIT.jsonl manifests/SPLIT.jsonl.gz conf/score.yaml OUTPUT

OUTPUT is exp/RUN/score.SPLIT.json: hypotheses and references -> word errors with their 95 %
interval. Beside it are
    score.SPLIT.txt              speakers, most frequent errors, each utterance's alignment
    score.SPLIT.speakers.tsv     counts by speaker
    score.SPLIT.utterances.tsv   counts and both word lists by utterance
    score.SPLIT.{ref,hyp}.trn    both sides for NIST sclite, which counts the same totals
"""

import asr_train.interrupt  # noqa: F401

from pathlib import Path
from typing import Any

from asr_train.files import DamagedFileError, read_jsonl, write_json, write_text
from asr_train.jobs import main
from asr_train.schema import ScoreSettings, load
from asr_train.score.edits import COSTS
from asr_train.score.normalise import load_normaliser
from asr_train.score.sclite import speakers_tsv, trn, utterances_tsv
from asr_train.score.summary import SHOWN_CONFUSIONS, closing_words, counted, counts, page, spread
from asr_train.score.words import Scored, WordErrors, by_speaker, confusions, total, wer_line

HEADER = ("run", "split", "real_time_factor", "acoustic_scale", "insertion_penalty", "lm_weight")


def score(hyp: str, manifest: str, conf: str, output: str) -> str:
    settings = load(ScoreSettings, conf)
    header, found = read_hypotheses(hyp)
    references = read_references(manifest)
    check_same_utterances(hyp, found, manifest, references)
    normaliser = load_normaliser(settings.normaliser)
    pairs = {
        utt_id: (
            normaliser.reference(text),
            normaliser.hypothesis(" ".join(found[utt_id]["words"])),
        )
        for utt_id, (_, text) in references.items()
    }
    scored = [
        Scored(utt_id, references[utt_id][0], WordErrors.between(*pair))
        for utt_id, pair in pairs.items()
    ]
    summary = header | counts(scored) | spread(scored, settings)
    summary["search_failures"] = sum(not row["final"] for row in found.values())
    frequent = confusions(pairs.values(), SHOWN_CONFUSIONS)
    line = wer_line(total(s.errors for s in scored), f"exp/{header['run']} {header['split']}")
    details = {
        "normaliser": normaliser.name,
        "costs": COSTS,
        "bootstrap": settings.draws,
        "confusions": frequent,
        "by_speaker": {name: counted(errors) for name, errors in by_speaker(scored).items()},
        "by_utterance": {s.utt_id: {"speaker": s.speaker} | counted(s.errors) for s in scored},
    }
    beside = {
        "txt": page(line, scored, pairs),
        "speakers.tsv": speakers_tsv(scored),
        "utterances.tsv": utterances_tsv(scored, pairs),
        "ref.trn": trn((s.utt_id, s.speaker, pairs[s.utt_id][0]) for s in scored),
        "hyp.trn": trn((s.utt_id, s.speaker, pairs[s.utt_id][1]) for s in scored),
    }
    for suffix, text in beside.items():
        write_text(Path(output).with_suffix(f".{suffix}"), text)
    write_json(output, summary | details)
    missed = f"{summary['search_failures']} search failures (no final state reached)"
    return f"{line}; {closing_words(summary)}; {missed}"


def read_hypotheses(path: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the header, and each utterance's row."""
    header, *rows = read_jsonl(path) or [{}]
    if lacking := [key for key in HEADER if key not in header]:
        raise DamagedFileError(
            f"{path} has no {', '.join(lacking)} in its first line; rerun the decode stage"
        )
    return {key: header[key] for key in HEADER}, {row["id"]: row for row in rows}


def read_references(path: str) -> dict[str, tuple[str, str]]:
    """Return each utterance's speaker and text, in the manifest's order."""
    references = {}
    for cut in read_jsonl(path):
        (supervision,) = cut["supervisions"]
        references[cut["id"]] = supervision["speaker"], supervision["text"]
    return references


def check_same_utterances(
    hyp: str, found: dict[str, Any], manifest: str, references: dict[str, Any]
) -> None:
    """Raise ValueError unless both files hold the same utterances."""
    missing = [utt_id for utt_id in references if utt_id not in found]
    unknown = [utt_id for utt_id in found if utt_id not in references]
    if missing or unknown:
        raise ValueError(
            f"{hyp} has {len(found)} utterances but {manifest} has {len(references)}: "
            f"{len(missing)} missing{_first(missing)}, {len(unknown)} unknown{_first(unknown)}; "
            f"delete {hyp} and run make again to repeat decoding of this split"
        )


def _first(names: list[str]) -> str:
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""


if __name__ == "__main__":
    main(score, __doc__)
