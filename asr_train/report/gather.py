"""Tables of many recipes and papers, as Markdown with pictures -> **one HTML page**.

The page is one file with pictures inside. HTML in the tables is escaped, and links that could run a
script are disabled. Layout: gather.html.j2. Knows formats, not folders: see scripts/gather.py.
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from asr_train.extras import extra
from asr_train.report.page import render


@dataclass(frozen=True, slots=True)
class Document:
    """A table as Markdown.

    Attributes:
        source: its path, for the reader.
        text: Markdown that begins with a title.
        picture: PNG, if there is one.
    """

    source: str
    text: str
    picture: bytes | None = None


def gathered_page(groups: Iterable[tuple[str, Iterable[Document]]]) -> str:
    """Return the page, with a section per group (a recipe, a paper) in the order given."""
    shown = [(name, [_article(document) for document in documents]) for name, documents in groups]
    return render("gather.html.j2", groups=shown)


def _article(document: Document) -> dict[str, Any]:
    body = _html(document.text).replace("<table>", '<div class="scroll" tabindex="0"><table>')
    return {
        "body": body.replace("</table>", "</table></div>"),
        "png": None if document.picture is None else base64.b64encode(document.picture).decode(),
        "source": document.source,
    }


def _html(text: str) -> str:
    with extra("gather", "a page of many tables"):
        import markdown
    reader = markdown.Markdown(extensions=["tables", "sane_lists"])
    reader.preprocessors.deregister("html_block")
    for pattern in ("html", "image_link", "image_reference", "short_image_ref"):
        reader.inlinePatterns.deregister(pattern)
    levels = {"<h1>": "<h3>", "</h1>": "</h3>", "<h2>": "<h4>", "</h2>": "</h4>"}
    html = reader.convert(re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE))  # without its images
    for level, lower in levels.items():
        html = html.replace(level, lower)
    return re.sub(r'<a href="(?!https?://|#|[\w./#-]*")[^"]*"', "<a", html)
