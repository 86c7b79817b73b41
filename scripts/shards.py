"""shards.py feats/SPLIT.jsonl.gz ali/MODEL/SPLIT.jsonl.gz conf/shards.yaml \\
    [exp/MODEL/model.json exp/MODEL/tuned.json lang-weak/index.json conf/decode.yaml \\
    conf/lattices.yaml] OUTPUT

OUTPUT is shards/MODEL/SPLIT/index.json, or shards/MODEL-lattices/SPLIT/index.json.

Write features and alignments as webdataset tars with an index. Utterances are in the order of their
ids' hashes, not of the manifest, which is sorted by speaker: a training pool of neighbours then
holds many speakers. Those without alignment are left out, counted here and listed in the index.

With a model, each utterance also gets a lattice, for sequence training: the split is decoded with a
weak language model, at the scales chosen on DEV.
"""

import asr_train.interrupt  # noqa: F401

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from asr_train import files, jobs, schema
from asr_train.align.front import Read, logmel
from asr_train.align.speakers import Speakers
from asr_train.align.table import Alignments
from asr_train.checks import spelled
from asr_train.data.features import Feats, Utterance, open_feats
from asr_train.decode.lattices import Competitors
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.scorer import known_states
from asr_train.decode.words import CHUNK, Choice, Effort
from asr_train.lang.index import load_lang
from asr_train.lang.lexicon import SILENCE
from asr_train.search.graph import decoding_graph, grammar_hash, with_penalty
from asr_train.shards.sample import Sample
from asr_train.shards.writer import write_shards

SHOWN = 5  # ids of left-out utterances to print; the index lists them all


def shards(feats_path: str, ali_path: str, settings_path: str, *paths: str) -> str:
    *search, index_path = paths
    feats, ali = open_feats(feats_path), Alignments(ali_path)
    settings = schema.load(schema.ShardsSettings, settings_path)
    ids = ali.ids
    aligned = [utterance for utterance in feats if utterance.id in ids]
    left_out = [utterance.id for utterance in feats if utterance.id not in ids]
    if not aligned:
        raise ValueError(
            f"none of the {len(left_out)} utterances of {feats_path} has an alignment among the "
            f"{len(ids)} of {ali_path}; are they of the same split? Rerun the ali stage"
        )
    utterances = sorted(aligned, key=_hash)
    read, inputs = _inputs(feats, ali, settings, ali_path)
    adapted = ali.speakers if settings.inputs is schema.Inputs.fmllr else None
    found = _Found(feats, ali, adapted, utterances, *search) if search else None
    samples = (Sample(u.id, read(u), ali.load(u.id), u.words) for u in utterances)
    index = write_shards(
        samples if found is None else found.added(samples, settings.utterances),
        index_path,
        utterances_per_shard=settings.utterances,
        num_states=ali.num_states,
        about={
            "feats": schema.plain(feats.settings),
            **inputs,
            "states_hash": ali.states_hash,
            "states": ali.states,
            "self_loops": ali.self_loops,
            **({} if found is None else {"lattices": found.about}),
        },
        # Read after the last sample
        left_out=left_out if found is None else itertools.chain(left_out, found.lost),
        total=len(aligned),
    )
    named = ": " + ", ".join(left_out[:SHOWN]) if left_out else ""
    return (
        f"shards: {Path(index_path).parent.name}: {spelled(index['num_samples'], 'utterance')}, "
        f"{index['num_frames']} frames x {index['num_mels']} bins in "
        f"{spelled(len(index['parts']), 'tar')}; "
        f"{len(left_out)} left out without alignment{named}{', ...' * (len(left_out) > SHOWN)}"
        + ("" if found is None else f"; {found}")
    )


