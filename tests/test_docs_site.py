"""The site builds without a warning, loads nothing from elsewhere, and names every setting."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from settings_reference import groups, reference  # noqa: E402

from asr_train.compose import settings  # noqa: E402
from asr_train.schema import plain  # noqa: E402

GROUPS = list(groups(ROOT / "conf"))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_setting_has_a_meaning(group):
    """From a comment in conf/ or in the schema: its own, or that of the mapping around it."""
    said = group.meanings
    silent = [
        setting.path
        for setting in group.settings
        if not setting.is_group and not said[setting.path]
        if not said.get(setting.path.rpartition(".")[0])
    ]
    assert not silent, f"say in conf/ or asr_train/schema what these mean: {silent}"


@pytest.fixture(scope="module")
def page() -> str:
    """The settings page."""
    return reference(ROOT / "conf")


def test_printed_defaults_are_the_values_of_a_composed_run(page):
    printed = dict(re.findall(r"{confval} (optim\.\w+)\n:type:.*\n:default: `([^`]*)`", page))
    assert len(printed) >= 20
    composed = settings("dnn", []).optim
    for path, value in printed.items():
        found = getattr(composed, path.removeprefix("optim."))
        assert plain(found) == yaml.safe_load(value), path


@pytest.mark.parametrize(
    "path, kind",
    [
        ("optim.rate", "number, above 0"),
        ("decode.acoustic_scales", "list of numbers, above 0"),
        ("model.dnn.dropout", "number, 0 to 0.9"),
        ("comm.workers", "integer, above 0, or null"),
        ("corpus.digits.snr_db", "list of numbers, [lowest, highest]"),
    ],
)
def test_the_limits_of_numbers_are_printed(page, path, kind):
    assert f"{{confval}} {path}\n:type: {kind}\n" in page


def test_settings_that_documents_set_exist():
    """`group.key=value`, anywhere in a page; in a mapping, such as the splits, any name may be."""
    known = {one.path: one.is_group for group in GROUPS for one in group.settings}
    key = rf"(?<![\w./])((?:{'|'.join(group.name for group in GROUPS)})(?:\.\w+)+)="
    found = 0
    for pages in ("README.md", "CONTRIBUTING.md", "docs/*.md", "recipes/*.md", "recipes/*/*.md"):
        for page in ROOT.glob(pages):
            for path in re.findall(key, page.read_text(encoding="utf-8")):
                found += 1
                schema = re.sub(r"^(gmm|corpus\.commands\.conditions)\.\w+", r"\1.NAME", path)
                in_mapping = not known.get(schema.rpartition(".")[0], True)
                assert schema in known or in_mapping, f"{page.relative_to(ROOT)} sets {path}"
    assert found > 100


@pytest.mark.slow
def test_the_site_builds_strictly_and_needs_no_network(tmp_path):
    site = tmp_path / "site"
    words = ["-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-c", "docs"]
    command = [sys.executable, *words, "-d", str(tmp_path / "doctrees"), str(ROOT), str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*"',
            page.read_text(encoding="utf-8"),
        )
        assert not loaded, f"{page.relative_to(site)} loads {loaded}"
    settings_page = (site / "docs/settings.html").read_text(encoding="utf-8")
    assert 'id="confval-optim.rate"' in settings_page
