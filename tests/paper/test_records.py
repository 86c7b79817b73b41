"""Records of finished runs: a table made of them is the same, and others are refused."""

import json
from dataclasses import replace

import pytest
from finished_runs import EPOCHS, P, a_table, all_finished, finished, log, score, tabulated

from asr_train.compose import settings
from asr_train.files import DamagedFileError, read_jsonl, write_jsonl
from asr_train.paper.layout import markdown
from asr_train.paper.records import (
    ROWS,
    Record,
    check_record,
    read_record,
    shortened,
    task_of,
    write_record,
)
from asr_train.paper.rows import RowSettings
from asr_train.report.exchange import measured
from asr_train.schema import SettingsError, build, plain
from asr_train.score.words import MIN_PAIRED_SPEAKERS

NODES = [
    {"run": "sgd", "paper": {"nodes": 1}},
    {"run": "gtc", "set": {"comm.workers": 40}, "paper": {"nodes": 40}},
    {"run": "gtc_async", "set": {"comm.workers": 20}, "paper": {"nodes": 20}},
]
TASK = task_of({"num_mels": 20, "num_states": 1200, "num_frames": 1_080_110, "shards": []})
MADE = {"date": "2025-01-02", "commit": "def5678", "machine": "another CPU"}


@pytest.fixture
def nodes(tmp_path):
    return a_table(tmp_path, "strom2015", "table_2_nodes", NODES)


def record_of(trained, epochs=()):
    return Record(trained, list(epochs), TASK, {"beam": 10.0}, MADE)


def through_a_file(folder, record):
    path = folder / f"{record.trained.run}.jsonl"
    write_record(path, record)
    return read_record(path)


def interval(step, epoch, **changes):
    row = log(4, 0.01, 0.5)[0] | {"step": step, "epoch": epoch, "frames": 32 * step}
    bits = changes.get("sent_bits", row["sent_bits"])
    return row | {"compression_ratio": 32 * P / bits if bits else None} | changes


# --- logs ---------------------------------------------------------------------------------------


def test_a_run_that_diverged_is_shown_as_such_here_and_from_its_record(nodes, tmp_path):
    trained = all_finished(nodes)
    bad = nodes.rows[1].runs[0].name
    trained[bad].log[-1]["diverged"] = "the loss is nan at step 7"
    trained[bad] = through_a_file(tmp_path, record_of(trained[bad])).trained
    shown = markdown(tabulated(nodes, trained))
    assert f"| {nodes.rows[1].label} (diverged) |" in shown
    assert f"{bad} diverged and was tested with its last sound checkpoint" in shown
    assert "or as it began: the loss is nan at step 7." in shown
    assert shown.count("(diverged)") == 1
    trained[bad].log[:] = trained[bad].log[-1:]  # without a row of steps
    with pytest.raises(DamagedFileError, match=r"it diverged before the first .the loss is nan"):
        tabulated(nodes, trained)


def test_a_shortened_log_has_the_same_sums_over_the_run_and_over_each_epoch():
    long = []
    for i in range(1, 61):
        epoch, step = 1 + (i - 1) // 30, i * i  # intervals of different lengths
        changes = {"sent_bits": 100.0 * i, "cpu_seconds": 0.01 * i, "accuracy": 0.01 * i}
        long.append(interval(step, epoch, **changes))
        if i % 30 == 0:
            long.append({"epoch": epoch, "step": step, "dev_loss": 1.0, "dev_accuracy": 0.5})
    short = shortened(long)
    rows = [row for row in short if "sent_bits" in row]
    assert len(rows) <= 2 * ROWS < 60
    assert [row["epoch"] for row in rows] == sorted(row["epoch"] for row in rows)
    assert [row for row in short if "dev_loss" in row] == [r for r in long if "dev_loss" in r]

    def total(log, key, weight, epoch):
        before, found = 0, 0.0
        for row in (row for row in log if "sent_bits" in row):
            if row["epoch"] == epoch:
                found += row[key] * (row[weight] - before)
            before = row[weight]
        return found

    for epoch in (1, 2):
        for key, weight in (("sent_bits", "step"), ("cpu_seconds", "step"), ("accuracy", "frames")):
            expected = total(long, key, weight, epoch)
            assert total(rows, key, weight, epoch) == pytest.approx(expected)
    assert all(r["compression_ratio"] * r["sent_bits"] == pytest.approx(32 * P) for r in rows)


