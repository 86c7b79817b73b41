"""A bundle opens only as it was written; equal contents give equal bytes."""

import json
import resource
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from search.made_graphs import STATES, random_graph, random_scores
from spoken import RATE, said

from asr_train import Recogniser
from asr_train.bundle import store
from asr_train.bundle.grammar import Wanted, change_grammar
from asr_train.bundle.store import MANIFEST, SHIPPED, open_bundle
from asr_train.files import (
    DamagedFileError,
    Region,
    hash_of,
    part,
    read_json,
    replacing,
)
from asr_train.search.arrays import check_const, to_fst, view_const
from asr_train.search.lattice import Lattices, ordered, view_ordered, write_ordered

MEGABYTES = {"digits": 3, "english": 8}  # of the shipped bundles, at most
DIGITS = SHIPPED / "digits.tar"
TEXT = "THREE OH NINE"
NOTHING = (None,) * 4  # to write, of bundles that are refused before


@pytest.fixture
def folder(tmp_path):
    """The shipped bundle `digits` as a folder."""
    with tarfile.open(DIGITS) as tar:
        tar.extractall(tmp_path / "digits", filter="data")
    return tmp_path / "digits"


@pytest.mark.parametrize(
    "name, credits",
    [("digits", "espeak-ng"), ("english", "LibriSpeech (CC BY 4.0; Vassil Panayotov")],
)
def test_the_shipped_bundles_are_small_and_say_what_they_are(name, credits):
    assert (SHIPPED / f"{name}.tar").stat().st_size < MEGABYTES[name] * 1e6
    with open_bundle(name) as opened:
        about = opened.manifest
    told = {"name", "run", "wer", "data_licence", "versions", "choice"}  # by Recogniser
    assert told <= about.keys()
    assert about["name"] == name
    assert any(line.startswith("%WER ") and line.endswith("test") for line in about["wer"])
    assert credits in about["data_licence"]
    assert {"asr_train", "torch", "python"} <= about["versions"].keys()


