"""Tables of many recipes and papers, as Markdown with pictures -> **one HTML page**.

The page is one file with pictures inside. Links between tables lead to places on it. HTML in the
tables is escaped, and links that could run a script are disabled. Layout: gather.html.j2. Knows
formats, not folders: see scripts/gather.py.
"""

import base64
import posixpath
import re
from collections.abc import Iterable, Set
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


def gathered_page(groups: Iterable[tuple[str, Iterable[Document]]], root: str = ".") -> str:
    """Return the page, with a section per group (a recipe, a paper) in the order given.

    Args:
        root: the folder that sources are relative to, from the page's folder.
    """
    listed = [(name, list(documents)) for name, documents in groups]
    here = {document.source for _, documents in listed for document in documents}
    shown = [(name, [_article(d, here, root) for d in documents]) for name, documents in listed]
    return render("gather.html.j2", groups=shown)


def _article(document: Document, here: Set[str], root: str) -> dict[str, Any]:
    body = _html(document, here, root).replace("</table>", "</table></div>")
    return {
        "body": body.replace("<table>", '<div class="scroll" tabindex="0"><table>'),
        "png": None if document.picture is None else base64.b64encode(document.picture).decode(),
        "source": document.source,
    }


def _html(document: Document, here: Set[str], root: str) -> str:
    """Return the text as HTML; headings have the ids that `_link` points to."""
    with extra("gather", "a page of many tables"):
        import markdown
        from markdown.extensions.toc import TocExtension

    def slug(title: str, separator: str) -> str:  # as GitHub's
        place = re.sub(r"[^\w -]", "", title.lower()).replace(" ", separator)
        return f"{document.source}#{place}"

    headings = TocExtension(baselevel=3, slugify=slug)
    reader = markdown.Markdown(extensions=["tables", "sane_lists", headings])
    reader.preprocessors.deregister("html_block")
    for pattern in ("html", "image_link", "image_reference", "short_image_ref"):
        reader.inlinePatterns.deregister(pattern)
    html = reader.convert(re.sub(r"^!\[.*\n", "", document.text, flags=re.MULTILINE))  # no images
    return re.sub(
        r'<a href="([^"]*)"', lambda found: _link(found[1], document.source, here, root), html
    )


def _link(target: str, source: str, here: Set[str], root: str) -> str:
    """Return the beginning of a link, to a place on the page or to a file beside the tables."""
    if re.match("https?://", target):
        return f'<a href="{target}"'
    if not re.fullmatch(r"[\w./#-]*", target):  # it could run a script
        return "<a"
    path, mark, place = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    path = f"#{path}" if path in here else posixpath.normpath(posixpath.join(root, path))
    return f'<a href="{path}{mark}{place}"'
