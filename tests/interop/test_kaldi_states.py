"""Kaldi's models as states: graphs and paths cost what Kaldi's own definitions say."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from interop.made_objects import MODELS, YESNO_IDS, ids_of, pdf_of, write_model

from asr_train.decode.words import search
from asr_train.interop.event_map import read_tree
from asr_train.interop.kaldi_states import (
    TransitionIds,
    lexicon_of,
    read_states,
    read_symbols,
    states_of,
    write_states,
)
from asr_train.interop.transition_model import read_transition_model
from asr_train.lang.index import Lang
from asr_train.schema import GrammarKind, GrammarSettings
from asr_train.search.forced import forced_path
from asr_train.search.graph import Graph, decoding_graph
from asr_train.search.transcript import transcript_graph

SILENCE_PROBABILITY = 0.4
WORDS = {"ONE": [(2, 3), (3,)], "TWO": [(3, 2)]}  # in Kaldi's phones, as write_model has them
WIDE = 1e4  # nats: a beam that prunes nothing


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    write_model(tmp_path, request.param)
    return tmp_path


def lang_of(folder, states) -> Lang:
    grammar = GrammarSettings(
        kind=GrammarKind.loop, words=list(WORDS), min_words=1, max_words=2, file=None
    )
    lexicon = lexicon_of(folder / "lexiconp.txt", states, WORDS).lexicon
    return Lang(lexicon, states.monophones, grammar, None, SILENCE_PROBABILITY)


def kaldis_cost(folder, phones, scores_TS, self_loop_scale=1.0) -> float:
    """Return the cheapest path through a row of phones by Kaldi's tree and log-probabilities."""
    tree, model = read_tree(folder / "tree"), read_transition_model(folder / "final.mdl")
    padded = [0, *phones, 0]
    hmms = []
    for i, phone in enumerate(phones):
        window = padded[i : i + 3][1 - tree.centre :][: tree.width]
        hmm = []
        for j, state in enumerate(model.topology.of(phone)[:-1]):
            pdfs = tuple(pdf_of(tree, window, c) for c in (state.enters, state.repeats))
            (n,) = np.flatnonzero((model.state_N4 == (phone, j, *pdfs)).all(1))
            logs = dict(zip((to for to, _ in state.ways), model.logp_N[n], strict=True))
            loop = logs.pop(j, -math.inf)
            leave = math.log1p(-math.exp(loop))
            ways = {to: -(logp - leave) - self_loop_scale * leave for to, logp in logs.items()}
            hmm.append((pdfs, -self_loop_scale * loop, ways))
        hmms.append(hmm)
    costs = {(0, 0): -scores_TS[0, hmms[0][0][0][0]]}
    for t in range(1, len(scores_TS)):
        then = {}
        for (i, j), cost in costs.items():
            pdfs, loop, ways = hmms[i][j]
            moves = [((i, j), loop, pdfs[1])]
            for to, way in ways.items():
                there = (i, to) if to < len(hmms[i]) else (i + 1, 0)
                if there[0] < len(phones):
                    moves.append((there, way, hmms[there[0]][there[1]][0][0]))
            for there, more, pdf in moves:
                total = cost + more - scores_TS[t, pdf]
                then[there] = min(then.get(there, math.inf), total)
        costs = then
    last = len(phones) - 1
    ends = [
        c + hmms[i][j][2].get(len(hmms[i]), math.inf) for (i, j), c in costs.items() if i == last
    ]
    return min(ends, default=math.inf)


def rows_of(words):
    """Yield all rows of phones of a transcript, and the cost of pronunciations and silences."""
    choices = [[(pron, math.log(len(WORDS[w]))) for pron in WORDS[w]] for w in words]
    pauses = [(), (1,)]
    for prons in itertools.product(*choices):
        for silences in itertools.product(pauses, repeat=len(words) + 1):
            row = list(silences[0])
            for (pron, _), silence in zip(prons, silences[1:], strict=True):
                row += [*pron, *silence]
            p = [SILENCE_PROBABILITY if s else 1 - SILENCE_PROBABILITY for s in silences]
            yield row, sum(cost for _, cost in prons) - sum(map(math.log, p))