def test_a_full_temporary_folder_is_named(folder, tmp_path, monkeypatch):
    """Not the output, nor an input that was being copied there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = rf"file too large in the temporary folder {tmp_path}; .* set TMPDIR to another folder"
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, most))
        with pytest.raises(OSError, match=full), open_bundle(DIGITS):
            pass
        with pytest.raises(OSError, match=full):
            change_grammar(folder, tmp_path / "one.tar", Wanted(words=["ONE"]))
        with pytest.raises(OSError, match=full):
            to_fst(bytes(60_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))


def test_a_folder_opens_as_the_tar_does(folder):
    with open_bundle(folder) as ours, open_bundle(DIGITS) as theirs:
        assert ours.manifest == theirs.manifest
        assert ours.lang == theirs.lang


def test_only_a_bundle_is_replaced_by_a_bundle(folder, monkeypatch):
    def write_parts(scratch, *_):
        (scratch / MANIFEST).write_text('{"parts": []}')
        return {}

    monkeypatch.setattr(store, "_write_parts", write_parts)
    (folder / "thesis.docx").write_text("x")
    with pytest.raises(FileExistsError, match=r"thesis\.docx is none of the files written here"):
        store.write_bundle(folder, *NOTHING)
    (folder / "thesis.docx").unlink()
    store.write_bundle(folder, *NOTHING)
    assert [path.name for path in folder.iterdir()] == [MANIFEST]
    folder.rename(folder.with_name(f".old.{folder.name}"))  # as if killed between two renames
    monkeypatch.setattr(store, "_write_parts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.write_bundle(folder, *NOTHING)
    assert [path.name for path in folder.iterdir()] == [MANIFEST]
    with pytest.raises(ValueError, match=r"x\.tar\.gz would be compressed"):
        store.write_bundle(folder.with_name("x.tar.gz"), *NOTHING)
    other = folder.parent / "recordings"
    (other / "session.1").mkdir(parents=True)
    with pytest.raises(FileExistsError, match=r"session\.1 is none of"):
        store.write_bundle(other, *NOTHING)


@pytest.mark.parametrize("part", ["model.json", "model.pt", "lang.json", "HCLG.fst", "heights.npy"])
def test_a_part_that_changed_or_is_missing_is_named(folder, part):
    content = bytearray((folder / part).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / part).write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"{part} has SHA-256 .* copy it anew, or make"):
        Recogniser.load(folder)
    (folder / part).write_bytes(content[:-1])
    with pytest.raises(DamagedFileError, match=f"{part} has .* bytes but its index says"):
        Recogniser.load(folder)
    (folder / part).unlink()
    with pytest.raises(DamagedFileError, match=f"{part} is missing"):
        Recogniser.load(folder)


@pytest.mark.parametrize("part", ["HCLG.fst", "heights.npy", "lang.json"])
def test_a_part_that_changed_within_a_tar_is_named(tmp_path, part):
    content = bytearray(DIGITS.read_bytes())
    with tarfile.open(DIGITS) as tar:
        member = tar.getmember(part)
    content[member.offset_data + member.size // 2] ^= 1
    (tmp_path / "digits.tar").write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"{part} has SHA-256 .* copy it anew, or make"):
        Recogniser.load(tmp_path / "digits.tar")


@pytest.mark.parametrize("confidences", [False, True])
def test_an_open_bundle_may_be_replaced_by_renaming(tmp_path, confidences):
    path = tmp_path / "digits.tar"
    path.write_bytes(DIGITS.read_bytes())
    opened = Recogniser.load(path, confidences)
    with replacing(path) as scratch:
        scratch.write_bytes(b"another")
    assert opened.transcribe(said(TEXT).samples_T, RATE).text == TEXT


def changed(folder, **values):
    """Change the manifest, and its hash with it."""
    manifest = read_json(folder / "bundle.json") | values
    manifest.pop("hash")
    whole = manifest | {"hash": hash_of(manifest)}
    (folder / "bundle.json").write_text(json.dumps(whole))  # NaN included


@pytest.mark.parametrize(
    "values, error, says",
    [
        ({"version": 9}, ValueError, "has version 9 of the format, this program reads 1"),
        ({"format": "zip"}, DamagedFileError, "not that of a bundle"),
        ({"choice": {}}, DamagedFileError, r"choice\.acoustic_scale is missing"),
        ({"parts": [{}]}, DamagedFileError, "is incomplete"),
        ({"frames": None}, DamagedFileError, "is incomplete"),
        ({"feats": {"num_mels": "x"}}, DamagedFileError, "is incomplete"),
    ],
)
def test_a_manifest_of_another_program_is_refused(folder, values, error, says):
    changed(folder, **values)
    with pytest.raises(error, match=says):
        Recogniser.load(folder)


@pytest.mark.parametrize(
    "group, key, value, says",
    [
        ("effort", "max_active", -(10**9), r"effort\.max_active is -1000000000; it must lie in"),
        ("effort", "max_active", 1, r"effort\.max_active is 1; it must lie in \[2, 2147483647\]"),
        ("effort", "max_active", 5000.0, "must be an integer"),
        ("effort", "beam", "16", "must be a number"),
        ("effort", "lattice_beam", -1.0, r"effort\.lattice_beam is -1\.0; it must be positive"),
        ("effort", "lattice_beam", float("nan"), "lattice_beam is nan; it must be a finite"),
        ("effort", "nbest", -1, "must not be negative"),
        ("effort", "best", 1, r"effort\.best is not a setting; did you mean effort\.nbest"),
        ("choice", "acoustic_scale", 0.0, r"choice\.acoustic_scale is 0\.0; it must be positive"),
        ("choice", "lm_weight", float("inf"), r"choice\.lm_weight is inf; it must be a finite"),
    ],
)
def test_a_search_without_bounds_is_refused(folder, group, key, value, says):
    """Also if the manifest's hash is right: a bundle may come from anybody."""
    values = read_json(folder / "bundle.json")[group]
    changed(folder, **{group: values | {key: value}})
    with pytest.raises(DamagedFileError, match=says):
        Recogniser.load(folder)


@pytest.mark.parametrize("value", [0, float("nan"), "0.1", None])
def test_a_scale_of_the_first_passes_that_is_none_is_refused(folder, value):
    changed(folder, first_scale=value)
    with pytest.raises(DamagedFileError, match=r"first_scale\.acoustic_scale is "):
        Recogniser.load(folder)


