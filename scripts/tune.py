"""tune.py MODEL conf/decode.yaml conf/normaliser.yaml lang/index.json feats/DEV.jsonl.gz \\
    [RECORD] OUTPUT

MODEL is exp/RUN/model.json; OUTPUT is exp/RUN/tuned.json, exp/RUN-bigram/tuned.json with another
grammar, or exp/RUN-recorded/tuned.json with the scales in the RECORD of RUN, for which MODEL may be
any. Choose the acoustic scale, insertion penalty and LM weight with the fewest word errors on DEV,
words normalised as in scoring, and write the decoding graph made with them (exp/RUN/graph/). TEST
has no part in the choice.
"""

import asr_train.interrupt  # noqa: F401

from dataclasses import fields, replace
from pathlib import Path

from asr_train.data.features import open_feats
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.scorer import known_states
from asr_train.decode.tune import LISTS, middle, tune
from asr_train.decode.words import Effort
from asr_train.files import write_json
from asr_train.jobs import main, peak_megabytes
from asr_train.lang.index import load_lang
from asr_train.paper.records import Record, read_record
from asr_train.schema import DecodeSettings, NormaliserSettings, load, plain
from asr_train.score.normalise import load_normaliser
from asr_train.search.graph import write_graph


def tuned(model: str, conf: str, normaliser: str, language: str, features: str, *more: str) -> str:
    *recorded, output = more
    settings = load(DecodeSettings, conf)
    for record in recorded:
        settings = replace(settings, **only(read_record(record)))
    normalised = load_normaliser(load(NormaliserSettings, normaliser))
    feats, lang = open_feats(features), load_lang(language)
    scorer = load_scorer(model, feats, lang)
    found = tune(
        scorer,
        lang,
        feats.utterances,
        settings,
        normalised,
        lambda line: print(
            f"tune: {scorer.run}: {line}, peak memory {peak_megabytes():.0f} MB", flush=True
        ),
    )
    path, best, graph = Path(output), found.best, found.graph
    run = path.parent.name
    weights = {"lm_weight": best.lm_weight, "insertion_penalty": best.insertion_penalty}
    about = {"run": run, **weights, "self_loop_scale": settings.self_loop_scale}
    write_graph(path.parent / "graph" / "HCLG.json", graph, lang, known_states(scorer), about)
    split, errors = Path(features).name.removesuffix(".jsonl.gz"), dict(found.tried)[best]
    write_json(
        path,
        {
            "run": run,
            "acoustic_scale": best.acoustic_scale,
            **weights,
            "first_pass_scale": middle(settings).acoustic_scale,
            **{f.name: getattr(settings, f.name) for f in fields(Effort)},
            "normaliser": normalised.name,
            "wer": errors.rate,
            "grown": found.grown,
            "at_end": found.at_end,
            "tried": [{**plain(c), "errors": e.errors, "words": e.words} for c, e in found.tried],
        },
    )
    return (
        f"tune: {run}: acoustic scale {best.acoustic_scale:g}, insertion penalty "
        f"{best.insertion_penalty:g}, LM weight {best.lm_weight:g}: {errors.rate:.2%} WER on "
        f"{split} (of {len(found.tried)} choices; "
        f"graph: {len(graph.final_N)} nodes, {len(graph.arcs_A)} arcs, "
        f"{(path.parent / 'graph' / 'HCLG.fst').stat().st_size / 1e6:.1f} MB)"
        + "".join(
            f"; decode.{name} was extended to [{', '.join(f'{v:g}' for v in values)}]"
            for name, values in found.grown.items()
        )
        + "".join(
            f"; the best value of decode.{name} is at the end of its list" for name in found.at_end
        )
    )


def only(record: Record) -> dict[str, list[float]]:
    """Return lists of scales with those alone that the record's run was decoded with."""
    if not record.trained.scores:
        raise ValueError(
            f"the record of {record.trained.run} has no word errors; call make without RECORDS, "
            "or delete it, to train the run here"
        )
    return {lists: [record.trained.scores[0][name]] for name, lists in LISTS.items()}


if __name__ == "__main__":
    main(tuned, __doc__)
