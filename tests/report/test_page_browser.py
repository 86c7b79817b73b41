"""The page in a real browser: sorted, filtered, played, zoomed; narrow and wide, light and dark.

Each test looks at the page as its readers do. Debian has the browser (apt-get install chromium).
"""

import json

import pytest
from browser import CHROMIUM, Browser
from fake_work import make_whole, script
from test_page import outline

from asr_train.files import read_json
from asr_train.report import pictures
from asr_train.report.tables import read_score

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to open pages with")
ROWS = "[...document.querySelectorAll('#utterances tbody tr')]"
CONTRAST = """[...document.querySelectorAll('p, td, th, th button, button, label, a, summary, li')]
  .filter((e) => e.offsetParent && e.textContent.trim()).map((e) => {
    const light = (text) => {
      const parts = text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
        .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
      return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    let below = e;
    while (getComputedStyle(below).backgroundColor.endsWith(', 0)')) below = below.parentElement;
    const [a, b] = [getComputedStyle(e).color, getComputedStyle(below).backgroundColor].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [ratio, e.tagName, e.textContent.slice(0, 40)];
  }).sort((a, b) => a[0] - b[0])[0]"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = tmp_path_factory.mktemp("seen") / "recipes/digits/work"
    inputs = make_whole(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures.Picture, "svg", lambda picture: "")
        patch.setattr(pictures.Picture, "png", lambda picture: b"")
        script("report").report(*(f"{work}/{i}" for i in inputs), f"{work}/report/index.html")
    return work


@pytest.fixture(scope="module")
def data(work):
    return json.loads(outline((work / "report/index.html").read_text()).scripts[0])


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def seen(browser, work):
    """The page, loaded anew; afterwards it must have complained of nothing."""
    browser.open(work / "report/index.html")
    yield browser
    assert browser.complaints() == []


def column(seen, number):
    """Return the texts of a column of the utterances shown."""
    return seen.run(f"{ROWS}.map((row) => row.cells[{number}].textContent)")


def choose(seen, **fields):
    for name, value in fields.items():
        event = "input" if name == "find" else "change"
        seen.run(f"form.{name}.value = {json.dumps(value)}")
        seen.run(f"form.{name}.dispatchEvent(new Event('{event}'))")
        assert seen.run(f"form.{name}.value") == value


def errors(work, run, split="test"):
    rows = read_score(work / f"exp/{run}/score.{split}.json")["by_utterance"]
    return {name: row["errors"] for name, row in rows.items()}


def test_the_page_asks_for_nothing_but_itself(seen, work):
    own = (work / "report/index.html").resolve().as_uri()
    seen.run("0")
    asked = [at for at in seen.requested() if not at.startswith("data:")]
    assert set(asked) == {own}


def test_utterances_are_sorted_by_errors_then_as_the_reader_asks(seen, work):
    expected = sorted(errors(work, "dnn").values(), reverse=True)[:20]
    assert [int(text) for text in column(seen, 1)] == expected
    seen.run("document.querySelector('#utterances th[data-key=words] button').focus()")
    for kind in ("keyDown", "keyUp"):  # by keyboard
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        seen.call("Input.dispatchKeyEvent", type=kind, **key)
    found = [int(text) for text in column(seen, 3)]
    assert found == sorted(found, reverse=True)
    assert seen.run("document.querySelector('[data-key=words]').ariaSort") == "descending"
    seen.click("#utterances th[data-key=words] button")
    found = [int(text) for text in column(seen, 3)]
    assert found == sorted(found)


def test_a_table_sorts_by_its_numbers(seen, work):
    seen.run(
        "[...document.querySelectorAll('table[data-name=wer] th button')]"
        ".find((b) => b.textContent === 'WER %').click()"
    )
    texts = seen.run(
        "[...document.querySelectorAll('table[data-name=wer] tbody tr')]"
        ".map((row) => row.cells[2].textContent)"
    )
    rows = [row["ours"]["wer"] for row in read_json(work / "tables/wer.json")["rows"]]
    assert [float(text) for text in texts] == [round(100 * wer, 2) for wer in sorted(rows)]


def test_times_are_sorted_by_length_and_names_as_names(seen):
    rising = ["0.8 s", "49.7 s", "1 min 14 s", "2 min", "1 h 2 min", "−"]
    assert (
        seen.run(f"{json.dumps(rising[::-1])}.sort((a, b) => compareKeys(...[a, b].map(sortKey)))")
        == rising
    )
    cells = [
        "−1.5 (−2.0 to 3)",
        "4.3*",
        "204x",
        "1,234 / 5",
        "9.2e-06 / 6e-5",
        "7%",
        "12a",
        "0101_f",
        "3-x",
    ]
    wanted = [-1.5, 4.3, 204, 1234, 9.2e-06, 7, "12a", "0101_f", "3-x"]
    assert seen.run(f"{json.dumps(cells)}.map(sortKey)") == wanted


def test_utterances_are_won_lost_and_found(seen, work):
    mine, other = errors(work, "dnn"), errors(work, "mono")
    choose(seen, run="dnn", other="mono")
    text = seen.run("document.querySelector('#compared').textContent")
    won = sum(mine[name] < other[name] for name in mine)
    lost = sum(mine[name] > other[name] for name in mine)
    assert won > lost > 0
    assert f"fewer errors than mono in {won} utterances and more in {lost}" in text
    against = next(
        row["ours"]["against"]
        for row in read_json(work / "tables/wer.json")["rows"]
        if row["label"] == "dnn, test"
    )
    assert f"{100 * against['difference']:+.2f} points".replace("-", "−") in text
    assert "optim.rate" in text
    choose(seen, show="lost")
    assert set(column(seen, 5)) <= {name for name in mine if mine[name] > other[name]}
    assert seen.run("byId('listed').textContent").startswith(f"{lost} of 96 utterances")
    choose(seen, show="all", speaker="test03")
    assert set(column(seen, 6)) == {"test03"}
    choose(seen, speaker="", find="test05-00")
    assert len(column(seen, 5)) == 8
    choose(seen, split="dev", find="")
    assert "No p-value" in seen.run("document.querySelector('#compared').textContent")


def test_what_an_edit_button_finds_has_that_edit(seen, data):
    said, heard, times = data["splits"]["test"]["confusions"][1][0]
    choose(seen, run="dnn", other="")
    seen.click("#confusions tbody button")
    assert seen.run("form.find.value") == f"{said or '∗'} > {heard or '∗'}"
    pairs = seen.run(
        f"{ROWS}.flatMap((row) => [...row.querySelectorAll('.pair')])"
        ".filter((p) => p.children.length).map((p) => [...p.children].map((c) => c.textContent))"
    )
    assert pairs.count([said or "∗", heard or "∗"]) == times


def test_markup_in_words_stays_text(seen):
    choose(seen, find="</SCRIPT>")
    assert len(column(seen, 5)) == 1
    assert "</SCRIPT><B>" in column(seen, 4)[0]
    assert seen.run("document.querySelectorAll('#utterances b b, #utterances script').length") == 0


PLAYED = """new Promise((resolve) => {
  const audio = document.querySelector('.detail audio');
  audio.addEventListener('timeupdate', () => {
    if (audio.currentTime > 0) resolve([audio.duration, audio.src.slice(0, 5)]);
  });
  audio.muted = true;
  audio.play().catch(() => resolve('error')); // also if it failed before this was asked
})"""


DRAWN = """new Promise((resolve) => {
  const look = () => {
    const c = document.querySelector('canvas');
    if (!c.dataset.drawn) return setTimeout(look, 20);
    const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
    resolve([c.width, c.height, new Set(data).size]);
  };
  look();
})"""
NAMELESS = """[...document.querySelectorAll('button, select, input, audio, canvas')].filter((e) =>
  !(e.ariaLabel || e.textContent.trim() || (e.labels ?? []).length)).map((e) => e.outerHTML)"""


def listen(seen, name):
    choose(seen, find=name)
    seen.click("#utterances tbody button")


def test_a_sound_in_the_page_plays_beside_its_spectrogram(seen, data):
    name, sound = next(iter(data["heard"]["test"].items()))
    listen(seen, name)
    seconds, source = seen.run(PLAYED)
    (utterance,) = (u for u in data["splits"]["test"]["utterances"] if u["id"] == name)
    assert source == "data:"
    assert seconds == pytest.approx(utterance["seconds"], abs=0.02)
    frames, bins, greys = seen.run(DRAWN)
    assert frames == pytest.approx(utterance["seconds"] / 0.005, abs=6)
    assert bins == 128  # half of the 256 points over 25 ms at 8 kHz
    assert greys > 100
    words = "[...document.querySelectorAll('.spectrum .words')].map((e) => e.textContent)"
    above, below = seen.run(words)
    assert above == "".join(word for word, *_ in sound["said"])
    assert below == "".join(word for word, *_ in sound["found"]["dnn"])
    seen.click("#utterances tbody button")
    assert seen.run("document.querySelectorAll('.detail').length") == 0


def test_other_sounds_play_from_their_files_and_one_that_is_gone_says_so(seen, data):
    utterances = data["splits"]["test"]["utterances"]
    kept = {*data["heard"]["test"], "test01-000"}
    utterance = next(u for u in utterances if u["id"] not in kept)
    listen(seen, utterance["id"])
    seconds, source = seen.run(PLAYED)
    assert source == "file:"
    assert seconds == pytest.approx(utterance["seconds"], abs=0.02)
    listen(seen, "test01-000")
    assert seen.run(PLAYED) == "error"
    assert "cannot be played here" in seen.run("document.querySelector('.detail').textContent")
    seen.complaints()
    seen.events.clear()  # the browser's own complaint of the missing file


def test_curves_zoom_by_button_and_by_drag(seen):
    def view():
        return [float(x) for x in seen.run("byId('chart_loss').dataset.view").split()]

    start, end = view()
    seen.click("[aria-label^='Zoom in: loss']")
    low, high = view()
    assert high - low == pytest.approx((end - start) / 2, rel=1e-4)
    seen.click("[aria-label^='Show all: loss']")
    assert view() == [start, end]
    seen.run("byId('chart_loss').scrollIntoView()")
    left, top, width = seen.run(
        "(({left, top, width}) => [left, top, width])"
        "(document.querySelector('#chart_loss svg').getBoundingClientRect())"
    )
    steps = (("mousePressed", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.6))
    for kind, share in steps:
        at = {"x": left + share * width, "y": top + 80}
        seen.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    low, high = view()
    assert start < low < high < end


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_no_width_cuts_the_page(seen, work, width):
    seen.open(work / "report/index.html", width)
    assert seen.run("document.documentElement.scrollWidth") <= width
    outside = "[...document.querySelectorAll('table')].filter((t) => !t.closest('.scroll')).length"
    assert seen.run(outside) == 0
    if width == 1600:
        cut = (
            "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
        )
        assert seen.run(f"{cut}.length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_texts_can_be_read_by_day_and_by_night(seen, work, dark):
    seen.open(work / "report/index.html", dark=dark)
    seen.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    ratio, *where = seen.run(CONTRAST)
    assert ratio >= 4.5, where  # WCAG 2, level AA
    paper = seen.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(22, 25, 29)" if dark else "rgb(255, 255, 255)")


def test_every_control_has_a_name(seen):
    seen.click("#utterances tbody button")
    assert seen.run(NAMELESS) == []
    assert seen.run("[...document.querySelectorAll('thead th')].every((e) => e.scope === 'col')")


def test_a_saved_list_is_csv_that_runs_nothing(seen, work):
    seen.run("URL.createObjectURL = (blob) => { window.saved = blob; return '#'; }")
    choose(seen, find="test05-00")
    seen.click("#save")
    lines = seen.run("window.saved.text()").splitlines()
    assert lines[0] == "id,speaker,seconds,words,errors,reference,hypothesis"
    assert {line.split(",")[0] for line in lines[1:]} == {f"test05-{i:03d}" for i in range(8)}
    cells = seen.run("['=1+1', '-x', '-1.5', 'a,\"b\"', '@x'].map(csvCell)")
    assert cells == ["'=1+1", "'-x", "-1.5", '"a,""b"""', "'@x"]