def with_graph(folder, change):
    """Change arrays of the graph: nodes, arcs and heights; and all checksums with them."""
    fst, heights = folder / "HCLG.fst", folder / "heights.npy"
    content, height_N = bytearray(fst.read_bytes()), np.load(heights)
    _, states_N, arcs_A = view_const(memoryview(content))
    change(states_N, arcs_A, height_N)
    fst.write_bytes(content)
    np.save(heights, height_N)
    listed = {path.name: part(path, folder) for path in (fst, heights)}
    parts = read_json(folder / "bundle.json")["parts"]
    changed(folder, parts=[listed.get(old["path"], old) for old in parts])


def arc(field, value):
    def change(states_N, arcs_A, height_N):
        arcs_A[field][len(arcs_A) // 2] = value

    return change


def all_final(states_N, arcs_A, height_N):
    states_N["final"] = -np.inf


def back_to_itself(states_N, arcs_A, height_N):
    """An endless way of ever less cost."""
    node = int(np.flatnonzero(states_N["iepsilons"])[0])
    arcs_A[["next", "weight"]][states_N["first"][node]] = node, -1.0


def late_epsilon(states_N, arcs_A, height_N):
    node = int(np.flatnonzero(states_N["arcs"] > states_N["iepsilons"])[0])
    arcs_A["ilabel"][states_N["first"][node] + states_N["iepsilons"][node]] = 0


def fewer_epsilons(states_N, arcs_A, height_N):
    states_N["iepsilons"][np.argmax(states_N["iepsilons"])] -= 1


def tall(states_N, arcs_A, height_N):
    height_N[-1] = 2**31 - 1


@pytest.mark.parametrize("confidences", [False, True])
@pytest.mark.parametrize(
    "change, says",
    [
        (arc("next", 10**6), "an arc with next 1000000, above"),
        (arc("next", -1), "an arc with next 4294967295, above"),
        (arc("ilabel", 5000), "an arc with ilabel 5000, above"),
        (arc("olabel", 5000), "an arc with olabel 5000, above"),
        (arc("weight", np.nan), "whose cost is not a number"),
        (arc("weight", -np.inf), "whose cost is not a number"),
        (all_final, "whose cost is not a number"),
        (back_to_itself, "an epsilon arc that .* does not lead to a lower node"),
        (late_epsilon, "an epsilon arc that is not among the first of its node"),
        (fewer_epsilons, "an epsilon arc that is not among the first of its node"),
        (tall, r"heights\.npy has 2147483647, above the \d+ nodes"),
    ],
)
def test_a_graph_that_leads_beyond_its_arrays_or_nowhere_is_refused(
    folder, change, says, confidences
):
    """Also if all its checksums are right: a bundle may come from anybody."""
    with_graph(folder, change)
    opened = Recogniser.load(folder, confidences)
    with pytest.raises(ValueError, match=says):
        opened.prepare()


def test_a_graph_whose_nodes_do_not_share_out_its_arcs_is_refused(folder):
    content = bytearray((folder / "HCLG.fst").read_bytes())
    check_const(memoryview(content), 10**6, 10**6)
    for field, value in (("first", 7), ("arcs", 10**6), ("iepsilons", 10**6)):
        changed_B = bytearray(content)
        view_const(memoryview(changed_B))[1][field][3] = value
        with pytest.raises(ValueError, match="or are not in the order of the nodes"):
            check_const(memoryview(changed_B), 10**6, 10**6)
    for length, says in ((10, "no header"), (-16, "are needed for the")):
        with pytest.raises(ValueError, match=says):
            check_const(memoryview(content[:length]), 10**6, 10**6)
    content[4 + 4 + 5 + 4 + 8 + 4] = 1  # OpenFst's flag of a table of symbols before the arcs
    with pytest.raises(ValueError, match="no header"):
        check_const(memoryview(content), 10**6, 10**6)


def test_a_changed_scale_is_noticed(folder):
    text = (folder / "bundle.json").read_text()
    assert '"beam": 16.0' in text
    (folder / "bundle.json").write_text(text.replace('"beam": 16.0', '"beam": 15.0'))
    with pytest.raises(DamagedFileError, match=r"bundle\.json says hash .* but its content has"):
        Recogniser.load(folder)


def test_what_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no bundle .* \(digits, english\)"):
        Recogniser.load(tmp_path / "none")
    with pytest.raises(DamagedFileError, match=r"has no bundle\.json"):
        Recogniser.load(tmp_path)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(DIGITS.read_bytes()[:100_000])
    with pytest.raises(DamagedFileError, match=r"cut\.tar"):
        Recogniser.load(cut)


def test_a_folder_of_recordings_does_not_hide_a_bundle_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "english").mkdir()
    assert store.found_bundle("english") == SHIPPED / "english.tar"
    (tmp_path / "english" / MANIFEST).write_text("{}")
    assert store.found_bundle("english") == Path("english")


