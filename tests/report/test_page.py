"""Laws of the page: one self-contained file with the given numbers."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_work import ERROR_RATE, MODELS, make_tables, make_work, script

from asr_train.files import read_json, read_jsonl, write_json, write_jsonl
from asr_train.report import page, pictures

VOID = {"meta", "br", "img", "hr", "input", "link"}


class Outline(HTMLParser):
    """Collects every element with its attributes and all text, and whether elements nest."""

    def __init__(self):
        super().__init__()
        self.open, self.elements, self.texts, self.scripts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def outline(html):
    parser = Outline()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def make_report(work, *inputs):
    script("report").report(*(f"{work}/{i}" for i in inputs), f"{work}/report/index.html")
    return (work / "report/index.html").read_text()


ALIGNED = tuple(f"ali/{model}/dev.report.json" for model in MODELS)
ALL = ("tables/wer.json", *ALIGNED, "exp/dnn/log.jsonl")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = make_work(tmp_path_factory.mktemp("page") / "recipes/digits/work")
    make_tables(work)
    return work


@pytest.fixture(scope="module")
def html(work):
    return make_report(work, *ALL)


@pytest.fixture
def inputs(work):
    """Arguments of `build_page`, to be changed by tests."""
    return {
        "name": "digits",
        "table": read_json(work / "tables/wer.json"),
        "alignments": [read_json(work / path) for path in ALIGNED],
        "logs": {"dnn": read_jsonl(work / "exp/dnn/log.jsonl")},
        "times": [{"stage": "lang", "output": "lang/index.json", "seconds": 0.8}],
    }


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without pictures, which take most of the time, for tests of words."""
    monkeypatch.setattr(pictures.Picture, "svg", lambda picture: "")


def test_the_page_is_well_formed_and_needs_no_other_file(html):
    parsed = outline(html)
    elements, (_, script) = parsed.elements, parsed.scripts
    assert not re.search("https?:", html.replace(script, "").lower())
    assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in elements}
    (policy,) = (a["content"] for _, a in elements if "http-equiv" in a)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy  # no other script may run
    for _, attributes in elements:
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            assert re.match(r"(#|\.\./exp/|data:image/png;base64,|$)", attributes.get(name) or "")
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}


def test_every_reference_inside_the_page_has_one_target(html):
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:url\(|href=")#([^")]*)', html[: html.rindex("<script>")]))
    assert wanted <= set(ids)


def test_every_drawing_is_sound_svg_and_says_what_it_shows(html):
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 3  # WER, an utterance, times
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert len(root.get("aria-label")) > 30


def test_the_page_holds_the_tables_numbers(html, inputs):
    text = outline(html).text
    for row in inputs["table"]["rows"]:
        ours = row["ours"]
        assert f"{100 * ours['wer']:.2f}" in text
        assert f"{ours['errors']} / {ours['words']}" in text
    for key in ("date", "commit", "settings", "machine"):
        assert inputs["table"][key] in text


def test_the_page_holds_the_alignments_and_the_logs_numbers(html):
    text = outline(html).text
    numbers = "31.0 14.4 7 9.4 86.1 90.2 97.3"  # alignment()'s
    for model, loglik in (("mono", "−61.27"), ("tri", "−59.88"), ("dnn", "−0.31")):
        assert f"{model} dev 80 1 2 {loglik} {numbers}" in text
    assert "1,180 (tri, dev)" in text
    assert "8 epochs" in text
    assert "1 min 23 s" in text


def test_equal_inputs_give_equal_bytes(work, html):
    before = {p.name: p.read_bytes() for p in (work / "report").iterdir()}
    # The stage records its own time after it ends; a second page must not differ by that.
    row = {"stage": "report", "output": "report/index.html", "seconds": 1, "finished": "2025"}
    write_json(work / "log/report_index.html.json", row)
    make_report(work, *ALL)
    assert {p.name: p.read_bytes() for p in (work / "report").iterdir()} == before


def test_pictures_lie_beside_the_page(work, html):
    names = {path.name for path in (work / "report").glob("*.png")}
    assert {"wer.png", "utterance_dev.png", "times.png"} <= names
    assert all((work / "report" / n).read_bytes().startswith(b"\x89PNG") for n in names)


def test_drawings_follow_the_readers_colours(html):
    """Every colour of a drawing is a variable with a light and a dark value."""
    drawn = " ".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    used = set(re.findall(r"var\((--\w+)\)", drawn))
    assert used
    light, dark = html.split("@media (prefers-color-scheme: dark)")[:2]
    dark = dark.split("}")[0]
    assert all(f"{name}: #" in light and f"{name}: #" in dark for name in used)
    # White stays: the boundaries on the log-mel picture, which is dark in both.
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) <= {"#ffffff"}


