"""Archives are read back unchanged, also by Kaldi's own code; nothing is executed."""

import gzip
import pickle
import struct

import kaldi_native_io as kaldi  # Kaldi's C++ reading and writing: the oracle
import numpy as np
import pytest

from asr_train.files import DamagedFileError
from asr_train.interop.ark import (
    read_int_vectors,
    read_matrices,
    write_int_vectors,
    write_matrices,
)

RNG = np.random.default_rng(7)
MATRICES = {
    f"utt-{i}": RNG.standard_normal((rows, 5)).astype(np.float32)
    for i, rows in enumerate([1, 40, 200])
}
VECTORS = {f"utt-{i}": RNG.integers(0, 3000, n).astype(np.int32) for i, n in enumerate([1, 7, 300])}


def same(found, expected, tolerance=0.0):
    found = dict(found)
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        assert found[key].shape == array.shape
        assert np.abs(found[key] - array).max() <= tolerance
    return True


# --- round trips and the oracle -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["f.ark", "f.scp"])
def test_matrices_come_back(tmp_path, name):
    assert write_matrices(tmp_path / "f.ark", MATRICES.items()) == 3
    assert same(read_matrices(tmp_path / name), MATRICES)


def test_kaldi_reads_our_matrices(tmp_path):
    write_matrices(tmp_path / "f.ark", MATRICES.items())
    with kaldi.SequentialFloatMatrixReader(f"ark:{tmp_path}/f.ark") as reader:
        assert same(((k, np.array(m)) for k, m in reader), MATRICES)
    with kaldi.RandomAccessFloatMatrixReader(f"scp:{tmp_path}/f.scp") as reader:
        assert np.array_equal(reader["utt-2"], MATRICES["utt-2"])


@pytest.mark.parametrize("form, tolerance", [("ark", 0), ("ark,t", 1e-5)])
def test_we_read_kaldis_matrices(tmp_path, form, tolerance):
    with kaldi.FloatMatrixWriter(f"{form},scp:{tmp_path}/k.ark,{tmp_path}/k.scp") as writer:
        for key, matrix in MATRICES.items():
            writer.write(key, matrix)
    assert same(read_matrices(tmp_path / "k.ark"), MATRICES, tolerance)
    assert same(read_matrices(tmp_path / "k.scp"), MATRICES, tolerance)


def test_the_bytes_are_kaldis(tmp_path):
    write_matrices(tmp_path / "f.ark", MATRICES.items())
    with kaldi.FloatMatrixWriter(f"ark:{tmp_path}/k.ark") as writer:
        for key, matrix in MATRICES.items():
            writer.write(key, matrix)
    assert (tmp_path / "f.ark").read_bytes() == (tmp_path / "k.ark").read_bytes()


@pytest.mark.parametrize("form", ["ark", "ark,t"])
def test_a_matrix_without_rows_is_read(tmp_path, form):
    empty = {"utt-0": np.zeros((0, 0), np.float32)}
    with kaldi.FloatMatrixWriter(f"{form}:{tmp_path}/k.ark") as writer:
        for key, matrix in (empty | {"utt-1": np.ones((2, 2), np.float32)}).items():
            writer.write(key, matrix)
    found = dict(read_matrices(tmp_path / "k.ark"))
    assert [(key, found[key].shape) for key in found] == [("utt-0", (0, 0)), ("utt-1", (2, 2))]


@pytest.mark.parametrize(
    "method", ["kSpeechFeature", "kTwoByteAuto", "kOneByteAuto", "kAutomaticMethod"]
)
def test_compressed_matrices_are_what_kaldi_makes_of_them(tmp_path, method):
    path = tmp_path / "c.ark"
    with kaldi.CompressedMatrixWriter(f"ark:{path}") as writer:
        for key, matrix in MATRICES.items():
            writer.write(key, matrix, getattr(kaldi.CompressionMethod, method))
    with kaldi.SequentialFloatMatrixReader(f"ark:{path}") as reader:
        expected = {key: np.array(matrix) for key, matrix in reader}
    assert same(read_matrices(path), expected, 1e-5)


@pytest.mark.parametrize("name", ["a.ark", "a.txt", "a.ark.gz", "a.txt.gz"])
def test_integers_come_back(tmp_path, name):
    assert write_int_vectors(tmp_path / name, VECTORS.items()) == 3
    assert same(read_int_vectors(tmp_path / name), VECTORS)


@pytest.mark.parametrize("form", ["ark", "ark,t"])
def test_kaldi_reads_our_integers_and_writes_the_same_bytes(tmp_path, form):
    ours, theirs = tmp_path / ("a.ark" if form == "ark" else "a.txt"), tmp_path / "k"
    write_int_vectors(ours, VECTORS.items())
    with kaldi.SequentialInt32VectorReader(f"ark:{ours}") as reader:
        assert same(((k, np.array(v, np.int32)) for k, v in reader), VECTORS)
    with kaldi.Int32VectorWriter(f"{form}:{theirs}") as writer:
        for key, vector in VECTORS.items():
            writer.write(key, vector.tolist())
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_list_is_sorted_as_kaldi_sorts(tmp_path):
    names = ["b", "B", "a-1", "a_1", "a", "é"]
    write_matrices(tmp_path / "f.ark", ((name, np.ones((2, 2))) for name in names))
    listed = [line.split()[0] for line in (tmp_path / "f.scp").read_text().splitlines()]
    assert listed == ["B", "a", "a-1", "a_1", "b", "é"]


# --- damage -------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "f.ark"
    write_matrices(path, MATRICES.items())
    return path


