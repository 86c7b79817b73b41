"""Kaldi's trees: text equals binary, and the converted tree equals the event map everywhere."""

import itertools
import json
import tracemalloc

import numpy as np
import pytest
from interop.made_objects import TRI_TREE, YESNO_TREE, pdf_of, tree_binary, tri_pdf

from asr_train.files import DamagedFileError
from asr_train.interop.event_map import ContextDependency, read_tree, tree_of
from asr_train.lang.tree import Tree

HEAD = b"\0BContextDependency \x04\1\0\0\0\x04\0\0\0\0ToPdf "


def tree_file(folder, content):
    path = folder / "tree"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("text", [YESNO_TREE, TRI_TREE])
def test_binary_is_text(tmp_path, text):
    assert read_tree(tree_file(tmp_path, text)) == read_tree(tree_file(tmp_path, tree_binary(text)))


def test_a_monophone_tree_gives_each_phone_its_pdfs(tmp_path):
    found = read_tree(tree_file(tmp_path, YESNO_TREE))
    pdfs = {(p, j): pdf_of(found, [p], j) for p in range(5) for j in range(6)}
    known = {(1, j): j for j in range(5)} | {
        (p, j): 3 * p - 1 + j for p in (2, 3) for j in range(3)
    }
    assert {key: pdf for key, pdf in pdfs.items() if pdf is not None} == known


def test_a_triphone_tree_answers_as_its_questions_read(tmp_path):
    found = read_tree(tree_file(tmp_path, TRI_TREE))
    tree = tree_of(found, [1, 2, 3], [1, 1, 1], 6)
    back = Tree.from_plain(json.loads(json.dumps(tree.plain())))
    for left, phone, right in itertools.product(range(4), range(1, 4), range(4)):
        assert pdf_of(found, [left, phone, right], 0) == tri_pdf(left, phone, right)
        window = ((left or 4) - 1, phone - 1, (right or 4) - 1)  # the edge is the last one
        assert tree.find(*window, 0) == back.find(*window, 0) == tri_pdf(left, phone, right)


def random_map(rng, width: int, phones: int, depth: int, pdfs: int) -> str:
    """Return an event map with all kinds of nodes, each of which any event can pass."""
    kind = rng.integers(4) if depth else 0
    below = lambda: random_map(rng, width, phones, depth - 1, pdfs)  # noqa: E731
    if kind == 0:
        return f"CE {rng.integers(pdfs)} "
    key = int(rng.integers(-1, width))
    if kind == 1:
        size = 3 if key == -1 else phones + 1
        return f"TE {key} {size} ( " + "".join(below() for _ in range(size)) + ")\n"
    values = sorted(set(rng.integers(0, phones + 1, 3).tolist()))
    return f"SE {key} [ {' '.join(map(str, values))} ]\n{{ {below()}{below()}}}\n"


