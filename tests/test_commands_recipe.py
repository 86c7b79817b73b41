"""recipes/commands with SIZE=tiny and reduced settings: from the grammar to the %WER lines."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from asr_train.align.gmm import load_gmm
from asr_train.files import read_json, read_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
QUICK = [  # four minutes of speech, few passes; the error rates have no meaning
    *("corpus.commands.hours.train=0.06", "corpus.commands.hours.dev=0.008"),
    *("corpus.commands.hours.test=0.008", "corpus.commands.speakers.train=20"),
    *("gmm.mono.flat.passes=4", "gmm.mono.passes=5", "gmm.mono.gaussians=150"),
    *("gmm.tri.passes=4", "gmm.tri.gaussians=300", "gmm.tri.tree.leaves=150"),
    *("decode.insertion_penalties=[0.0]", "decode.lm_weights=[1.0]"),  # each needs a graph
    "score.bootstrap=200",
]
SYSTEMS, SPLITS = ("mono", "tri"), ("dev", "test")


@pytest.fixture(scope="module")
def run(tmp_path_factory, python) -> tuple[Path, str]:
    """A finished run's work folder and its output."""
    folder = tmp_path_factory.mktemp("commands")
    inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "DEBUG")}
    asked = [f"W={folder}/work", f"PY={python}", "SIZE=tiny", "RUNS=", f"SET={' '.join(QUICK)}"]
    ended = subprocess.run(
        ["make", "-C", str(ROOT / "recipes/commands"), *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**inherited, "JOBS": "2"},
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    return folder / "work", ended.stdout


def test_it_ends_with_a_line_for_every_system_and_split(run):
    work, said = run
    lines = re.findall(r"^%WER (\S+) \[ (\d+) / (\d+), .* \] exp/(\S+) (\S+)$", said, re.M)[-4:]
    assert [(system, split) for *_, system, split in lines] == [
        (system, split) for split in SPLITS for system in SYSTEMS
    ]
    for _, errors, words, system, split in lines:
        score = read_json(work / f"exp/{system}/score.{split}.json")
        assert (score["errors"], score["words"]) == (int(errors), int(words))
        manifest = read_jsonl(work / f"manifests/{split}.jsonl.gz")
        assert score["utterances"] == len(manifest)
        assert 0 < int(errors) < int(words)  # some words are recognised
    assert "grammar: 15 of 3141 words left out" in said


def test_gaussians_find_the_phones_where_espeak_said_them(run):
    work, _ = run
    assert load_gmm(work / "exp/tri/model.json").states.num_states > 125  # more than monophones
    for system in ("mono", "tri"):
        bounds = read_json(work / f"ali/{system}/dev.report.json")["boundaries"]
        assert bounds["compared"] > 300
        assert bounds["median_ms"] < 20
        assert bounds["within_50ms"] > 0.85


def test_splits_share_no_timbre(run):
    work, _ = run
    speakers = {
        split: {
            row["supervisions"][0]["speaker"]
            for row in read_jsonl(work / f"manifests/{split}.jsonl.gz")
        }
        for split in ("train", *SPLITS)
    }
    timbres = [{name.split("-")[0] for name in names} for names in speakers.values()]
    assert len(set().union(*timbres)) == sum(map(len, timbres))
