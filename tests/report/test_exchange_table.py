"""Laws of the table of exchanges: its numbers are the logs', over all steps and workers."""

import re

import pytest
from fake_work import SETTINGS, make_work, score_one, script

from asr_train.files import DamagedFileError, read_json, write_json, write_jsonl
from asr_train.report import exchange, page, pictures, tables
from asr_train.report.exchange import Trained
from asr_train.schema import CommSettings, ScoreSettings, build

ABOUT = {"date": "2025-01-01", "commit": "abc1234", "settings": "0f", "machine": "a CPU, 2 cores"}
P = 1000  # parameters
GTC = {"threshold": 4.0, "codec": "rice", "capacity": "exact", "adaptive": None}
BMUF = {
    **{"block_steps": 50, "form": "chen_huo", "zeta": 1.0, "c": 1.0, "eta": None},
    "velocity": "reset",
}


def about(comm, workers=4, processes=1):
    return {"settings": {"comm": comm}, "workers": workers, "processes": processes}


def row(step, bits, elements, frames, **changes):
    return {
        "step": step,
        "frames": frames,
        "sent_bits": bits,
        "elements_sent": elements,
        "compression_ratio": 32 * P / bits if bits else None,
        "received_bits": 6 * bits,
        "step_seconds": 0.02,
        "compute_seconds": 0.01,
        "exchange_seconds": 0.008,
        "wait_seconds": 0.002,
        "compress_seconds": 0.003,
        "transfer_seconds": 0.001,
        "cpu_seconds": 0.015,
        **changes,
    }


# 50 steps of 800 bits, then 10 of 3200
LOG = [
    row(50, 800, 20, 5000),
    {"epoch": 1, "step": 50, "dev_loss": 1.0, "dev_accuracy": 0.5},
    row(60, 3200, 80, 6000),
    {"epoch": 2, "step": 60, "dev_loss": 0.9, "dev_accuracy": 0.625},
]


def test_totals_weigh_each_row_by_its_steps():
    ours = exchange.measured(Trained("gtc", about({"method": "gtc", "gtc": GTC}), LOG, []))
    bits, elements = 50 * 800 + 10 * 3200, 50 * 20 + 10 * 80
    assert ours["steps"] == 60
    assert ours["parameters"] == P
    assert ours["message_bytes"] == bits / 8
    assert ours["message_bytes_a_minibatch"] == pytest.approx(bits / 8 / 60)
    assert ours["compression_ratio"] == pytest.approx(32 * P * 60 / bits)
    assert ours["bits_an_element"] == pytest.approx(bits / elements)
    assert ours["density"] == pytest.approx(elements / 60 / P)
    assert ours["frames_a_second"] == pytest.approx(6000 / (60 * 0.02))
    assert ours["dev_accuracy"] == 0.625


def test_workers_without_minibatches_do_not_make_messages_smaller():
    """In the first epoch one worker of four reads, and sends 3,200 bits: on average 800."""
    phases = [{"until": 0.5, "minibatch_frames": 2, "workers": 1}]
    phases.append({"until": 1.0, "minibatch_frames": 4, "workers": 1})
    log = [row(25, 800, 20, 5000), row(50, 800, 20, 5000), row(60, 3200, 80, 5000)]
    places = zip(log, (5, 10, 20), (1, 1, 2), strict=True)
    log = [r | {"frames": frames, "epoch": epoch} for r, frames, epoch in places]
    settings = about({"method": "gtc", "gtc": GTC})
    settings["settings"]["optim"] = {"phases": phases}
    ours = exchange.measured(Trained("gtc", settings, log, []))
    assert (ours["steps"], ours["sending_steps"]) == (60, 50 / 4 + 10)
    assert ours["message_bytes_a_minibatch"] == pytest.approx(3200 / 8)
    assert ours["compression_ratio"] == pytest.approx(32 * P / 3200)
    assert ours["density"] == pytest.approx(80 / P)
    assert ours["message_bytes"] == (50 * 800 + 10 * 3200) / 8
    dense = about({"method": "allreduce", "allreduce": {"wire": "fp32"}})
    dense["settings"]["optim"] = {"phases": phases}
    assert exchange.measured(Trained("dense", dense, log, []))["sending_steps"] == 60


def test_what_a_worker_receives_is_set_against_the_ring():
    """8,000 bits per step, beside 2 * 3/4 * 16 bits for each of 1,000 parameters."""
    received = [r | {"received_bits": 8000} if "sent_bits" in r else r for r in LOG]
    ours = exchange.measured(Trained("gtc", about({"method": "gtc", "gtc": GTC}), received, []))
    assert ours["received_bytes_a_minibatch"] == 1000
    assert ours["bf16_over_received"] == pytest.approx(3.0)
    assert ours["received_bytes_all_workers"] == 4 * 60 * 1000
    assert ours["minutes_at_1_gbps"] == pytest.approx(60 * 8000 / 1e9 / 60)


