"""Small models of Kaldi, written by hand in the formats that Kaldi documents, and in binary."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr_train.interop.event_map import NONE, PDF_CLASS, ContextDependency
from asr_train.interop.transition_model import TransitionModel

# egs/yesno: a monophone system of SIL (5 states), Y and N (3 states); doc/hmm.dox
YESNO_TOPO = """<Topology>
<TopologyEntry>
<ForPhones>
2 3
</ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.75 <Transition> 1 0.25 </State>
<State> 1 <PdfClass> 1 <Transition> 1 0.75 <Transition> 2 0.25 </State>
<State> 2 <PdfClass> 2 <Transition> 2 0.75 <Transition> 3 0.25 </State>
<State> 3 </State>
</TopologyEntry>
<TopologyEntry>
<ForPhones>
1
</ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.25 <Transition> 1 0.25 <Transition> 2 0.25 <Transition> 3 0.25 </State>
<State> 1 <PdfClass> 1 <Transition> 1 0.25 <Transition> 2 0.25 <Transition> 3 0.25 <Transition> 4 0.25 </State>
<State> 2 <PdfClass> 2 <Transition> 1 0.25 <Transition> 2 0.25 <Transition> 3 0.25 <Transition> 4 0.25 </State>
<State> 3 <PdfClass> 3 <Transition> 1 0.25 <Transition> 2 0.25 <Transition> 3 0.25 <Transition> 4 0.25 </State>
<State> 4 <PdfClass> 4 <Transition> 4 0.75 <Transition> 5 0.25 </State>
<State> 5 </State>
</TopologyEntry>
</Topology>
"""  # noqa: E501
YESNO_TREE = """ContextDependency 1 0 ToPdf TE 0 4 ( NULL TE -1 5 ( CE 0 CE 1 CE 2 CE 3 CE 4 )
TE -1 3 ( CE 5 CE 6 CE 7 )
TE -1 3 ( CE 8 CE 9 CE 10 )
)
EndContextDependency """
YESNO_TRIPLES = [
    *((1, state, state) for state in range(5)),
    *((2, state, 5 + state) for state in range(3)),
    *((3, state, 8 + state) for state in range(3)),
]
# Of each transition-id from 1: phone, HMM state, next state, pdf-id
YESNO_IDS = [
    *((1, 0, to, 0) for to in (0, 1, 2, 3)),
    *((1, state, to, state) for state in (1, 2, 3) for to in (1, 2, 3, 4)),
    *((1, 4, to, 4) for to in (4, 5)),
    *((2, state, to, 5 + state) for state in range(3) for to in (state, state + 1)),
    *((3, state, to, 8 + state) for state in range(3) for to in (state, state + 1)),
]
YESNO_PROBABILITIES = [0.25] * 16 + [0.75, 0.25] + [0.5, 0.5] * 3 + [0.75, 0.25] * 3

# Triphones of SIL = 1, and A = 2 and its variant B = 3, which share their roots and have one state.
# A after SIL (or B after A or B) is pdf 3 or 4; pdf 5 is A or B before the end of the utterance.
TRI_TOPO = """<Topology> <TopologyEntry> <ForPhones> 1 2 3 </ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State>
</TopologyEntry> </Topology>
"""
TRI_TREE = """ContextDependency 3 1 ToPdf SE 1 [ 1 ]
{ CE 0 SE 2 [ 1 2 3 ]
{ SE 0 [ 2 3 ]
{ SE 1 [ 3 ]
{ CE 4 CE 1 }
SE 0 [ 1 ]
{ CE 3 CE 2 }
}
CE 5 }
}
EndContextDependency """
TRI_TRIPLES = [(1, 0, 0), *((2, 0, s) for s in (1, 2, 3, 5)), *((3, 0, s) for s in (2, 3, 4, 5))]


def tri_pdf(left: int, phone: int, right: int) -> int:
    """Return what TRI_TREE says, in words."""
    if phone == 1:
        return 0
    if right == 0:
        return 5
    if left in (2, 3):
        return 4 if phone == 3 else 1
    return 3 if left == 1 else 2


def model_text(topo: str, triples: list, probabilities: list[float]) -> str:
    """Return a transition model in text, as copy-transition-model --binary=false writes it."""
    name = "Triples" if len(triples[0]) == 3 else "Tuples"
    rows = "".join(" ".join(map(str, row)) + " \n" for row in triples)
    logs = " ".join(f"{math.log(p):.7g}" for p in probabilities)
    return (
        f"<TransitionModel> \n{topo}<{name}> {len(triples)} \n{rows}</{name}> \n"
        f"<LogProbs> \n [ 0 {logs} ]\n</LogProbs> \n</TransitionModel> \n"
    )


# --- binary -------------------------------------------------------------------------------------


def integer(number: int) -> bytes:
    return b"\x04" + struct.pack("<i", number)


def unsigned(number: int) -> bytes:
    return b"\xfc" + struct.pack("<I", number)


def real(number: float) -> bytes:
    return b"\x04" + struct.pack("<f", number)


def integers(numbers: list[int]) -> bytes:
    return b"\x04" + struct.pack(f"<i{len(numbers)}i", len(numbers), *numbers)


def tree_binary(text: str) -> bytes:
    """Return a tree in text as binary."""
    words = iter(text.split())
    found = b"\0B"
    for word in words:
        if word in ("CE", "SE", "ContextDependency"):
            found += word.encode() + b" " + integer(int(next(words)))
            if word == "ContextDependency":
                found += integer(int(next(words)))
        elif word == "TE":
            found += b"TE " + integer(int(next(words))) + unsigned(int(next(words)))
        elif word == "[":
            found += integers([int(w) for w in iter(lambda: next(words), "]")])
        else:
            found += word.encode() + b" "
    return found


def topo_binary(entries: dict, both: bool = False) -> bytes:
    """Return a topology; `entries` has phones -> states (pdf-classes, next states, chances)."""
    phones = sorted(p for some in entries for p in some)
    index = [-1] * (max(phones) + 1)
    for e, some in enumerate(entries):
        for p in some:
            index[p] = e
    found = b"<Topology> " + integers(phones) + integers(index)
    found += (integer(-1) if both else b"") + integer(len(entries))
    for states in entries.values():
        found += integer(len(states))
        for enters, repeats, ways in states:
            found += integer(enters) + (integer(repeats) if both else b"") + integer(len(ways))
            found += b"".join(integer(to) + real(p) for to, p in ways)
    return found + b"</Topology> "


def model_binary(topo: bytes, triples: list, logs: list[float]) -> bytes:
    name = b"Triples" if len(triples[0]) == 3 else b"Tuples"
    numbers = b"".join(integer(n) for row in triples for n in row)
    vector = b"FV \x04" + struct.pack(f"<i{len(logs)}f", len(logs), *logs)
    return (
        b"\0B<TransitionModel> " + topo + b"<%b> " % name + integer(len(triples)) + numbers
        + b"</%b> <LogProbs> " % name + vector + b"</LogProbs> </TransitionModel> "
    )  # fmt: skip


def yesno_binary() -> bytes:
    """Return YESNO's transition model in binary."""

    def state(j: int, *to: int) -> tuple:
        chances = [0.25] * 4 if len(to) == 4 else [0.75, 0.25]
        return j, j, list(zip(to, chances, strict=True))

    silence = [state(0, 0, 1, 2, 3), *(state(j, 1, 2, 3, 4) for j in (1, 2, 3)), state(4, 4, 5)]
    entries = {
        (2, 3): [*(state(j, j, j + 1) for j in range(3)), (-1, -1, [])],
        (1,): [*silence, (-1, -1, [])],
    }
    logs = [0.0, *np.log(YESNO_PROBABILITIES).tolist()]
    return model_binary(topo_binary(entries), YESNO_TRIPLES, logs)


