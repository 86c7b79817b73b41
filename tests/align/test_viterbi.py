"""The aligned path is the most likely one, and a failure states its reason."""

import numpy as np
import pytest
from toy import cheapest, path_of, scores_of, toy_lang

from asr_train.align.viterbi import Aligned, Aligner, Lost
from asr_train.schema import AliSettings
from asr_train.search.transcript import transcript_graph

LANG = toy_lang()
LOOP_S = np.linspace(0.3, 0.8, LANG.states.num_states)


def ali_settings(**change) -> AliSettings:
    values = {"beam": 200.0, "retry_beam": 1000.0, "acoustic_scale": 1.0, "max_lost_share": 0.05}
    return AliSettings(**values | change)


def aligned(words, scores_TS, states=LANG.states, loop_S=LOOP_S, **change) -> Aligned | Lost:
    some = lambda ids, span: scores_TS[span][:, ids]  # noqa: E731
    aligner = Aligner(LANG, states, loop_S, ali_settings(**change))
    return aligner.align(words, len(scores_TS), some)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_path_is_the_likeliest(seed, scale):
    rng = np.random.default_rng(seed)
    words = ["C", "ABC", "A"]
    scores_TS = scores_of(path_of(LANG, words, rng), LANG.states.num_states, rng, 1.0)
    found = aligned(words, scores_TS, acoustic_scale=scale)
    assert isinstance(found, Aligned)
    graph = transcript_graph(words, LANG, LANG.states, LOOP_S)
    cost = cheapest(graph.graph, scores_TS[:, graph.state_K] * scale)
    acoustic = scores_TS[np.arange(len(scores_TS)), found.states_T].sum()
    graph = cost + scale * acoustic
    assert found.loglik == pytest.approx(acoustic - graph, rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_clear_scores_give_the_path_back(seed):
    rng = np.random.default_rng(seed)
    words = ["C", "A", "ABC"]
    path_T = path_of(LANG, words, rng)
    scores_TS = scores_of(path_T, LANG.states.num_states, rng, 20.0)
    found = aligned(words, scores_TS)
    assert isinstance(found, Aligned)
    assert np.array_equal(found.states_T, path_T)


def test_a_narrow_beam_is_retried_with_the_wider_one():
    words = ["ABC"] * 8
    path = [s for _ in words for phone in "abc" for s in LANG.states.of(phone)]
    # One frame per state: only the path that never stays ends in time, and it is unlikely half-way.
    scores_TS = np.zeros((len(path), LANG.states.num_states), np.float32)
    scores_TS[np.arange(36, 72), path[36:]] = -20
    narrow = aligned(words, scores_TS, beam=5, retry_beam=6)
    retried = aligned(words, scores_TS, beam=5)
    assert isinstance(narrow, Lost)
    assert "beam of 6" in narrow.reason
    assert isinstance(retried, Aligned)
    assert retried.retried
    assert np.array_equal(retried.states_T, path)


@pytest.mark.parametrize(
    "words, frames, reason",
    [
        ([], 100, "empty transcript"),
        (["A", "NOSUCH"], 100, "no pronunciation of NOSUCH"),
        (["ABC", "C"], 11, "11 frames, but its shortest pronunciation needs 12"),
    ],
)
def test_what_cannot_be_aligned_is_lost_with_its_reason(words, frames, reason):
    scores_TS = np.zeros((frames, LANG.states.num_states), np.float32)
    found = aligned(words, scores_TS)
    assert isinstance(found, Lost)
    assert reason in found.reason


def test_the_fewest_frames_just_suffice():
    fewest = LANG.states.phone_states * len("ABCC")
    scores_TS = np.zeros((fewest, LANG.states.num_states), np.float32)
    assert isinstance(aligned(["ABC", "C"], scores_TS), Aligned)
    assert isinstance(aligned(["ABC", "C"], scores_TS[1:]), Lost)
