"""Model and features -> scores_TS for the search, for Gaussians and networks alike.

A network's scores are log posteriors with the priors divided out, a mixture's log-likelihoods; both
in nats, unscaled, up to a constant per frame. Those of another program's network are looked up. A
network on fMLLR features (`shards.inputs=fmllr`) is adapted by the speaker-adaptive system that
made them, which lies beside it.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asr_train.align.adapt import Adapted, adapt, scores
from asr_train.align.front import Read, logmel
from asr_train.align.gmm import Mixtures, load_gmm
from asr_train.align.speakers import Speakers
from asr_train.align.viterbi import Scores, Spoken
from asr_train.checks import inputs_named
from asr_train.data.features import Feats, Utterance, open_h5
from asr_train.decode.scorer import Adaptation, Scorer, known_states
from asr_train.files import DamagedFileError, check_part, read_json
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings, NormSettings, build, plain
from asr_train.search.graph import check_phones

FIRST = "first.json"  # model.json of a bundle's speaker-adaptive system, beside the network's


def load_scorer(
    path: Path | str, feats: Feats, lang: Lang | None, speakers: Speakers | None = None
) -> Scorer:
    """Load the model of a model.json, to score these features.

    Args:
        lang: whose phones the model must have; None: another program decodes the scores.
        speakers: the transforms, where they are known, for a network on fMLLR features; None: it
            scores unadapted frames until `Scorer.adapt`.
    Raises:
        ValueError: if the model was trained for other states or other features, or is damaged.
    """
    path = Path(path)
    about = read_json(path)
    try:
        given = plain(feats.settings)
        for key, trained in about["feats"].items():
            if trained != given.get(key):
                raise ValueError(
                    f"{path} was trained with feats.{key}={trained} but these features have "
                    f"{given.get(key)}; run make again, which trains for these features"
                )
        if about["kind"] == "gmm":
            scorer = _gaussians(path, about, feats)
        elif about["kind"] == "scores":
            scorer = _stored(path, about)
        else:
            scorer = _network(path, about, feats, speakers)
    except KeyError as error:
        raise DamagedFileError(f"{path} lacks {error}; delete it and run make again") from error
    if lang is not None:
        try:
            check_phones(lang, known_states(scorer))
            _check_states(scorer)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return scorer


def _check_states(scorer: Scorer) -> None:
    """Check that a graph of the model's states stays within its scores, and its first system's."""
    states = known_states(scorer)
    for one in (scorer, scorer.first or scorer):
        own = known_states(one)
        if own.hash != states.hash:
            raise ValueError(
                f"{one.run} has states {own.hash}, but {scorer.run}, whose first passes it "
                f"decodes, {states.hash}; train {scorer.run} on alignments of {one.run}"
            )
        if {states.num_states} != {one.num_states, len(one.loop_S)}:
            raise ValueError(
                f"{one.run} has {states.num_states} states, but scores of {one.num_states} and "
                f"self-loops of {len(one.loop_S)}; delete it and run make again"
            )


def _stored(path: Path, about: dict[str, Any]) -> Scorer:
    """Return a scorer that looks up what another program computed (interop.stores)."""
    store = check_part(path.parent, about["file"], remake=path)

    def scores(utterance: Utterance) -> Scores:
        file = open_h5(str(store), os.getpid())
        if utterance.id not in file:
            raise ValueError(
                f"{path} has no scores of {utterance.id}; import those of all splits to decode"
            )
        found = file[utterance.id]
        if len(found) != utterance.frames:
            raise ValueError(
                f"{utterance.id}: {len(found)} frames of scores in {path} but "
                f"{utterance.frames} feature frames; compute scores of every frame, of these "
                "features"
            )
        return lambda states, span: found[span][:, states]

    states, loop_S = States.stored(about, path), np.array(about["self_loops"])
    return Scorer(about["run"], about["num_states"], states, loop_S, scores)


def _network(path: Path, about: dict[str, Any], feats: Feats, speakers: Speakers | None) -> Scorer:
    from asr_train.decode.network import network_of  # imports torch

    network, system = network_of(path, about), about.get("fmllr")
    if speakers is not None and speakers.system != system:
        raise ValueError(
            f"{path} was trained on {inputs_named(system)} but is given "
            f"{inputs_named(speakers.system)}; run make again, which trains for these inputs"
        )
    if system is None:
        return network(logmel(feats, build(NormSettings, about["norm"], f"{path}: norm")))
    if speakers is not None:
        return replace(network(speakers.read(feats)), speakers=speakers)
    first = first_system(path, system)
    return _adapting(network, _gaussians(first, read_json(first), feats), feats)


def first_system(path: Path, system: dict[str, str]) -> Path:
    """Return the model.json of the system that made a network's frames.

    Args:
        path: model.json of the network: in a bundle, or in exp/RUN or exp/RUN/epochs/N.
    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is another system than in training; gives both checksums.
    """
    places = [path.with_name(FIRST)]
    places += [folder / system["run"] / "model.json" for folder in path.absolute().parents[1:4]]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise FileNotFoundError(
            f"{path} was trained on {inputs_named(system)}, but {places[1]} is missing; "
            "run make again, which trains that system"
        )
    now = _system(read_json(found))
    if now != system:
        raise ValueError(
            f"{path} was trained on {inputs_named(system)} but {found} has "
            f"{inputs_named(now)}; run make again, which trains for these inputs"
        )
    return found


def _system(about: dict[str, Any]) -> dict[str, str]:
    return {"run": about["run"], "sha256": about["parts"][0]["sha256"]}


def _adapting(network: Callable[[Read], Scorer], first: Scorer, feats: Feats) -> Scorer:
    """Return a network that reads what a speaker-adaptive system's scorer reads."""
    assert first.speakers is not None

    def adapted(spoken: list[Spoken], lang: Lang, ali: AliSettings) -> Adaptation:
        assert first.adapt is not None
        found, summary = first.adapt(spoken, lang, ali)
        return _adapting(network, found, feats), summary

    scorer = network(first.speakers.read(feats))
    return replace(scorer, adapt=adapted, speakers=first.speakers, first=first)


def _gaussians(path: Path, about: dict[str, Any], feats: Feats) -> Scorer:
    model = load_gmm(path)
    return _of_mixtures(_system(about), model, Adapted(model.front(feats)))


def _of_mixtures(system: dict[str, str], model: Mixtures, read: Adapted) -> Scorer:
    known = system["run"], model.gmm.num_states, model.states, model.gmm.loop_S
    scorer = Scorer(*known, scores(model, read))
    if model.adaptive is None:
        return scorer

    def adapted(spoken: list[Spoken], lang: Lang, ali: AliSettings) -> Adaptation:
        found = adapt(model, read.plain, spoken, lang, ali)
        return _of_mixtures(system, model, found), found.summary()

    speakers = Speakers(system, model.front, read.matrices())
    return replace(scorer, adapt=adapted, speakers=speakers)