# --- whole models -------------------------------------------------------------------------------

# A chain model: left biphones, one HMM state, whose further frames have a pdf-id of their own
CHAIN_TOPO = """<Topology> <TopologyEntry> <ForPhones> 1 2 3 </ForPhones> <State> 0
<ForwardPdfClass> 0 <SelfLoopPdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State>
<State> 1 </State> </TopologyEntry> </Topology>
"""
CHAIN_TREE = """ContextDependency 2 1 ToPdf TE 1 4 ( NULL TE -1 2 ( CE 0 CE 1 ) SE 0 [ 1 ]
{ TE -1 2 ( CE 2 CE 3 ) TE -1 2 ( CE 4 CE 3 ) }
TE -1 2 ( CE 5 SE 0 [ 0 ]
{ CE 6 CE 3 }
) )
EndContextDependency """
CHAIN_TUPLES = [(1, 0, 0, 1), (2, 0, 2, 3), (2, 0, 4, 3), (3, 0, 5, 3), (3, 0, 5, 6)]
# Monophones that skip states, of which some have no self-loop, as in the Montreal Forced Aligner
SKIP_TOPO = """<Topology> <TopologyEntry> <ForPhones> 1 2 3 </ForPhones>
<State> 0 <PdfClass> 0 <Transition> 1 0.5 <Transition> 2 0.25 <Transition> 3 0.25 </State>
<State> 1 <PdfClass> 1 <Transition> 1 0.5 <Transition> 2 0.5 </State>
<State> 2 <PdfClass> 2 <Transition> 3 1 </State> <State> 3 </State>
</TopologyEntry> </Topology>
"""
SKIP_TREE = """ContextDependency 1 0 ToPdf TE 0 4 ( NULL TE -1 3 ( CE 0 CE 1 CE 0 )
TE -1 3 ( CE 2 CE 3 CE 4 ) TE -1 3 ( CE 5 CE 3 CE 6 ) )
EndContextDependency """
SKIP_TRIPLES = [
    *((1, j, pdf) for j, pdf in enumerate((0, 1, 0))),
    *((2, j, pdf) for j, pdf in enumerate((2, 3, 4))),
    *((3, j, pdf) for j, pdf in enumerate((5, 3, 6))),
]
# topology, tree, transition-states, and the number of ways out of each
MODELS = {
    "yesno": (YESNO_TOPO, YESNO_TREE, YESNO_TRIPLES, [4, 4, 4, 4, 2] + [2] * 6),
    "triphones": (TRI_TOPO, TRI_TREE, TRI_TRIPLES, [2] * len(TRI_TRIPLES)),
    "chain": (CHAIN_TOPO, CHAIN_TREE, CHAIN_TUPLES, [2] * len(CHAIN_TUPLES)),
    "skips": (SKIP_TOPO, SKIP_TREE, SKIP_TRIPLES, [3, 2, 1] * 3),
}