def test_names_and_words_cannot_become_markup(inputs):
    bad = "<script>alert('&')</script> {{ 7 * 7 }}"
    inputs["name"] = bad
    for row in inputs["table"]["rows"]:
        row["ours"]["run"] = row["ours"]["run"].replace("dnn", bad)
    inputs["logs"] = {bad: inputs["logs"]["dnn"]}
    inputs["alignments"][2] |= {"lost": [[bad, bad]], "model": bad}
    inputs["alignments"][1]["example"]["words"] = f"{bad} $x_1$"
    inputs["times"][0]["output"] = bad
    html, _ = page.build_page(**inputs)
    parsed = outline(html)
    data, _ = parsed.scripts
    assert bad in {curve["name"] for curve in json.loads(data)["charts"]["chart_loss"]["curves"]}
    assert "<" not in data
    assert bad in parsed.text
    assert "$x_1$" in parsed.text


def test_what_is_not_there_yet_is_said_in_words(work, undrawn):
    text = outline(make_report(work, "tables/wer.json")).text
    assert "No alignment report was given" in text
    assert "mono, dnn keep no training log" in text


def test_an_empty_log_and_one_without_dev_loss_are_said_in_words(work, inputs, undrawn):
    write_jsonl(work / "exp/dnn/empty/log.jsonl", [])
    text = outline(make_report(work, "tables/wer.json", "exp/dnn/empty/log.jsonl")).text
    assert "empty: its log is still empty" in text
    inputs["logs"]["dnn"] = inputs["logs"]["dnn"][:3]
    html, _ = page.build_page(**inputs)
    assert "its log has no dev loss yet" in outline(html).text


def test_the_utterance_shown_is_of_the_last_gaussian_system(inputs, undrawn):
    _, pictures = page.build_page(**inputs)
    (shown,) = [p for p in pictures if p.name.startswith("utterance")]
    assert "aligned by tri" in shown.caption
    inputs["alignments"] = inputs["alignments"][2:]  # only a network
    _, pictures = page.build_page(**inputs)
    assert any("aligned by dnn" in p.caption for p in pictures)


def test_reports_with_and_without_true_times_share_a_table(inputs, undrawn):
    inputs["alignments"][0]["boundaries"] = None
    text = outline(page.build_page(**inputs)[0]).text
    assert "31.0 14.4 7 unknown tri dev" in text
    assert "31.0 14.4 7 9.4 86.1" in text
    assert "True phone times are unknown: mono, dev." in text


