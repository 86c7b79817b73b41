"""What determines a run's results: its **identity**, splits that match, and torch's modes."""

import os
import secrets
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_train import files, jobs, schema
from asr_train.checks import inputs_named
from asr_train.comm.exchange import Exchange
from asr_train.schema import Precision, RunSettings
from asr_train.shards.reader import Shards

FORMAT = 4  # of checkpoints: one of another format is of another run
PRODUCTS_PER_THREAD = 2**23  # about 1.5 ms forward and backward
APPEARS_SECONDS = 60.0  # what one machine writes must have appeared on the others
ABOUT = ("feats", "norm", "states_hash")  # of the shards: must be the same in decoding


def check_same_task(train_shards: Shards, dev_shards: Shards) -> None:
    """Raise ValueError unless both splits have the same features and states."""
    check_same_inputs(train_shards, f"{dev_shards.path} has", dev_shards.about)
    if train_shards.about.get("lattices") != dev_shards.about.get("lattices"):
        raise ValueError(
            f"{train_shards.path} and {dev_shards.path} have lattices that were made otherwise; "
            "delete both and run make again"
        )
    splits = train_shards, dev_shards
    for name in ("num_mels", "num_states", *ABOUT):
        ours, theirs = ({**shards.about, **shards.index}.get(name) for shards in splits)
        for shards, value in zip(splits, (ours, theirs), strict=True):
            if value is None:
                raise ValueError(f"{shards.path} does not say {name!r}; rerun the shards stage")
        if ours != theirs:
            raise ValueError(
                f"{train_shards.path} has {name} {ours} but {dev_shards.path} has {theirs}; "
                "rerun the shards stage of both"
            )


def check_same_inputs(shards: Shards, other: str, about: dict[str, Any]) -> None:
    """Raise ValueError unless a network, or another split, has the inputs of these shards.

    Args:
        other: for the message: what is compared, and a verb.
        about: its entries; "fmllr" names the system whose fMLLR features are read, none log-mel.
    """
    ours, theirs = (each.get("fmllr") for each in (shards.about, about))
    if ours != theirs:
        raise ValueError(
            f"{shards.path} has {inputs_named(ours)} but {other} {inputs_named(theirs)}; run "
            "make again, with the same shards.inputs for both"
        )


def identity(
    run: RunSettings,
    train_shards: Shards,
    dev_shards: Shards,
    initial: dict[str, Any] | None = None,
) -> str:
    """Return a hash of all that determines a run's results, except numbers of workers and epochs.

    A run may change the first, and have more epochs: none depends on their number. Indexes of
    shards contain checksums of their data.

    Args:
        initial: model.json of the network that it begins with.
    """
    settings = schema.plain(run)
    for name in ("timeout_seconds", "check_steps", "workers"):
        del settings["comm"][name]  # do not matter
    for name in ("keep_checkpoints", "log_steps", "epochs"):
        del settings["optim"][name]
    if "objective" in settings:
        del settings["objective"]["epochs"]
    indexes = [train_shards.index, dev_shards.index]
    content = {"format": FORMAT, "run": settings, "shards": indexes}
    if initial is not None:
        content["initial"] = initial["sha256"]
    return files.hash_of(content)


def check_same_everywhere(
    exchange: Exchange, run: RunSettings, identity: str, folder: Path
) -> None:
    """Raise ValueError unless all processes have the same settings, shards and folder.

    Processes on several machines are started by hand, each with the files of its machine; without
    this, models of different settings would be mixed, and a run could not be resumed.

    Args:
        identity: of the run, as this process would train it.
    """
    if len(exchange.local) == len(exchange):
        return
    leads = exchange.members[0] in exchange.local
    path = folder / exchange.of_first(f".tmp.same-folder-{secrets.token_hex(8)}")
    if leads:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    exchange.barrier()
    until = time.monotonic() + min(APPEARS_SECONDS, run.comm.timeout_seconds / 2)  # others wait
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.2)
    has = {
        "settings or shards": files.hash_of([schema.plain(run), identity]),
        "folders": path.exists(),
    }
    rows = exchange.plain([list(has.values())] * len(exchange.local))
    if leads:
        path.unlink()
    for at, what in enumerate(has):
        others = [str(exchange.members[w]) for w, row in enumerate(rows) if row[at] != rows[0][at]]
        if others:
            raise ValueError(
                f"workers {', '.join(others)} have other {what} than worker 0; give all machines "
                f"the same settings and shards, and {folder} on a file system that they share"
            )


class PrecisionError(ValueError):
    """A network cannot be trained with a precision on this machine."""


def check_precision(precision: Precision, model: nn.Module, device: torch.device) -> None:
    """Raise PrecisionError for an LSTM in bf16 on a CPU whose oneDNN has no such LSTM."""
    recurrent = any(isinstance(module, nn.LSTM) for module in model.modules())
    if precision is not Precision.bf16 or not recurrent or device.type != "cpu":
        return
    if torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise PrecisionError(
            "optim.precision is bf16, but torch trains an LSTM in bf16 only on a GPU or on a CPU "
            "with AVX-512, which this one lacks; set optim.precision=fp32"
        )


def same_bits_every_time(
    device: torch.device, products: int, precision: Precision = Precision.fp32
) -> None:
    """Set torch's number of threads by JOBS, and make it deterministic on a GPU as on a CPU.

    The processes of a machine, counted by torchrun, share the JOBS. Threads that are woken for a
    small minibatch save little or nothing: with 8 frames of 250,000 parameters, two threads take 85
    to 230 % of one's time, with 256 frames 73 %.

    Args:
        products: of a minibatch: a network's parameters times frames.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    most = max(1, jobs.num_jobs() // processes)
    torch.set_num_threads(min(most, max(1, products // PRODUCTS_PER_THREAD)))
    if device.type == "cuda":
        # Makes cuBLAS deterministic; read when the GPU is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_tf32 = precision is Precision.tf32
        # Of an LSTM's cells, which no autocast to bf16 reaches (model.lstm); True by default
        torch.backends.cudnn.allow_tf32 = precision is not Precision.fp32
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Else every torch.empty is filled with NaN: a pass over memory that is written anyway
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
