"""Locations of shards -> **their bytes**: a folder, http(s)://, or s3://.

A path without `://` is a folder. HTTP needs only Python; S3 is read by s3fs, an extra
(`pip install 'asr-train[s3]'`), with the credentials, region and AWS_ENDPOINT_URL that botocore
finds. Remote shards are held in memory while they are unpacked, never on disk; they are read again
each epoch, and checked against the index each time, as files are the first time. A failed,
incomplete or wrong read is repeated, up to ATTEMPTS times with growing pauses. Knows nothing of the
content.
"""

import hashlib
import http.client
import io
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from asr_train.extras import extra
from asr_train.files import DamagedFileError, check_content, check_part, read_json

ATTEMPTS = 5
LARGEST_INDEX = 1 << 30  # bytes
FIRST_PAUSE_SECONDS = 1.0  # after a failure; twice as long after the next: 15 s in all
TIMEOUT_SECONDS = 60.0  # without a byte

Place = Path | str  # a str is a URL


class FetchError(OSError):
    """A URL cannot be read."""


class _AbsentError(Exception):
    """A failure for which repetition is useless."""


def place(path: Path | str) -> Place:
    """Parse a user's path or URL.

    Raises:
        ValueError: for an unsupported kind of URL, or one that cannot be an index's address.
    """
    kind, sep, rest = str(path).partition("://")
    if not sep:
        return Path(path)
    kind = kind.lower()
    if kind not in _READERS:
        raise ValueError(
            f"{path}: shards are read from folders, {', '.join(f'{k}://' for k in _READERS)}; "
            "copy them to one of these"
        )
    if kind != "s3":
        _check_http(str(path))
    return f"{kind}://{rest}"


def _check_http(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    if "@" in parts.netloc:  # the message must not show a password
        raise ValueError("the address of the shards names a user, which is not supported")
    if not parts.hostname:
        raise ValueError(f"{address} has no host; write http://host/folder/index.json")
    if parts.query or parts.fragment:
        raise ValueError(
            f"{address} has a query, which the tars beside the index would need, too; give an "
            "address without ? and #"
        )
    if found := next((c for c in address if not "!" <= c <= "~"), None):
        raise ValueError(
            f"{address!r} has {found!r}, which an address cannot have; write "
            f"{urllib.parse.quote(found)}"
        )


def read_index(path: Place) -> Any:
    """Return the content of an index.json.

    Raises:
        DamagedFileError: if it is not JSON.
        FetchError: if it cannot be read.
        FileNotFoundError: if the file does not exist.
    """
    if isinstance(path, Path):
        return read_json(path)
    content = _tried(path, lambda: _read(path, LARGEST_INDEX))
    try:
        return json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedFileError(f"{path} is not valid JSON ({error}); upload it again") from error


def open_part(index: Place, listed: dict[str, Any], unseen: bool) -> tuple[str, BinaryIO]:
    """Open a part that an index lists, after checking it; return its name for messages, too.

    Args:
        unseen: whether this process has not yet checked the file's checksum.
    Raises:
        DamagedFileError: if it differs from the index after all attempts.
        FetchError: if it cannot be read.
    """
    if isinstance(index, Path):
        path = check_part(index.parent, listed, content=unseen, remake=index)
        return str(path), open(path, "rb")
    address = f"{index.rpartition('/')[0]}/{listed['path']}"
    return address, io.BytesIO(_tried(address, lambda: _checked(address, listed)))


def _checked(address: str, listed: dict[str, Any]) -> bytes:
    content = _read(address, listed["bytes"] + 1)
    sha256 = hashlib.sha256(content)
    remedy = "upload it and its index again"
    check_content(address, listed, len(content), sha256.hexdigest, remedy)
    return content


def _tried(address: str, read: Callable[[], bytes]) -> bytes:
    """Call `read` until it succeeds."""
    began = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return read()
        except _AbsentError as error:
            raise FetchError(f"{address} cannot be read: {error}; check the address") from error
        except ImportError:
            raise
        except Exception as error:  # libraries have various kinds
            last = error
        if attempt < ATTEMPTS:
            time.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
    if isinstance(last, DamagedFileError):
        raise last
    raise FetchError(
        f"{address} could not be read in {ATTEMPTS} attempts over {time.monotonic() - began:.0f} s "
        f"(the last: {type(last).__name__}: {last}); is the server up? Start again: training "
        "resumes from the last checkpoint"
    ) from last


def _read(address: str, most: int) -> bytes:
    """Return the content, or its first `most` bytes."""
    return _READERS[address.partition("://")[0]](address, most)


def _read_http(address: str, most: int) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as reply:
            content: bytes = reply.read(most)
            if len(content) < most and reply.length:  # bytes that are still due
                raise OSError(f"the reply stopped after {len(content)} bytes")
            return content
    except urllib.error.HTTPError as error:
        if error.code in (400, 401, 403, 404, 410):
            raise _AbsentError(f"HTTP {error.code} {error.reason}") from error
        raise
    except http.client.IncompleteRead as error:
        raise OSError(f"the reply stopped after {len(error.partial)} bytes") from error


def _read_s3(address: str, most: int) -> bytes:
    with extra("s3", address):
        import s3fs
    timeouts = {"connect_timeout": TIMEOUT_SECONDS, "read_timeout": TIMEOUT_SECONDS}
    # No cached listings, and no hidden retries
    system = s3fs.S3FileSystem(config_kwargs={**timeouts, "retries": {"max_attempts": 0}})
    system.retries = 1
    try:
        return system.cat_file(address, end=most)
    except (FileNotFoundError, PermissionError) as error:
        raise _AbsentError(f"{type(error).__name__}: {error}") from error


_READERS: dict[str, Callable[[str, int], bytes]] = {
    "http": _read_http,
    "https": _read_http,
    "s3": _read_s3,
}
