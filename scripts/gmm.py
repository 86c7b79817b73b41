"""Train a system of Gaussian mixtures; print a line per pass.

    gmm.py feats/TRAIN.jsonl.gz lang/index.json conf/ali.yaml conf/gmm/NAME.yaml \\
        [exp/BEFORE/model.json] exp/NAME/model.json

Starts flat, or from the alignments of the system given before.
"""

import asr_train.interrupt  # noqa: F401

import json
from pathlib import Path
from typing import Any

from asr_train.align.adapt import speakers_line
from asr_train.align.gmm import load_gmm, save_gmm
from asr_train.align.table import check_lost
from asr_train.align.train import train
from asr_train.align.tree import TreeError
from asr_train.align.viterbi import Lost
from asr_train.checks import spelled
from asr_train.data.features import open_feats
from asr_train.files import write_jsonl
from asr_train.jobs import main
from asr_train.lang.index import load_lang
from asr_train.schema import AliSettings, GmmSettings, load, plain
from asr_train.search.graph import check_phones


def gmm(features: str, language: str, ali_conf: str, conf: str, *paths: str) -> str:
    *before_path, output = paths
    path = Path(output)
    name = path.parent.name
    settings, ali = load(GmmSettings, conf), load(AliSettings, ali_conf)
    if (settings.flat is None) != bool(before_path):
        raise ValueError(
            f"{name} has {'no' if settings.flat is None else 'a'} flat start (gmm.{name}.flat) but "
            f"{'no' if not before_path else 'a'} system before it; list the systems of GMMS in "
            "order"
        )
    feats, lang = open_feats(features), load_lang(language)
    before = load_gmm(Path(before_path[0])) if before_path else None
    if before is not None:
        check_phones(lang, before.states)
    rows: list[dict[str, Any]] = []

    def log(row: dict[str, Any]) -> None:
        rows.append(row)
        if row.get("realigned", True):  # without realignment there is nothing to show but seconds
            print(f"gmm: {name}: {_line(row)}", flush=True)

    try:
        model, outcomes = train(feats, lang, settings, ali, before, log)
    except TreeError as error:
        raise ValueError(f"gmm.{name}.{error}") from error
    lost = [
        [u.id, o.reason]
        for u, o in zip(feats.utterances, outcomes, strict=True)
        if isinstance(o, Lost)
    ]
    check_lost(f"gmm: {name}", lost, len(outcomes), ali.max_lost_share)
    write_jsonl(path.parent / "passes.jsonl", rows)
    save_gmm(path, model, feats.settings, {"gmm": plain(settings)})
    hours = sum(u.seconds for u in feats.utterances) / 3600
    seconds = sum(row["seconds"] for row in rows)
    return (
        f"gmm: {name}: {len(model.gmm.state_G)} Gaussians in {model.gmm.num_states} states, "
        f"{seconds / hours:.0f} s per hour of speech"
        + (f"; lost: {json.dumps(lost[:5])}" if lost else "")
    )


def _line(row: dict[str, Any]) -> str:
    """Format a row of the log for the terminal."""
    if "flat_pass" in row:
        what = f"flat start {row['flat_pass']:2d}: {spelled(row['utterances'], 'utterance')}"
        return f"{what}, {row['loglik_per_frame']:9.4f} nats per frame, {row['seconds']:.1f} s"
    if "start" in row:
        return (
            f"start: aligned by {row['start']}, {row['loglik_per_frame']:9.4f} nats per frame, "
            f"{row['lost']} lost; {row['states']} states, {row['seconds']:.1f} s" + _speakers(row)
        )
    return (
        f"pass {row['pass']:2d}: {row['gaussians']:5d} Gaussians, "
        f"{row['loglik_per_frame']:9.4f} nats per frame, {row['moved']:7.2%} of frames moved, "
        f"{row['lost']} lost, {row['retried']} retried, {row['seconds']:.1f} s"
        + (f"; MLLT gains {row['mllt_gain']:.3f} nats per frame" if "mllt_gain" in row else "")
        + _speakers(row)
    )


def _speakers(row: dict[str, Any]) -> str:
    return f"; {speakers_line(row['speakers'])}" if "speakers" in row else ""


if __name__ == "__main__":
    main(gmm, __doc__)
