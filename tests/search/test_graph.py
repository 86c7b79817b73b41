"""HCLG accepts what grammar, lexicon and states allow, at the cost that they define."""

import math
import resource
from dataclasses import replace

import numpy as np
import pytest
from toy import all_sentences, cheapest, path_of, random_pronprobs, scores_of, tied, toy_lang

from asr_train.lang.lexicon import Lexicon
from asr_train.lang.states import States
from asr_train.lang.tree import Tree
from asr_train.search.arrays import to_arrays, to_vector
from asr_train.search.beam import beam_search
from asr_train.search.graph import (
    check_phones,
    decoding_graph,
    load_graph,
    transition_costs,
    with_penalty,
    with_self_loops,
    write_graph,
)
from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import nbest
from asr_train.search.transcript import transcript_graph

SEEDS = range(4)
TOP = 14  # the toy language's states: 5 of silence, 3 each of a, b and c


def loops(lang):
    return np.linspace(0.3, 0.8, lang.states.num_states)


def words_cost(lang, words, scores_TS, loop_S, states=None) -> float:
    """Return the cost of a transcript with any variants and silences, without a grammar."""
    graph = transcript_graph(list(words), lang, states or lang.states, loop_S)
    return cheapest(graph.graph, scores_TS[:, graph.state_K])


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_decoding_graph_costs_what_the_best_transcript_costs(seed, is_learned):
    rng = np.random.default_rng(seed)
    lang = toy_lang(phone_states=1, silence_states=2)
    if is_learned:
        lang = replace(lang, pronprobs=random_pronprobs(lang.lexicon, rng))
    loop_S = loops(lang)
    path_T = path_of(lang, ["C", "AB"], rng)
    scores_TS = scores_of(path_T, lang.states.num_states, rng, margin=2.0)
    word = math.log(len(lang.grammar.words) + 1)
    best = min(
        words_cost(lang, words, scores_TS, loop_S) + word * (len(words) + 1)
        for words in all_sentences(lang.grammar.words, 4)
    )
    assert cheapest(
        decoding_graph(lang, lang.states, loop_S, self_loop_scale=1.0), scores_TS
    ) == pytest.approx(best, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [(), (1, 2), (2, 3)])
def test_with_tied_states_it_costs_what_the_best_transcript_costs(seed, share):
    """Across words; also if phones share roots, so that different words have the same states."""
    rng = np.random.default_rng(seed)
    lang = toy_lang(phone_states=1, silence_states=2)
    states = tied(lang, rng, share)
    loop_S = np.linspace(0.3, 0.8, states.num_states)
    path_T = path_of(lang, ["C", "AB"], rng, states=states)
    scores_TS = scores_of(path_T, states.num_states, rng, margin=1.0)
    word = math.log(len(lang.grammar.words) + 1)
    best = min(
        words_cost(lang, words, scores_TS, loop_S, states) + word * (len(words) + 1)
        for words in all_sentences(lang.grammar.words, 3)
    )
    for smaller in (False, True):
        graph = decoding_graph(lang, states, loop_S, smaller=smaller, self_loop_scale=1.0)
        assert graph.arcs_A["ilabel"].max() <= states.num_states
        assert cheapest(graph, scores_TS) == pytest.approx(best, abs=0.02)


@pytest.mark.parametrize("share", [(), (1, 2)])
def test_clear_scores_of_tied_states_give_the_words_back(share):
    rng = np.random.default_rng(2)
    lang = toy_lang(words=("A", "ALSO", "ABC"))
    states = tied(lang, rng, share)
    loop_S = np.linspace(0.3, 0.8, states.num_states)
    words = [lang.grammar.words[i] for i in rng.integers(0, 3, 6)]
    path_T = path_of(lang, words, rng, states=states)
    scores_TS = scores_of(path_T, states.num_states, rng)
    graph = decoding_graph(lang, states, loop_S)
    found = beam_search(to_vector(graph), scores_TS, 50, 10**6)
    assert found is not None
    assert np.array_equal(found.states_T, path_T)
    assert [lang.lexicon.words[i - 1] for i in found.words] == words


