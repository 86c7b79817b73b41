"""fetch.py NAME DIR [URL]

Download a public corpus into DIR, as a folder that `make NAME CORPUS_DIR=DIR` takes.

NAME: fsdd               the Free Spoken Digit Dataset (CC BY-SA 4.0), 21 MB
      mini_librispeech   5 hours of LibriSpeech (CC BY 4.0), 0.5 GB, and the language models that
                         LMS names: 3-gram.pruned.1e-7 (35 MB) if it is not set
      librispeech        LibriSpeech (CC BY 4.0): the parts that PARTS names, 7 GB if it is not set;
                         language models as above, and 4-gram (1.4 GB)
      speechocean        speechocean762 (Apache 2.0), the whole corpus, 0.5 GB
      an4                CMU's census corpus, 64 MB
      yesno              60 recordings of a speaker's Hebrew yes and no, 5 MB

URL (or FETCH_URL in the environment) is a mirror of the archive; for LibriSpeech and its models, of
the folder that holds the parts. PARTS='dev-clean train-clean-360' and
LMS='3-gram.pruned.1e-7 4-gram' are read from the environment.
"""

import asr_train.interrupt  # noqa: F401

import errno
import gzip
import hashlib
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import soundfile

from asr_train.data.table import TABLE, write_table
from asr_train.files import write_bytes, write_text
from asr_train.jobs import main, progress

TIMEOUT_SECONDS = 30  # without a byte
CHUNK = 1 << 18  # bytes
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
LARGEST_MEMBER = 1 << 30  # bytes, of an archive
FSDD = (
    "https://codeload.github.com/Jakobovski/free-spoken-digit-dataset/tar.gz/"
    "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
)
FSDD_MEMBER = re.compile(r"[^/]+/recordings/(\d)_([a-z]+)_(\d+)\.wav")
FSDD_WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
PLAIN_NAME = r"[\w-][\w.-]*"  # begins with no dot: no way out of a folder


@dataclass(frozen=True)
class Archive:
    """A .tar.gz whose folder structure is the corpus's own."""

    url: str
    top: str  # the folder that it unpacks to
    checksum: str = ""  # 'sha256:...' or 'md5:...' as published; else only gzip's own

    @property
    def part(self) -> str:
        return self.url.rpartition("/")[2].removesuffix(".tar.gz")


MINI = "https://www.openslr.org/resources/31"
LIBRI = "https://www.openslr.org/resources/12"
MINI_LIBRISPEECH = {  # openslr.org/resources/31/md5sum.txt
    "train-clean-5": "md5:5df7d4e78065366204ca6845bb08f490",
    "dev-clean-2": "md5:6d7ab67ac6a1d2c993d050e16d61080d",
}
LIBRISPEECH = {  # as torchaudio.datasets.librispeech has them
    "dev-clean": "sha256:76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "sha256:12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "sha256:39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "sha256:d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
    "train-clean-100": "sha256:d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "sha256:146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "sha256:ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
}
SPEECHOCEAN = (
    "https://codeload.github.com/jimbozhang/speechocean762/tar.gz/"
    "613968e3b0b789fc33936fb5eba1973176ba7d11"
)
SPEECHOCEAN_TABLE = re.compile(r"[^/]+/(train|test)/(text|utt2spk|wav\.scp|spk2age|spk2gender)")
SPEECHOCEAN_AUDIO = re.compile(r"[^/]+/(WAVE/SPEAKER\d+/\d+\.WAV)")
LMS = "https://www.openslr.org/resources/11"  # which publishes no checksums
NGRAMS = ("3-gram.pruned.1e-7", "3-gram.pruned.3e-7", "3-gram", "4-gram")
SMALL, BOTH = "3-gram.pruned.1e-7", "3-gram.pruned.1e-7 4-gram"  # what the recipes take
PARTS = "train-clean-100 dev-clean test-clean test-other"  # what conf/corpus/librispeech.yaml takes
AN4 = Archive("https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz", "an4")
YESNO = Archive(  # checksum as torchaudio.datasets.yesno has it
    "https://www.openslr.org/resources/1/waves_yesno.tar.gz",
    "waves_yesno",
    "sha256:c3f49e0cca421f96b75b41640749167b52118f232498667ca7a5f9416aef8e73",
)