def _inputs(
    feats: Feats, ali: Alignments, settings: schema.ShardsSettings, named: str
) -> tuple[Read, dict[str, Any]]:
    """Return how the network's inputs are read, and what the index says of them."""
    if settings.inputs is schema.Inputs.logmel:
        return logmel(feats, settings.norm), {"norm": schema.plain(settings.norm)}
    if ali.speakers is None:
        raise ValueError(
            f"shards.inputs is fmllr, but {named} has no speaker transforms: its model is not "
            "speaker-adaptive (GMMS='mono tri lda sat'), or aligned before they were stored; "
            "delete it and run make again"
        )
    # Cepstra were normalised by the front end; the network normalises by TRAIN's mean and variance
    norm = schema.NormSettings(by=schema.NormBy.none, variance=False)
    return ali.speakers.read(feats), {"norm": schema.plain(norm), "fmllr": ali.speakers.system}


class _Found:
    """The lattices of a split's utterances, and how many there are.

    Attributes:
        about: how they were made, for the index.
        lost: the utterances that have none, and why.
    """

    def __init__(
        self,
        feats: Feats,
        ali: Alignments,
        speakers: Speakers | None,
        utterances: list[Utterance],
        model: str,
        tuned: str,
        language: str,
        decode: str,
        conf: str,
    ) -> None:
        lang, settings = load_lang(language), schema.load(schema.LatticesSettings, conf)
        scorer = load_scorer(model, feats, lang, speakers)
        effort = schema.load(schema.DecodeSettings, decode)
        states, chosen = known_states(scorer), files.read_json(tuned)
        if states.hash != ali.states_hash:
            raise ValueError(
                f"{model} has states {states.hash} but the alignments have {ali.states_hash}; "
                "align with this model"
            )
        if scorer.first is not None:
            raise ValueError(
                f"{model} was trained on frames adapted by {scorer.first.run}, but shards.inputs "
                "is logmel; delete it and run make again"
            )
        choice = Choice(*(chosen[f.name] for f in fields(Choice)))
        graph = decoding_graph(
            lang, states, scorer.loop_S, choice.lm_weight, False, effort.self_loop_scale
        )
        self._search = Competitors(
            scorer,
            with_penalty(graph, choice.insertion_penalty),
            choice,
            Effort(effort.beam, effort.max_active, settings.lattice_beam, 0),
            settings.arcs_per_frame,
        )
        self._ali, self._utterances = ali, utterances
        self.about: dict[str, Any] = {
            "run": scorer.run,
            **asdict(choice),
            **schema.plain(settings),
            "grammar_hash": grammar_hash(lang),
            "silence": sorted(states.of(SILENCE)),
        }
        self.lost: dict[str, str] = {}
        self._counts = Counter[str]()

    def added(self, samples: Iterator[Sample], together: int) -> Iterator[Sample]:
        """Yield the samples that have a lattice, with it; so many are searched at a time."""
        for first in range(0, len(self._utterances), together):
            some = self._utterances[first : first + together]
            found = jobs.map_in_chunks(
                lambda u: self._search(u, self._ali.load(u.id)), some, CHUNK, ""
            )
            # `found` first: where it ends, no sample has been taken in vain
            for lattice, sample in zip(found, samples, strict=False):
                if isinstance(lattice, str):
                    self.lost[sample.id] = lattice
                    continue
                arcs_A, is_added = lattice
                self._counts.update(
                    utterances=1, arcs=len(arcs_A), frames=len(sample.ali_T), added=is_added
                )
                yield replace(sample, lattice_A=arcs_A)

    def __str__(self) -> str:
        counts = self._counts
        reasons = Counter(self.lost.values())
        return (
            f"lattices of {counts['arcs'] / max(1, counts['frames']):.1f} arcs per frame at "
            f"acoustic scale {self.about['acoustic_scale']:g}; alignments added to "
            f"{counts['added']} of {counts['utterances']}"
            + "".join(f"; {spelled(n, 'utterance')} left out: {why}" for why, n in reasons.items())
        )


def _hash(utterance: Utterance) -> bytes:
    return hashlib.sha256(utterance.id.encode()).digest()


if __name__ == "__main__":
    jobs.main(shards, __doc__)