def test_a_manifest_that_cannot_be_read_is_named_by_its_tar(tmp_path):
    content = bytearray(DIGITS.read_bytes())
    content[512] ^= 1  # the first byte of bundle.json
    (tmp_path / "digits.tar").write_bytes(content)
    with pytest.raises(DamagedFileError) as refused:
        Recogniser.load(tmp_path / "digits.tar")
    assert str(refused.value).startswith(f"{tmp_path}/digits.tar: bundle.json is not valid JSON")
    assert str(refused.value).endswith("copy it anew, or make it again by: make bundle")


def test_a_tar_writes_nowhere_but_in_its_folder(tmp_path):
    bad = tmp_path / "bad.tar"
    with tarfile.open(bad, "w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(DamagedFileError, match=r"'\.\./outside', which is not a regular file"):
        Recogniser.load(bad)


def packed(path, folder, *names):
    """Make a .tar of a folder's files, in this order."""
    with tarfile.open(path, "w") as tar:
        for name in names:
            tar.add(folder / name, name)
    return path


def test_every_file_of_a_bundle_is_listed_once(folder, tmp_path):
    parts = read_json(folder / "bundle.json")["parts"]
    names = [MANIFEST, *(one["path"] for one in parts)]
    with open_bundle(packed(tmp_path / "same.tar", folder, *names)) as opened:
        assert opened.manifest["name"] == "digits"
    plainly = packed(tmp_path / "plainly.tar", folder, "./")  # as by tar -C FOLDER .
    with open_bundle(plainly) as opened:
        assert opened.manifest["name"] == "digits"
    with pytest.raises(DamagedFileError, match=r"twice\.tar has 'model\.json' twice"):
        Recogniser.load(packed(tmp_path / "twice.tar", folder, *names, "model.json"))
    (folder / "notes.txt").write_text("x")
    Recogniser.load(folder)
    with pytest.raises(DamagedFileError, match=r"lists 'notes\.txt' 0 times"):
        Recogniser.load(packed(tmp_path / "more.tar", folder, *names, "notes.txt"))
    (folder / "first.json").write_text("{}")
    with pytest.raises(DamagedFileError, match=r"lists 'first\.json' 0 times"):
        Recogniser.load(folder)
    (folder / "first.json").unlink()
    for wrong, says in (
        (parts[1:], r"'model\.json' 0 times"),
        ([*parts, parts[1]], r"'model\.pt' 2 times"),
        ([*parts, parts[1] | {"path": "../digits/model.pt"}], r"'\.\./digits/model\.pt' 1 times"),
    ):
        changed(folder, parts=wrong)
        with pytest.raises(DamagedFileError, match=f"lists {says}; it must list each file"):
            Recogniser.load(folder)


@pytest.mark.parametrize("seed", range(5))
def test_a_stored_graph_is_searched_as_the_one_in_memory(tmp_path, seed):
    rng = np.random.default_rng(seed)
    made = ordered(random_graph(rng, nodes=30, arcs=120))
    paths = write_ordered(tmp_path, made)
    again = view_ordered(*(Region.of(path).mapped() for path in paths))
    for name in ("first_N", "emit_N", "height_N", "plain", "start"):
        assert np.array_equal(getattr(again, name), getattr(made, name)), name
    scores_TS = random_scores(rng, frames=8)
    first, second = (
        Lattices(graph, STATES).decode(scores_TS, 1e3, 10**6, 5.0) for graph in (made, again)
    )
    assert first.cost == pytest.approx(second.cost)
    assert len(first.arcs_A) == len(second.arcs_A)
    for wrong in (again.height_N[::-1], again.height_N - 1):
        np.save(paths[1], wrong)
        with pytest.raises(ValueError, match="not in the order of the search"):
            view_ordered(*(Region.of(path).mapped() for path in paths))