class FetchError(OSError):
    """A corpus could not be fetched."""


def fetch(name: str, folder: str, url: str = "") -> None:
    if name not in CORPORA:
        raise ValueError(f"{name!r} is not a known corpus; known: {', '.join(CORPORA)}")
    CORPORA[name](Path(folder), url or os.environ.get("FETCH_URL", ""))


def fsdd(folder: Path, url: str) -> None:
    """Write the recordings unchanged (8 kHz WAV), and utterances.tsv last."""
    archive = _archive(folder, "fsdd", url or FSDD)
    if archive is None:
        return
    rows = []
    for member, content in _members(archive, FSDD_MEMBER):
        digit, speaker, number = member.groups()
        path = f"recordings/{digit}_{speaker}_{number}.wav"
        seconds = _written(folder / path, content)
        utt_id = f"{speaker}-{digit}-{int(number):02d}"
        rows.append((utt_id, speaker, path, seconds, FSDD_WORDS[int(digit)]))
    if not rows:
        archive.unlink()
        raise FetchError(f"{url or FSDD} has no recordings/DIGIT_SPEAKER_NUMBER.wav; wrong URL?")
    _tabled(archive, rows)


def speechocean(folder: Path, url: str) -> None:
    """Write the recordings unchanged, and tables of utterances, speakers and sentences.

    The official TEST speakers are in official_test_speakers.txt.
    """
    source = url or SPEECHOCEAN
    archive = _archive(folder, "speechocean", source)
    if archive is None:
        return
    halves: dict[str, dict[str, dict[str, str]]] = {"train": {}, "test": {}}
    for member, content in _members(archive, SPEECHOCEAN_TABLE):
        lines = (line.split(maxsplit=1) for line in content.decode().splitlines())
        halves[member[1]][member[2]] = {key: value.strip() for key, value in lines}
    recordings: dict[str, tuple[str, str]] = {}  # path -> half and utterance
    for half, tables in halves.items():
        if missing := {"text", "utt2spk", "wav.scp"} - set(tables):
            archive.unlink()
            raise FetchError(f"{source} has no {half}/{min(missing)}; wrong URL?")
        recordings |= {path: (half, utt_id) for utt_id, path in tables["wav.scp"].items()}
    rows = []
    for member, content in _members(archive, SPEECHOCEAN_AUDIO):
        if member[1] not in recordings:  # 245 have no transcript
            continue
        half, utt_id = recordings.pop(member[1])
        tables = halves[half]
        seconds = _written(folder / member[1], content)
        speaker = f"so{tables['utt2spk'][utt_id]}"
        if not re.fullmatch(r"[\w-]+", speaker + utt_id):
            raise FetchError(f"{source} has the utterance {utt_id!r} of {speaker!r}; refusing it")
        transcript = tables["text"][utt_id]
        rows.append((f"{speaker}-{utt_id}", speaker, member[1], seconds, transcript))
    if recordings:
        raise FetchError(f"{source} lacks {min(recordings)} and {len(recordings) - 1} more")
    speakers = {
        f"so{name}": (*(tables.get(k, {}).get(name, "") for k in ("spk2gender", "spk2age")), half)
        for half, tables in halves.items()
        for name in sorted(set(tables["utt2spk"].values()))
    }
    described = [("speaker", "gender", "age", "official_part")]
    described += [(name, *about) for name, about in sorted(speakers.items())]
    write_text(folder / "speakers.tsv", "".join("\t".join(line) + "\n" for line in described))
    official = sorted(name for name, (*_, half) in speakers.items() if half == "test")
    write_text(folder / "official_test_speakers.txt", "".join(f"{name}\n" for name in official))
    sentences = sorted({row[4] for row in rows})
    write_text(folder / "lm_text.txt", "".join(f"{sentence}\n" for sentence in sentences))
    _tabled(archive, rows)