def test_phases_of_fewer_workers_send_as_many_messages_by_a_record(tmp_path, nodes):
    trained = finished(nodes.rows[1].runs[0])
    trained.about["settings"]["optim"]["phases"] = [{"until": 0.3, "workers": 1}]
    trained.log[:] = [
        interval(10 * i, 1 + (i - 1) // 12, sent_bits=1e5 if i < 5 else 1e6) for i in range(1, 25)
    ]
    own = measured(trained)
    other = measured(through_a_file(tmp_path, record_of(trained)).trained)
    for key in ("message_bytes_a_minibatch", "compression_ratio", "density"):
        assert other[key] == pytest.approx(own[key]), key


def test_a_run_that_others_resumed_sends_as_many_messages_by_a_record(tmp_path, nodes):
    trained = finished(nodes.rows[1].runs[0])
    trained.log[:] = [
        interval(10 * i, 1, workers=w, sent_bits=1e4 * (w > 1), received_bits=3e4 * (w > 1))
        for i, w in enumerate([4, 4, 2, 2, 2, 1, 1, 1, 1], 1)
    ]
    own = measured(trained)
    other = measured(through_a_file(tmp_path, record_of(trained)).trained)
    for key in ("message_bytes_a_minibatch", "bf16_over_received", "received_bytes_all_workers"):
        assert other[key] == pytest.approx(own[key]), key


def test_rows_that_learned_or_sent_nothing_can_be_merged():
    rows = [interval(10 * i, 1) for i in range(1, 3 * ROWS)]
    rows[1] |= {"accuracy": None, "frames": rows[0]["frames"]}  # all steps skipped
    rows[2] |= {"sent_bits": 0.0, "compression_ratio": None}
    short = shortened(rows)
    assert len(short) <= ROWS
    assert short[0]["accuracy"] == pytest.approx(rows[0]["accuracy"])
    assert short[0]["compression_ratio"] * short[0]["sent_bits"] == pytest.approx(32 * P)


# --- tables -------------------------------------------------------------------------------------


def test_a_table_from_records_has_the_same_numbers(tmp_path, nodes):
    trained = all_finished(nodes)
    gtc = nodes.rows[1].runs[0]
    trained[gtc.name] = finished(gtc, errors=4)
    read = {name: through_a_file(tmp_path, record_of(run)) for name, run in trained.items()}
    assert [record.made for record in read.values()] == [MADE] * len(read)
    expected = tabulated(nodes, trained)
    made = tabulated(nodes, {name: record.trained for name, record in read.items()})
    for own, other in zip(made["rows"], expected["rows"], strict=True):
        utterances = own["ours"].pop("utterances"), other["ours"].pop("utterances")
        assert len(set(utterances)) == 1
        assert json.dumps(own["ours"]["wer_reduction"]) == json.dumps(
            other["ours"]["wer_reduction"]
        )
        for key, value in other["ours"].items():
            assert own["ours"][key] == (
                pytest.approx(value) if isinstance(value, float) else value
            ), key


def test_epochs_are_kept_and_dev_is_not(tmp_path, nodes):
    run = finished(nodes.baseline.runs[0])
    epochs = [score(run.run, 9 - n) for n in range(EPOCHS)]
    read = through_a_file(tmp_path, record_of(run, epochs))
    assert [each["wer"] for each in read.epochs] == [each["wer"] for each in epochs]
    assert [each["split"] for each in read.trained.scores] == ["test"]


def test_few_speakers_are_kept_by_utterance(tmp_path, nodes):
    run = finished(nodes.baseline.runs[0])
    few = score(run.run, speakers=MIN_PAIRED_SPEAKERS - 1)
    run = replace(run, scores=[few])
    (read,) = through_a_file(tmp_path, record_of(run)).trained.scores
    assert read["by_utterance"].keys() == few["by_utterance"].keys()
    assert read["by_utterance"]["s1-0"]["speaker"] == "s1"


def test_a_note_says_what_was_trained_elsewhere(nodes):
    trained = all_finished(nodes)
    name = nodes.rows[1].runs[0].name
    content = tabulated(nodes, trained, elsewhere=[{"run": name} | MADE])
    assert f"{name} (2025-01-02, commit def5678, another CPU)" in markdown(content)
    assert "elsewhere" not in markdown(tabulated(nodes, trained))


# --- what is refused ----------------------------------------------------------------------------


@pytest.fixture
def whole(nodes):
    """A record with settings that the schema accepts, and these settings."""
    run = nodes.baseline.runs[0]
    wanted = settings(run.base, list(run.overrides)).run
    trained = finished(run)
    trained.about["settings"] = plain(wanted)
    return record_of(trained), wanted


def optim_of(record):
    return record.trained.about["settings"]["optim"]


def test_a_record_with_equal_settings_is_accepted(whole):
    record, wanted = whole
    check_record(record, record, wanted, decode_epochs=False)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("settings.optim.rate 0.5", lambda r: optim_of(r).update(rate=0.5)),
        ("TRAIN.num_states 90", lambda r: r.task.update(num_states=90)),
        ("decoding.beam 8.0", lambda r: r.decoding.update(beam=8.0)),
        ("scores.acoustic_scale 0.3", lambda r: r.trained.scores[0].update(acoustic_scale=0.3)),
    ],
)
def test_another_runs_record_is_refused(whole, tmp_path, what, change):
    usual, wanted = whole
    record = through_a_file(tmp_path, usual)
    change(record)
    with pytest.raises(ValueError, match=f"made with {what}, but here it is .*without RECORDS"):
        check_record(record, usual, wanted, decode_epochs=False)


