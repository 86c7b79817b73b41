"""status.py PLAN_FILE TARGET...

PLAN_FILE holds the output of `make -n table`; each TARGET is a stage's output, in the recipe's
order. List which are done, stale or missing, their time and size on disk. The environment names the
work folder (ASR_WORK) and, if it is not the recipe's, the goal (ASR_GOAL).
"""

import asr_train.interrupt  # noqa: F401

import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from asr_train.files import read_text
from asr_train.jobs import stage_times
from asr_train.provenance import call
from asr_train.report.tables import spell_bytes, spell_seconds

MAKES = ("make", "gmake")


def status(plan: str, targets: Sequence[str], work: Path) -> str:
    """Return the whole report, ready to print."""
    rebuilt = outputs(read_text(plan))
    seconds = {row["output"]: row["seconds"] for row in stage_times(work)}
    states = [state_of(target, rebuilt) for target in targets]
    rows = [("state", "time", "size", "output")]
    for target, state in zip(targets, states, strict=True):
        took = seconds.get(os.path.relpath(target, work))
        size = disk_bytes(Path(target))
        rows.append(
            (
                state,
                "" if took is None or state == "missing" else spell_seconds(took),
                spell_bytes(size) if size else "",
                target,
            )
        )
    lines = [f"{a:<7}  {b:>11}  {c:>9}  {d}" for a, b, c, d in rows]
    rebuilds = any(os.path.abspath(target) in rebuilt for target in targets)
    return "\n".join([*lines, summary(states, command_of(work), rebuilds)])


def state_of(target: str, rebuilt: set[str]) -> str:
    """Return `done`, `stale` (present, but make would rebuild it) or `missing`."""
    if not Path(target).exists():
        return "missing"
    return "stale" if os.path.abspath(target) in rebuilt else "done"


def outputs(plan: str) -> set[str]:
    """Return the absolute paths that the plan's commands end with; commands may span lines.

    Lines in which make announces a recursive make are ignored.
    """
    commands = (_words(line) for line in plan.replace("\\\n", " ").splitlines())
    stages = (words for words in commands if words and os.path.basename(words[0]) not in MAKES)
    return {os.path.abspath(words[-1]) for words in stages}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unbalanced quote, as in make's own messages
        return [word.strip("'\"") for word in command.split()]


def disk_bytes(target: Path) -> int:
    """Return the bytes of all files that belong to a target.

    An index stands for its folder; any other file for what has its name: `ali/dev.jsonl.gz`
    stands for `ali/dev/` and `ali/dev.report.json` too.
    """
    if target.stem == "index":
        return _size(target.parent)
    stem = target.name.removesuffix(".jsonl.gz")
    stem = stem if stem != target.name else target.stem
    mine = [path for path in target.parent.glob("*") if path.name.startswith(f"{stem}.")]
    return sum(map(_size, [*mine, target.parent / stem]))


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(map(_size, path.iterdir()))
        return path.stat().st_size
    except OSError:  # gone since it was listed: a stage is running
        return 0


def summary(states: Sequence[str], command: str, rebuilds: bool) -> str:
    """Summarise as `7 done, 2 stale, 3 missing; next: make digits`.

    Args:
        rebuilds: whether that command would make anything.
    """
    count = Counter(states)
    counts = ", ".join(f"{count[state]} {state}" for state in ("done", "stale", "missing"))
    if rebuilds:
        return f"{counts}; next: {command}"
    if count["done"] == len(states):
        return f"{counts}; nothing to do"
    why = "tables and report are there; to have the rest made again, delete these, too"
    return f"{counts}; nothing to do: {why}"


def command_of(work: Path) -> str:
    """Return the command that makes it: recipes/digits/work is made by `make digits`."""
    folder = work.resolve().parent
    recipe = folder.name if folder.parent.name == "recipes" else "table"
    return call() or f"make {recipe}"


def main(arguments: Sequence[str]) -> None:
    """Run without `jobs.main`, which would record this script's time as the last target's."""
    if len(arguments) < 2 or arguments[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    plan, *targets = arguments
    try:
        print(status(plan, targets, Path(os.environ.get("ASR_WORK") or "work")))
    except (ValueError, OSError) as error:
        sys.exit(f"status: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