def boundaries(content: bytes) -> set[int]:
    """Return the positions at which an archive may validly end: after each matrix."""
    ends, end = {0}, 0
    for key, matrix in MATRICES.items():
        end += len(key) + 1 + 15 + matrix.nbytes
        ends.add(end)
    assert end == len(content)
    return ends


def test_an_archive_cut_short_anywhere_is_noticed(archive):
    content = archive.read_bytes()
    ends = boundaries(content)
    for length in {*range(0, 120), *range(0, len(content), 97), len(content) - 1}:
        archive.write_bytes(content[:length])
        if length in ends:
            list(read_matrices(archive))
        else:
            with pytest.raises(DamagedFileError, match=r"f\.ark .*byte"):
                list(read_matrices(archive))


def test_text_integers_cut_short_are_noticed(tmp_path):
    path = tmp_path / "a.txt"
    write_int_vectors(path, VECTORS.items())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedFileError, match="utt-2"):
        list(read_int_vectors(path))


@pytest.mark.parametrize("at, value", [(11, -1), (11, 2**31 - 1), (16, -5), (16, 2**30)])
def test_impossible_sizes_are_refused(archive, at, value):
    content = bytearray(archive.read_bytes())
    content[at : at + 4] = struct.pack("<i", value)
    archive.write_bytes(content)
    with pytest.raises(DamagedFileError, match="utt-0"):
        list(read_matrices(archive))


def test_a_damaged_gzip_is_named(tmp_path):
    path = tmp_path / "a.ark.gz"
    write_int_vectors(path, VECTORS.items())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=r"a\.ark\.gz cannot be unpacked"):
        list(read_int_vectors(path))


def test_a_gzip_of_no_bytes_is_damaged(tmp_path):
    """gzip.decompress takes it for an empty content, and a job's alignments would be missing."""
    (tmp_path / "ali.1.gz").touch()
    with pytest.raises(DamagedFileError, match=r"ali\.1\.gz is empty, and so no gzip file"):
        list(read_int_vectors(tmp_path / "ali.1.gz"))


def test_one_kind_is_not_taken_for_another(tmp_path):
    write_int_vectors(tmp_path / "a.ark", VECTORS.items())
    write_matrices(tmp_path / "f.ark", MATRICES.items())
    with pytest.raises(DamagedFileError, match="is not a matrix"):
        list(read_matrices(tmp_path / "a.ark"))
    with pytest.raises(DamagedFileError, match="not a vector of integers"):
        list(read_int_vectors(tmp_path / "f.ark"))
    (tmp_path / "words.txt").write_text("utt-0 HELLO\n")
    with pytest.raises(DamagedFileError, match="HELLO"):
        list(read_int_vectors(tmp_path / "words.txt"))
    (tmp_path / "large.txt").write_text("utt-0 1\nutt-1 99999999999\n")
    with pytest.raises(DamagedFileError, match="utt-1, byte 14"):
        list(read_int_vectors(tmp_path / "large.txt"))


def test_a_list_may_be_separated_by_tabs(archive):
    listed = archive.with_suffix(".scp")
    listed.write_text(listed.read_text().replace(" ", "\t"))
    assert [key for key, _ in read_matrices(listed)] == sorted(MATRICES)


# --- nothing runs -------------------------------------------------------------------------------


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("read", [read_matrices, read_int_vectors])
def test_a_pickle_in_an_archive_is_not_loaded(tmp_path, read):
    (tmp_path / "p.ark").write_bytes(b"utt-0 PKL" + pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(DamagedFileError):
        list(read(tmp_path / "p.ark"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("place", ["touch {} |", "| touch {}", "touch {} |:0 |"])
def test_a_command_in_a_list_is_refused(tmp_path, place):
    (tmp_path / "f.scp").write_text("utt-0 " + place.format(tmp_path / "sprung") + "\n")
    with pytest.raises(ValueError, match=r"f\.scp, line 1 is a command"):
        list(read_matrices(tmp_path / "f.scp"))
    assert not (tmp_path / "sprung").exists()


def test_an_archive_whose_name_is_a_command_is_only_a_name(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_matrices(f"touch {tmp_path}/sprung |"))
    assert not (tmp_path / "sprung").exists()


# --- ids ----------------------------------------------------------------------------------------


def test_ids_must_differ_and_be_words(tmp_path):
    one = np.ones((2, 2), np.float32)
    for rows, message in (
        ([("a", one), ("a", one)], "a appears twice"),
        ([("a b", one)], "has a space"),
        ([("a", one[:0])], r"shape \[0, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            write_matrices(tmp_path / "f.ark", rows)
        assert not list(tmp_path.iterdir())  # no partial file
    (tmp_path / "a.txt").write_text("u 1 2\nu 3\n")
    with pytest.raises(ValueError, match="u appears twice"):
        list(read_int_vectors(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_text("u 1 2 \n v 3\nw 4\n")  # a space before v
    with pytest.raises(ValueError, match=r"a.txt has b'' where .* \(byte 7\)"):
        list(read_int_vectors(tmp_path / "a.txt"))


def test_a_path_that_kaldi_takes_for_a_command_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\|b/f\.ark' has \| or a line feed"):
        write_matrices(tmp_path / "a|b" / "f.ark", MATRICES.items())


def test_a_gzipped_archive_says_the_same_twice(tmp_path):
    write_int_vectors(tmp_path / "a.txt.gz", VECTORS.items())
    write_int_vectors(tmp_path / "b.txt", VECTORS.items())
    unpacked = gzip.decompress((tmp_path / "a.txt.gz").read_bytes())
    assert unpacked == (tmp_path / "b.txt").read_bytes()
