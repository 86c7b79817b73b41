"""Laws of scripts/status.py, with a synthetic work folder and plan."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asr_train.files import write_json

ROOT = Path(__file__).parents[1]
TARGETS = [
    "work/manifests/train.jsonl.gz",
    "work/lang/index.json",
    "work/feats/train.jsonl.gz",
    "work/shards/mono/train/index.json",
    "work/exp/dnn/model.json",
    "work/exp/dnn/hyp.test.jsonl",
    "work/tables/wer.md",
]
PLAN = """\
make[1]: Entering directory '/somewhere/recipes/digits'
python ../../scripts/feats.py work/manifests/train.jsonl.gz work/conf/feats.yaml \\
  'work/feats/train.jsonl.gz'
torchrun --standalone --nproc-per-node 2 train.py work/conf/run/dnn.yaml work/exp/dnn/model.json
make work/lang/index.json work/feats/dev.jsonl.gz work/shards/mono/train/index.json
echo it's made; python decode.py work/exp/dnn/model.json "work/exp/dnn/hyp.test.jsonl"

python tables.py work/exp/dnn/score.test.json {here}/work/tables/wer.md
"""


@pytest.fixture
def recipe(tmp_path):
    """recipes/digits with five of seven outputs present, two of which the plan makes again."""
    here = tmp_path / "recipes/digits"
    for name in [*TARGETS[:4], TARGETS[6]]:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(b"x" * 100)
    (here / "work/feats/train").mkdir()
    (here / "work/feats/train/part0.npy").write_bytes(b"x" * 5000)
    (here / "work/feats/train-other.npy").write_bytes(b"x" * 70000)
    (here / "work/shards/mono/train/a.tar").write_bytes(b"x" * 2_000_000)
    (here / "work/tables/wer.json").write_bytes(b"x" * 20)
    times = {"feats/train.jsonl.gz": 9.25, "shards/mono/train/index.json": 185.0}
    for output, seconds in times.items():
        row = {"stage": "any", "output": output, "seconds": seconds, "finished": "2025"}
        write_json(here / "work/log" / (output.replace("/", "_") + ".json"), row)
    (here / "plan").write_text(PLAN.format(here=here))
    return here


def run(here, *arguments, **environment):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ASR_WORK": "work", **environment}
    return subprocess.run(
        [sys.executable, ROOT / "scripts/status.py", *arguments],
        cwd=here,
        env=env,
        capture_output=True,
        text=True,
    )


def rows_of(done):
    """Return each target's row: state first, path last."""
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:-1]]
    return {row[-1]: row for row in rows}


def test_every_target_has_its_state_in_the_recipes_order(recipe):
    rows = rows_of(run(recipe, "plan", *TARGETS))
    assert list(rows) == TARGETS
    states = ["done", "done", "stale", "done", "missing", "missing", "stale"]
    assert [row[0] for row in rows.values()] == states


def test_the_last_line_sums_up_and_names_the_next_command(recipe):
    done = run(recipe, "plan", *TARGETS)
    assert done.stdout.splitlines()[-1] == "3 done, 2 stale, 2 missing; next: make digits"
    other = run(recipe, "plan", *TARGETS, ASR_GOAL=r"fsdd SIZE=tiny SET=a={b,c}\ d=1")
    assert other.stdout.splitlines()[-1].endswith("; next: make fsdd SIZE=tiny 'SET=a={b,c} d=1'")


def test_an_empty_plan_makes_all_that_exists_done(recipe):
    (recipe / "plan").write_text("")
    there = [target for target in TARGETS if (recipe / target).exists()]
    done = run(recipe, "plan", *there)
    assert done.stdout.splitlines()[-1] == "5 done, 0 stale, 0 missing; nothing to do"


def test_a_missing_output_is_missing_even_if_make_would_not_build_it(recipe):
    (recipe / "plan").write_text("")
    rows = rows_of(run(recipe, "plan", *TARGETS))
    assert rows["work/exp/dnn/model.json"][0] == "missing"
    last = run(recipe, "plan", *TARGETS).stdout.splitlines()[-1]
    assert last.startswith(
        "5 done, 0 stale, 2 missing; nothing to do: tables and report are there;"
    )


def test_an_output_counts_with_all_that_belongs_to_it(recipe):
    rows = rows_of(run(recipe, "plan", *TARGETS))
    assert "5.1 kB" in " ".join(rows["work/feats/train.jsonl.gz"])  # 100 + 5000, not train-other
    assert "2 MB" in " ".join(rows["work/shards/mono/train/index.json"])
    assert "120 B" in " ".join(rows["work/tables/wer.md"])  # with wer.json


def test_times_are_those_that_the_stages_kept(recipe):
    rows = rows_of(run(recipe, "plan", *TARGETS))
    assert "9.2 s" in " ".join(rows["work/feats/train.jsonl.gz"])
    assert "3 min 05 s" in " ".join(rows["work/shards/mono/train/index.json"])
    assert rows["work/lang/index.json"] == ["done", "100", "B", "work/lang/index.json"]


def test_asking_changes_nothing(recipe):
    def files():
        return {p: p.read_bytes() for p in recipe.rglob("*") if p.is_file()}

    before = files()
    run(recipe, "plan", *TARGETS)
    assert files() == before


def test_a_fresh_recipe_is_all_missing(tmp_path):
    (tmp_path / "plan").write_text("python tables.py work/tables/wer.md\n")
    done = run(tmp_path, "plan", *TARGETS)
    assert {row[0] for row in rows_of(done).values()} == {"missing"}
    assert done.stdout.splitlines()[-1] == "0 done, 0 stale, 7 missing; next: make table"


def test_a_plan_that_is_not_there_is_said_in_a_line(tmp_path):
    done = run(tmp_path, "no-plan", "work/tables/wer.md")
    assert done.returncode == 1
    assert done.stderr.startswith("status: ")
    assert "no-plan" in done.stderr
