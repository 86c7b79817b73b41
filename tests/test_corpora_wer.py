"""Recipes that need recordings, from a small folder of their layout to the %WER lines.

The speech is synthesised by espeak-ng, and is too little for meaningful error rates. The tests
check that every stage reads the output of the previous one, for each corpus, split and system.
"""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from folders import FOLDERS, spoken

from asr_train.files import read_json, read_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
QUICK = [  # one small layer, few Gaussians and passes, one choice of scales
    *("model.dnn.layers=1", "model.dnn.width=64", "model.dnn.nonlinearity=sigmoid"),
    *("optim.epochs=2", "optim.rate=0.02"),
    *("gmm.mono.flat.passes=4", "gmm.mono.passes=3", "gmm.mono.gaussians=80"),
    *("decode.acoustic_scales=[0.1]", "decode.insertion_penalties=[0.0]", "decode.nbest=5"),
    *("score.bootstrap=200", "shards.utterances=20", "decode.lm_weights=[1.0]"),
    "lm.without_eval=false",  # ten speakers of the same few sentences
]
RESCORED = ["decode.rescore_lm_weights=[0.5,1.0]", "decode.rescore_penalties=[0.0]"]
GROWN = [
    *("gmm.tri.passes=3", "gmm.tri.gaussians=90", "gmm.tri.tree.leaves=70"),
    *("gmm.tri.tree.min_count=20", "gmm.lda.passes=3", "gmm.lda.gaussians=90"),
    *("gmm.lda.lda.dims=20", "gmm.lda.lda.mllt_passes=[2]"),
]
ALL = "mono tri lda"


@dataclass(frozen=True)
class Case:
    """Arguments of a recipe, and the rows that its table must have."""

    systems: list[str]
    splits: list[str] = field(default_factory=lambda: ["dev", "test"])
    asked: list[str] = field(default_factory=lambda: ["GMMS=mono"])


# Together: every kind of system, split, scoring and language model. The other recipes have the same
# stages; test_corpora checks that their corpora are read, and what they plan.
CASES = {
    "mini_librispeech": Case(["mono", "dnn", "dnn-realign1", "dnn-realign1-rescored"]),
    "an4": Case(["mono", "tri", "lda", "dnn"], asked=[f"GMMS={ALL}"]),
    "swbd": Case(
        ["mono", "dnn", "dnn-rescored"],
        ["dev", "test", "test_callhome"],
        ["GMMS=mono", "REALIGN=0"],
    ),
    "pooled": Case(["mono", "dnn"], ["dev", "test", "test_speechocean"], ["GMMS=mono", "RESCORE="]),
}


def make(recipe: str, *arguments: str) -> str:
    """Return what `make` printed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "DEBUG")}
    ended = subprocess.run(
        ["make", "-C", str(ROOT / "recipes" / recipe), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**inherited, "JOBS": "1"},
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    return ended.stdout


@pytest.mark.parametrize("recipe", CASES)
def test_a_recipe_goes_from_its_corpus_to_word_error_rates(recipe, tmp_path, python):
    case, work = CASES[recipe], tmp_path / "work"
    FOLDERS[recipe](tmp_path / "corpus", spoken())
    numbers = QUICK + (GROWN if "tri" in case.systems else [])
    numbers += RESCORED if case.systems[-1].endswith("-rescored") else []
    numbers = [n for n in numbers if "lda" in case.systems or not n.startswith("gmm.lda")]
    asked = [f"CORPUS_DIR={tmp_path}/corpus", f"W={work}", f"PY={python}", *case.asked]
    asked.append(f"SET={' '.join(numbers)}")
    said = make(recipe, "-j2", *asked, "table")

    wanted = [(system, split) for split in case.splits for system in case.systems]
    lines = re.findall(r"^%WER (\S+) \[ (\d+) / (\d+), .* \] exp/(\S+) (\S+)$", said, re.M)
    assert [(run, split) for *_, run, split in lines][-len(wanted) :] == wanted
    rows = read_json(work / "tables/wer.json")["rows"]
    assert [(row["ours"]["run"], row["ours"]["split"]) for row in rows] == wanted
    table = (work / "tables/wer.md").read_text()
    page = (work / "report/index.html").read_text()
    for (rate, errors, words, run, split), row in zip(lines[-len(wanted) :], rows, strict=True):
        manifest = read_jsonl(work / f"manifests/{split}.jsonl.gz")
        assert row["ours"]["utterances"] == len(manifest) > 0
        assert (row["ours"]["errors"], row["ours"]["words"]) == (int(errors), int(words))
        assert 0 <= int(errors) < int(words)  # some words are recognised
        assert f"| {run} | {split} | {rate} |" in table
        assert rate in page
    for run, split in wanted:
        if run.endswith("-rescored"):
            about, *hyps = read_jsonl(work / f"exp/{run}/hyp.{split}.jsonl")
            assert about["narrowed"] == 0
            assert all(len(h["confidences"]) == len(h["words"]) for h in hyps)
    assert not re.search(
        r"scripts/(?!resolve|recordings)\w+\.py", make(recipe, "-n", *asked, "table")
    )
    assert re.search(
        r"^\d+ done, 0 stale, 0 missing; nothing to do$", make(recipe, *asked, "status"), re.M
    )
    make(recipe, *asked, "clean")
    assert not work.exists()