def test_the_table_of_alignments_lies_beside_the_page(work, html):
    lines = (work / "report/ali.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert cells[0][:2] == ["model", "split"]
    assert {len(row) for row in cells} == {13}
    assert [row[0] for row in cells[2:]] == list(MODELS)
    text = outline(html).text
    assert all(" ".join(row) in text for row in cells[2:])


def test_unknown_true_times_and_missing_stage_times_are_said_in_words(inputs, undrawn):
    inputs["alignments"] = inputs["alignments"][:1]
    inputs["alignments"][0] |= {"boundaries": None, "lost": []}
    inputs["alignments"][0]["example"]["true"] = None
    inputs["times"] = []
    text = outline(page.build_page(**inputs)[0]).text
    assert "True phone times are unknown: mono, dev." in text
    assert "Every utterance was aligned" in text
    assert "median, ms" not in text
    assert "No stage times were found" in text


def test_many_lost_utterances_are_counted_and_some_listed(inputs, undrawn):
    inputs["alignments"][1]["lost"] = [[f"u{i:03d}", "too short"] for i in range(50)]
    text = outline(page.build_page(**inputs)[0]).text
    assert "tri, dev: 50 utterances not aligned (62.5 %)" in text
    assert "u019" in text
    assert "u020" not in text
    assert "and 30 more" in text


@pytest.mark.parametrize("runs", [1, 2, 9])
def test_any_number_of_runs_fits(inputs, runs):
    rows = inputs["table"]["rows"]
    first = [row for row in rows if row["ours"]["run"] == "mono"]
    inputs["table"]["rows"] = [
        {**row, "ours": row["ours"] | {"run": f"run{i}", "ci95": None}}
        for i in range(runs)
        for row in first
    ]
    text = outline(page.build_page(**inputs)[0]).text
    assert all(f"run{i}" in text for i in range(runs))


def test_the_headline_names_the_best_run_on_the_held_out_split(inputs):
    table = inputs["table"]
    best = next(r["ours"] for r in table["rows"] if r["label"] == "dnn, test")
    text = page.headline(table)
    assert text.startswith(f"On test, dnn is best with {100 * best['wer']:.2f} % word errors")
    assert f"{-100 * best['against']['difference']:.2f} points fewer than mono" in text


def test_the_headline_is_of_the_last_of_several_held_out_splits(inputs):
    rows = inputs["table"]["rows"]
    row = next(row for row in rows if row["label"] == "dnn, test")
    further = {**row, "ours": {**row["ours"], "split": "test_far"}}
    text = page.headline({**inputs["table"], "rows": [*rows, further]})
    assert text.startswith("On test_far, dnn makes ")


def test_each_run_has_its_own_colour_and_the_baseline_is_grey():
    colours = [pictures.colour_of(run, list(ERROR_RATE)) for run in ERROR_RATE]
    assert colours[0] == pictures.SERIES[0]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("count", [1, 7, 1500, 5001])
def test_a_long_training_curve_is_averaged_not_cut(count):
    rows = [{"step": i, "frames": 100 * i, "loss": float(i % 7)} for i in range(count)]
    curve_XY = pictures.training_curve(rows, "loss")
    assert len(curve_XY) == min(count, pictures.DRAWN_POINTS)
    weights = [len(part) for part in np.array_split(np.arange(count), len(curve_XY))]
    mean = np.average(curve_XY[:, 1], weights=weights)
    assert mean == pytest.approx(np.mean([row["loss"] for row in rows]))


def test_drawn_rates_and_intervals_are_percent(inputs):
    table = inputs["table"]
    lines = [line for ax in pictures.draw_wer(table).figure.axes for line in ax.lines]
    drawn = [line.get_xdata().tolist() for line in lines if len(line.get_xdata()) in (1, 2)]
    for row in (row["ours"] for row in table["rows"]):
        assert any(pytest.approx([100 * row["wer"]]) == at for at in drawn)
        assert any(pytest.approx([100 * limit for limit in row["ci95"]]) == at for at in drawn)


def test_outputs_of_a_stage_stand_end_to_end():
    seconds = {"feats": [2.0, 3.0, 4.0], "lang": [1.0]}
    times = [{"stage": s, "seconds": n} for s, all_of_it in seconds.items() for n in all_of_it]
    (ax,) = pictures.draw_times(times).figure.axes
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert bars == [(0.0, 2.0), (2.0, 3.0), (5.0, 4.0), (0.0, 1.0)]


def test_dev_points_stand_at_the_frames_of_their_steps(inputs):
    rows = inputs["logs"]["dnn"]
    frames = {row["step"]: row["frames"] for row in rows if "frames" in row}
    dev = [row for row in rows if "dev_loss" in row]
    expected = [[frames[row["step"]] / 1e6, row["dev_loss"]] for row in dev]
    assert pictures.dev_curve(rows, "loss") == pytest.approx(np.array(expected))


def test_a_run_that_diverged_is_said_to_have_and_losses_are_not_all_in_nats(inputs, undrawn):
    rows = inputs["logs"]["dnn"]
    rows[-1]["diverged"] = "loss is nan at step 480"
    text = outline(page.build_page(**inputs)[0]).text
    assert re.search(
        r" per frame, dev frame accuracy \S+ to \S+ %, then it diverged \(loss is nan at step "
        r"480\) and was tested with its last sound checkpoint, or as it began\.",
        text,
    )
    assert not re.search(r"dev loss \S+ to \S+ nats", text)
    assert pictures.curves(inputs["logs"], ["dnn"])["chart_loss"]["title"] == (
        "loss per frame (nats; sMBR: wrong frames)"
    )


def test_decisions_of_controllers_are_lines_and_no_points(inputs, undrawn):
    tried = {"tried": [[32, 0.5], [64, 0.5]], "minibatch_frames_before": 32}
    checked = {"held_out_accuracy": 0.61, "held_out_accuracy_before": 0.62}
    decided = [
        {"step": 9, "epoch": 1, "decision": "minibatch", **tried, "minibatch_frames": 64},
        {"step": 9, "epoch": 1, "decision": "rate", **checked, "action": "revert", "new_rate": 0.1},
    ]
    rows = inputs["logs"]["dnn"]
    html, _ = page.build_page(**inputs | {"logs": {"dnn": [*decided, *rows]}})
    text = outline(html).text
    assert "dnn: minibatch size by trial, frames per worker: 32, then 64 (step 9)." in text
    assert "revert (step 9, 61.0 %, 0.1)." in text
    assert "diverged" not in text
    for curve in (pictures.training_curve, pictures.dev_curve):
        assert np.array_equal(curve([*decided, *rows], "accuracy"), curve(rows, "accuracy"))
