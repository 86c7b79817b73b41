"""feats.py manifests/SPLIT.jsonl.gz conf/feats.yaml feats/SPLIT.jsonl.gz

Compute the log-mel features of every cut, stored once, unstacked, as lhotse features.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
from pathlib import Path

import torch
from lhotse import CutSet

from asr_train.checks import spelled
from asr_train.data.corpus import read_cuts
from asr_train.data.features import extract, write_index
from asr_train.files import write_jsonl
from asr_train.jobs import main, parallel_map
from asr_train.schema import FeatsSettings, load

CUTS_A_PART = 200


def feats(manifest: str, conf: str, output: str) -> str:
    torch.set_num_threads(1)  # the worker processes are the threads
    settings = load(FeatsSettings, conf)
    cuts = list(CutSet.from_dicts(read_cuts(manifest)))
    if not cuts:
        raise ValueError(f"{manifest} holds no cuts; delete it and run make again")
    folder = Path(output.removesuffix(".jsonl.gz"))
    starts = range(0, len(cuts), CUTS_A_PART)
    parts = [folder / f"part-{i:05d}.h5" for i in range(len(starts))]
    done = parallel_map(
        lambda i: extract(cuts[starts[i] : starts[i] + CUTS_A_PART], settings, parts[i]),
        range(len(starts)),
        f"features of {folder.name}",
    )
    rows, abouts = zip(*done, strict=True)
    index = write_index(Path(output), settings, parts, list(abouts))
    write_jsonl(output, (row for some in rows for row in some))
    for old in set(folder.glob("part-*.h5")) - set(parts):
        old.unlink()  # of a larger run
    hours = sum(cut.duration for cut in cuts) / 3600
    return (
        f"feats: {folder.name}: {spelled(len(cuts), 'utterance')}, {index['frames']} frames "
        f"x {settings.num_mels} bins, {hours:.3f} hours"
    )


if __name__ == "__main__":
    main(feats, __doc__)
