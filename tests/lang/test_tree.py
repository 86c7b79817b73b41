"""A tree gives the same answer for all contexts at once as for each."""

import itertools
import json

import numpy as np
import pytest

from asr_train.files import hash_of
from asr_train.lang.lexicon import SILENCE
from asr_train.lang.states import States
from asr_train.lang.tree import Tree


def random_tree(rng, states_P, groups=(), splits=40) -> Tree:
    """Return a random tree of questions; `groups` are phones that share their roots."""
    phones = len(states_P)
    questions_QP = rng.random((12, phones)) < 0.4
    nodes, root_PJ = [], np.full((phones, max(states_P)), -1, np.int32)

    def add():
        nodes.append({"question": -1, "side": 0, "yes": -1, "no": -1, "leaf": -1})
        return len(nodes) - 1

    for p, j in itertools.product(range(phones), range(max(states_P))):
        if j < states_P[p] and root_PJ[p, j] < 0:
            together = next((list(g) for g in groups if p in g), [p])
            root_PJ[together, j] = add()
    silent = set(root_PJ[0].tolist())
    for _ in range(splits):
        leaves = [n for n in range(len(nodes)) if nodes[n]["yes"] < 0 and n not in silent]
        n = int(rng.choice(leaves))
        nodes[n] |= {"question": int(rng.integers(12)), "side": int(rng.integers(3))}
        nodes[n] |= {"yes": add(), "no": add()}
    leaves = [n for n in range(len(nodes)) if nodes[n]["yes"] < 0]
    for leaf, n in enumerate(leaves):
        nodes[n]["leaf"] = leaf
    rows = [list(node.values()) for node in nodes]
    return Tree(questions_QP, *np.array(rows, np.int32).T, root_PJ)


@pytest.fixture(params=range(4))
def tree(request):
    rng = np.random.default_rng(request.param)
    groups = [(2, 4), (3, 5, 6)] if request.param % 2 else []
    return random_tree(rng, [5, 3, 3, 2, 3, 2, 2], groups)


def test_the_table_holds_what_the_questions_lead_to(tree):
    table = tree.table()
    phones, positions = tree.root_PJ.shape
    assert table.shape == (phones, phones, phones, positions)
    assert table.dtype == np.int32
    for left, centre, right, j in np.ndindex(table.shape):
        if tree.root_PJ[centre, j] < 0:
            assert table[left, centre, right, j] == -1
        else:
            assert table[left, centre, right, j] == tree.find(left, centre, right, j)


def test_silence_hears_no_context_and_comes_first(tree):
    assert (tree.table()[:, 0] == np.arange(5)).all()


def test_json_brings_back_the_same_tree(tree):
    back = Tree.from_plain(json.loads(json.dumps(tree.plain())))
    for name in Tree.__slots__:
        mine, theirs = np.asarray(getattr(tree, name)), np.asarray(getattr(back, name))
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
    assert back.plain() == tree.plain()


def test_another_tree_has_another_hash(tree):
    content = tree.plain()
    n = content["leaf"].index(-1)
    content["yes"][n], content["no"][n] = content["no"][n], content["yes"][n]
    assert Tree.from_plain(content).plain() != tree.plain()


def test_a_tree_of_another_format_is_refused(tree):
    with pytest.raises(ValueError, match="format 9, this version reads 1"):
        Tree.from_plain(tree.plain() | {"format": 9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("twice", "nodes are not entered once each, from nodes with smaller numbers"),
        ("circle", "nodes are not entered once each, from nodes with smaller numbers"),
        ("side", "asks a question, or about a side"),
        ("question", "asks a question, or about a side"),
        ("leaf", "has leaf .* of 2 leaves"),
    ],
)
def test_states_that_would_lead_astray_are_refused_whatever_their_hash(tree, change, message):
    """Whoever made the file can make the hash, too."""
    content = tree.plain()
    nodes, n = len(content["leaf"]), content["leaf"].index(-1)
    if change == "twice":
        content["yes"][n] = content["no"][n]
    elif change == "circle":  # two more nodes, each of which leads to the other and to a leaf
        for name, values in {
            "question": [0, 0, -1, -1],
            "side": [0, 0, 0, 0],
            "yes": [nodes + 1, nodes, -1, -1],
            "no": [nodes + 2, nodes + 3, -1, -1],
            "leaf": [-1, -1, 0, 0],
        }.items():
            content[name] += values
    elif change == "leaf":
        content["leaves"] = 2
    else:
        content[change][n] = 99
    states = {"phones": [SILENCE] + ["A"] * (content["phones"] - 1), "phone_states": 3}
    states |= {"silence_states": 5, "tree": content}
    about = {"states": states, "states_hash": hash_of([*states.values()])}
    with pytest.raises(ValueError, match=f"model.json has states .*{message}"):
        States.stored(about, "model.json")


def test_a_tree_of_another_program_has_its_own_leaves_and_an_edge(tree):
    """Leaves are numbered there, and questions may ask about the edge, the last phone."""
    content = tree.plain()
    edge = content["phones"]
    content |= {"phones": edge + 1, "leaves": 1000}
    content["leaf"] = [999 - leaf if leaf >= 0 else -1 for leaf in content["leaf"]]
    content["root"].append([-1] * len(content["root"][0]))
    content["questions"][0].append(edge)
    found = Tree.from_plain(content)
    assert found.plain() == content
    assert found.num_leaves == 1000
    same = [(left, c, r, j) for left, c, r, j in np.argwhere(tree.table() >= 0).tolist()]
    assert all(found.find(*at) == 999 - tree.find(*at) for at in same)
    assert {leaf for *_, leaf in found.reached()} == set(999 - np.unique(tree.table())) - {1000}


def test_a_phone_hears_its_neighbours_if_any_leaf_depends_on_them(tree):
    every = tree.table()
    differs = (every != every[:1, :, :1]).any(axis=(0, 2, 3)).tolist()
    assert differs == [a and b for a, b in zip(differs, tree.is_context_dependent(), strict=True)]
    assert not tree.is_context_dependent()[0]


def test_the_table_of_eighty_phones_fits_in_a_few_megabytes():
    tree = random_tree(np.random.default_rng(1), [5] + [3] * 79, splits=800)
    assert tree.table().nbytes < 20e6
