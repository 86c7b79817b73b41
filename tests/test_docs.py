"""Documents have working links, and are plain technical English."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asr_train.files import read_yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("recipes/**/README.md"),
    ]
)
HELP = [ROOT / "Makefile", *sorted(ROOT.glob("recipes/*.mk"))]
PHRASES = (
    *(r"nats a frame", r"(KB|bytes) a minibatch", r"seconds a (stage|frame)", r"bytes a parameter"),
    *(r"made on the spot", r"every so-manieth", r"ends? with the same bytes", r"said as plainly"),
    *(
        r"nothing that is read",
        r"frames right",
        r"row of words",
        r"\d+ on \d+ words",
        r"is everything in place",
    ),
    *(r"\b1 speakers", r"to the same bits", r"where the time went", r"\bteams?\b(?!`)"),
    *(r"adapted frames", r"learned probabilities", r"least expected errors", r"kill drills?"),
)


def prose(path: Path) -> str:
    """Return a document without its code, on one line; of a makefile, what `make help` prints."""
    text = path.read_text(encoding="utf-8")
    if path in HELP:
        text = "\n".join(re.findall(r"^## (.*)", text, re.MULTILINE))
    else:
        text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(text.split())


def links(path: Path) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(path: Path) -> set[str]:
    """Return the anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_relative_links_lead_to_files_and_headings(path):
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"{named(path)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{named(path)} links to {link}"


@pytest.mark.parametrize("path", [*DOCUMENTS, *HELP], ids=named)
def test_prose_avoids_phrases_that_have_a_plain_form(path):
    text = prose(path)
    found = [hit[0] for phrase in PHRASES for hit in re.finditer(phrase, text, re.IGNORECASE)]
    assert not found, f"{named(path)} says {found}; tests/test_docs.py lists what to avoid"


def test_readme_links_what_a_contributor_looks_for():
    recipes = {named(path) for path in ROOT.glob("recipes/*/README.md")}
    found = set(links(ROOT / "README.md"))
    assert {"LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", *recipes} <= found


def test_the_citation_has_what_its_format_requires():
    cited = read_yaml(ROOT / "CITATION.cff")
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license", "abstract"} <= cited.keys()
    project = (ROOT / "pyproject.toml").read_text()
    for key in ("version", "license"):
        assert f'\n{key} = "{cited[key]}"\n' in project
    for reference in cited["references"]:
        assert {"type", "title", "authors", "year"} <= reference.keys()
        assert all({"name", "family-names"} & author.keys() for author in reference["authors"])
    printed = {path.stem for path in ROOT.glob("conf/papers/*.yaml")}
    assert len(cited["references"]) == len(printed)


def test_the_citation_names_the_papers_by_their_titles():
    titles = {
        " ".join(one["title"].split()) for one in read_yaml(ROOT / "CITATION.cff")["references"]
    }
    for path in ROOT.glob("conf/papers/*.yaml"):
        first = path.read_text(encoding="utf-8").split("\n")[0]
        wanted = re.fullmatch(r"# (.*) \((.*) (\d{4})\)", first)
        assert wanted is not None
        assert wanted[1] in titles


@pytest.mark.slow
def test_the_method_of_the_contributors_guide_keeps_the_contract_in_three_edits(tmp_path):
    """One new file, one row, one line of tests; and a run of that name has settings."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    section = guide.partition("## Add an exchange method")[2].partition("\n## ")[0]
    method, row, case = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (name,) = re.findall(r"`asr_train/comm/methods/(\w+)\.py`", section)
    for folder in ("asr_train", "conf", "scripts", "tests/comm"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    for file in ("tests/conftest.py", "tests/ports.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / f"asr_train/comm/methods/{name}.py").write_text(method)
    facts, cases = tmp_path / "asr_train/facts.py", tmp_path / "tests/comm/small_methods.py"
    facts.write_text(facts.read_text() + row)
    cases.write_text(cases.read_text().replace('    "sgd": {', f'{case}    "sgd": {{', 1))

    def run(*words):
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    tested = run("-m", "pytest", "tests/comm/test_method.py", "-k", f"{name} or named")
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert tested.stdout.count(".") >= 9
    resolve = (
        f"from asr_train.compose import settings; print(settings('{name}', []).comm.method.value)"
    )
    assert run("-c", resolve).stdout == f"{name}\n"
