"""Files are complete or absent, equal content gives equal bytes, and damage is named."""

import gzip
import os

import pytest
from held import held

from asr_train.files import (
    DamagedFileError,
    check_part,
    iter_jsonl,
    keeping_time,
    part,
    read_json,
    read_jsonl,
    read_lines,
    read_yaml,
    replacing,
    write_json,
    write_jsonl,
    write_text,
    write_yaml,
)


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def write_half():
        with replacing(path) as scratch:
            scratch.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_private_file_stays_private(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    (tmp_path / "a.txt").chmod(0o600)
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "content")
    assert os.read(reader, 99) == b"content"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    end, pipe = os.pipe()  # as the shell's >(command)
    write_text(f"/dev/fd/{pipe}", "content")
    assert os.read(end, 99) == b"content"
    for each in (end, pipe):
        os.close(each)
    assert sorted(os.listdir(tmp_path)) == ["link.txt", "pipe", "real.txt"]


def test_jsonl_gives_back_the_rows_and_equal_bytes_at_any_time(tmp_path, monkeypatch):
    rows = [{"id": "a", "x": 1.5}, {"id": "ü", "x": None}, {"id": "a\u2028b\x85c"}]
    write_jsonl(tmp_path / "a.jsonl.gz", rows)
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_jsonl(tmp_path / "b.jsonl.gz", rows)
    assert read_jsonl(tmp_path / "a.jsonl.gz") == rows
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_only_one_row_is_in_memory_at_a_time(tmp_path):
    path, rows = tmp_path / "a.jsonl.gz", 2000

    def write():
        write_jsonl(path, ({"id": str(n), "words": [f"{n}"] * 100} for n in range(rows)))

    assert held(write)[1] < 1e6

    def count():
        return sum(1 for _ in iter_jsonl(path))

    assert count() == rows
    assert held(count)[1] < 1e6
    assert held(lambda: read_jsonl(path))[0] > 1e6


def test_rows_are_read_before_a_damaged_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": \n')
    rows = iter_jsonl(path)
    assert next(rows) == {"a": 1}
    with pytest.raises(DamagedFileError, match="line 2"):
        next(rows)


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_truncated_jsonl_is_refused_by_name(tmp_path, cut):
    path = tmp_path / "a.jsonl.gz"
    write_jsonl(path, [{"id": str(i)} for i in range(100)])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DamagedFileError, match=r"a\.jsonl\.gz"):
        read_jsonl(path)


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path):
    """Else its user is told to delete it; here a folder."""
    with pytest.raises(IsADirectoryError):
        read_jsonl(tmp_path)


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n{"a": \n'))
    with pytest.raises(DamagedFileError, match="line 2"):
        read_jsonl(path)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "9" * 5000])
def test_a_broken_json_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DamagedFileError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_another_file_than_json_is_not_to_be_deleted(tmp_path):
    for name in ("model.pt", "dev.jsonl.gz"):
        (tmp_path / name).write_bytes(b"\x80\x03")
        with pytest.raises(DamagedFileError, match=r"; name a file that ends in \.json$"):
            read_json(tmp_path / name)
    with pytest.raises(DamagedFileError, match=r"model\.pt .*; name .* in \.jsonl or \.jsonl\.gz$"):
        read_jsonl(tmp_path / "model.pt")


def test_json_refuses_what_is_no_number(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("change", ["gone", "short", "flipped"])
def test_an_index_notices_when_a_part_changed(tmp_path, change):
    path = tmp_path / "part"
    path.write_bytes(bytes(range(100)))
    listed = part(path, tmp_path)
    assert check_part(tmp_path, listed) == path
    if change == "gone":
        path.unlink()
    elif change == "short":
        path.write_bytes(bytes(range(99)))
    else:
        path.write_bytes(bytes([1, *range(1, 100)]))
    with pytest.raises(DamagedFileError, match="part"):
        check_part(tmp_path, listed)


def test_text_is_utf_8_in_any_locale(tmp_path, monkeypatch):
    monkeypatch.setattr("io.text_encoding", lambda *_: "latin-1")  # what `read_text` would take
    write_json(tmp_path / "a.json", "für")
    assert read_json(tmp_path / "a.json") == "für"
    assert write_yaml(tmp_path / "a.yaml", "für")
    assert not write_yaml(tmp_path / "a.yaml", "für")
    assert read_yaml(tmp_path / "a.yaml") == "für"


def test_lines_end_as_files_lines_do(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffa\x85b\r\n\u2028c\x0c\rd\n\ne".encode())
    assert read_lines(tmp_path / "a.txt") == ["a\x85b", "\u2028c\x0c", "d", "", "e"]


def test_yaml_is_written_only_when_it_says_something_new(tmp_path):
    path = tmp_path / "a.yaml"
    assert write_yaml(path, {"a": 1e-5})
    before = path.stat().st_mtime_ns
    assert not write_yaml(path, {"a": 1e-5})
    assert path.stat().st_mtime_ns == before
    assert write_yaml(path, {"a": 2e-5})


@pytest.mark.parametrize(
    "new, known, kept", [("a", True, True), ("b", True, False), ("a", False, False)]
)
def test_an_output_made_again_keeps_its_time_if_its_content_is_known_to_be_the_same(
    tmp_path, new, known, kept
):
    path = tmp_path / "a.json"
    content = lambda path: path.read_bytes() if known else None  # noqa: E731
    with keeping_time(path, content):
        write_json(path, "a")
    os.utime(path, ns=(1, 7))
    with keeping_time(path, content):
        write_json(path, new)
    assert read_json(path) == new
    assert (path.stat().st_mtime_ns == 7) == kept
