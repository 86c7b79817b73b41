"""ali.py feats/SPLIT.jsonl.gz lang/index.json exp/MODEL/model.json conf/ali.yaml OUTPUT

OUTPUT is ali/MODEL/SPLIT.jsonl.gz: the state of every frame according to MODEL. Beside it,
SPLIT.status.tsv has the outcome of each utterance, and SPLIT.report.json measures of quality.
"""

import asr_train.interrupt  # noqa: F401

import time
from pathlib import Path

from asr_train.align import table
from asr_train.align.viterbi import Aligned, Aligner, Lost, transcripts
from asr_train.data.features import Feats, open_feats
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.scorer import known_states
from asr_train.files import write_json
from asr_train.jobs import main
from asr_train.lang.index import load_lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings, load

LONGEST_SHOWN = 20.0  # seconds; longer utterances are unreadable as a picture


def ali(features: str, language: str, model: str, conf: str, output: str) -> str:
    start = time.time()
    settings = load(AliSettings, conf)
    feats, lang = open_feats(features), load_lang(language)
    scorer = load_scorer(model, feats, lang)
    states = known_states(scorer)
    path, spoken = Path(output), transcripts(feats.utterances)
    split = path.name.removesuffix(".jsonl.gz")
    speakers = None
    if scorer.adapt is not None:
        scorer, speakers = scorer.adapt(spoken, lang, settings)
    aligner = Aligner(lang, states, scorer.loop_S, settings)
    outcomes = aligner.align_all(scorer.scores, spoken, f"aligning {split}")
    shift = feats.settings.shift_seconds
    summary = table.report(split, feats.utterances, outcomes, states, shift)
    summary |= {"model": scorer.run, "speakers": speakers}
    table.check_lost(
        f"ali: {scorer.run}: {split}", summary["lost"], len(outcomes), settings.max_lost_share
    )
    about = {"model": scorer.run, "self_loops": scorer.loop_S.tolist()}
    summary["example"] = _example(feats, outcomes, states)
    summary["seconds"] = round(time.time() - start, 2)
    write_json(path.with_name(f"{split}.report.json"), summary)
    table.write_alignments(
        path, feats.utterances, outcomes, feats.settings, states, about, scorer.speakers
    )
    bounds = summary["boundaries"]
    kept = len(outcomes) - len(summary["lost"])
    return (
        f"ali: {scorer.run}: {split}: {kept} of {len(outcomes)} utterances, "
        f"{summary['loglik_per_frame']:.3f} nats per frame, {summary['silence_share']:.1%} silence"
        + (
            f"; phone boundaries: median {bounds['median_ms']:.1f} ms off, "
            f"{bounds['within_20ms']:.1%} within 20 ms, {bounds['within_50ms']:.1%} within 50 ms"
            if bounds
            else ""
        )
        + "".join(f"; lost {utt_id}: {reason}" for utt_id, reason in summary["lost"][:10])
    )


def _example(
    feats: Feats, outcomes: list[Aligned | Lost], states: States
) -> dict[str, object] | None:
    """Return the utterance nearest to three seconds, for the picture in the report."""
    pairs = [
        (u, o) for u, o in zip(feats.utterances, outcomes, strict=True) if isinstance(o, Aligned)
    ]
    if not pairs:
        return None
    utterance, outcome = min(pairs, key=lambda pair: (abs(pair[0].seconds - 3), pair[0].id))
    if utterance.seconds > LONGEST_SHOWN:
        return None
    shift = feats.settings.shift_seconds
    return {
        "id": utterance.id,
        "words": utterance.words,
        "shift_seconds": shift,
        "logmel": feats.load(utterance).round(3).astype(float).tolist(),
        "aligned": table.phones_in_seconds(states, outcome, shift),
        "true": table.true_phones(utterance.row),
    }


if __name__ == "__main__":
    main(ali, __doc__)