def cheapest(folder, words, scores_TS, scale) -> float:
    return min(cost + kaldis_cost(folder, row, scores_TS, scale) for row, cost in rows_of(words))


@pytest.fixture
def scores_TS(model):
    states = read_transition_model(model / "final.mdl").num_pdfs
    return np.random.default_rng(7).normal(0, 2, (9, states)).astype(np.float32)


def test_a_transcripts_best_path_costs_what_kaldi_says(model, scores_TS):
    states = states_of(model, model)
    lang, loop_S = lang_of(model, states), states.hmms.loops(states.num_states)
    for words in (["ONE"], ["TWO", "ONE"]):
        made = transcript_graph(words, lang, states, loop_S)
        path = forced_path(made.graph, made.state_K, 9, lambda span: scores_TS[span], 1.0, WIDE)
        total = path.graph_cost + path.acoustic_cost
        assert total == pytest.approx(cheapest(model, words, scores_TS, 1.0), abs=1e-3)
        assert made.graph.arcs_A["ilabel"].min() > 0


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_the_best_sentence_costs_what_kaldi_says(model, scores_TS, scale):
    states = states_of(model, model)
    lang, loop_S = lang_of(model, states), states.hmms.loops(states.num_states)
    graph = decoding_graph(lang, states, loop_S, self_loop_scale=scale)
    path = search(Graph.of(graph), scores_TS, 1.0, WIDE, 10**6)
    assert path.final
    grammar = math.log(len(WORDS) + 1)
    sentences = [row for n in (1, 2) for row in itertools.product(WORDS, repeat=n)]
    costs = {
        words: grammar * (len(words) + 1) + cheapest(model, words, scores_TS, scale)
        for words in sentences
    }
    # Determinisation rounds weights to 1/1024, which adds up where they do not sum to 1
    assert path.graph_cost + path.acoustic_cost == pytest.approx(min(costs.values()), abs=5e-3)
    assert [lang.lexicon.words[i - 1] for i in path.words] == list(min(costs, key=costs.get))


def test_states_come_back_from_json(model):
    states = states_of(model, model)
    write_states(model / "states.json", states)
    again = read_states(model / "states.json")
    assert again == states or again.plain() == states.plain()
    assert again.hash == states.hash
    kaldis = ids_of(read_transition_model(model / "final.mdl"))
    ids = TransitionIds.of(again)
    found = ids.transitions_I6[1:, 1:5] + [1, 0, 0, 0]  # phones count from 1 there
    assert np.array_equal(found, kaldis)


# --- alignments ---------------------------------------------------------------------------------


def tid(*wanted) -> int:
    """Return YESNO's transition-id of phone, HMM state and next one."""
    (found,) = (i for i, way in enumerate(YESNO_IDS, 1) if way[:3] == wanted)
    return found


# SIL, A, B without self-loops; each entry may be preceded, or followed, by self-loops of its state
SPOKEN = [(1, 0, 2), (1, 2, 1), (1, 1, 4), (1, 4, 5)]
SPOKEN += [(phone, j, j + 1) for phone in (2, 3) for j in range(3)]


