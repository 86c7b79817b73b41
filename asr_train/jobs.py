"""A stage's outer shell: worker processes, progress, one line of cause when it fails, its times.

`main` runs a script; `parallel_map` runs a function over items in forked processes, in order.
The number of processes (environment variable JOBS, else the cores) never changes a result.
"""

import json
import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from asr_train.files import write_json

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_jobs() -> int:
    """Worker processes: JOBS where it is set, else the cores this process may use."""
    wish = os.environ.get("JOBS", "")
    if wish and not wish.isdigit():
        raise ValueError(f"JOBS is {wish!r}; it must be a whole number of processes")
    return max(1, int(wish) if wish else len(os.sched_getaffinity(0)))


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items` under a progress bar on a terminal; in a log, a line every 30 seconds.

    Without a name (`what`), nothing is shown.
    """
    live = sys.stderr.isatty()
    with tqdm(
        items,
        desc=what,
        total=total,
        mininterval=0.2 if live else 30,
        ncols=100 if live else 80,
        leave=live,
        delay=0 if live else 20,  # what is done by then needs no line in a log
        disable=not what,
        ascii=not live,
    ) as bar:
        yield from bar


def parallel_map(
    function: Callable[[Item], Result], items: Sequence[Item], what: str
) -> Iterator[Result]:
    """`map(function, items)` in forked processes: results in the order of the items.

    Children inherit the parent's memory as it was at the call: large inputs need no copy, and
    `function` may be a closure. Only results (and exceptions) travel, so they must be plain data.
    The parent must not have started threads that hold locks (torch: `set_num_threads(1)` first).

    Raises:
        ChildProcessError: if a worker was killed (by the kernel for want of memory, say).
        Whatever `function` raised, for the first item that failed.
    """
    jobs = min(num_jobs(), len(items))
    if jobs <= 1:
        yield from progress(map(function, items), what, len(items))
        return
    global _function, _items
    _function, _items = function, items
    try:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            pending: list[Future[Result]] = [pool.submit(_call, i) for i in range(len(items))]
            try:
                yield from progress((f.result() for f in pending), what, len(items))
            except BrokenProcessPool as error:
                raise ChildProcessError(
                    f"{what}: a worker process was killed (out of memory?); "
                    f"try again with JOBS={max(1, jobs - 1)} or fewer"
                ) from error
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    finally:
        _function = _items = None


_function: Any = None  # what forked workers inherit: closures and arrays cannot travel by pickle
_items: Any = None


def _call(i: int) -> Any:
    return _function(_items[i])


def main(stage: Callable[..., None], usage: str) -> None:
    """Run a script's `stage(*paths)`; on failure say why in one line and exit with status 1.

    Args:
        stage: takes the paths of the command line, INPUT... OUTPUT.
        usage: the script's docstring, printed for --help and for a wrong call.
    DEBUG=1 in the environment shows the whole traceback. Where ASR_WORK names the recipe's work
    folder, the seconds that the stage took are kept in its `log/` for `make status`.
    """
    paths = sys.argv[1:]
    name = Path(sys.argv[0]).stem
    if not paths or paths[0] in ("-h", "--help"):
        print(usage.strip())
        sys.exit(0 if paths else 2)
    start = time.time()
    try:
        stage(*paths)
    except KeyboardInterrupt:
        sys.exit(f"{name}: interrupted; make goes on from here")
    except (ValueError, OSError, ImportError) as error:  # what data, settings or users cause
        if os.environ.get("DEBUG"):
            raise
        sys.exit(f"{name}: {_one_line(error)}")
    _keep_times(name, paths, start)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _keep_times(name: str, paths: list[str], start: float) -> None:
    work = os.environ.get("ASR_WORK")
    if not work:
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
    """What finished stages said of themselves, oldest first."""
    rows = [json.loads(p.read_text()) for p in Path(work).glob("log/[!.]*.json")]
    return sorted(rows, key=lambda row: (row["finished"], row["output"]))
