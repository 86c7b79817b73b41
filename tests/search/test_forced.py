"""The best path through a transcript's graph, window by window; memory grows with frames only."""

import tracemalloc

import numpy as np
import pytest
from toy import path_of, scores_of, tied, toy_lang

import asr_train.search.forced
from asr_train.search.arrays import to_vector
from asr_train.search.beam import beam_search
from asr_train.search.forced import forced_path, ready
from asr_train.search.transcript import transcript_graph

WORDS = ["C", "ABC", "A", "C"]


def made(seed, words=WORDS, margin=1.0, stay=8):
    """Return a transcript's graph, and scores of its states."""
    rng = np.random.default_rng(seed)
    lang = toy_lang()
    states = tied(lang, rng)
    loop_S = np.linspace(0.3, 0.8, states.num_states)
    path_T = path_of(lang, words, rng, states=states, stay=stay)
    scores_TS = scores_of(path_T, states.num_states, rng, margin)
    return transcript_graph(words, lang, states, loop_S), scores_TS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_the_path_is_kaldis(monkeypatch, seed, window, scale):
    """Compared with FasterDecoder, which needs a column per label and all scores at once."""
    monkeypatch.setattr(asr_train.search.forced, "WINDOW", window)
    transcript, scores_TS = made(seed)
    scaled_TK = scores_TS[:, transcript.state_K] * np.float32(scale)
    fst = to_vector(transcript.graph)
    wanted = beam_search(fst, scaled_TK, 1000.0, 10**6)
    spans = []

    def scores(span):
        spans.append(span)
        return scores_TS[span]

    frames = len(scores_TS)
    found = forced_path(transcript.graph, transcript.state_K, frames, scores, scale, 1000.0)
    np.testing.assert_array_equal(found.places_T, wanted.states_T)
    assert found.graph_cost == pytest.approx(wanted.graph_cost, rel=1e-4)
    assert scale * found.acoustic_cost == pytest.approx(wanted.acoustic_cost, rel=1e-4)
    assert [t for span in spans for t in range(span.start, span.stop)] == list(range(frames))


def test_a_path_that_does_not_end_is_none():
    transcript, scores_TS = made(0)
    few = slice(0, 5)
    graph, column_K = transcript.graph, transcript.state_K
    assert forced_path(graph, column_K, 5, lambda _: scores_TS[few], 1.0, 100.0) is None


def test_scores_that_are_no_numbers_are_refused_by_frame(monkeypatch):
    monkeypatch.setattr(asr_train.search.forced, "WINDOW", 10)
    transcript, scores_TS = made(0)
    scores_TS[13, 0] = np.nan
    graph, column_K = transcript.graph, transcript.state_K
    with pytest.raises(ValueError, match="frame 13 are not finite"):
        forced_path(graph, column_K, len(scores_TS), lambda s: scores_TS[s], 1.0, 1000.0)
    with pytest.raises(ValueError, match=r"scores are \[10, 3\]; they must be \[10, "):
        forced_path(graph, column_K, 20, lambda s: scores_TS[:10, :3], 1.0, 1000.0)


def test_what_is_loaded_before_workers_are_forked_is_all_that_they_run():
    ready()
    transcript, scores_TS = made(0)
    for number in (np.int32, np.int64):
        column_K = transcript.state_K.astype(number)
        forced_path(transcript.graph, column_K, len(scores_TS), lambda s: scores_TS[s], 1, 1000)
    compiled = asr_train.search.forced
    for function in (compiled._advance, compiled._collected, compiled._traced):
        assert len(function.signatures) == 1


def test_memory_goes_with_frames_not_with_frames_times_places():
    """30,000 frames of 7,200 places: at first, thousands of tokens per frame are in the beam."""
    rng = np.random.default_rng(0)
    words = rng.choice(["ABC", "C", "A"], 900).tolist()
    transcript, scores_TS = made(0, words, margin=30.0, stay=10)
    frames, places = len(scores_TS), len(transcript.state_K)
    assert frames * places > 1e8
    ready()
    tracemalloc.start()
    graph, column_K = transcript.graph, transcript.state_K
    found = forced_path(graph, column_K, frames, lambda span: scores_TS[span], 1.0, 200.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.places_T) == frames
    assert peak < 100 * frames + 200 * places + 5e6  # bytes
