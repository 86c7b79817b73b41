"""bundle.py README MODEL TUNED lang/index.json conf/lexicon.yaml feats/TRAIN.jsonl.gz
    score.SPLIT.json... OUTPUT

OUTPUT is a .tar or a folder with all that decoding and aligning need: MODEL (exp/RUN/model.json),
the decoding graph and scales of TUNED (exp/RUN/tuned.json), lexicon, features, versions,
WER lines and the licence of the data. The licence is the environment's ASR_LICENCE, else the
paragraph of that name in README, the recipe's.
"""

import asr_train.interrupt  # noqa: F401

import os
import platform
import re
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asr_train.bundle.store import System, write_bundle
from asr_train.data.features import total_sums
from asr_train.decode.posteriors import first_system
from asr_train.decode.words import Choice, Effort
from asr_train.files import read_json, read_text
from asr_train.jobs import main
from asr_train.lang.index import load_lang
from asr_train.lang.states import States
from asr_train.provenance import commit
from asr_train.report.tables import errors_of
from asr_train.schema import LexiconSettings, load
from asr_train.score.words import wer_line
from asr_train.search.arrays import read_arrays
from asr_train.search.graph import check_graph

UNKNOWN = "not stated; ask whoever made this bundle"


def bundle(
    readme: str, model: str, tuned: str, language: str, lexicon: str, features: str, *paths: str
) -> str:
    *scores, output = paths
    about, chosen, lang = read_json(model), read_json(tuned), load_lang(language)
    if about["states"] is None:
        raise ValueError(
            f"{model} was trained on alignments of another program, which alone can decode its "
            "scores; there is no bundle of it"
        )
    states = States.stored(about, model)
    described = Path(tuned).parent / "graph" / "HCLG.json"
    graph = check_graph(described, lang, states)
    adapts = about.get("fmllr") if about["kind"] != "gmm" else None
    choice = Choice(*(chosen[f.name] for f in fields(Choice)))
    system = System(
        name=Path(readme).parent.name,
        model=Path(model),
        first_model=None if adapts is None else first_system(Path(model), adapts),
        lang=lang,
        choice=choice,
        first=replace(choice, acoustic_scale=chosen["first_pass_scale"]),
        effort=Effort(*(chosen[f.name] for f in fields(Effort))),
        lexicon=load(LexiconSettings, lexicon),
        frames=total_sums(features),
        self_loop_scale=read_json(described)["self_loop_scale"],
    )
    made = {
        "wer": [wer_of(read_json(score)) for score in scores],
        "data_licence": os.environ.get("ASR_LICENCE") or licence_of(Path(readme)),
        "code_licence": "Apache-2.0",
        "versions": {
            **{"asr_train": version("asr-train"), "commit": commit()},
            **{"python": platform.python_version(), "torch": version("torch")},
        },
    }
    manifest = write_bundle(output, system, states, read_arrays(graph), made)
    size = sum(part["bytes"] for part in manifest["parts"])
    return f"bundle: {output}: {size / 1e6:.1f} MB; {'; '.join(manifest['wer'])}"


def wer_of(score: dict[str, Any]) -> str:
    return wer_line(errors_of(score), f"exp/{score['run']} {score['split']}")


def licence_of(readme: Path) -> str:
    """Return the paragraph of a recipe's README that begins with **Licence.**"""
    text = read_text(readme) if readme.exists() else ""
    found = re.search(r"^\*\*Licences?\.\*\* (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else UNKNOWN


if __name__ == "__main__":
    main(bundle, __doc__)
