"""**Pretraining** by a single worker on a part of TRAIN -> model.json that a run begins with.

Layer by layer (Strom, 2015; Seide et al., 2011): a network of one hidden layer is trained, then
one of two that begins with that layer, and so on up to the run's own. Or, for block momentum, the
whole network on a part of TRAIN (Ladkat et al., 2019: 250 of 2000 hours on one GPU). A network of
low rank (`model.dnn.rank`) begins with a trained one of full rank. Each is a run in a folder of its
own, and resumes from its newest checkpoint. Runs that begin with the same network share it.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from asr_train import files
from asr_train.locks import locked
from asr_train.schema import CommSettings, Method, RunSettings, Scaling
from asr_train.shards.reader import Shards
from asr_train.train.identity import identity
from asr_train.train.loop import train
from asr_train.train.state import NotFiniteError

POLL_SECONDS = 0.5


def pretrained(
    run: RunSettings,
    train_shards: Shards,
    dev_shards: Shards,
    folder: Path,
    device: torch.device,
    leads: bool,
) -> Path | None:
    """Return the model.json that a run begins with; None: random weights.

    Args:
        folder: of the run, which all processes share; the network is beside it, in pretrained/HASH,
            a hash of settings and data.
        leads: whether this process trains it; the others wait for it without a limit: their
            launcher ends them if the one that trains dies.
    Raises:
        as `train.loop.train`; a NotFiniteError names the setting that has the rate.
    """
    if run.optim.pretrain is None:
        return None
    part = train_shards.some(run.optim.pretrain.share)
    todo = list(stages(run))
    decides = [(identity(stage, part, dev_shards), stage.optim.epochs) for _, stage in todo]
    folder = folder.parent / "pretrained" / files.hash_of(decides)
    paths = [folder / name / "model.json" for name, _ in todo]
    if not leads:
        while not paths[-1].exists():
            time.sleep(POLL_SECONDS)
        return paths[-1]
    if why := part.other_share(train_shards, run.optim.pretrain.share, "optim.pretrain.share"):
        print(why, flush=True)
    made = None
    with locked(folder / ".lock", "", waits=True):  # of two runs that want it, one trains it
        for path, (name, stage) in zip(paths, todo, strict=True):
            if not path.exists():
                try:
                    train(stage, part, dev_shards, path.parent, device, initial=made)
                except NotFiniteError as error:
                    why = str(error)
                    if run.optim.pretrain.rate is not None:
                        why = why.replace("optim.rate", "optim.pretrain.rate")
                    raise NotFiniteError(f"pre-training ({name}): {why}") from error
            made = path
    return made


def stages(run: RunSettings) -> Iterator[tuple[str, RunSettings]]:
    """Yield the networks to train, one after the other: a folder's name, and settings."""
    given = run.optim.pretrain
    assert given is not None
    rate = given.rate or run.optim.rate
    minibatch_frames = given.minibatch_frames or run.optim.minibatch_frames
    optim = run.optim.at_one_rate(rate, minibatch_frames, given.epochs)
    # Those without effect here are fixed, so that runs which differ in them share the networks
    optim = replace(optim, newbob_gain=0.0, warmup_epochs=0.0, share=1.0, keep_epochs=False)
    optim = replace(optim, scaling=Scaling.sum)
    comm = CommSettings(method=Method.sgd)
    dnn = run.model.dnn
    if dnn is not None:
        dnn = replace(dnn, rank=None)
    if not given.layer_by_layer or dnn is None:
        yield "whole", RunSettings(model=replace(run.model, dnn=dnn), optim=optim, comm=comm)
        return
    for layers in range(1, dnn.layers + 1):
        model = replace(run.model, dnn=replace(dnn, layers=layers))
        yield f"layers-{layers}", RunSettings(model=model, optim=optim, comm=comm)
