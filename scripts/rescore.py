"""Score n-best lists with a larger language model.

    rescore.py tune exp/RUN/hyp.DEV.jsonl manifests/DEV.jsonl.gz conf/decode.yaml \\
        conf/normaliser.yaml lm/index.json exp/RUN-rescored/tuned.json
    rescore.py apply exp/RUN/hyp.SPLIT.jsonl exp/RUN-rescored/tuned.json lm/index.json \\
        exp/RUN-rescored/hyp.SPLIT.jsonl

`tune` chooses the large model's weight on DEV; `apply` writes the words that come out with it.
"""

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

CHUNK = 50  # lists handed to a worker at a time


def rescore(what: str, *paths: str) -> None:
    if what not in


STEPS: dict[str, Callable[..., None]] = {"tune": tune, "apply": apply}

if __name__ == "__main__":
    main(rescore, __doc__)