def test_words_whose_phones_are_tied_all_over_are_told_apart_by_the_grammar_alone():
    """If a and b have the same states everywhere, A and another word B are homophones."""
    lang = toy_lang(("A", "B"), max_words=1, phone_states=1, silence_states=2)
    prons = {**lang.lexicon.prons, "B": (("b",),)}
    lang = replace(lang, lexicon=Lexicon({w: prons[w] for w in sorted(prons)}))
    root_PJ = np.array([[0, 1], [2, -1], [2, -1], [3, -1]], np.int32)
    nothing_N, leaf_N = np.full(4, -1, np.int32), np.arange(4, dtype=np.int32)
    questions_QP, side_N = np.zeros((0, 4), bool), np.zeros(4, np.int32)
    tree = Tree(questions_QP, nothing_N, side_N, nothing_N, nothing_N, leaf_N, root_PJ)
    states = States(lang.states.phones, 1, 2, tree)
    loop_S = np.full(4, 0.5)
    scores_TS = np.zeros((4, 4), np.float32)
    scores_TS[:, 2] = 20
    costs = []
    for words in (("A", "B"), ("A",), ("B",)):
        some = replace(lang, grammar=replace(lang.grammar, words=list(words)))
        costs.append(cheapest(decoding_graph(some, states, loop_S), scores_TS))
    assert costs[1] == pytest.approx(costs[2], abs=1e-3)
    assert costs[0] - costs[1] == pytest.approx(2 * math.log(3 / 2), abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_finds_the_cheapest_path(seed):
    rng = np.random.default_rng(seed)
    lang = toy_lang()
    graph = decoding_graph(lang, lang.states, loops(lang))
    path_T = path_of(lang, ["ABC", "C", "A"], rng)
    scores_TS = scores_of(path_T, lang.states.num_states, rng, margin=1.0)
    found = beam_search(to_vector(graph), scores_TS, 1000, 10**6)
    assert found is not None
    assert found.final
    cost = found.graph_cost + found.acoustic_cost
    assert cost == pytest.approx(cheapest(graph, scores_TS), rel=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_clear_scores_give_the_words_back(seed):
    rng = np.random.default_rng(seed)
    lang = toy_lang(words=("A", "ALSO", "ABC"))  # no other sequence of these is a homophone
    words = [lang.grammar.words[i] for i in rng.integers(0, 3, 6)]
    path_T = path_of(lang, words, rng)
    scores_TS = scores_of(path_T, lang.states.num_states, rng)
    graph = to_vector(decoding_graph(lang, lang.states, loops(lang)))
    found = beam_search(graph, scores_TS, 50, 10**6)
    assert found is not None
    assert np.array_equal(found.states_T, path_T)
    assert [lang.lexicon.words[i - 1] for i in found.words] == words


@pytest.mark.parametrize("limit", [1, 2])
def test_a_loop_with_a_limit_accepts_no_more_words(limit):
    rng = np.random.default_rng(0)
    lang = toy_lang(max_words=limit)
    scores_TS = scores_of(
        path_of(lang, ["C"] * 5, rng, silence=False), lang.states.num_states, rng, 3.0
    )
    graph = to_vector(decoding_graph(lang, lang.states, loops(lang)))
    found = beam_search(graph, scores_TS, 1000, 10**6)
    assert found is not None
    assert 1 <= len(found.words) <= limit


@pytest.mark.parametrize("least", [0, 1])
def test_silence_alone_is_a_sentence_only_where_the_loop_allows_it(least):
    rng = np.random.default_rng(0)
    lang = toy_lang(min_words=least)
    path_T = np.repeat(list(lang.states.of("SIL")), 3)
    scores_TS = scores_of(path_T, lang.states.num_states, rng)
    graph = to_vector(decoding_graph(lang, lang.states, loops(lang)))
    found = beam_search(graph, scores_TS, 1000, 10**6)
    assert found is not None
    assert (len(found.words) == 0) == (least == 0)


def test_a_penalty_is_paid_once_a_word():
    rng = np.random.default_rng(0)
    lang = toy_lang(words=("ABC",), max_words=3)
    path_T = path_of(lang, ["ABC"] * 3, rng)
    scores_TS = scores_of(path_T, lang.states.num_states, rng, 20.0)
    graph = decoding_graph(lang, lang.states, loops(lang))
    plain, paid = (cheapest(g, scores_TS) for g in (graph, with_penalty(graph, 1.5)))
    assert paid - plain == pytest.approx(3 * 1.5, abs=0.02)


def test_the_lm_weight_multiplies_the_costs_of_the_grammar_alone():
    rng = np.random.default_rng(0)
    lang = toy_lang(words=("ABC",), max_words=3)
    path_T = path_of(lang, ["ABC"] * 3, rng)
    scores_TS = scores_of(path_T, lang.states.num_states, rng, 20.0)
    once = cheapest(decoding_graph(lang, lang.states, loops(lang), lm_weight=1), scores_TS)
    thrice = cheapest(decoding_graph(lang, lang.states, loops(lang), lm_weight=3), scores_TS)
    assert thrice - once == pytest.approx(2 * 4 * math.log(2), abs=0.03)


ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.0 <s> -0.5
-0.6 </s>
-0.7 A -0.3
-0.5 ABC -0.2
-0.9 C -0.1

\\2-grams:
-0.2 <s> ABC
-0.4 ABC C
-0.3 C </s>

\\end\\
"""


@pytest.mark.parametrize(
    "words, log10",
    [
        (["ABC", "C"], -0.2 - 0.4 - 0.3),
        (["C"], (-0.5 - 0.9) - 0.3),  # backs off from <s>
        (["ABC", "A"], -0.2 + (-0.2 - 0.7) + (-0.3 - 0.6)),
    ],
)
def test_an_arpa_grammar_costs_what_the_file_says(tmp_path, words, log10):
    (tmp_path / "G.arpa").write_text(ARPA)
    rng = np.random.default_rng(0)
    lang = toy_lang(arpa=tmp_path / "G.arpa")
    path_T = path_of(lang, words, rng)
    scores_TS = scores_of(path_T, lang.states.num_states, rng, 20.0)
    graph = decoding_graph(lang, lang.states, loops(lang), self_loop_scale=1.0)
    found = cheapest(graph, scores_TS)
    acoustic = words_cost(lang, words, scores_TS, loops(lang))
    assert found == pytest.approx(acoustic - log10 * math.log(10), abs=0.03)


def test_entering_and_staying_are_paid_by_their_probabilities():
    enter_S, stay_S = transition_costs(np.array([0.25, 0.5]))
    assert np.exp(-enter_S) == pytest.approx([0.75, 0.5])
    assert np.exp(-stay_S) == pytest.approx([0.25, 0.5])


def kaldis_cost(loop_S, path_T, self_loop_scale):
    """Return the cost of a state path by `GetScaledTransitionLogProb` of Kaldi's hmm-utils.cc.

    A self-loop costs self_loop_scale * -log p. A way out costs self_loop_scale * -log(1 - p), plus
    transition_scale * -log(its share among the ways out), which is 0 if there is only one.
    """
    cost = 0.0
    for t, s in enumerate(path_T):
        stays = t + 1 < len(path_T) and path_T[t + 1] == s
        cost -= self_loop_scale * math.log(loop_S[s] if stays else 1 - loop_S[s])
    return cost


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_a_path_costs_what_it_costs_in_kaldis_graph(scale):
    """C = c a, after half a second of silence or none, computed by hand; `scale` 0.1 is Kaldi's.

    Both words of a loop of one word, or its end, have probability 1/2; C has two pronunciations;
    a silence has probability 0.4, none 0.6. From the search, from lattices, and from n-best lists.
    """
    lang = toy_lang(words=("C",), phone_states=1, silence_states=2)
    loop_S = np.array([0.9, 0.8, 0.5, 0.6, 0.7])  # SIL SIL a b c
    path_T = np.array([0, 0, 0, 1, 4, 4, 2, 2, 2])
    by_hand = kaldis_cost(loop_S, path_T, scale)
    by_hand -= math.log(0.4) + math.log(0.6) + 2 * math.log(0.5) + math.log(0.5)
    if scale == 0.1:  # SIL .2513 + .1609, c .1561, a .2079; silence .9163 + .5108; 3 log 2
        assert by_hand == pytest.approx(4.2828, abs=1e-4)
    scores_TS = np.full((len(path_T), 5), -500.0, np.float32)
    scores_TS[np.arange(len(path_T)), path_T] = 2.0
    graph = decoding_graph(lang, lang.states, loop_S, self_loop_scale=scale)
    acoustic_scale = 0.1
    scaled_TS = scores_TS * np.float32(acoustic_scale)
    acoustic = -acoustic_scale * 2.0 * len(path_T)
    found = beam_search(to_vector(graph), scaled_TS, 1000, 10**6)
    assert np.array_equal(found.states_T, path_T)
    assert found.graph_cost == pytest.approx(by_hand, abs=0.01)  # quantised by determinisation
    assert found.acoustic_cost == pytest.approx(acoustic, abs=1e-4)
    lattice = Lattices(graph, 5).decode(scaled_TS, 1000, 10**6, 10.0)
    best = best_path(lattice)
    assert (best.graph_cost, best.acoustic_cost) == pytest.approx((by_hand, acoustic), abs=0.01)
    (sentence,) = nbest(lattice, 1).sentences
    assert sentence.graph_cost == pytest.approx(by_hand, abs=0.01)
    assert sentence.acoustic_cost == pytest.approx(acoustic, abs=0.01)


def test_decoding_graphs_have_kaldis_self_loop_scale_unless_told_otherwise():
    """Training graphs have 1.0."""
    lang = toy_lang()
    default, tenth, whole = (
        decoding_graph(lang, lang.states, loops(lang), **more).arcs_A["weight"].sum()
        for more in ({}, {"self_loop_scale": 0.1}, {"self_loop_scale": 1.0})
    )
    assert default == tenth
    assert whole > tenth
    training = transcript_graph(["ABC"], lang, lang.states, loops(lang)).graph
    staying = training.source_A == training.arcs_A["next"]
    _, stay_S = transition_costs(loops(lang))
    states_K = transcript_graph(["ABC"], lang, lang.states, loops(lang)).state_K
    wanted = stay_S[states_K[training.arcs_A["ilabel"][staying] - 1]]
    np.testing.assert_allclose(training.arcs_A["weight"][staying], wanted, rtol=1e-6)


def test_every_frame_more_in_a_state_costs_its_self_loop():
    lang = toy_lang()
    loop_S = loops(lang)
    short = [s for p in ("a", "b", "c") for s in lang.states.of(p)]
    graph = transcript_graph(["ABC"], lang, lang.states, loop_S)
    scores_TS = np.full((10, lang.states.num_states), -100, np.float32)
    scores_TS[np.arange(9), short] = 0
    scores_TS[9, short[-1]] = 0
    _, stay_S = transition_costs(loop_S)
    arrays, scores_TK = graph.graph, scores_TS[:, graph.state_K]
    once = cheapest(arrays, scores_TK[:9])
    assert cheapest(arrays, scores_TK) - once == pytest.approx(stay_S[short[-1]], abs=1e-4)


def test_taking_a_graph_apart_and_together_changes_nothing():
    lang = toy_lang()
    _, stay_S = transition_costs(loops(lang))
    graph = with_self_loops(decoding_graph(lang, lang.states, loops(lang)), stay_S)
    again = to_arrays(to_vector(graph))
    order = np.lexsort((graph.arcs_A["ilabel"], graph.source_A))
    assert np.array_equal(again.arcs_A, graph.arcs_A[order])
    assert np.array_equal(again.final_N, graph.final_N)
    assert again.start == graph.start


def test_a_graph_is_whole_or_refused_where_temporary_files_have_no_space():
    lang = toy_lang()
    graph = to_vector(decoding_graph(lang, lang.states, loops(lang)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))  # of the 1,669 bytes it needs
    try:
        with pytest.raises(OSError, match="cannot hold a graph of 29 nodes; free some space"):
            to_arrays(graph)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_grammar_without_known_words_is_refused():
    lang = toy_lang(words=())
    with pytest.raises(ValueError, match="allows no sentence"):
        decoding_graph(lang, lang.states, loops(lang))


def test_a_stored_graph_is_refused_by_another_language(tmp_path):
    lang = toy_lang()
    graph = decoding_graph(lang, lang.states, loops(lang))
    write_graph(tmp_path / "HCLG.json", graph, lang, lang.states, {})
    load_graph(tmp_path / "HCLG.json", lang, lang.states, False)
    for other in (
        toy_lang(words=("A", "C")),
        toy_lang(min_words=0),
        toy_lang(max_words=4),
        toy_lang(phone_states=2),
    ):
        with pytest.raises(ValueError, match="hash"):
            load_graph(tmp_path / "HCLG.json", other, lang.states, False)


def test_a_stored_graph_is_refused_by_another_tree(tmp_path):
    lang = toy_lang()
    states, other = (tied(lang, np.random.default_rng(seed)) for seed in (0, 1))
    graph = decoding_graph(lang, states, np.full(states.num_states, 0.5))
    write_graph(tmp_path / "HCLG.json", graph, lang, states, {"run": "tri"})
    load_graph(tmp_path / "HCLG.json", lang, states, False)
    for wrong in (other, lang.states):
        with pytest.raises(ValueError, match=f"states_hash {states.hash} .* {wrong.hash}"):
            load_graph(tmp_path / "HCLG.json", lang, wrong, False)


def test_a_model_of_other_phones_is_refused_with_the_phone_and_both_hashes():
    lang = toy_lang()
    check_phones(lang, lang.states)
    check_phones(lang, tied(lang, np.random.default_rng(0)))  # the tree is the model's own
    less = replace(lang.states, phones=lang.states.phones[:-1])
    for states, says in (
        (less, rf"model has 3 phones \({less.hash}\) .* has 4 \({lang.states.hash}\).* has c"),
        (replace(lang.states, phone_states=2), "of other states"),
        (replace(lang.states, silence_states=2), "of other states"),
    ):
        with pytest.raises(ValueError, match=says):
            check_phones(lang, states)
        with pytest.raises(ValueError, match=says):
            decoding_graph(lang, states, np.full(states.num_states, 0.5))


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize(
    "field, value, says",
    [("ilabel", 99, "ilabel 99, above"), ("olabel", 99, "olabel 99, above"), (None, 0, "a cycle")],
)
def test_a_stored_graph_that_leads_nowhere_is_refused(tmp_path, field, value, says, arrays):
    """Also if its checksum is right."""
    lang = toy_lang()
    graph = decoding_graph(lang, lang.states, loops(lang))
    if field is None:
        one = int(np.flatnonzero(graph.arcs_A["ilabel"] == 0)[0])
        graph.arcs_A["next"][one] = graph.source_A[one]
    else:
        graph.arcs_A[field][0] = value
    write_graph(tmp_path / "HCLG.json", graph, lang, lang.states, {})
    with pytest.raises(ValueError, match=says):
        load_graph(tmp_path / "HCLG.json", lang, lang.states, arrays)


def test_a_flipped_bit_in_a_stored_graph_is_noticed(tmp_path):
    lang = toy_lang()
    graph = decoding_graph(lang, lang.states, loops(lang))
    write_graph(tmp_path / "HCLG.json", graph, lang, lang.states, {})
    content = bytearray((tmp_path / "HCLG.fst").read_bytes())
    content[200] ^= 1
    (tmp_path / "HCLG.fst").write_bytes(content)
    with pytest.raises(ValueError, match=r"HCLG\.fst"):
        load_graph(tmp_path / "HCLG.json", lang, lang.states, False)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_refused_by_frame(value):
    lang = toy_lang()
    graph = decoding_graph(lang, lang.states, loops(lang))
    scores_TS = np.zeros((5, lang.states.num_states), np.float32)
    scores_TS[3, 1] = value
    with pytest.raises(ValueError, match="frame 3"):
        beam_search(to_vector(graph), scores_TS, 10, 100)