def test_a_record_without_all_epochs_is_refused_where_they_are_shown(whole):
    record, wanted = whole
    ends = [row for row in record.trained.log if "dev_accuracy" in row]
    scores = [score(record.trained.run, 100, 10)] * len(ends)
    check_record(replace(record, epochs=scores), record, wanted, decode_epochs=True)
    for some in [], scores[1:]:
        lacking = replace(record, epochs=some)
        with pytest.raises(ValueError, match=f"has scores of {len(some)} of its {len(ends)} epoch"):
            check_record(lacking, record, wanted, decode_epochs=True)
        check_record(lacking, record, wanted, decode_epochs=False)


def test_a_record_of_other_settings_is_named(whole):
    record, wanted = whole
    optim_of(record).update(newthing=1)
    with pytest.raises(ValueError, match=r"record of \S+ has other settings: optim.newthing is"):
        check_record(record, record, wanted, decode_epochs=False)


def test_a_damaged_record_is_named(tmp_path, nodes):
    record = record_of(finished(nodes.baseline.runs[0]))
    through_a_file(tmp_path, record)
    path = tmp_path / f"{record.trained.run}.jsonl"
    first, *rest = read_jsonl(path)
    for damaged in (
        [],
        [[1], *rest],
        [{**first, "format": 9}, *rest],
        [{"format": 1}],
        [first, {"score": {}}],
        [first, *rest[1:]],
        [{k: v for k, v in first.items() if k != "lines"}, *rest[:-1]],  # of before there was it
        [first, {"log": rest[0]["log"] | {"sent_bits": "x"}}, *rest[1:]],
        [first, *rest[:-1], {"score": rest[-1]["score"] | {"units": {"u": ["s", 4, -1, 0, 0]}}}],
    ):
        write_jsonl(path, damaged)
        with pytest.raises(DamagedFileError, match=str(path)):
            read_record(path)
    write_jsonl(tmp_path / "other.jsonl", [first, *rest])
    with pytest.raises(DamagedFileError, match=f"of the run {record.trained.run}"):
        read_record(tmp_path / "other.jsonl")


# --- seeds of single rows -----------------------------------------------------------------------


def test_a_row_with_more_seeds_is_compared_with_the_baselines_of_its_seeds(tmp_path):
    rows = [
        {"run": "sgd", "paper": {"nodes": 1}},
        {"run": "gtc", "set": {"comm.workers": 40}, "paper": {"nodes": 40}},
        {"run": "gtc", "set": {"comm.workers": 20}, "paper": {"nodes": 20}},
    ]
    seeds = {"small": [1, 2, 3]}
    rows[0]["seeds"] = rows[1]["seeds"] = seeds
    table = a_table(
        *(tmp_path, "strom2015", "table_2_nodes", rows), baseline={"run": "sgd", "seeds": seeds}
    )
    trained = {run.name: finished(run, errors=5 + run.seed) for run in table.baseline.runs}
    for run in (run for row in table.rows[1:] for run in row.runs):
        trained[run.name] = finished(run, errors=(5 + run.seed) // 2)
    content = tabulated(table, trained)
    more, one = (row["ours"] for row in content["rows"][1:])
    assert (more["seeds"], one["seeds"]) == (3, 1)
    assert one["wer_reduction"]["percent"] == pytest.approx(50)  # of seed 1's 6 errors
    saved = sum(1 - (n // 2) / n for n in (6, 7, 8)) / 3
    assert more["wer_reduction"]["percent"] == pytest.approx(100 * saved, abs=2)
    assert len(more["wer_reduction"]["percent_by_seed"]) == 3
    assert "1 or 3 seeds per row" in markdown(content)


def test_a_seed_that_the_baseline_lacks_is_refused(tmp_path):
    rows = [{"run": "gtc", "label": "more", "seeds": {"small": [1, 2]}}]
    with pytest.raises(SettingsError, match=r"row 'more' has seed 2 .* baseline has 1"):
        a_table(tmp_path, "strom2015", "table_2_nodes", rows)
    with pytest.raises(SettingsError, match=r"rows.\*.seeds.small is \[\]"):
        build(RowSettings, {"run": "gtc", "seeds": {"small": []}})
