"""Sphinx: README, docs/ and the recipes' pages as a site; `make docs` builds it in site/.

The source folder is the repository's root, so that links between documents work as they do there.
Nothing is fetched, when the site is built or when it is read; search works from the file system.
"""

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
from settings_reference import reference  # noqa: E402  (beside this file)

_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
project, release = _project["name"], _project["version"]
author = "The asr-train maintainers"
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "recipes/**.md", "results/**.md"]
exclude_patterns = [".*", "**/work*", "site", "report", "plan", "build", "data"]

myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
templates_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autoclass_content = "both"
default_role = "code"  # docstrings write names in single backticks

INDEX = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'


def prepared(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the settings into their page, and make links to folders links to their README.

    The pages of recipes and results are reached by links; the list of pages does not name them.
    """
    page = ROOT / f"{name}.md"
    if name == "docs/settings":
        source[0] = source[0].replace("<!-- settings -->", reference(ROOT / "conf"))

    def followed(link: re.Match[str]) -> str:
        readme = page.parent / link[1] / "README.md"
        return f"]({link[1].rstrip('/')}/README.md)" if readme.exists() else link[0]

    source[0] = re.sub(r"\]\(([\w./-]+)\)", followed, source[0])
    if re.fullmatch(r"results/.*|recipes/.+/.*", name) and name != "recipes/folder/README":
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def with_front_page(app: Sphinx, error: Exception | None) -> None:
    """Let the site's own folder lead to the first page."""
    (Path(app.outdir) / "index.html").write_text(INDEX)


def setup(app: Sphinx) -> None:
    app.connect("source-read", prepared)
    app.connect("build-finished", with_front_page)
