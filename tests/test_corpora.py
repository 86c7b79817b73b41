"""Every recipe that needs recordings takes a folder laid out as its corpus is, through its own
settings and the manifests stage; and says what is missing where there is none."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folders import FOLDERS, NOISE, folder, librispeech, pooled

from asr_train.files import read_jsonl, write_yaml
from asr_train.schema import plain
from scripts.resolve import settings

ROOT = Path(__file__).parents[1]
STAGE = runpy.run_path(str(ROOT / "scripts" / "manifests.py"))["manifests"]
COUNTS = {  # utterances a split, where everybody says two
    "fsdd": {"train": 9, "dev": 1, "test": 2},
    "folder": {"train": 16, "dev": 2, "test": 2},
    "speechocean": {"train": 14, "dev": 2, "test": 4},
    "librispeech_mini": {"train": 14, "dev": 2, "test": 4},
    "arctic": {"train": 9, "dev": 1, "test": 10},
    "pooled": {"train": 34, "dev": 2, "test": 4, "test_speechocean": 4},
    "mini_librispeech": {"train": 18, "dev": 2, "test": 2},
    "librispeech": {"train": 20, "dev": 2, "test": 2, "test_other": 2},
    "an4": {"train": 18, "dev": 2, "test": 2},
    "yesno": {"train": 27, "dev": 3, "test": 30},
    "swbd": {"train": 18, "dev": 2, "test": 4, "test_callhome": 4},
}


def make(recipe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-s", "-C", str(ROOT / "recipes" / recipe), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def variables(recipe: str, *arguments: str) -> tuple[list[str], list[str]]:
    """The recipe's settings, and its splits."""
    shown = "show: ; @echo '$(SETTINGS)' ; echo '$(TRAIN) $(EVAL)'"
    ended = make(recipe, f"--eval={shown}", *arguments, "show")
    assert ended.returncode == 0, ended.stderr
    conf, splits = ended.stdout.splitlines()
    return conf.split(), splits.split()


def test_every_recipe_but_digits_is_tried_here():
    recipes = {path.parent.name for path in ROOT.glob("recipes/*/Makefile")}
    assert recipes - {"digits"} == set(FOLDERS) == set(COUNTS)


@pytest.mark.parametrize("recipe", FOLDERS)
def test_a_recipe_takes_its_corpus(recipe, tmp_path, monkeypatch):
    FOLDERS[recipe](tmp_path / "corpus", NOISE)
    conf, splits = variables(recipe, f"CORPUS_DIR={tmp_path / 'corpus'}")
    counts = COUNTS[recipe]
    assert splits == list(counts)
    quick = ["lang.lexicon.source=letters", "lang.lexicon.unknown=lose"]
    quick = [] if "lang.lexicon" in " ".join(conf) else quick
    config = settings("dnn", [*conf, *quick])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOBS", "1")
    write_yaml("conf/corpus.yaml", plain(config.corpus))
    write_yaml("conf/lexicon.yaml", plain(config.lang.lexicon))
    rows = {}
    for split in splits:
        STAGE("conf/corpus.yaml", "conf/lexicon.yaml", f"work/manifests/{split}.jsonl.gz")
        rows[split] = read_jsonl(f"work/manifests/{split}.jsonl.gz")
    assert {split: len(some) for split, some in rows.items()} == counts
    ids = [row["id"] for some in rows.values() for row in some]
    assert len(set(ids)) == len(ids)
    if recipe not in ("fsdd", "arctic", "yesno"):  # whose few speakers are in train and dev
        people = [{row["supervisions"][0]["speaker"] for row in some} for some in rows.values()]
        assert sum(map(len, people)) == len(set().union(*people))


@pytest.mark.parametrize("recipe", FOLDERS)
def test_a_recipe_without_its_corpus_says_what_is_missing(recipe, tmp_path):
    ended = make(recipe, f"CORPUS_DIR={tmp_path}", f"W={tmp_path}/work", "table")
    assert ended.returncode != 0
    assert f"{tmp_path}/" in ended.stderr
    assert "is missing" in ended.stderr
    assert "CORPUS_DIR" in ended.stderr
    assert not (tmp_path / "work").exists()
    assert make(recipe, "help").returncode == 0


@pytest.mark.parametrize("recipe", ["folder", "speechocean", "librispeech_mini", "arctic"])
def test_more_folders_are_handed_on(recipe, tmp_path):
    FOLDERS[recipe](tmp_path / "one", NOISE)
    folder(tmp_path / "two", NOISE)
    folder(tmp_path / "three", NOISE)
    more = f"MORE={tmp_path}/two {tmp_path}/three"
    conf, _ = variables(recipe, f"CORPUS_DIR={tmp_path}/one", more)
    config = settings("dnn", conf)
    assert config.corpus.folder.more_dirs == [f"{tmp_path}/two", f"{tmp_path}/three"]
    shutil.rmtree(tmp_path / "two")
    ended = make(recipe, f"CORPUS_DIR={tmp_path}/one", more, "table")
    assert f"{tmp_path}/two/utterances.tsv is missing" in ended.stderr


def test_every_test_split_is_planned(tmp_path):
    pooled(tmp_path / "corpus", NOISE)
    folders = f"CORPUS_DIR={tmp_path / 'corpus'}", f"W={tmp_path / 'work'}"
    ended = make("pooled", "-n", *folders, f"PY={sys.executable}", "table")
    assert ended.returncode == 0, ended.stderr
    for split in ("dev", "test", "test_speechocean"):
        assert f"exp/dnn/score.{split}.json" in ended.stdout


def test_parts_of_librispeech_are_chosen(tmp_path):
    librispeech(tmp_path, NOISE)
    parts = "PARTS=dev-clean train-clean-100 train-other-500"
    conf, _ = variables("librispeech", f"CORPUS_DIR={tmp_path}", parts)
    splits = settings("dnn", conf).corpus.published.splits
    assert splits["train"] == ["train-clean-100", "train-other-500"]
    assert splits["test_other"] == ["test-other"]
