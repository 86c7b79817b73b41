"""Kaldi's topologies and transition models: text equals binary, ids are counted as in Kaldi."""

import itertools

import numpy as np
import pytest
from interop.made_objects import (
    TRI_TOPO,
    TRI_TREE,
    TRI_TRIPLES,
    YESNO_IDS,
    YESNO_PROBABILITIES,
    YESNO_TOPO,
    YESNO_TRIPLES,
    ids_of,
    model_binary,
    model_text,
    pdf_of,
    topo_binary,
    tree_binary,
    yesno_binary,
)

from asr_train.files import DamagedFileError
from asr_train.interop.event_map import read_tree
from asr_train.interop.transition_model import (
    HmmState,
    TransitionModel,
    read_transition_model,
)

YESNO = model_text(YESNO_TOPO, YESNO_TRIPLES, YESNO_PROBABILITIES)


def model_of(folder, content) -> TransitionModel:
    path = folder / "final.mdl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_transition_model(path)


@pytest.mark.parametrize("more", ["", "<DIMENSION> 39 <NUMPDFS> 11 <DiagGMM> "])
def test_transition_ids_are_counted_as_in_kaldi(tmp_path, more):
    found = model_of(tmp_path, YESNO + more)
    ids = ids_of(found)
    assert ids == YESNO_IDS
    assert found.num_pdfs == 11
    assert len(ids) == 30
    loops = [number for number, (_, state, to, _) in enumerate(ids, 1) if state == to]
    assert loops == [*(1, 5, 10, 15, 17, 19, 21, 23, 25, 27, 29)]
    assert [phone for phone, *_ in ids] == [1] * 18 + [2] * 6 + [3] * 6
    assert np.allclose(np.exp(np.concatenate(found.logp_N)), YESNO_PROBABILITIES, atol=1e-6)


def test_binary_is_text(tmp_path):
    text, binary = model_of(tmp_path, YESNO), model_of(tmp_path, yesno_binary() + b"\0rest")
    assert text.topology == binary.topology
    assert np.array_equal(text.state_N4, binary.state_N4)
    for ours, theirs in zip(text.logp_N, binary.logp_N, strict=True):
        assert np.allclose(ours, theirs, atol=1e-6)


def test_transition_states_are_those_that_the_tree_gives(tmp_path):
    """As in TransitionModel::ComputeTuples: all pdf-ids that any context of a state has."""
    (tmp_path / "tree").write_bytes(tree_binary(TRI_TREE))
    tree = read_tree(tmp_path / "tree")
    contexts = itertools.product(range(4), range(1, 4), range(4))
    wanted = sorted({(p, 0, pdf_of(tree, [left, p, right], 0)) for left, p, right in contexts})
    assert wanted == sorted(TRI_TRIPLES)
    found = model_of(tmp_path, model_text(TRI_TOPO, TRI_TRIPLES, [0.5, 0.5] * len(TRI_TRIPLES)))
    assert [pdf for *_, pdf in ids_of(found)] == [pdf for _, _, pdf in wanted for _ in range(2)]


CHAIN = [(0, 1, [(0, 0.5), (1, 0.5)]), (-1, -1, [])]  # one frame of class 0, then any of class 1


@pytest.mark.parametrize("binary", [False, True])
def test_a_chain_model_has_a_pdf_of_its_own_for_self_loops(tmp_path, binary):
    tuples = [(1, 0, 0, 2), (1, 0, 1, 2)]
    if binary:
        logs = [0.0, *np.log([0.5] * 4).tolist()]
        content = model_binary(topo_binary({(1,): CHAIN}, both=True), tuples, logs)
    else:
        topo = (
            "<Topology> <TopologyEntry> <ForPhones> 1 </ForPhones> <State> 0 <ForwardPdfClass> 0 "
            "<SelfLoopPdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 "
            "</State> </TopologyEntry> </Topology>\n"
        )
        content = model_text(topo, tuples, [0.5] * 4)
    found = model_of(tmp_path, content)
    assert found.topology.of(1)[0] == HmmState(0, 1, ((0, 0.5), (1, 0.5)))
    assert [pdf for *_, pdf in ids_of(found)] == [2, 0, 2, 1]
    assert found.num_pdfs == 3


@pytest.mark.parametrize("binary", [False, True])
def test_a_model_cut_short_or_altered_raises_one_error(tmp_path, binary):
    content = yesno_binary() if binary else YESNO.encode()
    for length in range(0, len(content) - 3, 29):
        with pytest.raises(DamagedFileError, match=r"final.mdl, byte \d+: .*; copy the file again"):
            model_of(tmp_path, content[:length])
    rng = np.random.default_rng(0)
    for _ in range(250):
        changed = bytearray(content)
        changed[rng.integers(len(content))] = rng.integers(256)
        try:
            model_of(tmp_path, bytes(changed))
        except DamagedFileError:
            continue


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("<Triples> 11", "<Triples> 2000000000", "'</Triples>' is not an integer"),
        ("<Triples> 11", "<Triples> -1", "'1' is where </Triples> should be"),
        ("1 4 4", "1 5 4", "phone 1, HMM state 5, which the topology has not, or which emits"),
        ("1 4 4", "7 4 4", "phone 7, HMM state 4, which the topology has not"),
        ("1 4 4", "1 3 3", "11 transition-states have 32 ways out, but there are 30"),
        ("1 2 2 \n1 3 3", "1 3 3 \n1 3 3", "two transition-states are alike"),
        ("1 4 4", "1 4 -4", "has pdf-ids .-4, -4"),
        ("[ 0", "[ 0 0.5", "have 30 ways out, but there are 31"),
        ("[ 0 -", "[ 0 ", "transition-id 1 has log-probability 1.38"),
        ("<State> 5 </State>", "", "has 5 states; it must have 2 to 128"),
        ("<Transition> 4 0.75 <Transition> 5", "<Transition> 4 0.75 <Transition> 4", "to .4, 4."),
        ("<PdfClass> 4", "<PdfClass> 6", r"pdf-classes \[0, 1, 2, 3, 6\]"),
        ("\n1\n</For", "\n1 2\n</For", "phone 2 is in two entries"),
        ("\n1\n</For", "\n0\n</For", "is for phone 0; phones count from 1"),
        ("\n1\n</For", "\n</For", "the topology's entry 1 is for no phones"),
        ("<State> 4", "<State> 3", "state 3 is where state 4 should be"),
    ],
)
def test_what_is_no_model_is_named(tmp_path, old, new, message):
    assert old in YESNO
    with pytest.raises(DamagedFileError, match=message):
        model_of(tmp_path, YESNO.replace(old, new))