@pytest.mark.parametrize("reordered", [False, True])
def test_transition_ids_become_states_and_phones(tmp_path, reordered):
    write_model(tmp_path, "yesno")
    ids = TransitionIds.of(states_of(tmp_path, tmp_path))
    path, pdfs, starts = [], [], []
    for n, (phone, j, to) in enumerate(SPOKEN):
        if j == 0:
            starts.append(len(path))
        loops = [tid(phone, j, j)] * (n % 3)
        path += [tid(phone, j, to), *loops] if reordered else [*loops, tid(phone, j, to)]
        pdfs += [{1: 0, 2: 5, 3: 8}[phone] + j] * (1 + n % 3)
    found = ids.path("u1", np.array(path), ["ONE"])
    assert found.states_T.tolist() == pdfs
    assert found.phones_N3.tolist() == [[0, starts[0], -1], [1, starts[1], -1], [2, starts[2], -1]]
    assert found.position_T.max() == 4


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda ids: [*ids[:2], 99], "has the ids 1 to 99|ids 3 to 99 but .* are 1 to 30"),
        (lambda ids: [0, *ids], "ids 0 to 30 but the model's transition-ids are 1 to 30"),
        (lambda ids: ids[:1] + ids[2:], "u1: at frame 1, HMM state 1 of SIL follows .* state 2"),
        (lambda ids: ids[:4] + ids[5:], "u1: at frame 4, HMM state 1 of A follows .* state 0"),
    ],
)
def test_a_path_of_another_model_is_refused(tmp_path, change, message):
    write_model(tmp_path, "yesno")
    ids = TransitionIds.of(states_of(tmp_path, tmp_path))
    path = [tid(*way) for way in SPOKEN]
    with pytest.raises(ValueError, match=message):
        ids.path("u1", np.array(change(path)), ["ONE"])


# --- phones and words ---------------------------------------------------------------------------


def test_positions_in_words_name_phones_and_words(tmp_path):
    write_model(tmp_path, "yesno")
    (tmp_path / "phones.txt").write_text("<eps> 0\nSIL 1\nA_B 2\nA_E 3\n#0 4\n")
    states = states_of(tmp_path, tmp_path)
    assert states.phones == ("SIL", "A_B", "A_E")
    ids = TransitionIds.of(states)
    given = "u1", np.array([tid(*way) for way in SPOKEN]), ["ONE"]
    # No phone has all four positions, so these are parts of names
    assert ids.path(*given).phones_N3[:, 2].tolist() == [-1, -1, -1]
    ids = TransitionIds.of(replace(states, phones=(*states.phones, "C_B", "C_I", "C_E", "C_S")))
    assert ids.path(*given).phones_N3[:, 2].tolist() == [-1, 0, 0]


def test_phones_of_a_lexicon_get_positions_if_the_model_has_them(tmp_path):
    write_model(tmp_path, "yesno")
    names = ["SIL", *(p + mark for p in "AB" for mark in ("_B", "_I", "_E", "_S"))]
    states = states_of(tmp_path, tmp_path)
    marked = type("Named", (), {"phones": tuple(names)})()
    (tmp_path / "lexicon.txt").write_text("aba A B A\na A\nab A B\nabba A_B B_I B_I A_E\n")
    found = lexicon_of(tmp_path / "lexicon.txt", marked, ["A", "AB", "ABA", "ABBA", "C"])
    assert found.lexicon.prons == {
        "A": (("A_S",),),
        "AB": (("A_B", "B_E"),),
        "ABA": (("A_B", "B_I", "A_E"),),
        "ABBA": (("A_B", "B_I", "B_I", "A_E"),),
    }
    assert found.lexicon.missing == ("C",)
    with_positions = type("Named", (), {"phones": (*names, "SIL_B", "SIL_E", "SIL_I", "SIL_S")})()
    (tmp_path / "lexicon.txt").write_text("!SIL SIL\n<PAUSE> SIL_S\na A\n")
    found = lexicon_of(tmp_path / "lexicon.txt", with_positions, ["A", "!SIL", "<PAUSE>"])
    assert (list(found.lexicon.prons), found.silent) == (["A"], 2)
    with_chances = lexicon_of(tmp_path / "lexiconp.txt", states, ["ONE", "TWO", "!SIL"])
    assert with_chances.lexicon.prons == {"ONE": (("A", "B"), ("B",)), "TWO": (("B", "A"),)}
    assert (with_chances.silent, with_chances.weighed) == (1, 1)
    (tmp_path / "lexiconp.txt").write_text("one A B\n")  # a lexicon.txt that was renamed
    with pytest.raises(ValueError, match=r"line 1 is 'one A B', without the 1 number that a file"):
        lexicon_of(tmp_path / "lexiconp.txt", states, ["ONE"])
    (tmp_path / "lexicon.txt").write_text("zoe\u0308 A\n", "utf-8")
    assert list(lexicon_of(tmp_path / "lexicon.txt", states, ["ZOË"]).lexicon.prons) == ["ZOË"]
    (tmp_path / "lexicon.txt").write_text("one A Q\n")
    with pytest.raises(ValueError, match="line 1: the model has no phone Q, with or without"):
        lexicon_of(tmp_path / "lexicon.txt", states, ["ONE"])


