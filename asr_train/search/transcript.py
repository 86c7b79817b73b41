"""A transcript -> its training graph: all pronunciations, with optional silence between words.

Every place in it has its own label, so that a path gives not only the state of each frame but also
its phone and word, whatever states are tied to each other.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from asr_train.lang.hmms import NONE
from asr_train.lang.index import Lang
from asr_train.lang.pronprobs import EDGE
from asr_train.lang.states import States
from asr_train.search.arrays import ARC, Arrays
from asr_train.search.graph import hmm_costs, transition_costs


@dataclass(frozen=True, slots=True)
class Transcript:
    """A training graph and the meaning of its labels; label k + 1 is entry k of each array.

    Attributes:
        graph: without epsilons; a node is entered by one label, and output labels are word ids.
        state_K: int32, the state.
        position_K: int8, its position in the phone.
        node_K: int32, its phone in context: a run of one node is one phone.
        phone_N, word_N: int32, the phone of each node, and the index of its word in the transcript;
            -1 for silence.
    """

    graph: Arrays
    state_K: np.ndarray
    position_K: np.ndarray
    node_K: np.ndarray
    phone_N: np.ndarray
    word_N: np.ndarray

    def phones(self, label_T: np.ndarray) -> np.ndarray:
        """Return a path's phones: int32 [phones, 3] of phone, first frame, index of word or -1."""
        node_T = self.node_K[label_T]
        starts = np.flatnonzero(np.diff(node_T, prepend=-1))
        nodes = node_T[starts]
        return np.stack([self.phone_N[nodes], starts, self.word_N[nodes]], 1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Phone:
    """A phone in the transcript, without its context."""

    phone: int
    word: int  # index in the transcript; -1: silence
    output: int  # word id for the first phone of a word, else 0


END = -1  # the end of the graph, as a successor
Steps = list[tuple[int, float]]  # places of phones that may come next, and the costs
Node = tuple[int, int, int]  # a phone in context: its place, left phone, right phone


def transcript_graph(
    words: list[str], lang: Lang, states: States, loop_S: np.ndarray
) -> Transcript:
    """Build the training graph of a transcript.

    Args:
        words: the transcript, not empty.
        states: those of the model, of `lang`'s phones.
        loop_S: float [S], self-loop probability of each state.
    Raises:
        KeyError: for the first word without a pronunciation.
    """
    places, first, follow = _phones(words, lang)
    nodes, arcs = _in_context(places, first, follow, states)
    costs = transition_costs(loop_S)
    labels: list[tuple[int, int, int]] = []  # state, its position in the phone, node
    heads: list[tuple[int, float]] = []  # the label that enters a node, and its cost
    tails: list[list[tuple[int, float]]] = []  # labels that end it; they are FST states, too
    rows = []  # source, ilabel, olabel, weight, target
    for n, (place, left, right) in enumerate(nodes):
        hmm = states.hmm(left, places[place].phone, right)
        enter_J, stay_J = hmm_costs(hmm, *costs)
        label_J, last_J = [], []  # the labels of a visit's first and last frame
        for j, (entered, repeated) in enumerate(zip(hmm.entered, hmm.repeated, strict=True)):
            labels.append((entered, j, n))
            label_J.append(len(labels))
            if repeated not in (entered, NONE):
                labels.append((repeated, j, n))
                rows.append((len(labels) - 1, len(labels), 0, stay_J[j], len(labels)))
            if repeated != NONE:
                rows.append((len(labels), len(labels), 0, stay_J[j], len(labels)))
            last_J.append(len(labels))
        heads.append((label_J[0], enter_J[0]))
        ends = []
        for source, target, cost in hmm.ways:
            for label in range(label_J[source], last_J[source] + 1):
                if target == len(label_J):
                    ends.append((label, cost))
                else:
                    there = label_J[target]
                    rows.append((label, there, 0, cost + enter_J[target], there))
        tails.append(ends)
    final_N = np.full(len(labels) + 1, np.inf, np.float32)
    for source, target, cost in arcs:
        for tail, end_cost in [(0, 0.0)] if source == END else tails[source]:
            if target == END:
                final_N[tail] = cost + end_cost
                continue
            label, enter_cost = heads[target]
            output = places[nodes[target][0]].output
            rows.append((tail, label, output, cost + end_cost + enter_cost, label))
    rows.sort(key=lambda row: row[0])
    source_A = np.array([row[0] for row in rows])
    arcs_A = np.array([row[1:] for row in rows], ARC)
    state_K, position_K, node_K = np.array(labels, np.int32).T.copy()
    return Transcript(
        Arrays(0, final_N, source_A, arcs_A),
        state_K,
        position_K.astype(np.int8),
        node_K,
        np.array([places[place].phone for place, _, _ in nodes], np.int32),
        np.array([places[place].word for place, _, _ in nodes], np.int32),
    )


def _phones(words: list[str], lang: Lang) -> tuple[list[_Phone], Steps, list[Steps]]:
    """Return the transcript's phones, those that may come first, and the successors of each."""
    word_ids = lang.word_ids
    phone_ids = {phone: p for p, phone in enumerate(lang.states.phones)}
    places: list[_Phone] = []
    follow: list[Steps] = []

    def add(phone: _Phone) -> int:
        places.append(phone)
        follow.append([])
        return len(places) - 1

    first: Steps = []
    # Lists to which the next places are added, with the costs of a pause and of none
    open_ends = [(first, lang.pause_costs(EDGE))]
    for place, word in enumerate([*words, None]):
        pause = add(_Phone(0, -1, 0))
        for ends, (silent, _) in open_ends:
            ends.append((pause, silent))
        befores = [(follow[pause], 0.0, 0), *((ends, costs[1], 1) for ends, costs in open_ends)]
        if word is None:
            entry = lang.entry_costs(EDGE)
            for ends, cost, before in befores:
                ends.append((END, cost + entry[before]))
            break
        prons = lang.lexicon.prons[word]
        last = []
        for n, pron in enumerate(prons):
            row = [add(_Phone(phone_ids[p], place, 0)) for p in pron]
            places[row[0]] = _Phone(phone_ids[pron[0]], place, word_ids[word])
            entry = lang.entry_costs((word, n))
            for ends, cost, before in befores:
                ends.append((row[0], cost + lang.pron_cost((word, n)) + entry[before]))
            for a, b in itertools.pairwise(row):
                follow[a].append((b, 0.0))
            last.append((follow[row[-1]], lang.pause_costs((word, n))))
        open_ends = last
    return places, first, follow


def _in_context(
    places: list[_Phone], first: Steps, follow: list[Steps], states: States
) -> tuple[list[Node], list[tuple[int, int, float]]]:
    """Put phones in context.

    Returns:
        Nodes, with neighbours 0 where they do not matter; and arcs (node, node, cost), with END for
        the start and the end of the graph.
    """
    nodes: dict[Node, int] = {}
    arcs: list[tuple[int, int, float]] = []
    todo: list[Node] = []

    def node(place: int, left: int, right: int) -> int:
        key = (place, left, right)
        if key not in nodes:
            nodes[key] = len(nodes)
            todo.append(key)
        return nodes[key]

    def phone(place: int) -> int:
        return states.edge if place == END else places[place].phone

    def enter(source: int, left: int, allowed: int | None, after: Steps) -> None:
        for place, cost in after:
            if allowed is not None and phone(place) != allowed:
                continue
            if place == END:
                arcs.append((source, END, cost))
                continue
            own, rights = 0, [0]
            if states.is_context_dependent_P[places[place].phone]:
                own, rights = left, sorted({phone(next_) for next_, _ in follow[place]})
            arcs.extend((source, node(place, own, right), cost) for right in rights)

    enter(END, states.edge, None, first)
    while todo:
        key = todo.pop()
        place, _, right = key
        phone_here = places[place].phone
        after = right if states.is_context_dependent_P[phone_here] else None
        enter(nodes[key], phone_here, after, follow[place])
    return list(nodes), arcs
