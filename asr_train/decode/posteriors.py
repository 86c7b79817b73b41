"""Model and features -> scores_TS for the search, for Gaussians and networks alike.

A network's scores are log posteriors with the priors divided out, a mixture's log-likelihoods; both
in nats, unscaled, up to a constant per frame. Those of another program's network are looked up.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from asr_train.align.adapt import Adapted, adapt, scores
from asr_train.align.gmm import Mixtures, load_gmm
from asr_train.align.viterbi import Scores, Spoken
from asr_train.data.features import Feats, Utterance, open_h5
from asr_train.decode.scorer import Scorer, known_states
from asr_train.files import DamagedFileError, check_part, read_json
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings, plain
from asr_train.search.graph import check_phones


def load_scorer(path: Path | str, feats: Feats, lang: Lang | None) -> Scorer:
    """Load the model of a model.json, to score these features.

    Args:
        lang: whose phones the model must have; None: another program decodes the scores.
    Raises:
        ValueError: if the model was trained for other states or other features, or is damaged.
    """
    path = Path(path)
    about = read_json(path)
    try:
        _check_feats(path, about["feats"], plain(feats.settings))
        if about["kind"] == "gmm":
            scorer = _gaussians(path, about, feats)
        elif about["kind"] == "scores":
            scorer = _stored(path, about)
        else:
            from asr_train.decode.network import scorer_of  # imports torch

            scorer = scorer_of(path, about, feats)
    except KeyError as error:
        raise DamagedFileError(f"{path} lacks {error}; delete it and run make again") from error
    if lang is not None:
        try:
            check_phones(lang, known_states(scorer))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return scorer


def _check_feats(path: Path, trained: dict[str, Any], given: dict[str, Any]) -> None:
    for key in trained:
        if trained[key] != given.get(key):
            raise ValueError(
                f"{path} was trained with feats.{key}={trained[key]} but these features have "
                f"{given.get(key)}; run make again, which trains for these features"
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


def _gaussians(path: Path, about: dict[str, Any], feats: Feats) -> Scorer:
    model = load_gmm(path)
    return _of_mixtures(about["run"], model, Adapted(model.front(feats)))


def _of_mixtures(run: str, model: Mixtures, read: Adapted) -> Scorer:
    def adapted(
        spoken: list[Spoken], lang: Lang, ali: AliSettings
    ) -> tuple[Scorer, dict[str, Any]]:
        found = adapt(model, read.plain, spoken, lang, ali)
        return _of_mixtures(run, model, found), found.summary()

    return Scorer(
        run,
        model.gmm.num_states,
        model.states,
        model.gmm.loop_S,
        scores(model, read),
        None if model.adaptive is None else adapted,
    )
