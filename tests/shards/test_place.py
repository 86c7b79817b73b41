"""Remote shards equal local ones; failures are retried, then reported with their cause.

The servers are started here, on the loopback.
"""

import contextlib
import functools
import http.server
import shutil
import threading

import pytest
from numbered import write

from asr_train.files import DamagedFileError
from asr_train.shards import place
from asr_train.shards.place import FetchError
from asr_train.shards.reader import Shards

LENGTHS = (5, 9, 2, 7, 7, 1, 4, 3)


@pytest.fixture(autouse=True)
def nearby(monkeypatch):
    """No pauses between tries, and no proxy."""
    monkeypatch.setattr(place, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(place, "TIMEOUT_SECONDS", 5.0)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "shards", LENGTHS, per_shard=3)
    return tmp_path / "shards"


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder; `ills` are the failures of the next replies for a tar, in order."""

    def __init__(self, folder):
        self.ills: list[str] = []
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        ill = self.server.ills.pop(0) if self.path.endswith(".tar") and self.server.ills else ""
        if ill == "busy":
            return self.send_error(503)
        if ill.isdigit():
            return self.send_error(int(ill))
        if ill == "gone":
            return self.connection.close()
        if ill in ("short", "other"):
            with open(self.translate_path(self.path), "rb") as file:
                content = bytearray(file.read())
            content[700] ^= 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if ill == "other" else content[:1000])
            return self.connection.close()
        return super().do_GET()


@pytest.fixture
def server(folder):
    with contextlib.closing(Server(folder)) as made:
        made.close = made.server_close
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def everything(shards: Shards):
    for sample in shards.samples(3, 0, 1, 0):
        yield sample.id, sample.feats_TF.tolist(), sample.ali_T.tolist(), sample.words


def test_over_http_they_are_those_on_disk(folder, server):
    near, far = Shards(folder / "index.json"), Shards(f"{server.url}/index.json")
    assert far.index == near.index
    assert list(everything(far)) == list(everything(near))
    assert sorted(server.asked) == ["/00000.tar", "/00001.tar", "/00002.tar", "/index.json"]


@pytest.mark.parametrize("ill", ["busy", "gone", "short", "other"])
def test_a_reply_that_fails_is_asked_for_again(folder, server, ill):
    server.ills = [ill, "", ill, ill]
    found = list(everything(Shards(f"{server.url}/index.json")))
    assert found == list(everything(Shards(folder / "index.json")))
    assert len(server.asked) == 1 + 3 + 3


@pytest.mark.parametrize("ill", ["busy", "gone", "short"])
def test_attempts_have_an_end(folder, server, ill):
    server.ills = [ill] * 100
    with pytest.raises(FetchError, match=r"000\d\d.tar could not be read in 5 attempts over \d+ s"):
        list(everything(Shards(f"{server.url}/index.json")))
    assert len(server.asked) == 1 + place.ATTEMPTS


def test_a_tar_that_is_not_what_the_index_says_is_refused_as_on_disk(folder, server):
    path = folder / "00001.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"00001.tar has SHA-256 .* index says .* changed"):
        list(everything(Shards(f"{server.url}/index.json")))
    path.write_bytes(content[:-1])
    message = rf"00001.tar has {len(content) - 1} bytes but its index says {len(content)}"
    with pytest.raises(DamagedFileError, match=message):
        list(everything(Shards(f"{server.url}/index.json")))


def test_what_is_not_there_is_asked_for_once(server):
    with pytest.raises(FetchError, match=r"none.json cannot be read: HTTP 404 .*check the addr"):
        Shards(f"{server.url}/none.json")
    assert server.asked == ["/none.json"]


@pytest.mark.parametrize(
    "code, asked", [(400, 1), (401, 1), (403, 1), (404, 1), (410, 1), (500, 5)]
)
def test_a_refusal_is_final_and_a_server_in_trouble_is_asked_again(server, code, asked):
    server.ills = [str(code)] * 9
    with pytest.raises(FetchError, match=f"HTTP.* {code}"):
        list(everything(Shards(f"{server.url}/index.json")))
    assert len(server.asked) == 1 + asked


def test_a_server_that_is_down_is_named(folder, server):
    shards = Shards(f"{server.url}/index.json")
    server.shutdown()
    server.server_close()
    with pytest.raises(FetchError, match=rf"{server.url}/000\d\d.tar could not be read .*refused"):
        list(everything(shards))


def test_a_page_that_is_no_index_is_damaged(folder, server):
    (folder / "index.json").write_text("<html>")
    with pytest.raises(DamagedFileError, match=r"index.json is not valid JSON"):
        Shards(f"{server.url}/index.json")


@pytest.mark.parametrize("address", ["ftp://host/index.json", "file:///index.json", "pipe://ls"])
def test_other_addresses_are_refused(address):
    with pytest.raises(ValueError, match="shards are read from folders, http://"):
        Shards(address)


# --- S3 -------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(folder, monkeypatch):
    """A server with the S3 interface, and the shards in its bucket."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    s3fs.S3FileSystem.clear_instance_cache()  # of another server
    import boto3

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="speech")
    for path in folder.iterdir():
        client.upload_file(str(path), "speech", f"train/{path.name}")
    yield client
    server.stop()


def test_over_s3_they_are_those_on_disk(folder, bucket):
    far = Shards("s3://speech/train/index.json")
    assert list(everything(far)) == list(everything(Shards(folder / "index.json")))


def test_what_is_changed_or_missing_in_a_bucket_is_said(folder, bucket):
    far = Shards("s3://speech/train/index.json")
    bucket.put_object(Bucket="speech", Key="train/00002.tar", Body=b"other")
    with pytest.raises(DamagedFileError, match=r"00002.tar has 5 bytes but its index says"):
        list(everything(far))
    bucket.delete_object(Bucket="speech", Key="train/00002.tar")
    with pytest.raises(FetchError, match=r"s3://speech/train/00002.tar cannot be read: FileNot"):
        list(everything(far))


def test_without_s3fs_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(ImportError, match="takes s3fs, which is not installed; run: pip install"):
        Shards("s3://speech/train/index.json")


def test_a_folder_needs_no_server(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert list(everything(Shards(str(tmp_path / "copy" / "index.json"))))
