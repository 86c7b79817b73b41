"""Train with a recipe: what `make NAME` does in a checkout.

NAME is a recipe or a paper (without it, they are listed); GOAL and VARIABLE=value are make's, and
so are -n, -k and -jN. Results are in the folder NAME-work here (with SIZE=tiny NAME-work-tiny;
SCALE and CORPUS are added likewise); W=path names another. A corpus in data/NAME here, as from
`asr-train fetch NAME`, or where the recipe's README says, is taken where CORPUS_DIR names none.
`asr-train recipe NAME help` lists goals and variables. It needs make and bash.

example:
  asr-train recipe digits SIZE=tiny
  asr-train recipe folder CORPUS_DIR=recordings bundle RUN=dnn
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

from asr_train.choices import check_known
from asr_train.command.main import run_program
from asr_train.places import ROOT

PATHS = (  # count from here
    *("CORPUS_DIR", "DEV_DIR", "W", "BUNDLE", "HUMAN", "GRAMMAR", "RESULTS", "RECORDS"),
    *("LM_SMALL", "LM_BIG"),
)
LISTS = ("MORE", "TEST_DIRS", "TEXT")
APART = ("SIZE", "SCALE", "CORPUS")  # results of others are in other folders


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?")
    parser.add_argument("make", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="of make")


def run(options: argparse.Namespace) -> int:
    folder = Path(ROOT) / "recipes"
    known = sorted(path.parent.name for path in folder.glob("*/Makefile"))
    if options.name is None:
        print("\n".join(known))
        return 0
    check_known("NAME", options.name, known, "is no recipe")
    if (make := shutil.which("make")) is None:
        raise ValueError("make is not installed; install it (Debian: apt-get install make)")
    makefiles = "".join(path.read_text() for path in (folder / options.name).glob("Makefile"))
    if "paper.mk" in makefiles:
        makefiles += (folder / "paper.mk").read_text()
    apart = [name for name in APART if re.search(rf"^{name} *\?=", makefiles, re.MULTILINE)]
    given = [_from_here(each) for each in options.make]
    inherited = [name for name in (*PATHS, *LISTS) if os.environ.get(name)]
    env = dict(_from_here(f"{name}={os.environ[name]}").split("=", 1) for name in inherited)
    variables = {name: os.environ[name] for name in apart if os.environ.get(name)}
    variables |= env | dict(each.split("=", 1) for each in given if "=" in each)
    if (work := variables.get("W")) and Path.cwd().is_relative_to(Path(work).resolve()):
        raise ValueError(
            f"W is {work}, the current folder or one above it; name a folder that holds nothing "
            "else, because `clean` removes it, or leave W out"
        )
    if "W" not in variables:
        parts = [variables[name] for name in APART if variables.get(name)]
        given.append(f"W={Path.cwd() / '-'.join([options.name, 'work', *parts])}")
        _check_usable("this folder is", Path.cwd(), "call it in another, or with W=path")
    _check_usable("the package is in", Path(ROOT), "install it in another environment")
    corpus = variables.get("CORPUS", options.name)
    fetched, makefile = Path("data", corpus), folder / corpus / "Makefile"
    lines = makefile.read_text() if makefile.is_file() else ""
    default = re.search(r"^CORPUS_DIR \?= *(\S*)$", lines, re.MULTILINE)  # others synthesise
    near = default and (fetched if fetched.is_dir() else default[1])
    if "CORPUS_DIR" not in variables and near:
        given.append(f"CORPUS_DIR={Path(near).absolute()}")
    command = [make, "--no-print-directory", "-C", str(folder / options.name)]
    env["ASR_CALL"] = "asr-train recipe"  # in the commands that are printed
    return run_program([*command, f"PY={sys.executable}", *given], {**os.environ, **env})


def _check_usable(what: str, path: Path, remedy: str) -> None:
    for character, name in ((" ", "space"), ("$", "$")):
        if character in str(path):
            raise ValueError(f"{what} {path}, and make cannot use a path with a {name}; {remedy}")


def _from_here(argument: str) -> str:
    """Return make's argument, its paths counted from the current folder."""
    name, _, value = argument.partition("=")
    if value and name in PATHS:  # make refuses an empty one, which is not the folder here
        return f"{name}={Path(value).absolute()}"
    if value and name in LISTS:
        return f"{name}={' '.join(str(Path(each).absolute()) for each in value.split())}"
    return argument
