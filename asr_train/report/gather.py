"""Tables of many recipes and papers, as Markdown with pictures -> **one HTML page** of all of them.

The page is one file: pictures are inside it. HTML in the tables stays text. Knows formats, not
folders: see scripts/gather.py.
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from asr_train.extras import extra
from asr_train.report.page import css


@dataclass(frozen=True, slots=True)
class Document:
    """A table.

    Attributes:
        source: where it lies, for the reader.
        text: Markdown that begins with a title.
        picture: PNG, if there is one.
    """

    source: str
    text: str
    picture: bytes | None = None


def gathered_page(groups: Iterable[tuple[str, Iterable[Document]]]) -> str:
    """The page, a section a group (a recipe, a paper) in the order given."""
    sections, places = [], []
    for number, (name, documents) in enumerate(groups):
        places.append(f'<li><a href="#group{number}">{escape(name)}</a></li>')
        content = "\n".join(map(_article, documents))
        sections.append(
            f'<section id="group{number}">\n<h2>{escape(name)}</h2>\n{content}\n</section>'
        )
    return PAGE.format(css=css() + MORE_CSS, places="".join(places), sections="\n".join(sections))


def _article(document: Document) -> str:
    picture = ""
    if document.picture is not None:
        data = base64.b64encode(document.picture).decode()
        picture = f'<figure><img alt="" src="data:image/png;base64,{data}"></figure>'
    body = _html(document.text).replace("<table>", '<div class="scroll" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    return (
        f'<article>\n{body}\n{picture}\n<p class="made">{escape(document.source)}</p>\n</article>'
    )


def _html(text: str) -> str:
    with extra("gather", "a page of many tables"):
        import markdown
    reader = markdown.Markdown(extensions=["tables", "sane_lists"])
    reader.preprocessors.deregister("html_block")
    reader.inlinePatterns.deregister("html")
    levels = {"<h1>": "<h3>", "</h1>": "</h3>", "<h2>": "<h4>", "</h2>": "</h4>"}
    html = reader.convert(re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE))  # files it has not
    for level, lower in levels.items():
        html = html.replace(level, lower)
    return html


MORE_CSS = """
img { max-width: 100%; height: auto; background: #fff; }
article { margin: 1.6rem 0; border-bottom: 1px solid var(--grid); }
nav ul { columns: 3; padding-left: 1.1rem; }
a { color: inherit; }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>All tables</title>
<style>{css}</style>
</head>
<body>
<header>
<h1>All tables</h1>
<nav><ul>{places}</ul></nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""
