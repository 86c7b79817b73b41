"""A transcript's graph holds every pronunciation once; its labels tell which phone is where."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from toy import cheapest, path_of, random_pronprobs, rows_of, scores_of, tied, toy_lang

from asr_train.search.arrays import to_vector
from asr_train.search.beam import beam_search
from asr_train.search.transcript import transcript_graph

SEEDS = range(4)
WORDS = ["C", "AB", "C"]  # C has two pronunciations


def loops(states):
    return np.linspace(0.3, 0.8, states.num_states)


def ways(lang, words):
    """Yield every sequence of (phone, word or -1), with variants and silences, and its cost."""
    prons = [lang.lexicon.prons[word] for word in words]
    ids = {phone: p for p, phone in enumerate(lang.states.phones)}
    for said in itertools.product(*(range(len(ps)) for ps in prons)):
        for silent in itertools.product([False, True], repeat=len(words) + 1):
            row = [(0, -1)] * silent[0]
            for w, n in enumerate(said):
                row += [(ids[p], w) for p in prons[w][n]] + [(0, -1)] * silent[w + 1]
            yield row, -sum(math.log(p) for p in factors(lang, words, said, silent))


def factors(lang, words, said, silent):
    """Return the probabilities of pronunciations and silences, and their factors."""
    variants, given = list(zip(words, said, strict=True)), lang.pronprobs
    if given is None:
        pauses, p = [1 / len(lang.lexicon.prons[word]) for word in words], lang.silence_probability
        return pauses + [p if s else 1 - p for s in silent]
    after = [given.start, *(given.pause[word][n] for word, n in variants)]
    entry = [(given.after_word[w][n], given.after_silence[w][n]) for w, n in variants]
    entry.append((given.end_after_word, given.end_after_silence))
    return [
        *(given.pron[word][n] for word, n in variants),
        *(p if s else 1 - p for p, s in zip(after, silent, strict=True)),
        *(pair[s] for pair, s in zip(entry, silent, strict=True)),
    ]


def straight(states_N, scores_TS, loop_S) -> tuple[float, list[int]]:
    """Return the cheapest path through states from left to right: cost, first frames of each."""
    enter_N, stay_N = -np.log(1 - loop_S[states_N]), -np.log(loop_S[states_N])
    cost_N = np.full(len(states_N), np.inf)
    cost_N[0] = enter_N[0] - scores_TS[0, states_N[0]]
    came = []
    for score_S in scores_TS[1:]:
        stay, enter = cost_N + stay_N, np.concatenate([[np.inf], cost_N[:-1]]) + enter_N
        came.append(enter < stay)
        cost_N = np.minimum(stay, enter) - score_S[states_N]
    n, begins = len(states_N) - 1, [0] * len(states_N)
    for t in range(len(came), 0, -1):
        if came[t - 1][n]:
            begins[n], n = t, n - 1
    return float(cost_N[-1]), begins


def by_hand(lang, states, words, scores_TS, loop_S):
    """Return the cheapest of all ways: its cost, and its phones with first frame and word."""
    best = (np.inf, None)
    for row, cost in ways(lang, words):
        places = rows_of(states, [phone for phone, _ in row])
        states_N = np.array([s for place in places for s in place])
        if len(states_N) > len(scores_TS):
            continue
        path_cost, begins = straight(states_N, scores_TS, loop_S)
        if cost + path_cost < best[0]:
            firsts = np.cumsum([0, *(len(place) for place in places[:-1])])
            phones = [(p, begins[n], w) for (p, w), n in zip(row, firsts, strict=True)]
            best = cost + path_cost, phones
    return best


def best_path(graph, scores_TS):
    fst = to_vector(graph.graph)
    path = beam_search(fst, scores_TS[:, graph.state_K], 1e4, 10**6)
    assert path.final
    return path


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["plain", "tied", "shared", "learned"])
@pytest.mark.parametrize("margin", [0.0, 1.5])
def test_the_best_path_is_the_cheapest_of_all_ways_to_say_it(seed, kind, margin):
    """Each phone has the states of its context; phones() tells which phone it was."""
    rng = np.random.default_rng(seed)
    lang = toy_lang(phone_states=2, silence_states=2)
    if kind == "learned":
        lang = replace(lang, pronprobs=random_pronprobs(lang.lexicon, rng))
    share = (1, 2) if kind == "shared" else ()
    states = lang.states if kind == "plain" else tied(lang, rng, share)
    loop_S = loops(states)
    path_T = path_of(lang, WORDS, rng, states=states, stay=3)
    scores_TS = scores_of(path_T, states.num_states, rng, margin)
    cost, phones = by_hand(lang, states, WORDS, scores_TS, loop_S)
    graph = transcript_graph(WORDS, lang, states, loop_S)
    exact = cheapest(graph.graph, scores_TS[:, graph.state_K])
    assert exact == pytest.approx(cost, abs=1e-3)
    path = best_path(graph, scores_TS)
    assert path.graph_cost + path.acoustic_cost == pytest.approx(cost, abs=1e-3)
    assert [tuple(row) for row in graph.phones(path.states_T).tolist()] == phones
    assert path.words == [lang.word_ids[word] for word in WORDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tree_that_asks_nothing_costs_what_monophones_cost(seed):
    rng = np.random.default_rng(seed)
    lang = toy_lang()
    states = tied(lang, rng, depth=0)
    assert states.num_states == lang.states.num_states
    loop_S = loops(states)
    path_T = path_of(lang, ["ABC", "C", "A"], rng)
    scores_TS = scores_of(path_T, states.num_states, rng, 1.0)
    costs = []
    for some in (lang.states, states):
        graph = transcript_graph(["ABC", "C", "A"], lang, some, loop_S)
        costs.append(cheapest(graph.graph, scores_TS[:, graph.state_K]))
    assert costs[0] == pytest.approx(costs[1], abs=1e-5)


def paths_of(graph) -> Counter:
    """Count all paths without self-loops, as sequences of (state, position, phone, word)."""
    arrays = graph.graph
    leaving = {}
    for source, arc in zip(arrays.source_A.tolist(), arrays.arcs_A.tolist(), strict=True):
        if source != arc[3]:
            leaving.setdefault(source, []).append(arc)
    found, todo = Counter(), [(arrays.start, ())]
    while todo:
        node, labels = todo.pop()
        if np.isfinite(arrays.final_N[node]):
            keys = [label - 1 for label in labels]
            nodes = graph.node_K[keys]
            row = zip(
                graph.state_K[keys].tolist(),
                graph.position_K[keys].tolist(),
                graph.phone_N[nodes].tolist(),
                graph.word_N[nodes].tolist(),
                strict=True,
            )
            found[tuple(row)] += 1
        todo += [(arc[3], (*labels, arc[0])) for arc in leaving.get(node, [])]
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("words", [["A"], ["C", "C"], ["AB", "C", "ABC"]])
def test_every_way_to_say_it_is_there_once_and_no_other(seed, words):
    rng = np.random.default_rng(seed)
    lang = toy_lang(phone_states=2, silence_states=3)
    for states in (lang.states, tied(lang, rng), tied(lang, rng, (1, 3))):
        wanted = Counter()
        for row, _ in ways(lang, words):
            places = zip(row, rows_of(states, [phone for phone, _ in row]), strict=True)
            wanted[
                tuple((s, j, phone, w) for (phone, w), ids in places for j, s in enumerate(ids))
            ] += 1
        assert set(wanted.values()) == {1}
        assert paths_of(transcript_graph(words, lang, states, loops(states))) == wanted


@pytest.mark.parametrize("kind", ["plain", "tied"])
@pytest.mark.parametrize("frames", [6, 9])
def test_a_repeated_phone_is_two_phones(kind, frames):
    """The end of one word and the beginning of the next, with no silence between them."""
    rng = np.random.default_rng(0)
    lang = toy_lang()
    states = lang.states if kind == "plain" else tied(lang, rng)
    scores_TS = np.zeros((frames, states.num_states), np.float32)
    scores_TS[:, :5] = -50  # no silence
    graph = transcript_graph(["A", "A"], lang, states, loops(states))
    phones = graph.phones(best_path(graph, scores_TS).states_T)
    a = lang.states.phones.index("a")
    assert phones[:, [0, 2]].tolist() == [[a, 0], [a, 1]]
    assert phones[0, 1] == 0
    assert 3 <= phones[1, 1] <= frames - 3


def test_a_phone_of_one_state_that_repeats_is_two_phones():
    """Among equal states, only the places in the transcript distinguish the phones."""
    lang = toy_lang(phone_states=1, silence_states=1)
    scores_TS = np.zeros((7, lang.states.num_states), np.float32)
    scores_TS[:, 0] = -50
    graph = transcript_graph(["A", "A", "A"], lang, lang.states, loops(lang.states))
    path = best_path(graph, scores_TS)
    assert len(set(graph.state_K[path.states_T])) == 1
    assert graph.phones(path.states_T)[:, 2].tolist() == [0, 1, 2]


def test_a_word_without_pronunciation_is_named():
    lang = toy_lang()
    with pytest.raises(KeyError, match="NOSUCH"):
        transcript_graph(["A", "NOSUCH"], lang, lang.states, loops(lang.states))
