"""Model and features -> scores_TS: what the search adds up, for Gaussians and networks alike.

A network's are log posteriors with the priors divided out, a mixture's log-likelihoods; both in
nats, unscaled, up to a constant a frame.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr_train.align.adapt import Adapted, adapt, scores
from asr_train.align.gmm import Mixtures, load_gmm
from asr_train.align.viterbi import Said, Scores
from asr_train.data.features import Feats, Utterance
from asr_train.files import DamagedFileError, read_json
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.model.store import load_model
from asr_train.schema import AliSettings, NormSettings, build, plain
from asr_train.search.graph import check_phones
from asr_train.shards.batch import context_padded

WHOLE = 12_000  # frames that go through a network at once; of longer ones, windows do
RUN_IN = 300  # frames before a window, on which a network with memory begins


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model that scores states.

    Attributes:
        run: its name.
        num_states: S.
        states: those it scores; None: of another program, whose alignments the model learned.
        loop_S: float64 [S], each state's probability to be followed by itself.
        scores: utterance -> its `Scores`: a function of ids of states [n] and a span of frames [t]
            to float32 [t, n]. What is costly once per utterance is done when it is made.
        adapt: of a system of adapted frames: (utterances with words, language, how to align them)
            -> a scorer adapted to their speakers, and what became of those. Until then it scores
            with the Gaussians of unadapted frames, and so it does for all other speakers.
    """

    run: str
    num_states: int
    states: States | None
    loop_S: np.ndarray
    scores: Callable[[Utterance], Scores]
    adapt: "Callable[[list[Said], Lang, AliSettings], tuple[Scorer, dict[str, Any]]] | None" = None

    def score(self, utterance: Utterance) -> np.ndarray:
        """All frames and states at once: float32 [T, S]."""
        return self.scores(utterance)(np.arange(self.num_states), slice(None))


def load_scorer(path: Path | str, feats: Feats, lang: Lang | None) -> Scorer:
    """Load the model that a model.json names, to score these features.

    Args:
        lang: whose phones the model must have; None: another program decodes, who knows them.
    Raises:
        ValueError: if the model was trained for other states or other features, or is damaged.
    """
    path = Path(path)
    about = read_json(path)
    try:
        _check_feats(path, about["feats"], plain(feats.settings))
        kind = _gaussians if about["kind"] == "gmm" else _network
        scorer = kind(path, about, feats)
    except KeyError as error:
        raise DamagedFileError(f"{path} lacks {error}; delete it and run make again") from error
    if lang is not None:
        try:
            check_phones(lang, known_states(scorer))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return scorer


def known_states(scorer: Scorer) -> States:
    """The states of a model that we can decode and align with.

    Raises:
        ValueError: if another program knows them; says what to do instead.
    """
    if scorer.states is None:
        raise ValueError(
            f"{scorer.run} learned the alignments of another program, which alone knows what its "
            f"{scorer.num_states} states stand for; export its posteriors and decode them there"
        )
    return scorer.states


def _check_feats(path: Path, trained: dict[str, Any], given: dict[str, Any]) -> None:
    for key in trained:
        if trained[key] != given.get(key):
            raise ValueError(
                f"{path} was trained with feats.{key}={trained[key]} but these features have "
                f"{given.get(key)}; run make again, which trains for these features"
            )


def _gaussians(path: Path, about: dict[str, Any], feats: Feats) -> Scorer:
    model = load_gmm(path)
    return _of_mixtures(about["run"], model, Adapted(model.front(feats)))


def _of_mixtures(run: str, model: Mixtures, read: Adapted) -> Scorer:
    def adapted(said: list[Said], lang: Lang, ali: AliSettings) -> tuple[Scorer, dict[str, Any]]:
        found = adapt(model, read.plain, said, lang, ali)
        return _of_mixtures(run, model, found), found.summary()

    return Scorer(
        run,
        model.gmm.num_states,
        model.states,
        model.gmm.loop_S,
        scores(model, read),
        None if model.adaptive is None else adapted,
    )


def _network(path: Path, about: dict[str, Any], feats: Feats) -> Scorer:
    model, _ = load_model(path, torch.device("cpu"))
    model.eval()
    left, right = model.context_left, model.context_right
    normalise = feats.normaliser(build(NormSettings, about["norm"], f"{path}: norm"))
    log_priors_S = torch.log(torch.tensor(about["priors"], dtype=torch.float64)).float()

    def logp(padded_BTF: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            logits_TS = model.every_frame(padded_BTF)[0]
            return (torch.log_softmax(logits_TS, 1) - log_priors_S).numpy()

    def scores(utterance: Utterance) -> Scores:
        feats_TF = np.ascontiguousarray(normalise(utterance, feats.load(utterance)), np.float32)
        padded_BTF = context_padded(torch.from_numpy(feats_TF), left, right)
        frames = len(feats_TF)
        if frames <= WHOLE:
            whole_TS = logp(padded_BTF)
            return lambda states, span: whole_TS[span][:, states]

        def window(states: np.ndarray, span: slice) -> np.ndarray:
            begin, end, _ = span.indices(frames)
            early = max(0, begin - RUN_IN)
            found_TS = logp(padded_BTF[:, early : left + end + right])
            return found_TS[begin - early :, states]

        return window

    states = None if about["states"] is None else States.stored(about, path)
    loop_S = np.array(about["self_loops"])
    return Scorer(about["run"], about["num_states"], states, loop_S, scores)
