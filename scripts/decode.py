"""decode.py exp/RUN/model.json exp/RUN/tuned.json lang/index.json feats/SPLIT.jsonl.gz OUTPUT

OUTPUT is exp/RUN/hyp.SPLIT.jsonl: a line of settings, then the words of every utterance.
"""

from dataclasses import asdict
from pathlib import Path

import torch

from asr_train.data.features import open_feats
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.words import Choice, transcribe
from asr_train.files import read_json, write_jsonl
from asr_train.jobs import main
from asr_train.lang.index import load_lang
from asr_train.search.graph import load_graph


def decode(model: str, tuned: str, language: str, features: str, output: str) -> None:
    torch.set_num_threads(1)  # the worker processes are the threads
    feats, lang = open_feats(features), load_lang(language)
    scorer = load_scorer(model, feats, lang.states)
    chosen = read_json(tuned)
    path = Path(output)
    about = path.parent / "graph" / "HCLG.json"
    graph, label = load_graph(about, lang), read_json(about)["top_label"]
    choice = Choice(chosen["acoustic_scale"], chosen["insertion_penalty"], chosen["lm_weight"])
    found = list(
        transcribe(
            scorer,
            graph,
            label,
            lang.lexicon.words,
            feats.utterances,
            choice,
            chosen["beam"],
            chosen["max_active"],
        )
    )
    split = path.name.removeprefix("hyp.").removesuffix(".jsonl")
    factor = sum(h.seconds for h in found) / sum(u.seconds for u in feats.utterances)
    header = {"run": scorer.run, "split": split, "real_time_factor": round(factor, 5)}
    write_jsonl(path, [{**header, **asdict(choice)}, *(asdict(h) for h in found)])
    missed = [h.id for h in found if not h.final]
    print(
        f"decode: {scorer.run} {split}: {len(found)} utterances, real-time factor {factor:.4f}"
        + (f"; the search did not end well in {len(missed)}: {missed[:5]}" if missed else "")
    )


if __name__ == "__main__":
    main(decode, __doc__)
