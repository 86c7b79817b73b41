"""The flat start's posteriors are exact probabilities, and training converges to the states."""

import itertools

import numpy as np
import pytest
from toy import path_of, phone_of_state, toy_lang

from asr_train.align import flat
from asr_train.align.flat import easiest, flat_start, posteriors, row_of_states, usual_loops
from asr_train.data.features import Utterance
from asr_train.lang.states import States

SILENCE = range(1)


def by_enumeration(row, scores_TS, loop_S, p):
    """Enumerate every path through the row, each silence (a single state 0) taken or skipped."""
    places = range(len(row))
    total, share_TN = 0.0, np.zeros((len(scores_TS), len(row)))
    silences = [n for n in places if row[n] == 0]
    for taken in itertools.product([False, True], repeat=len(silences)):
        dropped = {n for n, t in zip(silences, taken, strict=True) if not t}
        nodes = [n for n in places if n not in dropped]
        start = np.prod([p if t else 1 - p for t in taken])
        for stay in itertools.product(range(1, len(scores_TS) + 1), repeat=len(nodes)):
            if sum(stay) != len(scores_TS):
                continue
            path = np.repeat(nodes, stay)
            loops = np.prod([loop_S[row[n]] ** (k - 1) for n, k in zip(nodes, stay, strict=True)])
            leaves = np.prod([1 - loop_S[row[n]] for n in nodes[:-1]])
            like = np.exp(scores_TS[np.arange(len(path)), row[path]].sum())
            weight = start * loops * leaves * like
            total += weight
            share_TN[np.arange(len(path)), path] += weight
    return share_TN / total, np.log(total)


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_those_of_all_paths_enumerated(seed):
    rng = np.random.default_rng(seed)
    rows = [np.array([0, 1, 2, 0, 1, 0]), np.array([0, 2, 0])]
    scores = [rng.standard_normal((6, 3)), rng.standard_normal((4, 3))]
    loop_S = np.array([0.6, 0.3, 0.5])
    for row_N, scores_TS in zip(rows, scores, strict=True):
        share_TN, loglik = posteriors(row_N, scores_TS, loop_S, SILENCE, 0.4)
        by_hand_TN, total = by_enumeration(row_N, scores_TS, loop_S, 0.4)
        np.testing.assert_allclose(share_TN, by_hand_TN, atol=1e-9)
        assert loglik == pytest.approx(total)


@pytest.mark.parametrize("seed", range(3))
def test_every_frame_is_shared_out_whole_whatever_the_lengths(seed):
    rng = np.random.default_rng(seed)
    lang = toy_lang()
    rows = [row_of_states(words, lang) for words in (["A"], ["ABC", "C", "A"])]
    scores = [-50 * rng.random((n, lang.states.num_states)) for n in (40, 90)]
    loop_S = np.full(lang.states.num_states, 0.7)
    for row_N, scores_TS in zip(rows, scores, strict=True):
        share_TN, _ = posteriors(row_N, scores_TS, loop_S, lang.states.of("SIL"), 0.5)
        np.testing.assert_allclose(share_TN.sum(1), 1, atol=1e-6)


def test_vowels_are_expected_to_last_longer_than_consonants():
    lang = toy_lang()
    states = States(("SIL", "AH", "K", "x"), 3, 5)
    loop_S = usual_loops(type(lang)(lang.lexicon, states, lang.grammar, None, 0.5), 0.01)
    silence, vowel, consonant, other = (loop_S[states.of(p)[0]] for p in states.phones)
    assert vowel == silence > other > consonant


def utterance(name, words, frames):
    return Utterance(name, "s", words, frames / 100, frames)


def test_the_easiest_have_few_words_and_enough_frames():
    lang = toy_lang()
    rows = [
        utterance("long", "A A A", 200),
        utterance("short", "A", 90),
        utterance("tight", "A", 10),  # too few frames for silence at both ends
        utterance("unknown", "NOSUCH", 90),
        utterance("two", "A C", 90),
    ]
    assert [u.id for u in easiest(rows, lang, 2, 60.0)] == ["short", "two"]
    assert [u.id for u in easiest(rows, lang, 9, 60.0)] == ["short", "two", "long"]
    assert [u.id for u in easiest(rows[2:4], lang, 9, 60.0)] == ["tight"]  # it has frames for A


