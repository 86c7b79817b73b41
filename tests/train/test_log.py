import builtins
import json
import os

import pytest

from asr_train.comm.reducers import Sent
from asr_train.files import DamagedFileError
from asr_train.train.log import RunLog, Totals, dev_row, epoch_line, train_row
from asr_train.train.state import Interval, Progress

PROGRESS = Progress(epoch=1, step=30, frames=900, dev_loss=1.25, dev_accuracy=0.625)
INTERVAL = Interval(
    steps=5,
    skipped=1,
    frames=100,
    loss=200.0,
    correct=25,
    compute_seconds=1.0,
    exchange_seconds=0.5,
    wait_seconds=0.25,
    compress_seconds=0.4,
    transfer_seconds=0.1,
    cpu_seconds=1.5,
)


def test_a_row_has_means_a_frame_and_a_step():
    totals = Totals(1, INTERVAL, Sent(640, 20, 3, 700.0), threshold=4.0, squares=9.0)
    row = train_row(totals, PROGRESS, rate=0.5, num_parameters=10)
    assert row == {
        "step": 30,
        "epoch": 2,
        "frames": 900,
        "loss": 2.0,
        "accuracy": 0.25,
        "rate": 0.5,
        "minibatch": 25.0,
        "sent_bits": 128.0,
        "elements_sent": 4.0,
        "compression_ratio": 2.5,  # 32 * 10 bits per step over 128
        "received_bits": 140.0,
        "workers": 1,
        "step_seconds": 0.35,
        "compute_seconds": 0.2,
        "exchange_seconds": 0.1,
        "wait_seconds": 0.05,
        "compress_seconds": 0.08,
        "transfer_seconds": 0.02,
        "cpu_seconds": 0.3,
        "skipped": 1,
        "overflows": 3,
        "threshold": 4.0,
        "residual_norm": 3.0,
    }


def test_of_several_workers_messages_are_averaged_and_frames_added():
    both, sent = Interval(steps=5, skipped=2, frames=200), Sent(1280, 40, received_bits=1400.0)
    totals = Totals(2, both, sent, threshold=4.0, squares=18.0)
    row = train_row(totals, PROGRESS, 0.5, 10)
    assert row["residual_norm"] == 3.0  # root mean square over workers
    assert row["minibatch"] == 50.0
    assert (row["sent_bits"], row["elements_sent"], row["received_bits"]) == (128.0, 4.0, 140.0)
    assert (row["compression_ratio"], row["skipped"]) == (2.5, 1)


def test_what_cannot_be_known_is_null():
    totals = Totals(1, Interval(steps=1, skipped=1), Sent())
    row = train_row(totals, PROGRESS, 0.5, num_parameters=10)
    assert {k for k, v in row.items() if v is None} == {
        "loss",
        "accuracy",
        "minibatch",
        "compression_ratio",
        "threshold",
        "residual_norm",
    }


def test_the_epochs_line_and_row_say_how_dev_did():
    assert dev_row(PROGRESS, rate=0.5, workers=2, crc32=0xABC) == {
        "epoch": 1,
        "step": 30,
        "dev_loss": 1.25,
        "dev_accuracy": 0.625,
        "rate": 0.5,
        "workers": 2,
        "weights_crc32": "00000abc",
    }
    line = epoch_line(INTERVAL, PROGRESS, 0.5, epochs=3, workers=1)
    assert line == (
        "epoch 1/3: step 30, rate 0.5, loss 2.000, accuracy 25.0%; DEV loss 1.250, accuracy 62.5%; "
        "57 frames/s; 1 steps skipped"
    )


def test_rows_after_the_checkpoint_are_cut_off(tmp_path):
    rows = [{"step": n, "loss": 0.5, "accuracy": 0.5} for n in range(4)]
    with RunLog(tmp_path, Progress(), 100) as log:
        log.row(rows[0])
        log.row(rows[1])
        kept = log.sync()
        log.row(rows[2])
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 3, "lo')  # killed in the middle of a row
    with RunLog(tmp_path, Progress(step=1, log_bytes=kept), 100) as log:
        log.row(rows[3])
    found = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert found == [rows[0], rows[1], rows[3]]


def test_a_log_that_lost_rows_is_not_gone_on_with(tmp_path):
    with RunLog(tmp_path, Progress(), 100) as log:
        log.row({"step": 1, "loss": 0.5, "accuracy": 0.5})
        kept = log.sync()
    os.truncate(tmp_path / "log.jsonl", kept - 9)
    says = (
        rf"log.jsonl has {kept - 9} bytes, but {kept} when .* step 1 .*, or delete {tmp_path} and"
    )
    with pytest.raises(DamagedFileError, match=says):
        RunLog(tmp_path, Progress(step=1, log_bytes=kept), 100)
    assert (tmp_path / "log.jsonl").stat().st_size == kept - 9


def test_a_run_from_the_beginning_has_a_new_log_and_new_events(tmp_path):
    for _ in range(2):
        with RunLog(tmp_path, Progress(), 100) as log:
            log.row({"step": 1, "loss": 0.5, "accuracy": 0.5})
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_tensorboard_reads_the_numbers_of_the_rows(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLog(tmp_path, Progress(), 100) as log:
        log.row({"step": 1, "loss": 0.5, "accuracy": 0.25})
        log.row({"step": 2, "loss": None, "dev_loss": 0.75})
    found = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 0.5)]
    assert [(e.step, e.value) for e in found.Scalars("dev_loss")] == [(2, 0.75)]


@pytest.mark.parametrize("step", [0, 1])
def test_tensorboard_keeps_the_numbers_of_rows_that_stay(tmp_path, step):
    """Those of a run that diverged stay when it is finished with its checkpoint of step 0 or 1."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLog(tmp_path, Progress(), 100) as log:
        log.row({"step": 1, "loss": 0.5, "accuracy": 0.25})
        log.row({"step": 2, "loss": 0.75, "accuracy": 0.25})
    size = (tmp_path / "log.jsonl").stat().st_size
    with RunLog(tmp_path, Progress(step=step, log_bytes=size), 100) as log:
        log.row({"step": step, "dev_loss": 1.5})
    found = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 0.5), (2, 0.75)]
    assert [(e.step, e.value) for e in found.Scalars("dev_loss")] == [(step, 1.5)]


def test_without_tensorboard_the_log_is_written_all_the_same(tmp_path, monkeypatch, capsys):
    imported = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError("No module named 'tensorboard'")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with RunLog(tmp_path, Progress(), 100) as log:
        log.row({"step": 1, "loss": 0.5, "accuracy": 0.5})
    assert "no TensorBoard events" in capsys.readouterr().out
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1
    assert not (tmp_path / "tensorboard").exists()
