"""scripts/fetch.py: an interrupted download is resumed, and an archive cannot choose paths."""

import gzip
import hashlib
import importlib.util
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

SCRIPT = Path(__file__).parents[1] / "scripts" / "fetch.py"
spec = importlib.util.spec_from_file_location("fetch", SCRIPT)
assert spec is not None
assert spec.loader is not None
fetch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch)


def wav(samples: int) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.arange(samples, dtype=np.int16), 8000, format="WAV")
    return buffer.getvalue()


def archive(*members: tuple[str, bytes | None]) -> bytes:
    """Return a .tar.gz; None makes a link to /etc/passwd, or a folder if the name ends with /."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if content is not None else None)
    return buffer.getvalue()


TOP = "free-spoken-digit-dataset-26eb9aa"
GOOD = archive(
    (f"{TOP}/README.md", b"# Free Spoken Digit Dataset"),
    (f"{TOP}/recordings/7_jackson_32.wav", wav(4000)),
    (f"{TOP}/recordings/0_george_1.wav", wav(2400)),
    (f"{TOP}/utils/spectogramer.py", b"import os"),
)
TABLE = """utt_id\tspeaker\tpath\tduration_seconds\ttranscript
george-0-01\tgeorge\trecordings/0_george_1.wav\t0.3000\tZERO
jackson-7-32\tjackson\trecordings/7_jackson_32.wav\t0.5000\tSEVEN
"""


class Server:
    """Serves one archive over HTTP on this machine; can close early, and can ignore Range."""

    def __init__(self) -> None:
        self.content, self.hang_up_after, self.ranges = GOOD, 10**9, True
        self.models = MODEL  # content for names in .arpa.gz
        self.asked: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers["Range"]
                outer.asked.append(asked)
                if self.path != "/fsdd" and not self.path.startswith("/parts/"):
                    return self.send_error(404, "Not Found")
                content = outer.models if self.path.endswith(".arpa.gz") else outer.content
                start = int(asked[6:-1]) if asked and outer.ranges else 0
                if start and start >= len(content):
                    return self.send_error(416, "Range Not Satisfiable")
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:][: outer.hang_up_after])

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/fsdd"
        self.folder = self.url.replace("/fsdd", "/parts")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


SO = "speechocean762-613968e"


def spoken(**changes: bytes) -> bytes:
    """Return speechocean762 with two speakers, and a recording that has no transcript."""
    files = {
        "WAVE/SPEAKER0003/000030012.WAV": wav(4000),
        "WAVE/SPEAKER0001/000010011.WAV": wav(2400),
    }
    files["WAVE/SPEAKER0001/000010099.WAV"] = wav(800)
    for half, speaker, utt_id, words in (
        ("train", "0001", "000010011", "WE CALL IT BEAR"),
        ("test", "0003", "000030012", "A CAT"),
    ):
        files[f"{half}/text"] = f"{utt_id}\t{words}\n".encode()
        files[f"{half}/utt2spk"] = f"{utt_id} {speaker}\n".encode()
        files[f"{half}/wav.scp"] = f"{utt_id}\tWAVE/SPEAKER{speaker}/{utt_id}.WAV\n".encode()
        files[f"{half}/spk2age"] = f"{speaker}\t6\n".encode()
        files[f"{half}/spk2gender"] = f"{speaker}\tm\n".encode()
    files |= {name.replace("__", "/"): content for name, content in changes.items()}
    return archive(*((f"{SO}/{name}", content) for name, content in files.items() if content))


def everything(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_speechocean_becomes_a_folder_with_its_official_halves(server, tmp_path):
    server.content = spoken()
    fetch.fetch("speechocean", str(tmp_path), server.url)
    lines = [line.split("\t") for line in (tmp_path / "utterances.tsv").read_text().splitlines()]
    assert lines[1:] == [
        [
            "so0001-000010011",
            "so0001",
            "WAVE/SPEAKER0001/000010011.WAV",
            "0.3000",
            "WE CALL IT BEAR",
        ],
        ["so0003-000030012", "so0003", "WAVE/SPEAKER0003/000030012.WAV", "0.5000", "A CAT"],
    ]
    assert (tmp_path / "official_test_speakers.txt").read_text() == "so0003\n"
    assert (tmp_path / "lm_text.txt").read_text() == "A CAT\nWE CALL IT BEAR\n"
    assert "so0003\tm\t6\ttest\n" in (tmp_path / "speakers.tsv").read_text()
    assert not list(tmp_path.rglob("000010099.WAV"))  # has no transcript
    assert not list(tmp_path.glob("*.tar.gz"))


def test_a_speechocean_may_lack_ages(server, tmp_path):
    server.content = spoken(train__spk2age=b"", test__spk2age=b"")
    fetch.fetch("speechocean", str(tmp_path), server.url)
    assert "so0001\tm\t\ttrain\n" in (tmp_path / "speakers.tsv").read_text()


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"test__text": b""}, "has no test/text; wrong URL"),
        ({"WAVE__SPEAKER0003__000030012.WAV": b""}, "lacks WAVE/SPEAKER0003/000030012.WAV"),
        ({"test__utt2spk": b"000030012 3$(ls)\n"}, r"utterance '000030012' of 'so3\$\(ls\)'"),
    ],
)
def test_a_speechocean_that_lacks_a_file_is_refused(server, tmp_path, changes, match):
    server.content = spoken(**changes)
    with pytest.raises(fetch.FetchError, match=match):
        fetch.fetch("speechocean", str(tmp_path), server.url)
    assert not (tmp_path / "utterances.tsv").exists()


def test_fsdd_becomes_a_folder_with_utterances(server, tmp_path):
    fetch.fetch("fsdd", str(tmp_path), server.url)
    assert (tmp_path / "utterances.tsv").read_text() == TABLE
    assert everything(tmp_path) == {
        "utterances.tsv",
        "recordings/7_jackson_32.wav",
        "recordings/0_george_1.wav",
    }
    assert (tmp_path / "recordings/7_jackson_32.wav").read_bytes() == wav(4000)


def test_a_member_that_is_no_recording_is_refused_by_name(server, tmp_path):
    server.content = archive((f"{TOP}/recordings/7_jackson_32.wav", b"not found"))
    with pytest.raises(
        fetch.FetchError, match=r"^7_jackson_32\.wav in the archive is no recording"
    ):
        fetch.fetch("fsdd", str(tmp_path), server.url)
    assert everything(tmp_path) == {"fsdd.tar.gz"}


def test_the_url_may_come_from_the_environment(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FETCH_URL", server.url)
    fetch.fetch("fsdd", str(tmp_path))
    assert (tmp_path / "utterances.tsv").read_text() == TABLE


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    fetch.fetch("fsdd", str(tmp_path), server.url)
    fetch.fetch("fsdd", str(tmp_path), server.url)
    assert len(server.asked) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(server, tmp_path, ranges):
    server.hang_up_after, server.ranges = 100, ranges
    with pytest.raises(fetch.FetchError, match=f"ended after 100 of {len(GOOD)} bytes"):
        fetch.fetch("fsdd", str(tmp_path), server.url)
    assert everything(tmp_path) == {"fsdd.tar.gz.part"}
    server.hang_up_after = 10**9
    fetch.fetch("fsdd", str(tmp_path), server.url)
    assert server.asked == [None, "bytes=100-"]
    assert (tmp_path / "utterances.tsv").read_text() == TABLE


def test_a_partial_file_that_is_longer_than_the_archive_is_fetched_anew(server, tmp_path):
    (tmp_path / "fsdd.tar.gz.part").write_bytes(bytes(len(GOOD) + 1))
    fetch.fetch("fsdd", str(tmp_path), server.url)
    assert (tmp_path / "utterances.tsv").read_text() == TABLE


@pytest.mark.parametrize("content", [GOOD[:-40], GOOD[:200] + b"x" + GOOD[201:], b"no archive"])
def test_a_damaged_archive_is_deleted_and_no_table_written(server, tmp_path, content):
    server.content = content
    with pytest.raises(fetch.FetchError, match=r"damaged .* try again"):
        fetch.fetch("fsdd", str(tmp_path), server.url)
    assert not (tmp_path / "utterances.tsv").exists()
    assert not (tmp_path / "fsdd.tar.gz").exists()
    server.content = GOOD
    fetch.fetch("fsdd", str(tmp_path), server.url)
    assert (tmp_path / "utterances.tsv").read_text() == TABLE


def test_an_archive_cannot_write_where_it_likes(server, tmp_path):
    server.content = archive(
        ("../recordings/1_evil_0.wav", wav(10)),
        ("/recordings/1_evil_1.wav", wav(10)),
        (f"{TOP}/recordings/../../1_evil_2.wav", wav(10)),
        (f"{TOP}/recordings/0_george_1.wav", wav(2400)),
    )
    folder = tmp_path / "in" / "fsdd"
    fetch.fetch("fsdd", str(folder), server.url)
    assert all(name.startswith("in/fsdd/") for name in everything(tmp_path))
    assert not any("evil_2" in name for name in everything(tmp_path))


def test_a_link_in_an_archive_is_refused(server, tmp_path):
    server.content = archive((f"{TOP}/recordings/1_evil_0.wav", None))
    with pytest.raises(fetch.FetchError, match=r"1_evil_0\.wav is not a regular file"):
        fetch.fetch("fsdd", str(tmp_path), server.url)
    assert not (tmp_path / "utterances.tsv").exists()


def test_an_archive_without_recordings_is_refused(server, tmp_path):
    server.content = archive((f"{TOP}/README.md", b"moved"))
    with pytest.raises(fetch.FetchError, match="wrong URL"):
        fetch.fetch("fsdd", str(tmp_path), server.url)


def test_a_missing_page_is_named(server, tmp_path):
    with pytest.raises(fetch.FetchError, match="answers 404 Not Found"):
        fetch.fetch("fsdd", str(tmp_path), server.url + "x")


def test_a_full_disk_is_not_taken_for_the_network(server, tmp_path):
    (tmp_path / "fsdd.tar.gz.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        fetch.fetch("fsdd", str(tmp_path), server.url)


def test_no_network_is_said_clearly(tmp_path):
    with pytest.raises(fetch.FetchError, match=r"cannot be fetched .* CORPUS_DIR"):
        fetch.fetch("fsdd", str(tmp_path), "http://127.0.0.1:1/fsdd")


def test_an_unknown_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'timit' is not a known corpus; known: fsdd"):
        fetch.fetch("timit", str(tmp_path))


# --- archives that are unpacked as they are -----------------------------------------------------

UTTERANCE = "LibriSpeech/train-clean-5/19/198/19-198-0000"
LIBRI = archive(  # with folders, as OpenSLR's and whatever tar packs
    ("LibriSpeech/", None),
    ("LibriSpeech/LICENSE.TXT", b"free"),
    *((f"{name}/", None) for name in ("LibriSpeech/train-clean-5", UTTERANCE.rpartition("/")[0])),
    (f"./{UTTERANCE}.flac", wav(800)),
)


MODEL = gzip.compress(
    b"\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\t</s>\n-99\t<s>\n\\end\\\n" * 99, mtime=0
)
SMALL = "3-gram.pruned.1e-7.arpa.gz"


def published(monkeypatch, content: bytes) -> None:
    """Make both parts of mini_librispeech this archive."""
    digest = hashlib.md5(content).hexdigest()
    parts = dict.fromkeys(fetch.MINI_LIBRISPEECH, f"md5:{digest}")
    monkeypatch.setattr(fetch, "MINI_LIBRISPEECH", parts)


def test_parts_are_compared_unpacked_and_not_fetched_again(server, tmp_path, monkeypatch):
    server.content = LIBRI
    published(monkeypatch, LIBRI)
    for _ in range(2):
        fetch.fetch("mini_librispeech", str(tmp_path), server.folder)
    assert (tmp_path / f"{UTTERANCE}.flac").read_bytes() == wav(800)
    assert everything(tmp_path) == {
        f"{UTTERANCE}.flac",
        "LibriSpeech/LICENSE.TXT",
        ".train-clean-5.fetched",
        ".dev-clean-2.fetched",
        f"lm/{SMALL}",
        "lm/.3-gram.pruned.1e-7.fetched",
    }
    assert len(server.asked) == 3
    assert (tmp_path / "lm" / SMALL).read_bytes() == MODEL


@pytest.fixture
def only_models(monkeypatch):
    """Fetch only language models of mini_librispeech."""
    monkeypatch.setattr(fetch, "MINI_LIBRISPEECH", {})


def test_a_broken_download_of_a_language_model_goes_on(server, tmp_path, only_models):
    server.hang_up_after = 50
    with pytest.raises(fetch.FetchError, match=f"ended after 50 of {len(MODEL)} bytes"):
        fetch.fetch("mini_librispeech", str(tmp_path), server.folder)
    assert everything(tmp_path) == {f"lm/{SMALL}.part"}
    server.hang_up_after = 10**9
    fetch.fetch("mini_librispeech", str(tmp_path), server.folder)
    assert server.asked == [None, "bytes=50-"]
    assert (tmp_path / "lm" / SMALL).read_bytes() == MODEL


@pytest.mark.parametrize(
    "content, why",
    [
        (MODEL[:-4], "damaged"),
        (MODEL[:-8] + bytes(4) + MODEL[-4:], "damaged"),  # another checksum
        (gzip.compress(b"<html>", mtime=0), "is not an ARPA file"),
    ],
)
def test_a_damaged_language_model_is_deleted(server, tmp_path, only_models, content, why):
    server.models = content
    with pytest.raises(fetch.FetchError, match=f"{why}.* deleted"):
        fetch.fetch("mini_librispeech", str(tmp_path), server.folder)
    assert everything(tmp_path) == set()


def test_language_models_are_chosen(server, tmp_path, only_models, monkeypatch):
    monkeypatch.setenv("LMS", "3-gram.pruned.3e-7 4-gram")
    fetch.fetch("mini_librispeech", str(tmp_path), server.folder)
    models = [name for name in everything(tmp_path) if name.endswith(".arpa.gz")]
    assert sorted(models) == ["lm/3-gram.pruned.3e-7.arpa.gz", "lm/4-gram.arpa.gz"]


@pytest.mark.parametrize("corpus", ["mini_librispeech", "librispeech"])
def test_unknown_language_models_are_refused_before_anything_is_fetched(
    server, tmp_path, monkeypatch, corpus
):
    monkeypatch.setenv("LMS", "5-gram")
    with pytest.raises(ValueError, match=r"LMS names '5-gram'; allowed: 3-gram\.pruned\.1e-7"):
        fetch.fetch(corpus, str(tmp_path), server.folder)
    assert server.asked == []


def test_librispeech_comes_with_both_of_its_models(server, tmp_path, monkeypatch):
    server.content = LIBRI
    digest = hashlib.sha256(LIBRI).hexdigest()
    monkeypatch.setattr(fetch, "LIBRISPEECH", dict.fromkeys(fetch.LIBRISPEECH, f"sha256:{digest}"))
    monkeypatch.setenv("PARTS", "dev-clean")
    fetch.fetch("librispeech", str(tmp_path), server.folder)
    found = everything(tmp_path)
    assert {f"{UTTERANCE}.flac", f"lm/{SMALL}", "lm/4-gram.arpa.gz"} <= found


def test_another_archive_than_was_published_is_refused(server, tmp_path, monkeypatch):
    published(monkeypatch, LIBRI)
    with pytest.raises(fetch.FetchError, match=r"had md5 .* is published; it is deleted"):
        fetch.fetch("mini_librispeech", str(tmp_path), server.folder)
    assert everything(tmp_path) == set()


def test_an_archive_cannot_unpack_where_it_likes(server, tmp_path):
    server.content = archive(
        ("an4/etc/an4_train.fileids", b"a"),
        ("an4/../../evil", b"a"),
        ("/an4/evil", b"a"),
        ("an4/.hidden", b"a"),
    )
    fetch.fetch("an4", str(tmp_path / "in" / "an4"), server.url)
    assert everything(tmp_path) == {"in/an4/an4/etc/an4_train.fileids", "in/an4/.fsdd.fetched"}


def test_parts_that_do_not_exist_are_refused_before_anything_is_fetched(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("PARTS", "dev-clean train-clean-1000")
    with pytest.raises(ValueError, match=r"PARTS names 'train-clean-1000'; allowed: dev-clean"):
        fetch.fetch("librispeech", str(tmp_path), server.folder)
    assert server.asked == []