def test_another_optional_silence_is_renamed(tmp_path):
    write_model(tmp_path, "yesno")
    (tmp_path / "phones.txt").write_text("<eps> 0\nA 1\nsil 2\nB 3\n")
    with pytest.raises(ValueError, match=r"optional silence is 'SIL'.* phone of the model .A, sil"):
        states_of(tmp_path, tmp_path)
    (tmp_path / "phones").mkdir()
    (tmp_path / "phones" / "optional_silence.txt").write_text("sil\n")
    states = states_of(tmp_path, tmp_path)
    assert states.phones == ("SIL", "A", "B")
    assert states.of("SIL") == [5, 6, 7]
    (tmp_path / "lexicon.txt").write_text("<PAUSE> sil\n")
    assert lexicon_of(tmp_path / "lexicon.txt", states, ["<PAUSE>"]).silent == 1
    (tmp_path / "tree").unlink()
    with pytest.raises(ValueError, match=r"tree is missing; a model's folder has tree and final"):
        states_of(tmp_path, tmp_path)
    assert (states.phone_states, states.silence_states) == (3, 3)  # A may last 0, 3, 4


@pytest.mark.parametrize(
    "content, message",
    [
        ("SIL 1\nA 2\n", "has no phone 3, which is in the model's topology, as are 0 more"),
        ("SIL 1\nA 2\nB 2\n", "gives several symbols the same number"),
        ("SIL 1\nSIL 2\n", "line 2: SIL appears twice"),
        ("SIL one\n", "line 1 is 'SIL one'; it must be a symbol and a number"),
    ],
)
def test_phones_of_another_model_are_refused(tmp_path, content, message):
    write_model(tmp_path, "yesno")
    (tmp_path / "phones.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        states_of(tmp_path, tmp_path)


def test_words_txt_is_a_symbol_table(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nONE 1\n#0 2\n")
    assert read_symbols(tmp_path / "words.txt") == {"<eps>": 0, "ONE": 1, "#0": 2}


def test_tree_and_model_must_go_together(tmp_path):
    write_model(tmp_path, "skips")
    write_model(tmp_path / "other", "triphones")
    (tmp_path / "tree").write_bytes((tmp_path / "other" / "tree").read_bytes())
    with pytest.raises(ValueError, match=r"class 1 of phone SIL the pdf-id 0, .* same folder"):
        states_of(tmp_path, tmp_path)


def test_an_hmm_that_returns_to_its_first_state_is_refused(tmp_path):
    write_model(tmp_path, "yesno")
    text = (tmp_path / "final.mdl").read_text()
    (tmp_path / "final.mdl").write_text(
        text.replace(
            "<Transition> 3 0.25 <Transition> 4 0.25 </State>\n<State> 4",
            "<Transition> 0 0.25 <Transition> 4 0.25 </State>\n<State> 4",
        )
    )
    with pytest.raises(ValueError, match="HMM state 3 of phone SIL leads back to the first one"):
        states_of(tmp_path, tmp_path)


def test_changed_states_are_refused(tmp_path):
    write_model(tmp_path, "yesno")
    write_states(tmp_path / "states.json", states_of(tmp_path, tmp_path))
    content = json.loads((tmp_path / "states.json").read_text())
    for change, message in [
        (lambda c: c["states"]["hmms"]["transitions"][0].__setitem__(2, 3), "says states_hash"),
        (lambda c: c["states"]["hmms"].pop("topology"), "says states_hash"),
        (lambda c: c["states"]["phones"].pop(), "says states_hash"),
        (lambda c: c.update(format=0), "is not a list of states in format 1"),
    ]:
        changed = json.loads(json.dumps(content))
        change(changed)
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            read_states(tmp_path / "changed.json")