def _archive(folder: Path, name: str, source: str) -> Path | None:
    """Download an archive into `folder`; return its path, None if its table is there already."""
    table, archive = folder / TABLE, folder / f"{name}.tar.gz"
    if table.exists():
        print(f"fetch: {table} exists already; delete it to fetch {name} again")
        return None
    if not archive.exists():
        _download(source, archive)
    return archive


def _written(path: Path, content: bytes) -> str:
    """Write a recording; return its duration in seconds."""
    write_bytes(path, content)
    try:
        return f"{soundfile.info(path).duration:.4f}"
    except soundfile.LibsndfileError as error:
        path.unlink()
        raise FetchError(
            f"{path.name} in the archive is no recording that can be read ({error}); "
            "delete the archive, and fetch it again"
        ) from error


def _tabled(archive: Path, rows: list[tuple[str, ...]]) -> None:
    """Write utterances.tsv beside the archive, which is removed."""
    write_table(archive.parent, sorted(rows))
    archive.unlink()
    speakers = len({row[1] for row in rows})
    print(f"fetch: {len(rows)} recordings of {speakers} speakers in {archive.parent}")


def mini_librispeech(folder: Path, url: str) -> None:
    models = _wanted("LMS", SMALL, NGRAMS)
    for part, checksum in MINI_LIBRISPEECH.items():
        _unpacked(Archive(f"{url or MINI}/{part}.tar.gz", "LibriSpeech", checksum), folder)
    _language_models(models, folder, url)


def librispeech(folder: Path, url: str) -> None:
    models = _wanted("LMS", BOTH, NGRAMS)
    for part in _wanted("PARTS", PARTS, LIBRISPEECH):
        checksum = LIBRISPEECH[part]
        _unpacked(Archive(f"{url or LIBRI}/{part}.tar.gz", "LibriSpeech", checksum), folder)
    _language_models(models, folder, url)


def _wanted(variable: str, default: str, allowed: Iterable[str]) -> list[str]:
    """Return the names in an environment variable; refuse unknown ones before any download."""
    wanted = os.environ.get(variable, default).split()
    for name in wanted:
        if name not in allowed:
            raise ValueError(f"{variable} names {name!r}; allowed: {', '.join(allowed)}")
    return wanted


def _language_models(names: list[str], folder: Path, url: str) -> None:
    """Download ARPA files into lm/, compressed as published; check gzip's own checksum."""
    for name in names:
        path = folder / "lm" / f"{name}.arpa.gz"
        done = path.with_name(f".{name}.fetched")
        if done.exists() and path.exists():
            print(f"fetch: {path} exists already; delete it to fetch it again")
            continue
        source = f"{url or LMS}/{path.name}"
        if not path.exists():
            _download(source, path)
        with _deleted_if_damaged(path), gzip.open(path) as file:
            begins = file.read(CHUNK).lstrip().startswith(b"\\data\\")
            while file.read(CHUNK):
                pass
        if not begins:
            path.unlink()
            raise FetchError(f"{source} is not an ARPA file; it was deleted; wrong URL?")
        write_text(done, f"{source}\n")
        print(f"fetch: {path}")


def an4(folder: Path, url: str) -> None:
    _unpacked(replace(AN4, url=url or AN4.url), folder)


def yesno(folder: Path, url: str) -> None:
    _unpacked(replace(YESNO, url=url or YESNO.url), folder)


CORPORA: dict[str, Callable[[Path, str], None]] = {
    corpus.__name__: corpus
    for corpus in (fsdd, speechocean, mini_librispeech, librispeech, an4, yesno)
}