@pytest.mark.parametrize("width, centre", [(1, 0), (2, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_a_converted_tree_equals_its_event_map_in_all_contexts(tmp_path, width, centre, seed):
    rng = np.random.default_rng(seed)
    text = f"ContextDependency {width} {centre} ToPdf {random_map(rng, width, 4, 5, 9)}"
    found = read_tree(tree_file(tmp_path, text + "EndContextDependency "))
    phones, classes = [3, 1, 4, 2], [3, 2, 3, 1]
    tree = tree_of(found, phones, classes, 9)
    names = [*phones, 0]
    for left, p, right in itertools.product(range(5), range(4), range(5)):
        window = [names[left], names[p], names[right]][1 - centre :][:width]
        for j in range(classes[p]):
            assert tree.find(left, p, right, j) == pdf_of(found, window, j)


@pytest.mark.parametrize(
    "text, phones, pdfs, message",
    [
        (TRI_TREE.replace("3 1 ToPdf", "5 2 ToPdf"), [1, 2, 3], 6, "window of 5 phones .* --conte"),
        (TRI_TREE, [1, 2, 3], 5, "has pdf-id 5, but the transition model has 5 pdf-ids"),
        (YESNO_TREE, [1, 2, 3, 4], 11, "no pdf-id for pdf-class 0 of phone 4"),
        (TRI_TREE.replace("SE 2", "SE 7"), [1, 2, 3], 6, "asks about key 7, .* keys .0, 1, 2"),
    ],
)
def test_a_tree_of_another_model_is_refused(tmp_path, text, phones, pdfs, message):
    classes = [5, 3, 3, 3] if text is YESNO_TREE else [1] * len(phones)
    with pytest.raises(ValueError, match=message):
        tree_of(read_tree(tree_file(tmp_path, text)), phones, classes[: len(phones)], pdfs)


@pytest.mark.parametrize("binary", [False, True])
def test_a_tree_cut_short_or_altered_raises_one_error(tmp_path, binary):
    content = tree_binary(TRI_TREE) if binary else TRI_TREE.encode()
    for length in range(0, len(content) - 1, 3):  # the last byte is a space
        with pytest.raises(DamagedFileError, match=r"tree, byte \d+: .*; copy the file again"):
            read_tree(tree_file(tmp_path, content[:length]))
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        changed[rng.integers(len(content))] = rng.integers(256)
        try:
            found = read_tree(tree_file(tmp_path, bytes(changed)))
            tree_of(found, [1, 2, 3], [1, 1, 1], 6)
        except ValueError:  # DamagedFileError is one
            continue


@pytest.mark.parametrize(
    "content, message",
    [
        (HEAD + b"SE \x04\0\0\0\0\x04\xff\xff\xff\x7f",
         "vector of 2147483647 numbers, but the file has room for 0"),
        (HEAD + b"TE \x04\0\0\0\0\xfc\xff\xff\xff\xff( ",
         "the file ends"),
        ("ContextDependency 1 0 ToPdf NULL EndContextDependency ", "'NULL' is where CE"),
        ("ContextDependency 1 0 ToPdf SE 0 [ 1 ] { NULL CE 1 }", "'NULL' is where CE"),
        ("ContextDependency 1 1 ToPdf CE 1 ", "place 1 is pronounced in a window of 1"),
        ("ContextDependency 1 0 ToPdf CE " + "9" * 5000, "'9999.* is not a token"),
        ("ContextDependency 1 0 ToPdf CE 99999999999 ", "99999999999 does not fit 32 bits"),
        ("ContextDependency 1 0 ToPdf CE 0 EndContextDependency more", "something follows"),
        ("<TransitionModel> ", "'<TransitionModel>' is where ContextDependency should be"),
        ("", "ends where a token should be"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_named_with_its_place(tmp_path, content, message):
    path = tree_file(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match=message):
        read_tree(path)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize("deep", [500, 20_000])
def test_a_deep_tree_is_read_or_refused(tmp_path, deep):
    text = "ContextDependency 3 1 ToPdf " + "SE 0 [ 1 ]\n{ CE 1 " * deep + "CE 2 " + "}\n" * deep
    path = tree_file(tmp_path, text + "EndContextDependency ")
    if deep > 500:
        with pytest.raises(DamagedFileError, match="nested too deeply"):
            read_tree(path)
        return
    found = read_tree(path)
    assert pdf_of(found, [1, 1, 1], 0) == 1
    assert pdf_of(found, [2, 1, 1], 0) == 2
    tree = tree_of(found, [1, 2], [1, 1], 3)
    assert [tree.find(left, 0, 0, 0) for left in range(3)] == [1, 2, 2]


def test_old_trees_with_lengths_are_read(tmp_path):
    old = TRI_TREE.replace("ToPdf", "ToLength TE -1 2 ( CE 3 NULL )\nToPdf")
    found = read_tree(tree_file(tmp_path, old))
    assert found == read_tree(tree_file(tmp_path, TRI_TREE))
    assert isinstance(found, ContextDependency)
    assert 5 in found.nodes
