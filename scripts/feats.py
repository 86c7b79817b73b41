"""feats.py manifests/SPLIT.jsonl.gz conf/feats.yaml feats/SPLIT.jsonl.gz

Compute the log-mel features of every cut, stored once, unstacked, as lhotse features.
"""

import asr_train.interrupt  # noqa: F401

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lhotse import CutSet

from asr_train.checks import spelled
from asr_train.data.corpus import read_cuts
from asr_train.data.features import Sums, extract, write_index
from asr_train.files import write_jsonl
from asr_train.jobs import main, parallel_map
from asr_train.schema import FeatsSettings, load

CUTS_A_PART = 200


def feats(manifest: str, conf: str, output: str) -> str:
    torch.set_num_threads(1)  # the worker processes are the threads
    settings = load(FeatsSettings, conf)
    lines, seconds = [], 0.0  # half as large as cuts, and workers do not copy them
    for cut in read_cuts(manifest):
        lines.append(json.dumps(cut))
        seconds += cut["duration"]
    if not lines:
        raise ValueError(f"{manifest} holds no cuts; delete it and run make again")
    folder = Path(output.removesuffix(".jsonl.gz"))
    starts = range(0, len(lines), CUTS_A_PART)
    parts = [folder / f"part-{i:05d}.h5" for i in range(len(starts))]
    sums: list[dict[str, Sums]] = []

    def part(i: int) -> tuple[list[dict[str, Any]], dict[str, Sums]]:
        some = map(json.loads, lines[starts[i] : starts[i] + CUTS_A_PART])
        return extract(list(CutSet.from_dicts(some)), settings, parts[i])

    def rows() -> Iterator[dict[str, Any]]:
        for some, own in parallel_map(part, range(len(starts)), f"features of {folder.name}"):
            sums.append(own)
            yield from some
        write_index(Path(output), settings, parts, sums)  # before the manifest appears

    write_jsonl(output, rows())
    for old in set(folder.glob("part-*.h5")) - set(parts):
        old.unlink()  # of a larger run
    frames = sum(own.frames for of_part in sums for own in of_part.values())
    return (
        f"feats: {folder.name}: {spelled(len(lines), 'utterance')}, {frames} frames "
        f"x {settings.num_mels} bins, {seconds / 3600:.3f} hours"
    )


if __name__ == "__main__":
    main(feats, __doc__)