def write_model(folder: Path, name: str, seed: int = 0) -> None:
    """Write tree, final.mdl (with drawn probabilities), phones.txt and a lexicon."""
    topo, tree, rows, ways = MODELS[name]
    rng = np.random.default_rng(seed)
    drawn = [rng.uniform(0.2, 1, count) for count in ways]
    chances = [p for some in drawn for p in (some / some.sum()).tolist()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tree").write_bytes(tree_binary(tree))
    (folder / "final.mdl").write_text(model_text(topo, rows, chances))
    (folder / "phones.txt").write_text("<eps> 0\nSIL 1\nA 2\nB 3\n#0 4\n#1 5\n")
    (folder / "lexiconp.txt").write_text("!SIL 1.0 SIL\none 0.75 A B\none 0.25 B\nTwo 1.0 B A\n")


def pdf_of(tree: ContextDependency, window: Sequence[int], pdf_class: int) -> int | None:
    """Return the pdf-id of a window of phones, as Kaldi's `EventMap::Map`; None: it has none."""
    event = {PDF_CLASS: pdf_class, **dict(enumerate(window))}
    place = tree.root
    while place != NONE:
        node = tree.nodes[place]
        if isinstance(node, int):
            return node
        value = event.get(node.key)
        if value is None:
            return None
        place = node.yes if value in node.values else node.no
    return None


def ids_of(model: TransitionModel) -> list[tuple[int, int, int, int]]:
    """Return phone, HMM state, next state and pdf-id of each transition-id, from 1."""
    return [
        (phone, j, to, repeats if to == j else enters)
        for phone, j, enters, repeats in model.state_N4.tolist()
        for to, _ in model.topology.of(phone)[j].ways
    ]
