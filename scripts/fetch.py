"""fetch.py NAME DIR [URL]

Download a public corpus into DIR, as a folder that `make fsdd CORPUS_DIR=DIR` and
`make folder CORPUS_DIR=DIR` take. NAME: fsdd, the Free Spoken Digit Dataset (CC BY-SA 4.0).
URL (or FETCH_URL in the environment) is another place of the same archive.
"""

import gzip
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import soundfile

from asr_train.data.folder import COLUMNS
from asr_train.files import write_bytes, write_text
from asr_train.jobs import main, progress

TIMEOUT_SECONDS = 30  # without a byte
CHUNK = 1 << 18  # bytes
FSDD = (
    "https://codeload.github.com/Jakobovski/free-spoken-digit-dataset/tar.gz/"
    "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
)
FSDD_RECORDINGS = 3000  # of that commit: 10 digits, 6 speakers, 50 recordings each
FSDD_MEMBER = re.compile(r"[^/]+/recordings/(\d)_([a-z]+)_(\d+)\.wav")
FSDD_WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")


class FetchError(OSError):
    """A corpus could not be fetched."""


def fetch(name: str, folder: str, url: str = "") -> None:
    if name not in CORPORA:
        raise ValueError(f"no corpus is named {name!r}; there are: {', '.join(CORPORA)}")
    table = Path(folder) / "utterances.tsv"
    if table.exists():
        print(f"fetch: {table} is there already; delete it to fetch {name} again")
        return
    CORPORA[name](Path(folder), url or os.environ.get("FETCH_URL", ""))


def fsdd(folder: Path, url: str) -> None:
    """Recordings as they are (8 kHz WAV), and utterances.tsv last."""
    archive = folder / "fsdd.tar.gz"
    if not archive.exists():
        _download(url or FSDD, archive)
    rows = []
    for member, content in _members(archive, FSDD_MEMBER):
        digit, speaker, number = member.groups()
        path = f"recordings/{digit}_{speaker}_{number}.wav"
        write_bytes(folder / path, content)
        seconds = f"{soundfile.info(folder / path).duration:.4f}"
        utt_id = f"{speaker}-{digit}-{int(number):02d}"
        rows.append((utt_id, speaker, path, seconds, FSDD_WORDS[int(digit)]))
    if not rows:
        archive.unlink()
        raise FetchError(f"{url or FSDD} has no recordings/DIGIT_SPEAKER_NUMBER.wav; wrong URL?")
    if not url and len(rows) != FSDD_RECORDINGS:
        print(f"fetch: {len(rows)} recordings, though this commit had {FSDD_RECORDINGS}")
    lines = [COLUMNS, *sorted(rows)]
    write_text(folder / "utterances.tsv", "".join("\t".join(line) + "\n" for line in lines))
    archive.unlink()
    speakers = len({row[1] for row in rows})
    print(f"fetch: {len(rows)} recordings of {speakers} speakers in {folder}")


CORPORA: dict[str, Callable[[Path, str], None]] = {"fsdd": fsdd}


def _download(url: str, path: Path) -> None:
    """Fetch `url`, going on from an earlier, broken try where the server can."""
    partial = path.with_name(f"{path.name}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            got, length = _receive(answer, partial)
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # there is nothing after `have`: another file by now?
            partial.unlink()
            return _download(url, path)
        raise FetchError(
            f"{url} answers {error.code} {error.reason}; is it still there?"
        ) from error
    except (OSError, HTTPException) as error:
        raise FetchError(
            f"{url} cannot be fetched ({getattr(error, 'reason', error)}); try again where there "
            "is a network, or get the corpus by other means and set CORPUS_DIR"
        ) from error
    if length is not None and got != int(length):
        raise FetchError(f"{url} ended after {got} of {length} bytes; call again to go on")
    os.replace(partial, path)


def _receive(answer: HTTPResponse, partial: Path) -> tuple[int, str | None]:
    """Bytes received and bytes announced; a server that ignores Range sends all from the start."""
    length = answer.headers["Content-Length"]
    total = -(-int(length) // CHUNK) if length else None
    got = 0
    with open(partial, "ab" if answer.status == 206 else "wb") as file:
        for chunk in progress(iter(lambda: answer.read(CHUNK), b""), partial.stem, total):
            file.write(chunk)
            got += len(chunk)
    return got, length


def _members(archive: Path, wanted: re.Pattern[str]) -> Iterator[tuple[re.Match[str], bytes]]:
    """The files of a .tar.gz whose names match. Callers choose where they go, not the archive.

    Raises:
        FetchError: for a damaged archive, which is deleted, or a link in place of a file.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for info in tar:
                match = wanted.fullmatch(info.name)
                if match is None:
                    continue
                file = tar.extractfile(info) if info.isreg() else None
                if file is None:
                    raise FetchError(f"{archive}: {info.name} is no plain file; refusing it")
                yield match, file.read()
            while tar.fileobj is not None and tar.fileobj.read(CHUNK):
                pass  # gzip's checksum comes last, after what tarfile reads
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        archive.unlink()
        raise FetchError(f"{archive} was damaged ({error}) and is deleted; try again") from error


if __name__ == "__main__":
    main(fetch, __doc__)
