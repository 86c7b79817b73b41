"""gmm.py feats/TRAIN.jsonl.gz lang/index.json conf/ali.yaml exp/gmm/model.json

Flat start and training of the monophone Gaussian mixtures; a line a pass.
"""

import json
from pathlib import Path
from typing import Any

import torch

from asr_train.align.gmm import save_gmm, train
from asr_train.align.table import check_lost
from asr_train.align.viterbi import Lost
from asr_train.data.features import open_feats
from asr_train.files import write_jsonl
from asr_train.jobs import main
from asr_train.lang.index import load_lang
from asr_train.schema import AliSettings, load


def gmm(features: str, language: str, conf: str, output: str) -> None:
    torch.set_num_threads(1)  # the worker processes are the threads
    settings = load(AliSettings, conf)
    feats, lang = open_feats(features), load_lang(language)
    rows: list[dict[str, Any]] = []

    def log(row: dict[str, Any]) -> None:
        rows.append(row)
        if "flat_pass" in row:
            print(
                f"gmm: flat start {row['flat_pass']:2d}: {row['utterances']} utterances, "
                f"{row['loglik_per_frame']:9.4f} nats a frame, {row['seconds']:.1f} s",
                flush=True,
            )
            return
        print(
            f"gmm: pass {row['pass']:2d}: {row['gaussians']:5d} Gaussians, "
            f"{row['loglik_per_frame']:9.4f} nats a frame, {row['moved']:7.2%} of frames moved, "
            f"{row['lost']} lost, {row['retried']} retried, {row['seconds']:.1f} s",
            flush=True,
        )

    mixtures, outcomes = train(feats, lang, settings, log)
    lost = [
        [u.id, o.reason]
        for u, o in zip(feats.utterances, outcomes, strict=True)
        if isinstance(o, Lost)
    ]
    check_lost("gmm", lost, len(outcomes), settings.max_lost_share)
    path = Path(output)
    write_jsonl(path.parent / "passes.jsonl", rows)
    save_gmm(path, mixtures, settings.gmm, feats.settings, lang.states)
    hours = sum(u.seconds for u in feats.utterances) / 3600
    seconds = sum(row["seconds"] for row in rows)
    print(
        f"gmm: {len(mixtures.state_G)} Gaussians in {mixtures.num_states} states, "
        f"{seconds:.0f} s ({seconds / hours:.0f} s an hour of speech)"
        + (f"; lost: {json.dumps(lost[:5])}" if lost else "")
    )


if __name__ == "__main__":
    main(gmm, __doc__)
