"""Every recipe that needs recordings takes a folder laid out as its corpus is, through its own
settings and the manifests stage; and says what is missing where there is none."""

import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import layouts
import pytest

from asr_train.data.published import hub5_text, ms98_text
from asr_train.files import read_jsonl, write_yaml
from asr_train.schema import plain
from scripts.resolve import settings

ROOT = Path(__file__).parents[1]
STAGE = runpy.run_path(str(ROOT / "scripts" / "manifests.py"))["manifests"]
TEXTS = ["ONE TWO", "THREE"]
PEOPLE = dict.fromkeys("abcdefghij", TEXTS)


def folder(root: Path) -> None:
    layouts.table(root, PEOPLE)


def arctic(root: Path) -> None:
    layouts.table(root, dict.fromkeys(("bdl", "slt"), TEXTS * 5))
    layouts.lines(
        root / "phone_labels_slt.tsv",
        "utt_id\tstart_seconds\tend_seconds\tphone",
        *(f"slt-{i}\t0.0\t0.2\tpau" for i in range(10)),
    )


def pooled(root: Path) -> None:
    layouts.table(root / "librispeech_mini", dict.fromkeys(map(str, range(40)), TEXTS))
    layouts.table(root / "speechocean762", PEOPLE)
    layouts.table(root / "cmu_arctic", dict.fromkeys(("bdl", "slt"), TEXTS))


def mini_librispeech(root: Path) -> None:
    layouts.librispeech(root, {"train-clean-5": PEOPLE, "dev-clean-2": {"84": TEXTS}})


def librispeech(root: Path) -> None:
    readers = {"train-clean-100": PEOPLE, "dev-clean": {"84": TEXTS}}
    layouts.librispeech(root, {**readers, "test-clean": {"61": TEXTS}, "test-other": {"6": TEXTS}})


def an4(root: Path) -> None:
    layouts.an4(root, {"train": PEOPLE, "test": {"fcaw": TEXTS}})


def swbd(root: Path) -> None:
    side = ["[laughter-one] two", "three [noise]"]
    numbers = [str(number) for number in range(2001, 2006)]
    layouts.switchboard(root, dict.fromkeys(numbers, (side, side)), plain=ms98_text)
    halves = ["%um, one"], ["((two)) {laugh}"]
    layouts.hub5(root, {"sw_4390": halves, "en_4156": halves}, plain=hub5_text)


FOLDERS: dict[str, tuple[Callable[[Path], None], dict[str, int]]] = {  # utterances a split
    "fsdd": (lambda root: layouts.table(root, {"theo": TEXTS * 5, "yweweler": TEXTS}), {}),
    "folder": (folder, {"train": 16, "dev": 2, "test": 2}),
    "speechocean": (folder, {"train": 14, "dev": 2, "test": 4}),
    "librispeech_mini": (folder, {"train": 14, "dev": 2, "test": 4}),
    "arctic": (arctic, {"train": 9, "dev": 1, "test": 10}),
    "pooled": (pooled, {"train": 80, "dev": 4, "test": 16, "test_speechocean": 4}),
    "mini_librispeech": (mini_librispeech, {"train": 18, "dev": 2, "test": 2}),
    "librispeech": (librispeech, {"train": 20, "dev": 2, "test": 2, "test_other": 2}),
    "an4": (an4, {"train": 18, "dev": 2, "test": 2}),
    "yesno": (layouts.yesno, {"train": 27, "dev": 3, "test": 30}),
    "swbd": (swbd, {"train": 18, "dev": 2, "test": 2, "test_callhome": 2}),
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
    shown = "show: ; @echo '$(CONF)' ; echo '$(TRAIN) $(EVAL)'"
    ended = make(recipe, f"--eval={shown}", *arguments, "show")
    assert ended.returncode == 0, ended.stderr
    conf, splits = ended.stdout.splitlines()
    return conf.split(), splits.split()


def test_every_recipe_but_digits_is_tried_here():
    recipes = {path.parent.name for path in ROOT.glob("recipes/*/Makefile")}
    assert recipes - {"digits"} == set(FOLDERS)


@pytest.mark.parametrize("recipe", FOLDERS)
def test_a_recipe_takes_its_corpus(recipe, tmp_path, monkeypatch):
    lay_out, counts = FOLDERS[recipe]
    lay_out(tmp_path / "corpus")
    conf, splits = variables(recipe, f"CORPUS_DIR={tmp_path / 'corpus'}")
    counts = counts or {"train": 9, "dev": 1, "test": 2}
    assert splits == list(counts)
    quick = [] if "lang.lexicon" in " ".join(conf) else ["lang.lexicon.source=letters"]
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
    lay_out, _ = FOLDERS[recipe]
    lay_out(tmp_path / "one")
    folder(tmp_path / "two")
    folder(tmp_path / "three")
    more = f"MORE={tmp_path}/two {tmp_path}/three"
    conf, _ = variables(recipe, f"CORPUS_DIR={tmp_path}/one", more)
    config = settings("dnn", conf)
    assert config.corpus.folder.more_dirs == [f"{tmp_path}/two", f"{tmp_path}/three"]
    shutil.rmtree(tmp_path / "two")
    ended = make(recipe, f"CORPUS_DIR={tmp_path}/one", more, "table")
    assert f"{tmp_path}/two/utterances.tsv is missing" in ended.stderr


def test_every_test_split_is_planned(tmp_path):
    pooled(tmp_path / "corpus")
    folders = f"CORPUS_DIR={tmp_path / 'corpus'}", f"W={tmp_path / 'work'}"
    ended = make("pooled", "-n", *folders, f"PY={sys.executable}", "table")
    assert ended.returncode == 0, ended.stderr
    for split in ("dev", "test", "test_speechocean"):
        assert f"exp/dnn/score.{split}.json" in ended.stdout


def test_parts_of_librispeech_are_chosen(tmp_path):
    librispeech(tmp_path)
    parts = "PARTS=dev-clean train-clean-100 train-other-500"
    conf, _ = variables("librispeech", f"CORPUS_DIR={tmp_path}", parts)
    splits = settings("dnn", conf).corpus.published.splits
    assert splits["train"] == ["train-clean-100", "train-other-500"]
    assert splits["test_other"] == ["test-other"]
