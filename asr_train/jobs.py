"""Running a stage: worker processes, progress, one-line errors, and time spent.

`main` runs a script; `parallel_map` runs a function over items in forked processes, in order.
The number of processes (environment variable JOBS, else the number of cores) never changes a
result.
"""

import copy
import ctypes
import errno
import inspect
import io
import multiprocessing
import os
import re
import resource
import shlex
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from asr_train import interrupt
from asr_train.files import read_json, write_json
from asr_train.locks import making

TASKS = 2000
Item = TypeVar("Item")
Result = TypeVar("Result")


def num_jobs() -> int:
    """Return the number of worker processes: JOBS if set, else the cores this process may use."""
    given = os.environ.get("JOBS", "")
    if given and not (given.isdecimal() and int(given)):
        raise ValueError(
            f"JOBS (--jobs) is {given!r}; it must be the number of processes, an integer above 0"
        )
    return int(given) if given else len(os.sched_getaffinity(0))


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in kilobytes


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items` under a progress bar on a terminal; in a log, print a line every 30 seconds.

    Without a name (`what`), show nothing.
    """
    with progress_bar(what, total) as bar:
        for item in items:
            yield item
            bar.update()


def progress_bar(what: str, total: int | None) -> Any:
    """Return a bar as shown by `progress`, which the caller advances by `update`."""
    is_open = sys.stderr is not None
    live = is_open and sys.stderr.isatty()
    # A line that wraps is not replaced by the next one; 0 columns: unknown
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or 101 if live else 81
    tqdm.monitor_interval = 0  # no thread of its own: workers are forked
    tqdm.set_lock(threading.RLock())  # its own is shared with workers: one may be killed with it
    return tqdm(
        desc=what,
        total=total,
        mininterval=0.2 if live else 30,
        ncols=min(100, columns - 1),
        leave=live,
        delay=0 if live else 20,  # shorter work needs no line in a log
        disable=not (what and is_open),
        ascii=not live,
    )


def parallel_map(
    function: Callable[[Item], Result], items: Sequence[Item], what: str
) -> Iterator[Result]:
    """Map in forked processes; return results in the order of the items.

    Children inherit the parent's memory as it was at the call: large inputs need no copy, and
    `function` may be a closure; if it maps, too, a worker does that alone. Only results (and
    exceptions) are pickled, so they must be plain data. The parent must not have started threads
    that hold locks (torch: `set_num_threads(1)` first).

    Workers die with the parent, however it is killed: an orphan would write the same files as the
    next run. Only the parent handles Ctrl-C; it kills them.

    Raises:
        ChildProcessError: if a worker was killed (for example because memory ran out).
        Whatever `function` raised, for the first item that failed.
    """
    jobs = min(num_jobs(), len(items))
    if jobs <= 1 or _work is not None:
        yield from progress(map(function, items), what, len(items))
        return
    context = multiprocessing.get_context("fork")
    inherited = os.getpid(), function, items  # not pickled: closures cannot be
    with ProcessPoolExecutor(jobs, context, _start_worker, inherited) as pool:
        try:
            with _ctrl_c_later():
                pending: deque[Future[Result]] = deque(
                    pool.submit(_call, i) for i in range(len(items))
                )
            # Popped: a future keeps its result, and all of them may not fit into memory
            results = (pending.popleft().result() for _ in range(len(items)))
            yield from progress(results, what, len(items))
        except BrokenProcessPool as error:
            fewer = f"JOBS={jobs - 1}{' or fewer' if jobs > 2 else ''}"
            raise ChildProcessError(
                f"{what + ': ' if what else ''}a worker process was killed (out of memory?); "
                f"try again with {fewer}"
            ) from error
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def map_in_chunks(
    function: Callable[[Item], Result], items: Sequence[Item], size: int, what: str
) -> Iterator[Result]:
    """Map as `parallel_map`, with `size` items per task of a worker process."""
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    for results in parallel_map(lambda chunk: [function(item) for item in chunk], chunks, what):
        yield from results


def map_evenly(
    function: Callable[[Item], Result], items: Sequence[Item], what: str
) -> Iterator[Result]:
    """Map as `parallel_map`, in at most TASKS tasks: each takes 2 KB until it is done."""
    return map_in_chunks(function, items, max(1, -(-len(items) // TASKS)), what)


_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None  # of a worker: function and items


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Delay Ctrl-C until after the block: Python loses one that comes during a fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


PR_SET_PDEATHSIG = 1  # linux/prctl.h: the signal sent when the parent dies


def die_with_parent() -> None:
    """Let this process be killed when its parent ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_worker(parent: int, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
    global _work
    _work = function, items
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def _call(i: int) -> Any:
    assert _work is not None
    function, items = _work
    try:
        return function(items[i])
    except Exception as error:
        try:
            copy.copy(error)  # rebuilt from its arguments, as by pickle
        except Exception:  # cannot be pickled; it would break the pool like a killed worker
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


def main(stage: Callable[..., str | None], usage: str) -> None:
    """Run a script's `stage(*paths)`; on failure print one line with the cause and exit with 1.

    Args:
        stage: takes the paths of the command line, INPUT... OUTPUT. Its result is printed as the
            stage's line, with the seconds that it took.
        usage: the script's docstring, printed for --help and for a wrong call.
    DEBUG=1 in the environment shows the whole traceback. If ASR_WORK names the recipe's work
    folder, the stage's seconds are stored in its `log/` for `make status`, and no other process may
    make the same output meanwhile.
    """
    paths = sys.argv[1:]
    name = Path(sys.argv[0]).stem
    asked = paths[:1] in (["-h"], ["--help"])
    if asked or not _takes(stage, paths):
        try:
            print(usage.strip(), flush=True)
        except BrokenPipeError:
            drop_output()
        sys.exit(0 if asked else 2)
    start = time.time()
    print_any_text()
    try:
        interrupt.begin()
        with making(paths[-1]):
            summary = stage(*paths)
        if summary:
            print(f"{summary}; {time.time() - start:.1f} s")
        _keep_times(name, paths, start)
    except KeyboardInterrupt:
        sys.exit(1 if interrupt.launched() else f"{name}: {interrupt.interrupted()}")
    except AssertionError:
        raise  # a bug in this project
    except Exception as error:
        if os.environ.get("DEBUG"):
            raise
        why = cause(error, paths[-1])
        sys.exit(f"{name}: {without_make(why) if interrupt.WITHOUT_MAKE in os.environ else why}")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only Python's own shutdown is left


def _takes(stage: Callable[..., str | None], paths: list[str]) -> bool:
    """Return whether it can be called with so many paths, at least one."""
    try:
        inspect.signature(stage).bind(*paths)
    except TypeError:
        return False
    return bool(paths)


def drop_output() -> None:
    """Send what is still to be printed to nowhere: whoever read it has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_any_text() -> None:
    """Let letters that the locale lacks, and names that are not UTF-8, be printed as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def without_make(message: str) -> str:
    """Return what to do where no make and no work folder is used."""
    message = message.replace(", or choose another work folder with W=", "")
    message = message.replace("with DEBUG=1 make shows", "DEBUG=1 shows")
    return re.sub(r"run make again\b(?!,)", "try again", message)


def cause(error: Exception, output: str) -> str:
    """Return one line: the cause, and what to do about it."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} is missing; {_remake(str(error.filename))}"
    if isinstance(error, OSError) and error.errno in REMEDIES:
        what = os.strerror(error.errno).lower()
        return f"{error.filename or output}: {what}; {REMEDIES[error.errno]}"
    text = " ".join(str(error).split())
    if text and isinstance(error, (ValueError, OSError, ImportError)):
        return text  # caused by data, settings or users
    if text.startswith("cannot cache function"):  # numba
        if given := os.environ.get("NUMBA_CACHE_DIR"):
            return (
                f"compiled code cannot be kept in NUMBA_CACHE_DIR, {given}, nor in {ROOT} or "
                "~/.cache; make NUMBA_CACHE_DIR writable, or set it to another folder"
            )
        return (
            f"neither {ROOT} nor ~/.cache can be written to, where compiled code is kept; set the "
            "environment variable NUMBA_CACHE_DIR to a folder that can"
        )
    # A library's own exception, or a bug here: say where
    lines = "".join(traceback.format_exception(error))  # begins with a worker's, if any
    ours = re.findall(
        rf'File "{re.escape(str(ROOT))}/((?:asr_train|scripts)/\S+)", line (\d+)', lines
    )
    where = [f"{file}, line {number}" for file, number in ours if not file.endswith("jobs.py")]
    place = f" in {where[-1]}" if where else ""
    return f"{type(error).__name__}{place}: {text}; with DEBUG=1 make shows the whole traceback"


ROOT = Path(__file__).resolve().parent.parent
_SPACE, _RIGHTS, _OTHER = (
    "free some space and run make again",
    "check its permissions, or choose another work folder with W=",
    "move what is there out of the way and run make again",
)
REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: _OTHER,
    errno.EISDIR: f"name a file in its place, or {_OTHER}",
    errno.EEXIST: _OTHER,
}
MADE = {  # files of a work folder -> the stage that makes them, and its output
    r"manifests/[^/]+$": ("manifests", r"\g<0>"),
    r"audio/([^/]+)/[^/]+$": ("manifests", r"manifests/\1.jsonl.gz"),
    r"lang/[^/]+$": ("lang", "lang/index.json"),
    r"lm/[^/]+$": ("lm", "lm/index.json"),
    r"feats/([^/.]+)[/.].+$": ("feats", r"feats/\1.jsonl.gz"),
    r"ali/([^/]+/[^/.]+)[/.].+$": ("ali", r"ali/\1.jsonl.gz"),
    r"shards/([^/]+/[^/]+)/[^/]+$": ("shards", r"shards/\1/index.json"),
    r"exp/([^/]+)/(model.json|gmm.safetensors|passes.jsonl)$": ("gmm", r"exp/\1/model.json"),
    r"exp/([^/]+)/(model.json|model.pt)$": ("train", r"exp/\1/model.json"),
    r"exp/([^/]+)/log.jsonl$": ("train", r"exp/\1"),  # all of it: a log goes with its checkpoints
    r"exp/([^/]+)/(tuned.json|graph/.+)$": ("tune", r"exp/\1/tuned.json"),
    r"exp/[^/]+/hyp[^/]+$": ("decode", r"\g<0>"),
    r"exp/[^/]+/score[^/]+$": ("score", r"\g<0>"),
    r"tables/[^/]+$": ("tables", "tables/wer.md"),
    r"conf/.+$": ("conf", r"\g<0>"),
}


def _remake(path: str) -> str:
    """Return what to do about a missing file."""
    for pattern, (stage, target) in MADE.items():
        if found := re.search(f"(?<![^/]){pattern}", path):
            folder = path[: found.start()]
            if stage == "gmm" and not os.path.exists(folder + found.expand(r"conf/gmm/\1.yaml")):
                continue  # a network of the same name
            output = folder + found.expand(target)
            work = os.environ.get("ASR_WORK")
            is_other = work and os.path.abspath(folder) != os.path.abspath(work)
            if is_other and pattern.startswith("audio/"):
                # A copied work folder has the paths of the first one
                output = os.path.join(str(work), found.expand(target))
            if stage == "conf":
                return "call make conf in the recipe's folder, with the same variables"
            first = f"delete {output} and " if os.path.exists(output) else ""
            return f"the {stage} stage makes it: {first}run make again"
    return "put it back, or correct the setting that names it, and run make again"


def _keep_times(name: str, paths: list[str], start: float) -> None:
    work = os.environ.get("ASR_WORK")
    # resolve.py's last argument is a setting; of torchrun's processes, only one writes
    if not work or not os.path.exists(paths[-1]) or os.environ.get("RANK", "0") != "0":
        return
    output = os.path.relpath(paths[-1], work)
    row = {
        "stage": name,
        "output": output,
        "seconds": round(time.time() - start, 3),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "command": shlex.join([os.path.basename(sys.argv[0]), *paths]),
    }
    write_json(Path(work) / "log" / (output.replace("/", "_") + ".json"), row)


def stage_times(work: Path | str) -> list[dict[str, Any]]:
    """Return the records of finished stages, oldest first."""
    rows = [read_json(path) for path in Path(work).glob("log/[!.]*.json")]
    return sorted(rows, key=lambda row: (row["finished"], row["output"]))
