"""The page of all tables: nothing is lost, and no content of them is interpreted as HTML."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from asr_train.report.gather import Document, gathered_page

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\nnot much of a picture"
TEXT = """# Words

| run | WER % |
|---|---:|
| dnn | 2.74 |

- A note about `tau`, <script>alert(1)</script> & more.
"""


class Tags(HTMLParser):
    """Collects tags and text as a browser would."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened, self.open, self.text, self.sources = [], [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value for key, value in attrs if key == "src"]

    def handle_startendtag(self, tag, attrs):
        self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_tables_pictures_and_notes_are_on_the_page():
    page = gathered_page([("digits", [Document("a/wer.md", TEXT, PNG)]), ("<b>", [])])
    tags = Tags(page)
    assert tags.open == []
    assert tags.opened.count("table") == 1
    assert {"dnn", "2.74", "a/wer.md", "<b>"} <= {t.strip() for t in tags.text.split("\n")} | {
        word for word in tags.text.split()
    }
    assert len(tags.sources) == 1
    assert tags.sources[0].startswith("data:image/png;base64,")


def test_html_in_a_table_stays_text():
    tags = Tags(gathered_page([("x", [Document("x.md", TEXT + "\n<div>block</div>\n")])]))
    assert "script" not in tags.opened
    assert "<script>alert(1)</script>" in tags.text
    assert "<div>block</div>" in tags.text


def test_no_link_runs_a_script_and_no_picture_is_fetched():
    links = "[a](javascript:alert(1)) [b](https://c.org/d) [e](f.md#g) <javascript:alert(2)>"
    text = f"# A\n\n{links} x ![i](http://j.org/k.png)\n"
    page = gathered_page([("x", [Document("x.md", text)])])
    assert 'href="https://c.org/d"' in page
    assert 'href="f.md#g"' in page
    assert 'href="javascript' not in page
    assert "img" not in Tags(page).opened


def test_links_between_tables_lead_to_places_on_the_page():
    text = "# A\n\n## What's `new`, here\n\n[a](#whats-new-here) [b](../y/R.md) [c](rows.yaml)\n"
    documents = [Document("r/x/R.md", text), Document("r/y/R.md", "# B\n")]
    page = gathered_page([("x", documents)], "..")
    for place in ("r/x/R.md#whats-new-here", "r/y/R.md"):
        assert page.count(f'id="{place}"') == page.count(f'href="#{place}"') == 1
    assert 'href="../r/x/rows.yaml"' in page


def test_all_that_the_repository_keeps_is_gathered(tmp_path):
    script, page = ROOT / "scripts" / "gather.py", tmp_path / "index.html"
    said = subprocess.run(
        [sys.executable, script, ROOT, page], capture_output=True, text=True, check=True
    ).stdout
    kept = [*ROOT.glob("results/*/**/*.md"), *ROOT.glob("recipes/*/RESULTS.md")]
    text = Tags(page.read_text()).text
    assert all(str(path.relative_to(ROOT)) in text for path in kept)
    assert len(kept) >= 10
    assert str(page) in said


def test_without_tables_it_says_what_to_do(tmp_path):
    script = ROOT / "scripts" / "gather.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path, tmp_path / "x.html"], capture_output=True, text=True
    )
    assert done.returncode
    assert "run a recipe first" in done.stderr
    assert not (tmp_path / "x.html").exists()
