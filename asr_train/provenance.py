"""When, at which commit, with which settings and on which machine a result was made."""

import os
import platform
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from asr_train.files import hash_of, read_yaml
from asr_train.places import ROOT


def provenance(conf: Path | str) -> dict[str, str]:
    """Return date, commit, a hash of all settings in the folder of `conf`, and the machine."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "settings": settings_hash(Path(conf).parent),
        "machine": machine(),
    }


def made(table: dict[str, Any]) -> str:
    """Return the table's provenance as a sentence."""
    return (
        f"Made {table['date']} at commit {table['commit']}, settings {table['settings']}, "
        f"on {table['machine']}."
    )


def call() -> str:
    """Return the command that makes all, quoted for a shell; "" outside make.

    ASR_GOAL has make's goal and variables, in which make escapes spaces only; ASR_CALL is the
    program where that is not make, but calls it.
    """
    words = re.findall(r"(?:\\.|[^\\ ])+", os.environ.get("ASR_GOAL", ""))
    given = [re.sub(r"\\(.)", r"\1", word) for word in words]
    if program := os.environ.get("ASR_CALL"):
        given = [word for word in given if not word.startswith("PY=")]  # which it adds itself
    return f"{program or 'make'} {shlex.join(given)}" if given else ""


def commit(root: Path = Path(ROOT)) -> str:
    """Return the short commit of the repository at `root`; `unknown` outside git.

    It ends with `+` if anything was changed but results/, where tables and benchmarks are written.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():  # inside another repository
        return "unknown"
    head = _git(root, "rev-parse", "--short", "HEAD")
    if head is None:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)results")
    return head + "+" if changed else head


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def settings_hash(folder: Path) -> str:
    """Return a hash of the settings files in a folder: in a work folder, of those of the last call,
    which names.yaml lists; others are of earlier ones.
    """
    names, files = folder / "names.yaml", sorted(folder.rglob("*.yaml"))
    if names.exists():
        files = [folder / f"{name}.yaml" for name in read_yaml(names)]
    return hash_of({path.relative_to(folder).as_posix(): read_yaml(path) for path in files})


def machine() -> str:
    """Describe processor, cores and system."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [s for s in cpuinfo.read_text().splitlines() if s.startswith("model name")]
        name = models[0].split(":", 1)[1].strip() if models else name
    cores = len(os.sched_getaffinity(0))
    return f"{name}, {cores} core{'s' if cores > 1 else ''}, {platform.system()}"
