"""What decides the bits of a run: its **identity**, the splits that fit together, torch's modes."""

import os
from typing import Any

import torch

from asr_train import files, jobs, schema
from asr_train.schema import RunSettings
from asr_train.shards.reader import Shards

ABOUT = ("feats", "norm", "states_hash")  # of the shards: decoding must find the same again


def check_same_task(train_shards: Shards, dev_shards: Shards) -> None:
    """Both splits have the same features and states, else ValueError."""
    for name in ("num_mels", "num_states"):
        ours, theirs = getattr(train_shards, name), getattr(dev_shards, name)
        if ours != theirs:
            raise ValueError(
                f"{train_shards.path} has {name} {ours} but {dev_shards.path} has {theirs}; "
                "rerun the shards stage of both"
            )
    for name in ABOUT:
        for shards in (train_shards, dev_shards):
            if name not in shards.about:
                raise ValueError(f"{shards.path} does not say {name!r}; rerun the shards stage")
        ours, theirs = train_shards.about[name], dev_shards.about[name]
        if ours != theirs:
            raise ValueError(
                f"{train_shards.path} has {name} {ours} but {dev_shards.path} has {theirs}; "
                "rerun the shards stage of both"
            )


def identity(
    run: RunSettings,
    train_shards: Shards,
    dev_shards: Shards,
    initial: dict[str, Any] | None = None,
) -> str:
    """A name for all that decides what training gives, but for the number of workers, which a
    run may change; indexes list their parts' checksums.

    Args:
        initial: model.json of the network that it begins with.
    """
    settings = schema.plain(run)
    for name in ("timeout_seconds", "check_steps", "workers"):
        del settings["comm"][name]  # decide nothing
    indexes = [train_shards.index, dev_shards.index]
    content = {"run": settings, "shards": indexes}
    if initial is not None:
        content["initial"] = initial["sha256"]
    return files.hash_of(content)


def same_bits_every_time(device: torch.device) -> None:
    """From here on torch is as parallel as JOBS says, and deterministic on a GPU as on a CPU.

    The processes of a machine, of which torchrun tells, share the JOBS.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, jobs.num_jobs() // processes))
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
