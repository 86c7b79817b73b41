"""recipes/ddp_hook: the table of hooks, made by two processes as `make ddp_hook` makes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from asr_train.files import read_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Plain DDP and GTC, for one step more than times and bytes leave out."""
    work = tmp_path_factory.mktemp("hooks")
    recipe = ["make", "-C", str(ROOT / "recipes/ddp_hook"), f"PY={sys.executable}", f"W={work}"]
    done = subprocess.run([*recipe, "STEPS=24", "ONLY=plain 0.01"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return read_json(work / "tables/ddp_hook.json"), (work / "tables/ddp_hook.md").read_text()


@pytest.mark.slow
def test_ways_to_exchange_are_compared_by_loss_bytes_and_time(table):
    found, text = table
    assert {"paper", "table", "columns", "rows"} <= set(found)
    ours = {row["label"]: row["ours"] for row in found["rows"]}
    assert list(ours) == ["plain DDP", "GTC hook, density 0.01"]
    assert all(f"| {label} |" in text for label in ours)
    plain, gtc = ours.values()
    assert gtc["losses"][0] == plain["losses"][0]  # the same initial weights and minibatch
    for row in ours.values():
        assert row["losses"][-1] < row["losses"][0]
        assert row["step_seconds"] > 0
    if plain["sent_bytes"] is not None:  # if the system counts them
        dense = 4 * found["parameters"]
        assert dense <= plain["sent_bytes"] < 1.05 * dense
        assert gtc["sent_bytes"] < dense / 20
