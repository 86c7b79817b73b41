"""A task that a small network learns in a second: each state is a cluster of frames."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from made_lattices import random_arcs

from asr_train import schema
from asr_train.shards.reader import Shards
from asr_train.shards.sample import Sample
from asr_train.shards.writer import write_shards

NUM_MELS, NUM_STATES = 4, 6
KAPPA = 0.5  # the scale of scores against lattices
ABOUT = {"feats": {"num_mels": NUM_MELS}, "norm": {"by": "none"}, "states_hash": "abc"}


def samples(seed: int, count: int) -> Iterator[Sample]:
    """Yield utterances of 9 to 45 frames; the centres' deviation is three times the clusters'."""
    centre_SF = 3 * np.random.default_rng(0).standard_normal((NUM_STATES, NUM_MELS))
    rng = np.random.default_rng(seed)
    for n in range(count):
        ali_T = np.repeat(rng.integers(NUM_STATES, size=9), rng.integers(1, 6, size=9))
        feats_TF = centre_SF[ali_T] + rng.standard_normal((len(ali_T), NUM_MELS))
        yield Sample(f"utt{n:03d}", feats_TF.astype(np.float32), ali_T.astype(np.int32), "A")


def shards(folder: Path, seed: int, count: int, lattices: bool = False, **about: object) -> Shards:
    """Write those utterances, with random lattices if asked for, and open them."""
    found = samples(seed, count)
    if lattices:
        rng = np.random.default_rng(seed)
        found = (replace(s, lattice_A=random_arcs(rng, s.ali_T, NUM_STATES)) for s in found)
        about["lattices"] = {"acoustic_scale": KAPPA, "silence": [0]}
    write_shards(
        found,
        folder / "index.json",
        utterances_per_shard=20,
        num_states=NUM_STATES,
        about={**ABOUT, **about},
    )
    return Shards(folder / "index.json")


def steps_of(shards: Shards) -> list[int]:
    """Return the minibatches of 32 frames that each of 4 workers has in the first epoch."""
    return [-(-int(shards.frames(0, w, 4, epoch=0).sum()) // 32) for w in range(4)]


LSTM = {
    "layers": 2,
    "width": 12,
    "stack": 3,
    "subsample": 2,
    "delay": 1,
    "piece": 8,
    "warm": 3,
    "dropout": 0.1,
}


def settings(
    comm: dict | None = None, lstm: dict | None = None, dropout: float = 0.0, **optim: object
) -> schema.RunSettings:
    """Return a network of two small layers for three epochs; `optim` changes how it is trained.

    Args:
        dropout: of the feed-forward network.
    """
    values = {
        "rate": 0.02,
        "momentum": 0.5,
        "minibatch_frames": 32,
        "epochs": 3,
        "halving": "each_epoch",
        "hold_epochs": 1,
        "newbob_gain": 0.01,
        "pool_frames": 500,
        "checkpoint_steps": 10,
        "log_steps": 7,
        "keep_checkpoints": 3,
        "seed": 0,
    }
    dnn = {
        "layers": 2,
        "width": 16,
        "nonlinearity": "sigmoid",
        "context_left": 2,
        "context_right": 1,
        "dropout": dropout,
    }
    return schema.build(
        schema.RunSettings,
        {
            "model": {"lstm": lstm} if lstm else {"dnn": dnn},
            "optim": {**values, **optim},
            "comm": comm or {"method": "sgd"},
        },
    )


def rows(folder: Path) -> list[dict]:
    """Return a run's log without what differs between runs."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in found]


def outcome(folder: Path) -> tuple[bytes, dict, list[dict]]:
    """Return a run's weights, its model.json without the run's name, and its log."""
    about = json.loads((folder / "model.json").read_text())
    return (folder / "model.pt").read_bytes(), {**about, "run": None}, rows(folder)