def _unpacked(wanted: Archive, folder: Path) -> None:
    """Download, check and unpack an archive, unless that was done before."""
    done = folder / f".{wanted.part}.fetched"
    if done.exists():
        print(f"fetch: {wanted.part} is in {folder} already; delete {done} to fetch it again")
        return
    archive = folder / f"{wanted.part}.tar.gz"
    if not archive.exists():
        _download(wanted.url, archive)
    _compare(archive, wanted)
    count = 0
    for member, content in _members(archive, re.compile(rf"{wanted.top}(/{PLAIN_NAME})+")):
        path = folder / member.group()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)  # `done` says whether it is whole
        count += 1
    if not count:
        archive.unlink()
        raise FetchError(f"{wanted.url} has no files in a folder {wanted.top}; wrong URL?")
    os.sync()
    write_text(done, f"{wanted.url}\n")
    archive.unlink()
    print(f"fetch: {count} files of {wanted.part} in {folder / wanted.top}")


def _compare(archive: Path, wanted: Archive) -> None:
    if not wanted.checksum:
        return
    kind, _, published = wanted.checksum.partition(":")
    with open(archive, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != published:
        archive.unlink()
        raise FetchError(
            f"{archive} had {kind} {found[:12]}..., but {published[:12]}... is published; it is "
            "deleted: try again, or set FETCH_URL to a mirror"
        )


def _download(url: str, path: Path) -> None:
    """Fetch `url`, resuming an earlier, broken try where the server can."""
    partial = path.with_name(f"{path.name}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            got, length = _receive(answer, partial)
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # nothing after `have`: the file has changed
            partial.unlink()
            return _download(url, path)
        raise FetchError(
            f"{url} answers {error.code} {error.reason}; is it still there?"
        ) from error
    except (OSError, HTTPException) as error:
        if getattr(error, "errno", None) in OF_THE_DISK:
            raise
        raise FetchError(
            f"{url} cannot be fetched ({getattr(error, 'reason', error)}); try again with network "
            "access, or get the corpus by other means and set CORPUS_DIR"
        ) from error
    if length is not None and got != int(length):
        raise FetchError(f"{url} ended after {got} of {length} bytes; call again to resume")
    os.replace(partial, path)


def _receive(answer: HTTPResponse, partial: Path) -> tuple[int, str | None]:
    """Return bytes received and announced; a server that ignores Range sends all from the start."""
    length = answer.headers["Content-Length"]
    total = -(-int(length) // CHUNK) if length else None
    got = 0
    with open(partial, "ab" if answer.status == 206 else "wb") as file:
        for chunk in progress(iter(lambda: answer.read(CHUNK), b""), partial.stem, total):
            file.write(chunk)
            got += len(chunk)
    return got, length


def _members(archive: Path, wanted: re.Pattern[str]) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield the files of a .tar.gz whose names match. The caller chooses the paths to write to.

    Raises:
        FetchError: for a damaged archive, which is deleted, or a link in place of a file.
    """
    with _deleted_if_damaged(archive), tarfile.open(archive, "r:gz") as tar:
        for info in tar:
            match = wanted.fullmatch(info.name.removeprefix("./"))
            if match is None or info.isdir():
                continue
            file = tar.extractfile(info) if info.isreg() else None
            if file is None:
                raise FetchError(f"{archive}: {info.name} is not a regular file; refusing it")
            if info.size > LARGEST_MEMBER:
                raise FetchError(
                    f"{archive}: {info.name} has {info.size} bytes, above {LARGEST_MEMBER}; "
                    "refusing it"
                )
            yield match, file.read()
        while tar.fileobj is not None and tar.fileobj.read(CHUNK):
            pass  # gzip's checksum comes last, after what tarfile reads


@contextmanager
def _deleted_if_damaged(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        archive.unlink()
        raise FetchError(f"{archive} was damaged ({error}) and is deleted; try again") from error


if __name__ == "__main__":
    main(fetch, __doc__)