def test_a_run_resumed_by_other_workers_counts_each_part_with_its_own():
    """50 steps of 4 workers, 10 of 2 and 40 of one, which sends nothing."""
    log = [
        row(50, 800, 20, 5000, workers=4, received_bits=2400),
        row(60, 3200, 80, 6000, workers=2, received_bits=3200),
        row(100, 0, 0, 7000, workers=1, received_bits=0),
    ]
    run = Trained("gtc", about({"method": "gtc", "gtc": GTC}, workers=1), log, [])
    ours = exchange.measured(run)
    messages, bits = 50 * 4 + 10 * 2, 50 * 4 * 800 + 10 * 2 * 3200
    assert ours["message_bytes_a_minibatch"] == pytest.approx(bits / 8 / messages)
    assert ours["compression_ratio"] == pytest.approx(32 * P * messages / bits)
    received = 50 * 4 * 2400 + 10 * 2 * 3200
    assert ours["received_bytes_all_workers"] == pytest.approx(received / 8)
    assert ours["received_bytes_a_minibatch"] == pytest.approx(received / 8 / (messages + 40))
    ring = 50 * 4 * 1.5 * 16 * P + 10 * 2 * 1.0 * 16 * P
    assert ours["bf16_over_received"] == pytest.approx(ring / received)
    one = Trained("sgd", about({"method": "sgd"}, workers=1), [row(60, 0, 0, 5000)], [])
    table = exchange.exchange_table([run, one], build(ScoreSettings, SETTINGS), ABOUT)
    assert [cells[2] for cells in exchange.text_rows(table)] == ["4, then 2, then 1", "1"]
    assert table["baseline"] == "sgd"
    for made in table["rows"]:
        del made["ours"]["trained_by"]  # as in older tables
    assert [cells[2] for cells in exchange.text_rows(table)] == ["1", "1"]


def test_shares_of_time_add_up_to_all_of_it():
    ours = exchange.measured(Trained("gtc", about({"method": "gtc", "gtc": GTC}), LOG, []))
    assert ours["shares"] == pytest.approx(
        {"compute": 0.5, "compress": 0.15, "wait": 0.15, "decode": 0.2}
    )
    assert sum(ours["shares"].values()) == pytest.approx(1)


def test_who_sends_nothing_has_dashes_there():
    silent = [row(50, 0, 0, 5000), *LOG[1:2]]
    run = Trained("sgd", about({"method": "sgd"}, workers=1), silent, [])
    table = exchange.exchange_table([run], build(ScoreSettings, SETTINGS), ABOUT)
    (cells,) = exchange.text_rows(table)
    shown = dict(zip(table["columns"], cells, strict=True))
    for column in ("MB sent per worker", "KB per minibatch", "KB received per step"):
        assert shown[column] == "–"
    for column in ("dense / sent", "bf16 / received", "bits per element", "density"):
        assert shown[column] == "–"
    assert shown["dev frame accuracy %"] == "50.00"
    assert shown["frames/s"] == "5,000"


def test_every_column_has_its_unit():
    run = Trained("gtc", about({"method": "gtc", "gtc": GTC}), LOG, [])
    table = exchange.exchange_table([run], build(ScoreSettings, SETTINGS), ABOUT)
    (cells,) = exchange.text_rows(table)
    shown = dict(zip(table["columns"], cells, strict=True))
    assert shown == {
        **{
            "run": "gtc",
            "method": "gtc tau 4 rice",
            "workers": "4",
            "dev frame accuracy %": "62.50",
        },
        "MB sent per worker": "0.009",  # 72,000 bits
        "KB per minibatch": "0.15",
        "dense / sent": "26.7",
        "KB received per step": "0.9",  # of three others
        "bf16 / received": "3.33",
        "GB received, all workers": "0.000216",
        "minutes at 1 / 10 Gb/s": "0.0000072 / 0.00000072",
        "bits per element": "40",
        "density": "0.03",
        "frames/s": "5,000",
        "compute / compress / wait / decode %": "50 / 15 / 15 / 20",
    }


def test_a_log_without_steps_is_refused_by_name():
    with pytest.raises(DamagedFileError, match="log of gtc has no row"):
        exchange.measured(Trained("gtc", about({"method": "gtc", "gtc": GTC}), LOG[1:2], []))


@pytest.mark.parametrize(
    "comm, workers, words",
    [
        ({"method": "sgd"}, 1, "sgd"),
        ({"method": "allreduce", "allreduce": {"wire": "bf16"}}, 4, "allreduce bf16"),
        ({"method": "gtc", "gtc": GTC}, 4, "gtc tau 4 rice"),
        (
            {
                "method": "gtc",
                "gtc": GTC | {"adaptive": {"density": 0.001, "band": 1.5, "factor": 1.1}},
            },
            4,
            "gtc density 0.001 rice",
        ),
        ({"method": "bmuf", "bmuf": BMUF}, 4, "bmuf block 50"),
        (
            {"method": "bmuf_gtc", "bmuf": BMUF, "gtc": GTC, "group_size": 0},
            8,
            "bmuf_gtc 2 x 4 tau 4 rice block 50",
        ),
    ],
)
def test_a_method_is_named_with_what_decides_its_messages(comm, workers, words):
    assert exchange.method_words(build(CommSettings, comm), workers) == words


