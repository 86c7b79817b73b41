"""recipes/ddp_hook: the table of hooks, made by two processes as `make ddp_hook` makes it."""

import importlib.util
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import forked
import pytest
from torch import nn

from asr_train.facts import HEADER_BYTES
from asr_train.files import read_json

ROOT = Path(__file__).parents[2]


STEPS, RANKS = 30, 2
SIZE = (30 * 40 + 30) + (120 * 30 + 120)  # parameters of `small`


def small():
    """A network from the script's 40 mels to its 120 states, whose bytes can be counted by hand."""
    return nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 120))


@pytest.fixture(scope="module")
def script():
    """The recipe's script as a module."""
    import_module("torch.distributed.optim")  # which it imports late; once, before processes fork
    path = ROOT / "recipes/ddp_hook/compare_hooks.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_received_bytes_are_those_counted_by_hand(script, monkeypatch):
    """Per step, of the last 10 of 30, and in all; of two ranks, a ring brings each a vector."""
    monkeypatch.setattr(script, "Recogniser", small)
    dense = 4 * SIZE
    power = 4 * ((30 + 40) + (120 + 30) + (30 + 120))  # P and Q of each matrix, and biases
    # Two floats per column and a bit per element; rank 0 owns the first matrix and bias, and 8
    # columns of the second matrix. Each rank gets the other's message about its own part, and the
    # other's new part, padded to the longer of the two
    first = (8 * 40 + 30 * 40 // 8) + (8 + 4) + (8 * 8 + 120 * 8 // 8)
    second = (8 * 22 + 120 * 22 // 8) + (8 + 15)
    one_bit = 2 * HEADER_BYTES + (first + second) / 2 + first
    by_hand = {  # label -> bytes of a rank per step, and in all steps
        "plain DDP": (dense, STEPS * dense),
        "allreduce hook": (dense, STEPS * dense),
        "fp16 hook": (dense / 2, STEPS * dense / 2),
        "PowerSGD hook, rank 1": (power, 10 * dense + 20 * power),  # the first 10 are dense
        "1-bit hook": (one_bit, STEPS * one_bit),
        "post-local SGD, every 10 steps": (dense / 10, 3 * dense),
        "block momentum, every 10 steps": (dense / 10, 3 * dense),
    }

    def main(exchange):
        speech = script.Speech()
        runs = ((label, script.train(label, speech, STEPS)) for label in by_hand)
        return {label: script.row_of(label, run, SIZE) for label, run in runs}

    for rows in forked.run(main, RANKS, RANKS):
        assert isinstance(rows, dict), rows
        for label, (per_step, total) in by_hand.items():
            ours = rows[label]["ours"]
            assert ours["received_bytes_a_minibatch"] == pytest.approx(per_step), label
            assert ours["bf16_over_received"] == pytest.approx(2 * SIZE / per_step), label
            assert ours["received_bytes_all_workers"] == pytest.approx(RANKS * total), label
            assert ours["minutes_at_1_gbps"] == pytest.approx(8 * total / 1e9 / 60), label
        shown = dict(zip(script.COLUMNS, script.cells(rows["plain DDP"]), strict=True))
        assert shown["KB received per step"] == "19.8"
        assert shown["bf16 / received"] == "0.5"
        assert shown["MB received, all ranks"] == "1.19"
        assert shown["seconds at 1 / 10 Gb/s"] == "0.00475 / 0.000475"


def test_block_momentum_is_evaluated_with_its_last_steps(script, monkeypatch):
    """15 steps are a block of 10 and one of 5: their models are averaged, too."""
    monkeypatch.setattr(script, "Recogniser", small)
    monkeypatch.setattr(script, "evaluate", lambda model, speech: (model[0].weight.sum().item(), 0))

    def main(exchange):
        speech = script.Speech()
        runs = [script.train("block momentum, every 10 steps", speech, n) for n in (10, 15)]
        return [(run.received[-1], run.dev_loss) for run in runs]

    (ten, fifteen), other = forked.run(main, RANKS, RANKS)
    assert [ten, fifteen] == other  # all ranks evaluate the same model
    assert fifteen[0] == 2 * ten[0] == 2 * 4 * SIZE
    assert fifteen[1] != ten[1]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Plain DDP and GTC, for one step more than times and bytes leave out."""
    work = tmp_path_factory.mktemp("hooks")
    recipe = ["make", "-C", str(ROOT / "recipes/ddp_hook"), f"PY={sys.executable}", f"W={work}"]
    done = subprocess.run([*recipe, "STEPS=24", "ONLY=plain 0.01"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return read_json(work / "tables/ddp_hook.json"), (work / "tables/ddp_hook.md").read_text()


@pytest.mark.parametrize(
    "given, says",
    [
        ("STEPS=9", "--steps is 9; it"),
        ("ONLY=x", "--only x is in"),
        ("RANKS=0", "RANKS is '0'; it must be a number of processes"),
        ("RANKS=two", "RANKS is 'two'; it"),
    ],
)
def test_what_it_cannot_do_costs_one_line_and_no_processes(tmp_path, given, says):
    recipe = ["make", "-C", str(ROOT / "recipes/ddp_hook"), f"PY={sys.executable}", f"W={tmp_path}"]
    done = subprocess.run([*recipe, given], capture_output=True, text=True)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert "torch.distributed" not in done.stderr


@pytest.mark.slow
def test_ways_to_exchange_are_compared_by_loss_bytes_and_time(table):
    found, text = table
    assert {"paper", "table", "columns", "rows"} <= set(found)
    ours = {row["label"]: row["ours"] for row in found["rows"]}
    assert list(ours) == ["plain DDP", "GTC hook, density 0.01"]
    assert all(f"| {label} |" in text for label in ours)
    plain, gtc = ours.values()
    assert gtc["losses"][0] == plain["losses"][0]  # the same initial weights and minibatch
    dense = 4 * found["parameters"]
    assert plain["received_bytes_a_minibatch"] == dense  # of two ranks
    assert gtc["received_bytes_a_minibatch"] < dense / 20
    for row in ours.values():
        assert row["losses"][-1] < row["losses"][0]
        assert row["step_seconds"] > 0
    if plain["sent_bytes"] is not None:  # if the system counts them
        assert dense <= plain["sent_bytes"] < 1.05 * dense
        assert gtc["sent_bytes"] < dense / 20