@pytest.mark.parametrize("seconds, names", [(0.1, "a"), (1.9, "ab"), (2.9, "abc")])
def test_the_easiest_are_at_least_one_and_last_no_longer_than_asked(seconds, names):
    rows = [utterance(name, "A", 90 + i) for i, name in enumerate("abc")]
    assert [u.id for u in easiest(rows, toy_lang(), 9, seconds)] == list(names)


def test_what_is_loaded_before_workers_are_forked_is_all_that_they_run():
    """Else each worker of each pass would compile it anew."""
    lang = toy_lang()
    row = row_of_states(["A", "C"], lang)
    flat.ready()
    for kind in (np.float32, np.float64):
        scores_TS = np.zeros((40, lang.states.num_states), kind)
        posteriors(row, scores_TS, usual_loops(lang, 0.01), lang.states.of("SIL"), 0.4)
    assert len(flat._forward.signatures) == 1


def test_sums_do_not_depend_on_the_number_of_processes(monkeypatch):
    rng = np.random.default_rng(0)
    lang = toy_lang()
    utterances = [utterance(f"u{i}", "A C", 40 + i) for i in range(40)]
    data = {u.id: rng.standard_normal((u.frames, 3)).astype(np.float32) for u in utterances}
    mean_SD = rng.standard_normal((lang.states.num_states, 3))

    def scores(x_TD):
        return -((x_TD[:, None] - mean_SD) ** 2).sum(2)

    found = []
    for jobs in ("1", "3"):
        monkeypatch.setenv("JOBS", jobs)
        loop_S = usual_loops(lang, 0.01)
        found.append(flat_start(scores, lambda u: data[u.id], utterances, lang, loop_S))
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)
    assert found[0][0].sum() == pytest.approx(sum(u.frames for u in utterances))


def test_repeated_passes_raise_the_likelihood_and_find_the_path():
    rng = np.random.default_rng(1)
    lang = toy_lang()
    s = lang.states.num_states
    true_SD = 5 * rng.standard_normal((s, 5))
    utterances, data, paths = [], {}, {}
    for i in range(40):
        words = [("A", "AB", "ABC", "C")[k] for k in rng.integers(0, 4, 2)]
        path_T = path_of(lang, words, rng, stay=6)
        utterances.append(utterance(f"u{i}", " ".join(words), len(path_T)))
        data[f"u{i}"] = (true_SD[path_T] + rng.standard_normal((len(path_T), 5))).astype("f4")
        paths[f"u{i}"] = path_T
    chosen = easiest(utterances, lang, 40, 600.0)
    mean_SD, var_SD, logliks = np.zeros((s, 5)), np.full((s, 5), 25.0), []

    def scores(x_TD):
        off = (x_TD[:, None] - mean_SD) ** 2 / var_SD
        return -0.5 * (off + np.log(2 * np.pi * var_SD)).sum(2)

    for _ in range(12):
        frames_S, sum_SD, squares_SD, loglik = flat_start(
            scores, lambda u: data[u.id], chosen, lang, usual_loops(lang, 0.01)
        )
        mean_SD = sum_SD / frames_S[:, None]
        var_SD = np.maximum(squares_SD / frames_S[:, None] - mean_SD**2, 0.1)
        logliks.append(loglik)
    assert np.diff(logliks).min() > -1e-3 * abs(logliks[-1])
    assert logliks[-1] > logliks[0] + 1000
    phone_S = phone_of_state(lang.states)
    right = []
    for u in chosen:
        row = row_of_states(u.words.split(), lang)
        loop_S, silence = usual_loops(lang, 0.01), lang.states.of("SIL")
        share_TN, _ = posteriors(row, scores(data[u.id]), loop_S, silence, 0.4)
        right.append((phone_S[row[share_TN.argmax(1)]] == phone_S[paths[u.id]]).mean())
    assert np.mean(right) > 0.8
