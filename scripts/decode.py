"""decode.py exp/RUN/model.json exp/RUN/tuned.json lang/index.json feats/SPLIT.jsonl.gz OUTPUT

OUTPUT is exp/RUN/hyp.SPLIT.jsonl: a line of settings, then the words of every utterance.
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from asr_train.data.features import open_feats
from asr_train.decode.posteriors import Scorer, load_scorer
from asr_train.decode.words import Choice, transcribe
from asr_train.files import read_json, write_jsonl
from asr_train.jobs import main
from asr_train.lang.index import Lang, load_lang
from asr_train.search.graph import load_graph


def decode(model: str, tuned: str, language: str, features: str, output: str) -> None:
    torch.set_num_threads(1)  # the worker processes are the threads
    feats, lang = open_feats(features), load_lang(language)
    scorer = load_scorer(model, feats, lang)
    choice, beam, max_active, graph, top_label = _tuned(Path(tuned), scorer, lang)
    path = Path(output)
    found = list(
        transcribe(
            scorer,
            graph,
            top_label,
            lang.lexicon.words,
            feats.utterances,
            choice,
            beam,
            max_active,
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


def _tuned(path: Path, scorer: Scorer, lang: Lang) -> tuple[Choice, float, int, Any, int]:
    """What the tune stage left: choice, beam, tokens a frame, graph and its largest label.

    Raises:
        ValueError: if they are damaged, or belong to another run, choice or language.
    """
    chosen, about = read_json(path), path.parent / "graph" / "HCLG.json"
    made = read_json(about)
    try:
        if chosen["run"] != scorer.run:
            raise ValueError(
                f"{path} is of the run {chosen['run']} but the model is of {scorer.run}"
            )
        for key in ("run", "insertion_penalty", "lm_weight"):
            if made[key] != chosen[key]:
                raise ValueError(f"{about} has {key} {made[key]} but {path} has {chosen[key]}")
        choice = Choice(*(chosen[f.name] for f in fields(Choice)))
        graph, top_label = load_graph(about, lang, scorer.states), made["top_label"]
        return choice, chosen["beam"], chosen["max_active"], graph, top_label
    except (ValueError, KeyError) as error:
        reason = f"{path} or {about} lacks {error}" if isinstance(error, KeyError) else str(error)
        # Whatever is wrong with the graph: tuned.json is what make looks at
        raise ValueError(f"{reason.split(';')[0]}; delete {path} and run make again") from error


if __name__ == "__main__":
    main(decode, __doc__)
