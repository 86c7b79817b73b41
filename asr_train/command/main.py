"""The command `asr-train`, whose parts are `COMMANDS`.

A command's module is imported when it runs, so that --help is quick. Exit codes: 0 done; 1 an
error, or a file that could not be used; 2 a wrong call.
"""

import argparse
import codecs
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from asr_train import interrupt
from asr_train.jobs import cause, drop_output, print_any_text, without_make
from asr_train.places import ROOT

COMMANDS = {
    "decode": "recordings -> words, with times and confidences",
    "grammar": "a bundle for other words, with the same model",
    "align": "a folder of recordings and their texts -> times of words and phones",
    "table": "list a folder of recordings and their texts, to train on it",
    "check": "check a folder of recordings before training on it",
    "score": "word errors of hypotheses: sclite's totals, intervals, comparison of two",
    "export": "a bundle's network as ONNX",
    "plan": "recommend an exchange method for a cluster (simulated)",
    "fetch": "download a public corpus",
    "kaldi": "import what Kaldi made, and export for it",
    "recipe": "train: what `make NAME` does in a checkout",
}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; exit with its code."""
    _fill_closed_streams()
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        "asr-train",
        description="Train hybrid speech acoustic models, and use them.",
        epilog="asr-train COMMAND --help describes a command, with an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    listed = parser.add_subparsers(metavar="COMMAND", dest="command")
    for name, what in COMMANDS.items():
        listed.add_parser(name, help=what, add_help=False)
    options = parser.parse_args(given[:1])
    if options.version:
        sys.exit(_exit_code("--version", _print_version))
    if options.command is None:
        parser.print_help()
        sys.exit(2)
    sys.exit(_exit_code(options.command, partial(_run, options.command, given[1:])))


def _fill_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams, so that no file gets their descriptors.

    Only sys.stderr is opened again: sys.stdin and sys.stdout stay None, and using them is an error.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(opened, True)
    os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", errors="backslashreplace")  # noqa: SIM115


def _print_version() -> int:
    from importlib.metadata import version

    print(f"asr-train {version('asr-train')}")
    return 0


def _run(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"asr_train.command.{name}")
    parser = argparse.ArgumentParser(
        f"asr-train {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.arguments(parser)
    code: int = module.run(parser.parse_args(arguments))
    return code


def _exit_code(name: str, work: Callable[[], int]) -> int:
    """Return the exit code of `work`; print a line if it fails."""
    print_any_text()
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed; redirect it to a file or to /dev/null")
        code = work()
        print(end="", flush=True)  # here, so that an error of it is caught
        return code
    except KeyboardInterrupt:
        print(f"asr-train {name}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        drop_output()
        return 1
    except AssertionError:
        raise  # a bug in this project
    except Exception as error:
        if os.environ.get("DEBUG"):
            raise
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            complain(name, f"{error.filename} is missing")
        else:
            complain(name, without_make(cause(error, "the output")))
        return 1


def script(name: str, *arguments: str) -> int:
    """Run a script of scripts/ in a process of its own; return its exit code."""
    path = os.path.join(ROOT, "scripts", f"{name}.py")
    env = {**os.environ, interrupt.WITHOUT_MAKE: "1"}
    return run_program([sys.executable, path, *arguments], env)


def run_program(words: list[str], env: dict[str, str]) -> int:
    """Run a program; return its exit code, or 128 + N if signal N ended it.

    Ctrl-C reaches the program, too; it is waited for, because it may have to clean up.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # which a program that is started would inherit
        signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run(words, check=False, env=env).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def on_terminal(what: str) -> str:
    """Return the label of a progress bar; "", which shows none, if nobody watches."""
    return what if sys.stderr.isatty() else ""


@contextlib.contextmanager
def told_after(seconds: float, name: str, message: str) -> Iterator[None]:
    """A context that prints a line if it lasts longer than so many seconds."""
    timer = threading.Timer(seconds, complain, (name, message))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a process that is forked next would not have the thread


def standard_input() -> bytes:
    """Read all of it.

    Raises:
        OSError: if it is closed.
    """
    if sys.stdin is None:
        raise OSError("standard input is closed; pipe a file into it, or name a file in place of -")
    return sys.stdin.buffer.read()


def prints_utf_8() -> bool:
    """Return whether standard output can have any letter; without it, JSON needs its escapes."""
    return codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"


def complain(name: str, message: str) -> None:
    """Print a line about one file; the others go on."""
    print(f"asr-train {name}: {message}", file=sys.stderr)


def complain_of_rates(name: str, low: Mapping[Any, int], rate: int, so: str) -> None:
    """Print one line about all recordings whose own rates (of `low`, in Hz) are below `rate`."""
    if not low:
        return
    file, own = next(iter(low.items()))
    more = f" (and {len(low) - 1} more)" if len(low) > 1 else ""
    complain(
        name,
        f"{file} has {own} Hz, below the model's {rate} Hz{more}: the upper bands are empty, so "
        f"{so}",
    )