# --- a work folder ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The folder of fake_work; `dnn` has one worker, `mono` stands for a run of four."""
    work = make_work(tmp_path_factory.mktemp("exchange") / "work")
    for split in ("dev", "test"):
        for run in ("mono", "dnn"):
            score_one(work, run, split)
    silent = [row(50, 0, 0, 5000), *LOG[1:2]]
    for run, log, settings in (
        ("dnn", silent, about({"method": "sgd"}, workers=1)),
        ("mono", LOG, about({"method": "gtc", "gtc": GTC})),
    ):
        write_jsonl(work / f"exp/{run}/log.jsonl", log)
        write_json(work / f"exp/{run}/run.json", settings)
        write_json(work / f"exp/{run}/model.json", {})
    return work


@pytest.fixture(scope="module")
def table(work):
    inputs = [f"{work}/exp/{run}/model.json" for run in ("mono", "dnn")]
    inputs += [f"{work}/exp/{r}/score.{s}.json" for r in ("mono", "dnn") for s in ("dev", "test")]
    script("exchange").exchange(f"{work}/conf/score.yaml", *inputs, f"{work}/tables/exchange.md")
    return read_json(work / "tables/exchange.json")


def test_the_json_has_the_shape_of_all_tables(table):
    assert {"paper", "table", "columns", "rows"} <= set(table)
    assert table["table"] == "exchange"
    assert all(set(row) == {"label", "paper", "ours", "measured"} for row in table["rows"])


def test_the_baseline_is_the_run_that_trained_alone_wherever_it_stands(table, work):
    assert table["baseline"] == "dnn"
    ours = {row["label"]: row["ours"]["splits"] for row in table["rows"]}
    assert ours["dnn"]["test"]["against"] is None
    scores = {
        run: tables.read_score(work / f"exp/{run}/score.test.json") for run in ("mono", "dnn")
    }
    expected = tables.against(scores["dnn"], scores["mono"], build(ScoreSettings, SETTINGS))
    assert ours["mono"]["test"]["against"] == {**expected, "ci95": list(expected["ci95"])}
    assert list(ours["mono"]) == ["test"]  # dev chose the scales


def test_text_and_markdown_hold_a_line_a_run(table, work):
    lines = (work / "tables/exchange.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert len({len(row) for row in cells}) == 1
    assert [row[0] for row in cells[2:]] == ["mono", "dnn"]
    shown = (work / "tables/exchange.txt").read_text().splitlines()
    assert [line.split()[0] for line in shown] == ["run", "mono", "dnn"]
    assert max(map(len, shown)) <= 120
    assert "26.7" in shown[1]  # dense / sent
    assert any("mono: several workers in a process" in line for line in lines)


def test_the_page_shows_table_and_drawing(table, work):
    script("tables").tables(
        f"{work}/conf/score.yaml",
        *(f"{work}/exp/{r}/score.{s}.json" for r in ("mono", "dnn") for s in ("dev", "test")),
        f"{work}/tables/wer.md",
    )
    html, every = page.build_page("digits", read_json(work / "tables/wer.json"), [], {}, [], table)
    (drawn,) = [picture for picture in every if picture.name == "bytes"]
    assert re.search(r"mono [\d.]+ %, 0.15 KB", drawn.alt)
    assert re.search(r"dnn [\d.]+ %, 0 KB", drawn.alt)
    assert "compute / compress / wait / decode %" in html
    assert "gtc tau 4 rice" in html


def test_a_lone_worker_has_a_sentence_and_no_dashes(table, work, monkeypatch):
    monkeypatch.setattr(pictures.Picture, "svg", lambda picture: "")
    silent = {**table, "rows": [r for r in table["rows"] if r["label"] == "dnn"]}
    wer = read_json(work / "tables/wer.json")
    html, _ = page.build_page("digits", wer, [], {}, [], silent)
    shown = html[html.index('<section id="exchange">') :]
    shown = shown[: shown.index("</section>")]
    assert "Every run has one worker, so nothing was sent." in shown
    assert "frames/s" in shown
    assert not re.search(r"<td[^>]*>(–|baseline)</td>", shown)
    assert "Density" not in shown
    assert "minibatch" not in shown


def test_a_drawn_interval_is_that_of_the_table_in_percent(table):
    score = next(r for r in table["rows"] if r["label"] == "mono")["ours"]["splits"]["test"]
    (ax,) = pictures.draw_bytes(table, ["mono", "dnn"]).figure.axes
    drawn = [line.get_ydata().tolist() for line in ax.lines if line.get_xdata()[0] == 0.15]
    bar, point = sorted(drawn, key=len, reverse=True)
    assert bar == pytest.approx([100 * limit for limit in score["ci95"]])
    assert point == pytest.approx([100 * score["wer"]])


def test_where_nobody_sends_nothing_is_drawn(table):
    silent = {**table, "rows": [r for r in table["rows"] if r["label"] == "dnn"]}
    assert pictures.draw_bytes(silent, ["dnn"]) is None
