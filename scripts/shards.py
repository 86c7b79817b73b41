"""shards.py feats/SPLIT.jsonl.gz ali/MODEL/SPLIT.jsonl.gz conf/shards.yaml OUTPUT

OUTPUT is shards/MODEL/SPLIT/index.json.

Write features and alignments as webdataset tars with an index. Utterances are in the order of their
ids' hashes, not of the manifest, which is sorted by speaker: a training pool of neighbours then
holds many speakers. Those without alignment are left out, counted here and listed in the index.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import hashlib
from collections.abc import Iterator
from pathlib import Path

from asr_train import jobs, schema
from asr_train.align.table import Alignments, open_ali
from asr_train.checks import spelled
from asr_train.data.features import Feats, Utterance, open_feats
from asr_train.shards.sample import Sample
from asr_train.shards.writer import write_shards

SHOWN = 5  # ids of left-out utterances to print; the index lists them all


def shards(feats_path: str, ali_path: str, settings_path: str, index_path: str) -> str:
    feats, ali = open_feats(feats_path), open_ali(ali_path)
    settings = schema.load(schema.ShardsSettings, settings_path)
    ids = ali.ids
    aligned = [utterance for utterance in feats if utterance.id in ids]
    left_out = [utterance.id for utterance in feats if utterance.id not in ids]
    if not aligned:
        raise ValueError(
            f"none of the {len(left_out)} utterances of {feats_path} has an alignment among the "
            f"{len(ids)} of {ali_path}; are they of the same split? Rerun the ali stage"
        )
    index = write_shards(
        _samples(feats, ali, sorted(aligned, key=_hash), settings.norm),
        index_path,
        utterances_per_shard=settings.utterances,
        num_states=ali.num_states,
        about={
            "feats": schema.plain(feats.settings),
            "norm": schema.plain(settings.norm),
            "states_hash": ali.states_hash,
            "states": ali.states,
            "self_loops": ali.self_loops,
        },
        left_out=left_out,
        total=len(aligned),
    )
    named = ": " + ", ".join(left_out[:SHOWN]) if left_out else ""
    return (
        f"shards: {Path(index_path).parent.name}: {spelled(index['num_samples'], 'utterance')}, "
        f"{index['num_frames']} frames x {index['num_mels']} bins in "
        f"{spelled(len(index['parts']), 'tar')}; "
        f"{len(left_out)} left out without alignment{named}{', ...' * (len(left_out) > SHOWN)}"
    )


def _samples(
    feats: Feats, ali: Alignments, utterances: list[Utterance], norm: schema.NormSettings
) -> Iterator[Sample]:
    normalise = feats.normaliser(norm)
    for utterance in utterances:
        feats_TF = normalise(utterance, feats.load(utterance))
        yield Sample(utterance.id, feats_TF, ali.load(utterance.id), utterance.words)


def _hash(utterance: Utterance) -> bytes:
    return hashlib.sha256(utterance.id.encode()).digest()


if __name__ == "__main__":
    jobs.main(shards, __doc__)
