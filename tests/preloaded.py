"""A Python for make's PY whose processes are forked from one that has imported everything.

A stage of a tiny corpus takes less than a second, but importing torch, lhotse and others takes two,
numba two more until its first compiled function is loaded, and CMU's dictionary one. What decoding
needs is compiled by one of the processes that serve; the others wait, and find it in numba's cache.
The scripts are unchanged: the same arguments, environment and folder, one process each. If what
make called is killed, so is that process, with all that it started.

    preloaded.py serve SOCKET               runs until its standard input ends
    preloaded.py run SOCKET SCRIPT ARG...   what make calls; SCRIPT may be -c CODE
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def preloaded(folder: Path) -> Iterator[str]:
    """Yield the command that replaces `python`; its socket is in `folder`."""
    import subprocess

    path = folder / "python.socket"
    command = [sys.executable, __file__, "serve", str(path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    env |= {"OMP_WAIT_POLICY": "PASSIVE"}  # as in recipes/stages.mk: waiting threads do not spin
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield f"{sys.executable} -I -S {__file__} run {path}"
        assert server.stdin is not None
        server.stdin.close()


def run(path: str, *command: str) -> int:
    """Run the command with this process's own streams; return its exit status."""
    request = {"command": command, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [b"!"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        answer = server.recv(4)
    return int(answer) if answer else 1  # none: it was killed


def serve(path: str) -> int:
    import gc
    import runpy
    import select
    import signal

    for script in sorted(ROOT.glob("scripts/[!b]*.py")):  # no benchmarks
        runpy.run_path(str(script), run_name="preloaded")
    # Imported by functions when needed.
    import h5py  # noqa: F401
    import kaldilm  # noqa: F401
    import lhotse.recipes  # noqa: F401
    import scipy.sparse  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401
    import torchaudio  # noqa: F401

    import asr_train.data.commands
    import asr_train.data.digits  # noqa: F401
    from asr_train.align import flat
    from asr_train.compose import settings
    from asr_train.lang import lexicon
    from asr_train.search import forced

    compiled = os.fork()  # a child: threads of torch, which decoding starts, do not survive a fork
    if compiled == 0:
        _compile()
    _, status = os.waitpid(compiled, 0)
    assert status == 0, "what decoding needs cannot be compiled"
    flat.ready()
    forced.ready()
    lexicon._cmudict(True)  # by place, as it is called: else a cache has it twice
    settings("dnn", [])
    gc.freeze()  # a collection would write to all these objects, and so copy them, in every child
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies: nobody waits for them
    working: dict[int, tuple[socket.socket, int, int]] = {}  # client, process, and its descriptor
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        print("ready", flush=True)
        waiting = select.poll()
        waiting.register(listening, select.POLLIN)
        waiting.register(sys.stdin, select.POLLIN)
        while True:
            ready = [number for number, _ in waiting.poll()]
            for number, (client, process, ended) in list(working.items()):
                if number in ready or ended in ready:
                    # What make called was killed, or this process has ended
                    with suppress(ProcessLookupError):
                        os.killpg(process, signal.SIGKILL)
                    waiting.unregister(number)
                    waiting.unregister(ended)
                    client.close()
                    os.close(ended)
                    del working[number]
            if listening.fileno() in ready:
                client, _ = listening.accept()
                process = os.fork()
                if process == 0:
                    os.setpgid(0, 0)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listening.close()
                    for other, _, _ in working.values():
                        other.close()
                    _work(client)
                with suppress(ProcessLookupError, PermissionError):
                    os.setpgid(process, process)
                ended = os.pidfd_open(process)
                working[client.fileno()] = client, process, ended
                waiting.register(client, select.POLLRDHUP)
                waiting.register(ended, select.POLLIN)
            elif sys.stdin.fileno() in ready:
                return 0


def _compile() -> None:
    """Decode a recording, in one process at a time; does not return."""
    import fcntl

    from spoken import RATE, said

    from asr_train import Recogniser
    from asr_train.align import flat
    from asr_train.search import forced

    status = 1
    try:
        with open(__file__) as own:
            fcntl.flock(own, fcntl.LOCK_EX)
            flat.ready()
            forced.ready()
            heard = Recogniser.load("digits").transcribe(said("NINE OH ONE").samples_T, RATE)
        status = int(not heard.text)
    finally:
        os._exit(status)


def _work(client: socket.socket) -> None:
    """Execute the request; does not return."""
    import runpy
    import traceback

    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as file:
        request = json.loads(file.readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    status = 0
    try:
        if sys.argv[0] == "-c":
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(str(status).encode())
    os._exit(status)


if __name__ == "__main__":
    sys.exit({"run": run, "serve": serve}[sys.argv[1]](*sys.argv[2:]))
