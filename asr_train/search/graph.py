"""Lexicon, states, grammar -> HCLG.

Input labels are state ids + 1 (0 is epsilon), so that a matrix with a column per state can be
passed to kaldi_decoder's DecodableCtc, which reads column label - 1. Output labels are word ids,
from 1 in the order of the lexicon.

The order of construction is Kaldi's (mkgraph.sh): min(det(H o C o det(L o G))), self-loops last.
"""

import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np

from asr_train import files
from asr_train.lang.hmms import NONE, Hmm
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE
from asr_train.lang.pronprobs import EDGE
from asr_train.lang.states import States
from asr_train.schema import GrammarKind
from asr_train.search.arrays import ARC, Arrays, const_of, load_const, to_arrays, to_fst, to_vector

SELF_LOOP_SCALE = 0.1  # of decoding graphs, Kaldi's


def _compiled(lines: list[str]) -> Any:
    """Compile AT&T text; the start state is that of its first line."""
    return kaldifst.compile("\n".join(lines) + "\n", acceptor=False)


def transition_costs(
    loop_S: np.ndarray, self_loop_scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return costs in nats of entering a state (including that of leaving it) and of staying.

    Both are scaled, as by Kaldi's add-self-loops (`GetScaledTransitionLogProb` in hmm-utils.cc):

        staying   self_loop_scale * -log p
        leaving   self_loop_scale * -log(1 - p) + transition_scale * -log(this way out of all)

    A state has one way out here, so the last term is 0 at any scale. Training graphs use 1.0 with
    unscaled acoustics, decoding graphs 0.1 with acoustics scaled by about as much.
    """
    p_S = np.clip(np.asarray(loop_S, np.float64), 1e-3, 1 - 1e-3)
    return self_loop_scale * -np.log1p(-p_S), self_loop_scale * -np.log(p_S)


def hmm_costs(hmm: Hmm, enter_S: np.ndarray, stay_S: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the costs of entering and of staying in each HMM state of a phone, in nats.

    Args:
        enter_S, stay_S: `transition_costs` of the model, for HMMs that have no own probabilities.
    """
    if hmm.stay is None:
        ids = hmm.entered  # few: faster one by one
        return [enter_S.item(s) for s in ids], [stay_S.item(s) for s in ids]
    enter_J, stay_J = own_costs(np.array(hmm.stay), 1.0)
    return enter_J.tolist(), stay_J.tolist()


def own_costs(stay_J: np.ndarray, self_loop_scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the same of self-loop probabilities that another program trained; 0: no self-loop."""
    cost_J = np.full(len(stay_J), np.inf)
    loops = stay_J > 0
    cost_J[loops] = self_loop_scale * -np.log(stay_J[loops])
    return self_loop_scale * -np.log(np.maximum(1 - stay_J, 1e-10)), cost_J


# --- HCLG ---------------------------------------------------------------------------------------


def lexicon_fst(lang: Lang) -> tuple[Any, list[int]]:
    """Return L: phones -> words, with disambiguation symbols that make it determinisable.

    Phones are 1 ... P, then the disambiguation symbols. The first of these, P + 1, is #0, which
    stands for the grammar's back-off and outputs word V + 1.

    Returns:
        StdVectorFst sorted by words, and the ids of the disambiguation symbols.
    """
    phone_ids = {phone: i for i, phone in enumerate(lang.states.phones, 1)}
    backoff = len(phone_ids) + 1
    marks = _disambiguation(lang)
    silence_mark = backoff + 1 + max(marks.values(), default=0)
    start, loop, silence, marked, quiet, free = 0, 1, 2, 3, 4, 5
    if lang.pronprobs is None:
        quiet, free = loop, 4  # what follows does not depend on whether there was silence
    silent, spoken = lang.pause_costs(EDGE)
    lines = [
        f"{start} {loop} 0 0 {spoken}",
        f"{start} {marked} {phone_ids[SILENCE]} 0 {silent}",
        f"{silence} {marked} {phone_ids[SILENCE]} 0",
        f"{marked} {quiet} {silence_mark} 0",
    ]
    between = {quiet: 0, loop: 1}  # nodes before words -> index into `Lang.entry_costs`
    for node, before in between.items():
        lines.append(f"{node} {node} {backoff} {len(lang.lexicon.prons) + 1}")
        lines.append(f"{node} {lang.entry_costs(EDGE)[before]}")
    for w, (word, prons) in enumerate(lang.lexicon.prons.items(), 1):
        for n, pron in enumerate(prons):
            labels = [phone_ids[p] for p in pron]
            if mark := marks.get((word, pron)):
                labels.append(backoff + mark)
            cost, entry = lang.pron_cost((word, n)), lang.entry_costs((word, n))
            silent, spoken = lang.pause_costs((word, n))
            heres, out = {node: cost + entry[before] for node, before in between.items()}, w
            for label in labels[:-1]:
                lines += [f"{node} {free} {label} {out} {cost}" for node, cost in heres.items()]
                heres, out, free = {free: 0.0}, 0, free + 1
            for node, cost in heres.items():
                lines.append(f"{node} {loop} {labels[-1]} {out} {cost + spoken}")
                lines.append(f"{node} {silence} {labels[-1]} {out} {cost + silent}")
    fst = _compiled(lines)
    kaldifst.arcsort(fst, "olabel")
    return fst, list(range(backoff, silence_mark + 1))


def _disambiguation(lang: Lang) -> dict[tuple[str, tuple[str, ...]], int]:
    """Number pronunciations that occur for another word too, or begin another one: 1, 2, ..."""
    prons = [(word, pron) for word, ps in lang.lexicon.prons.items() for pron in ps]
    beginnings = {pron[:n] for _, pron in prons for n in range(1, len(pron))}
    counts, used = Counter(pron for _, pron in prons), Counter[tuple[str, ...]]()
    marks = {}
    for word, pron in prons:
        if counts[pron] > 1 or pron in beginnings:
            used[pron] += 1
            marks[word, pron] = used[pron]
    return marks


def grammar_fst(lang: Lang, lm_weight: float) -> Any:
    """Return G, an acceptor of words; costs are lm_weight * -log p."""
    arrays = to_arrays(_loop(lang) if lang.grammar.kind is GrammarKind.loop else _arpa(lang))
    arrays.arcs_A["weight"] *= lm_weight
    arrays.final_N[np.isfinite(arrays.final_N)] *= lm_weight
    fst = to_vector(arrays)
    kaldifst.arcsort(fst, "ilabel")
    return fst


def _loop(lang: Lang) -> Any:
    """Return a loop with equal probabilities of each word and, where it is allowed, of the end."""
    ids, grammar = lang.word_ids, lang.grammar
    cost = math.log(len(grammar.words) + 1)
    last = grammar.max_words if grammar.max_words is not None else 1
    lines = []
    for state in range(last + 1):
        if state >= grammar.min_words:
            lines.append(f"{state} {cost}")
        if state < last or grammar.max_words is None:
            there = min(state + 1, last)
            lines += [f"{state} {there} {ids[w]} {ids[w]} {cost}" for w in grammar.words]
    lines.sort(key=lambda line: len(line.split()) == 2)  # final states after arcs
    return _compiled(lines)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what C++ code prints on standard error: kaldilm reports each section it reads."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _arpa(lang: Lang) -> Any:
    import kaldilm  # only needed for ARPA files

    assert lang.arpa is not None
    symbols = ["<eps>", *lang.lexicon.words, "#0"]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "words.txt"
        table.write_text("".join(f"{word} {i}\n" for i, word in enumerate(symbols)), "utf-8")
        with quiet():
            text = kaldilm.arpa2fst(
                input_arpa=str(lang.arpa),
                disambig_symbol="#0",
                read_symbol_table=str(table),
                ilabel_sort=True,
            )
    return kaldifst.compile(text, acceptor=False)  # #0 is an input label, in L word V + 1


# Ways out of a phone's HMM states: source, target (NONE: the phone ends) and id of `_Hmms`
_Row = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Hmms:
    """Ways out of HMM states, distinguished by phone even if a tree ties states across phones.

    With them, input strings determine phones, so that transducers can be determinised.

    Attributes:
        enter_H: the cost of each: of leaving the state, and of this way among others.
        class_H: those alike in both states and in the cost of staying are of one class.
        labels_C, again_C: labels of a class: of a visit's first frame, and of its further ones.
        stay_C: the cost of staying; infinite: there is no self-loop.
        ids: (phone, source, target, state entered, state repeated) -> id.
    """

    enter_H: np.ndarray
    class_H: np.ndarray
    labels_C: np.ndarray
    again_C: np.ndarray
    stay_C: np.ndarray
    ids: dict[tuple[int, int, int, int, int], int]

    @staticmethod
    def of(states: States, loop_S: np.ndarray, self_loop_scale: float) -> "_Hmms":
        ways = sorted(
            states.ways(), key=lambda w: (w.entered, w.phone, w.source, w.target, w.repeated)
        )
        if states.hmms is None:
            of_S = transition_costs(loop_S, self_loop_scale)
            enter_H, stay_H = (cost_S[[w.entered for w in ways]] for cost_S in of_S)
        else:
            enter_H, stay_H = own_costs(np.array([w.stay for w in ways]), self_loop_scale)
        keys = [
            (w.entered, w.repeated, stay) for w, stay in zip(ways, stay_H.tolist(), strict=True)
        ]
        class_of = {key: c for c, key in enumerate(sorted(set(keys)))}
        return _Hmms(
            enter_H + np.array([w.cost for w in ways]),
            np.array([class_of[key] for key in keys], np.int32),
            np.array([entered + 1 for entered, *_ in class_of], np.int32),
            np.array([repeated + 1 for _, repeated, _ in class_of], np.int32),
            np.array([stay for *_, stay in class_of]),
            {(w.phone, w.source, w.target, w.entered, w.repeated): h for h, w in enumerate(ways)},
        )

    def row(self, states: States, left: int, phone: int, right: int) -> _Row:
        """Return the ways through a phone in its context."""
        hmm = states.hmm(left, phone, right)
        return tuple(
            (
                source,
                target if target < len(hmm.entered) else NONE,
                self.ids[phone, source, target, hmm.entered[source], hmm.repeated[source]],
            )
            for source, target, _ in hmm.ways
        )


def states_fst(hmms: _Hmms, rows: dict[int, _Row], marks: list[int]) -> Any:
    """Return H: ids of `hmms` + 1 -> units, without loops; entering a state pays for leaving it.

    Args:
        rows: input labels of (C o) L o G -> what they mean.
        marks: its labels that disambiguate, including C's own; they are removed at the end.
    """
    enter = hmms.enter_H.tolist()
    lines, free = [], 1
    for unit, row in rows.items():
        node = {0: 0, NONE: 0}  # the first HMM state is the hub, to which nothing but ends returns
        for source, target, h in row:
            for j in (source, target):
                if j not in node:
                    node[j] = free
                    free += 1
            out = unit if source == 0 else 0
            lines.append(f"{node[source]} {node[target]} {h + 1} {out} {enter[h]}")
    for label, mark in enumerate(marks, len(hmms.class_H) + 1):
        lines.append(f"0 0 {label} {mark}")
    lines.append("0 0.0")
    fst = _compiled(lines)
    kaldifst.arcsort(fst, "olabel")
    return fst


def _in_context(
    lg: Any, marks: list[int], states: States, hmms: _Hmms
) -> tuple[Any, dict[int, _Row], list[int]]:
    """Return C o L o G and its labels: phones in context, one for equal states; and marks."""
    clg, windows = kaldifst.compose_context(marks, 3, 1, lg)
    first: dict[_Row, int] = {}  # ways (which determine the phone) -> their label
    rows: dict[int, _Row] = {}
    label_of = np.arange(len(windows), dtype=np.int32)
    context_marks = []
    for label, window in enumerate(windows):
        if len(window) == 3:
            left, phone, right = (w - 1 if w else states.edge for w in window)
            row = hmms.row(states, left, phone, right)
            label_of[label] = first.setdefault(row, label)
            rows[first[row]] = row
        elif label:
            context_marks.append(label)
    arrays = to_arrays(clg)
    arrays.arcs_A["ilabel"] = label_of[arrays.arcs_A["ilabel"]]
    clg = to_vector(arrays)
    kaldifst.arcsort(clg, "ilabel")
    return clg, rows, context_marks


def decoding_graph(
    lang: Lang,
    states: States,
    loop_S: np.ndarray,
    lm_weight: float = 1.0,
    smaller: bool = True,
    self_loop_scale: float = SELF_LOOP_SCALE,
) -> Arrays:
    """Return HCLG with self-loops.

    Args:
        states: of the model; of the same phones as `lang`.
        loop_S: float [S], self-loop probability of each state.
        lm_weight: factor of the grammar's costs.
        smaller: whether to minimise the graph (a third of the time for a fifth of its size).
        self_loop_scale: factor of the costs of staying in and of leaving a state.
    Raises:
        ValueError: if the grammar allows no sentence of words in the lexicon, or the phones of
            `states` differ.
    """
    check_phones(lang, states)
    lexicon, marks = lexicon_fst(lang)
    lg = kaldifst.compose(lexicon, grammar_fst(lang, lm_weight))
    kaldifst.determinize_star(lg, use_log=True)
    kaldifst.minimize_encoded(lg)
    kaldifst.arcsort(lg, "ilabel")
    hmms = _Hmms.of(states, loop_S, self_loop_scale)
    if states.tied:
        lg, rows, marks = _in_context(lg, marks, states, hmms)
    else:
        rows = {p + 1: hmms.row(states, 0, p, 0) for p in range(len(states.phones))}
    hlg = kaldifst.compose(states_fst(hmms, rows, marks), lg)
    del lg
    kaldifst.determinize_star(hlg, use_log=True)
    arrays = to_arrays(hlg)
    if not (arrays.arcs_A["olabel"] > 0).any():
        raise ValueError(
            "the grammar allows no sentence: none of its words is in the lexicon "
            f"({len(lang.lexicon.prons)} words); see lang.grammar and lang.lexicon"
        )
    arrays.arcs_A["ilabel"][arrays.arcs_A["ilabel"] > len(hmms.class_H)] = 0
    if smaller:
        hlg = to_vector(arrays)
        kaldifst.minimize_encoded(hlg)
        arrays = to_arrays(hlg)
    del hlg
    classes = np.concatenate([[0], hmms.class_H + 1]).astype(np.int32)
    arrays.arcs_A["ilabel"] = classes[arrays.arcs_A["ilabel"]]
    graph = with_self_loops(arrays, hmms.stay_C, len(hmms.stay_C))
    labels = np.concatenate([[0], hmms.labels_C, hmms.again_C]).astype(np.int32)
    graph.arcs_A["ilabel"] = labels[graph.arcs_A["ilabel"]]
    return graph


def check_phones(lang: Lang, states: States) -> None:
    """Check that a model's states are of the phones of the lang folder.

    Raises:
        ValueError: if they differ, naming the first difference.
    """
    ours, theirs = lang.states.monophones.hash, states.monophones.hash
    if ours != theirs:
        one = sorted(set(lang.states.phones) ^ set(states.phones))
        raise ValueError(
            f"the model has {len(states.phones)} phones ({theirs}) but the lang folder has "
            f"{len(lang.states.phones)} ({ours})"
            + (f", and only one of them has {one[0]}" if one else ", of other states")
            + "; delete the model.json and run make again"
        )


def with_penalty(graph: Arrays, insertion_penalty: float) -> Arrays:
    """Return the graph with an additional cost per word (in nats, negative: a bonus)."""
    arcs_A = graph.arcs_A.copy()
    arcs_A["weight"][arcs_A["olabel"] > 0] += np.float32(insertion_penalty)
    return Arrays(graph.start, graph.final_N, graph.source_A, arcs_A)


def with_self_loops(graph: Arrays, stay_S: np.ndarray, beyond: int = 0) -> Arrays:
    """Add a self-loop of cost `stay_S` after each arc that enters a state.

    A node that is entered by one label only gets the loop itself. Otherwise each label gets its own
    node, with the loop and an epsilon arc to the shared node.

    Args:
        stay_S: by label - 1; infinite: no self-loop.
        beyond: what the labels of loops exceed those of the arcs before them by.
    """
    arcs_A = graph.arcs_A.copy()
    nodes = len(graph.final_N)
    emitting = arcs_A["ilabel"] > 0
    pairs, inverse = np.unique(
        np.stack([arcs_A["next"][emitting], arcs_A["ilabel"][emitting]], 1),
        axis=0,
        return_inverse=True,
    )
    shared_N = np.bincount(pairs[:, 0], minlength=nodes) > 1
    shared_N |= np.bincount(arcs_A["next"][~emitting], minlength=nodes) > 0
    shared_N[graph.start] = True
    split = shared_N[pairs[:, 0]]
    node_of_pair = pairs[:, 0].copy()
    node_of_pair[split] = nodes + np.arange(split.sum())
    arcs_A["next"][emitting] = node_of_pair[inverse.reshape(-1)]
    loops = np.zeros(len(pairs), ARC)
    loops["ilabel"], loops["next"] = pairs[:, 1] + beyond, node_of_pair
    loops["weight"] = stay_S[pairs[:, 1] - 1]
    loops = loops[np.isfinite(loops["weight"])]
    bridges = np.zeros(split.sum(), ARC)
    bridges["next"] = pairs[split, 0]
    ends = np.full(split.sum(), np.inf, np.float32)
    return Arrays(
        graph.start,
        np.concatenate([graph.final_N, ends]),
        np.concatenate([graph.source_A, loops["next"], node_of_pair[split]]),
        np.concatenate([arcs_A, loops, bridges]),
    )


# --- the graph as a file ------------------------------------------------------------------------


def grammar_hash(lang: Lang) -> str:
    """Return a hash of the grammar."""
    arpa = None if lang.arpa is None else files.sha256(lang.arpa)
    own = lang.grammar
    return files.hash_of([own.kind.name, own.words, own.min_words, own.max_words, arpa])


def write_graph(
    path: Path, graph: Arrays, lang: Lang, states: States, about: dict[str, Any]
) -> None:
    """Write HCLG.fst and then `path`, the JSON that describes it."""
    binary = path.with_suffix(".fst")
    files.write_bytes(binary, const_of(graph))
    files.write_json(
        path,
        {
            "graph": files.part(binary, path.parent),
            "nodes": len(graph.final_N),
            "arcs": len(graph.arcs_A),
            "num_states": states.num_states,
            **_hashes(lang, states),
            **about,
        },
    )


def _hashes(lang: Lang, states: States) -> dict[str, str]:
    """Return what a graph is made of."""
    return {"states_hash": states.hash, "lang_hash": lang.hash, "grammar_hash": grammar_hash(lang)}


@dataclass(frozen=True, slots=True)
class Graph:
    """A decoding graph for search.

    Attributes:
        fst: StdConstFst.
        arrays: the same graph, if lattices are wanted.
    """

    fst: Any
    arrays: Arrays | None = None

    @staticmethod
    def of(arrays: Arrays) -> "Graph":
        """Convert a graph in memory."""
        return Graph(to_fst(const_of(arrays)), arrays)


def load_graph(path: Path, lang: Lang, states: States, arrays: bool) -> Graph:
    """Load a graph that was made for this `lang` and these states.

    Args:
        arrays: whether lattices are wanted.
    Raises:
        ValueError: if it was made for others; names the hash that differs. If it leads beyond its
            nodes, the states or the words, or epsilon arcs form a cycle.
    """
    binary = check_graph(path, lang, states)
    found = load_const(binary, states.num_states, len(lang.lexicon.words))
    return Graph(kaldifst.StdConstFst.read(str(binary)), found if arrays else None)


def check_graph(path: Path, lang: Lang, states: States) -> Path:
    """Return the file of a graph that was made for this `lang` and these states.

    Raises:
        ValueError: if it was made for others; names the hash that differs.
    """
    about = files.read_json(path)
    for name, value in _hashes(lang, states).items():
        if about[name] != value:
            raise ValueError(
                f"{path} was made with {name} {about[name]} but model and lang folder have "
                f"{value}; delete it and rerun the tune stage"
            )
    return files.check_part(path.parent, about["graph"])
