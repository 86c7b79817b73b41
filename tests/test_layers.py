"""Imports only go down the layers, never up or sideways; some layers must not import others."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

from asr_train.extras import PACKAGES
from asr_train.interop.ark import write_matrices
from asr_train.report.gather import Document, gathered_page
from asr_train.shards.place import read_index

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "asr_train"
BASE = {"schema", "facts", "extras", "files", "frames", "checks", "jobs", "locks"}
BASE |= {"interrupt", "places", "provenance", "sums"}
BELOW = {  # what each package may import, in addition to the base and itself
    "command": {"bundle", "decode", "align", "data", "lang", "interop", "score", "report", "cost"}
    | {"model", "compose", "choices"},
    "bundle": {"decode", "search", "align", "data", "lang", "interop", "score"},
    "paper": {"report", "score", "cost"},
    "train": {"shards", "model", "comm", "search"},
    "decode": {"shards", "model", "search", "align", "data", "lang", "score"},
    "report": {"score", "cost"},
    "interop": {"align", "data", "lang"},
    "shards": {"align", "data", "search"},
    "align": {"data", "search", "lang"},
    "data": {"lang", "score"},
    "model": set(),
    "comm": {"kernels"},
    "kernels": set(),
    "search": {"lang"},
    "lang": set(),
    "score": set(),
    "cost": set(),
}


def imported(path: Path) -> set[str]:
    """Return our packages and base modules that a file imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asr_train"):
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("asr_train.")}
    return names


@pytest.mark.parametrize("package", sorted(BELOW))
def test_a_package_imports_only_what_is_below_it(package):
    files = list((PACKAGE / package).glob("*.py"))
    assert files
    for path in files:
        above = imported(path) - BASE - BELOW[package] - {package}
        assert not above, f"{path.relative_to(ROOT)} imports {sorted(above)}"


def test_every_package_is_in_the_list():
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert packages - BASE == set(BELOW)


def test_the_base_imports_only_the_base():
    for name in BASE:
        module = PACKAGE / f"{name}.py"
        files = [module] if module.exists() else list((PACKAGE / name).glob("*.py"))
        assert files
        for path in files:
            allowed = BASE - {name} if path == module else BASE
            assert imported(path) <= allowed, path.relative_to(ROOT)


def test_nothing_imports_the_scripts():
    for path in PACKAGE.rglob("*.py"):
        assert "import scripts" not in path.read_text()


def test_extras_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = dict(project["optional-dependencies"])
    assert extras.pop("dev")[0] == "asr-train[all,docs]"
    extras.pop("docs")  # builds the site; the package imports none of it
    assert set(re.findall(r"\w+", extras.pop("all")[0].partition("[")[2])) == set(PACKAGES)
    assert extras == {name: [package] for name, package in PACKAGES.items()}
    assert not set(PACKAGES.values()) & set(project["dependencies"])


def test_a_run_and_its_report_load_without_the_extras():
    blocked = "".join(f"sys.modules[{package!r}] = None; " for package in PACKAGES.values())
    used = "train.loop train.log decode.words decode.posteriors comm.methods comm.ddp_hook shards"
    used += " shards.place interop.ark interop.textgrid interop.stores report.page report.gather"
    imports = ", ".join(f"asr_train.{name}" for name in used.split())
    code = f"import sys; {blocked}import {imports}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "name, use",
    [
        ("gather", lambda path: gathered_page([("digits", [Document("a", "# A")])])),
        ("kaldi", lambda path: write_matrices(path / "a.ark", [("a", np.zeros((2, 2)))])),
        ("s3", lambda path: read_index("s3://speech/index.json")),
    ],
)
def test_without_an_extra_a_line_says_how_to_install_it(name, use, tmp_path, monkeypatch):
    for module in [m for m in sys.modules if m.partition(".")[0] == PACKAGES[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    says = (
        rf"takes {PACKAGES[name]}, which is not installed; run: pip install 'asr-train\[{name}\]'"
    )
    with pytest.raises(ImportError, match=says):
        use(tmp_path)


@pytest.mark.parametrize(
    "modules, absent",
    [
        (
            "schema score.words report.tables report.page report.utterances report.card "
            "data.excerpt data.remarks search.nbest search.mbr align.train "
            "align.table decode.first_pass decode.posteriors decode.tune decode.words cost.plan "
            "cost.calibrate",
            "torch",
        ),
        # What every call of make imports: scipy.optimize would double its time
        ("compose paper.rows", "scipy"),
        ("comm.methods comm.ddp_hook comm.peers", "yaml"),
        ("train.loop model.store comm.methods", "lhotse hydra h5py tensorboard"),
    ],
)
def test_a_layer_loads_without(modules, absent):
    """In one process: the first of the modules that loads what is absent is named."""
    code = (
        "import sys, importlib\n"
        f"for name in {modules.split()}:\n"
        "    importlib.import_module('asr_train.' + name)\n"
        f"    if found := {set(absent.split())} & sys.modules.keys():\n"
        "        sys.exit(f'{name} loads {found}')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def files_imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return our modules that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


def test_no_files_import_each_other_in_a_circle():
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    imports = {name: files_imported(path, modules) - {name} for name, path in modules.items()}
    assert sum(map(len, imports.values())) > 300
    list(TopologicalSorter(imports).static_order())  # raises CycleError, naming them
