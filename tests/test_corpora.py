"""Every recipe that needs recordings reads a folder in its corpus's layout with its own settings in
the manifests stage, or reports what is missing."""

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from folders import FOLDERS, NOISE, folder, librispeech, mini_librispeech, speechocean

from asr_train.compose import settings
from asr_train.files import read_jsonl, write_yaml
from asr_train.schema import plain

ROOT = Path(__file__).parents[1]
STAGE = runpy.run_path(str(ROOT / "scripts" / "manifests.py"))["manifests"]
COUNTS = {  # utterances per split, where each speaker has two
    "fsdd": {"train": 9, "dev": 1, "test": 2},
    "folder": {"train": 16, "dev": 2, "test": 2},
    "speechocean": {"train": 14, "dev": 2, "test": 4},
    "librispeech_mini": {"train": 14, "dev": 2, "test": 4},
    "arctic": {"train": 9, "dev": 1, "test": 10},
    "pooled": {"train": 34, "dev": 2, "test": 4, "test_speechocean": 4},
    "english": {"train": 64, "dev": 4, "test": 4},
    "mini_librispeech": {"train": 18, "dev": 2, "test": 2},
    "librispeech": {"train": 20, "dev": 2, "test": 2, "test_other": 2},
    "an4": {"train": 18, "dev": 2, "test": 2},
    "yesno": {"train": 27, "dev": 3, "test": 30},
    "swbd": {"train": 18, "dev": 2, "test": 4, "test_callhome": 4},
}
# `make test` plans some: with one corpus, with several, and with several test sets.
QUICK = ("fsdd", "pooled", "swbd")
PLANNED = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FOLDERS]


def make(recipe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-s", "-C", str(ROOT / "recipes" / recipe), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def variables(recipe: str, *arguments: str) -> tuple[list[str], list[str]]:
    """Return the recipe's settings, and its splits."""
    conf, splits = values(recipe, "SETTINGS", "TRAIN EVAL", arguments=arguments)
    return conf, splits


def values(recipe: str, *names: str, arguments: Iterable[str]) -> list[list[str]]:
    """Return the words of variables of make; those of several are named in one string."""
    shown = " ; ".join(f"echo '{' '.join(f'$({n})' for n in each.split())}'" for each in names)
    ended = make(recipe, f"--eval=show: ; @{shown}", *arguments, "show")
    assert ended.returncode == 0, ended.stderr
    return [line.split() for line in ended.stdout.splitlines()]


def test_the_whole_speechocean_is_tested_on_its_official_speakers(tmp_path):
    speechocean(tmp_path, NOISE)
    speakers = sorted(row.split("\t")[1] for row in utterances(tmp_path))
    chosen = speakers[:4]
    names = tmp_path / "official_test_speakers.txt"
    names.write_text("".join(f"{s}\n" for s in chosen))
    official, _ = variables("speechocean", f"CORPUS_DIR={tmp_path}")
    found = settings("dnn", official).corpus.folder
    assert (found.test_every, set(found.test_speakers)) == (None, set(chosen))
    fifth, _ = variables("speechocean", f"CORPUS_DIR={tmp_path}", "SPLIT=fifth")
    assert settings("dnn", fifth).corpus.folder.test_every == 5
    ended = make("speechocean", f"CORPUS_DIR={tmp_path}", "SPLIT=half", "help")
    assert "SPLIT is half; it must be official or fifth" in ended.stderr
    for content, state in (("\n", "empty"), (None, "missing")):
        names.unlink() if content is None else names.write_text(content)
        ended = make("speechocean", f"CORPUS_DIR={tmp_path}", "SPLIT=official", "table")
        assert f"SPLIT is official, but {names} is {state}; write" in ended.stderr
    assert make("speechocean", "SPLIT=official", "help").returncode == 0


def utterances(folder: Path) -> list[str]:
    return (folder / "utterances.tsv").read_text().splitlines()[1:]


def test_every_recipe_with_a_corpus_of_its_own_is_tried_here():
    recipes = {path.parent.name for path in ROOT.glob("recipes/*/Makefile")}
    papers = {path.parent.name for path in ROOT.glob("recipes/*/paper.yaml")}
    assert recipes - papers - {"digits", "commands", "ddp_hook"} == set(FOLDERS) == set(COUNTS)


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


# A rule of recipes/corpus.mk: for utterances.tsv, for language models too, for several corpora
@pytest.mark.parametrize("recipe", ["folder", "librispeech", "pooled"])
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
    assert f"{tmp_path}/two/utterances.tsv is missing: correct {more[:4]}='" in ended.stderr


def test_folders_for_dev_and_test_are_handed_on(tmp_path):
    for name in ("one", "dev", "one/Clean.2", "far"):
        folder(tmp_path / name, NOISE)
    given = [f"CORPUS_DIR={tmp_path}/one", f"DEV_DIR={tmp_path}/dev"]
    tests = f"TEST_DIRS={tmp_path}/far {tmp_path}/one/Clean.2"
    conf, tested, speech = values("folder", "CONF", "TEST", "SPEECH", arguments=[*given, tests])
    found = settings("dnn", conf).corpus.folder
    assert found.dev_dir == f"{tmp_path}/dev"
    assert found.test_dirs == {"test": f"{tmp_path}/far", "test_clean_2": f"{tmp_path}/one/Clean.2"}
    assert tested == list(found.test_dirs)
    assert {f"{path}/utterances.tsv" for path in found.held_out.values()} < set(speech)
    assert values("folder", "TEST", arguments=given) == [["test"]]
    twice = f"TEST_DIRS={tmp_path}/one {tmp_path}/far {tmp_path}/one/../far"
    ended = make("folder", *given, twice, "table")
    assert "whose splits would be called test test_far test_far; name links" in ended.stderr
    ended = make("folder", *given, f"TEST_DIRS={tmp_path}/near", "table")
    assert f"{tmp_path}/near/utterances.tsv is missing: correct TEST_DIRS='" in ended.stderr
    ended = make("folder", given[0], f"DEV_DIR={tmp_path}/near", "table")
    assert f"{tmp_path}/near/utterances.tsv is missing: correct DEV_DIR='" in ended.stderr
    FOLDERS["fsdd"](tmp_path / "fsdd", NOISE)
    for each in given[1], tests:
        ended = make("fsdd", f"CORPUS_DIR={tmp_path}/fsdd", each, "table")
        assert f"{each.partition('=')[0]} is '" in ended.stderr
        assert "this recipe reads no such files" in ended.stderr


def test_synthesised_speech_and_recordings_may_be_trained_on_together(tmp_path):
    folders = [tmp_path / name for name in ("two", "three")]
    for each in folders:
        folder(each, NOISE)
    asked = ("SCALE=medium", f"MORE={' '.join(map(str, folders))}")
    conf, speech = values("strom2015", "CONF", "SPEECH", arguments=asked)
    assert speech == list(map(str, folders))  # whose recordings may change
    assert settings("dnn", conf).corpus.commands.more_dirs == speech
    alone = settings("dnn", [each for each in conf if "more_dirs" not in each])
    assert "more_dirs" not in plain(alone.corpus)["commands"]  # as in work folders made before


@pytest.mark.parametrize("recipe", QUICK)
def test_all_is_planned_and_missing_at_first(recipe, tmp_path, python):
    FOLDERS[recipe](tmp_path / "corpus", NOISE)
    work = tmp_path / "work"
    asked = f"CORPUS_DIR={tmp_path}/corpus", f"W={work}", f"PY={python}"
    planned = make(recipe, "-n", *asked, "table")
    assert planned.returncode == 0, planned.stderr
    models = systems(recipe, *asked)
    for split in list(COUNTS[recipe])[1:]:
        for model in models:
            assert f"{work}/exp/{model}/score.{split}.json" in planned.stdout
    ended = make(recipe, *asked, "status")
    assert ended.returncode == 0, ended.stderr
    summary = ended.stdout.splitlines()[-1]
    assert re.match(rf"0 done, 0 stale, \d+ missing; next: make {recipe} ", summary)
    assert f"CORPUS_DIR={tmp_path}/corpus" in summary
    assert make(recipe, *asked, "clean").returncode == 0
    assert not work.exists()


def systems(recipe: str, *arguments: str) -> list[str]:
    """Return the models that the recipe tests, with those that are rescored."""
    return values(recipe, "MODELS RESCORED", arguments=arguments)[0]


@pytest.mark.parametrize("recipe", PLANNED)
def test_systems_may_be_left_out(recipe, tmp_path):
    FOLDERS[recipe](tmp_path, NOISE)
    for gmms in (["mono"], ["mono", "tri"], ["mono", "tri", "lda"]):
        asked = f"CORPUS_DIR={tmp_path}", f"GMMS={' '.join(gmms)}", "REALIGN=0"
        found, conf = values(recipe, "MODELS RESCORED", "SETTINGS", arguments=asked)
        assert found in ([*gmms, "dnn"], [*gmms, "dnn", "dnn-rescored"])
        config = settings("dnn", conf)
        assert set(config.gmm) == set(gmms)
        assert ("dnn-rescored" in found) == (config.lm.big is not None)
    assert systems(recipe, *asked, "REALIGN=2", "RESCORE=")[-2:] == ["dnn-realign1", "dnn-realign2"]


def test_mini_librispeech_is_rescored_where_the_large_model_is(tmp_path):
    mini_librispeech(tmp_path, NOISE)
    assert systems("mini_librispeech", f"CORPUS_DIR={tmp_path}")[-1] == "dnn-realign1-rescored"
    (tmp_path / "lm/4-gram.arpa.gz").unlink()
    assert systems("mini_librispeech", f"CORPUS_DIR={tmp_path}")[-1] == "dnn-realign1"
    conf, _ = variables("mini_librispeech", f"CORPUS_DIR={tmp_path}")
    models = settings("dnn", conf).lm
    assert models.small.file == f"{tmp_path}/lm/3-gram.pruned.1e-7.arpa.gz"
    assert models.big is None
    ended = make("librispeech", f"CORPUS_DIR={tmp_path}", "table")
    assert f"{tmp_path}/lm/4-gram.arpa.gz is missing" in ended.stderr
    assert "LM_BIG= does without the 4-gram" in ended.stderr


def test_other_text_and_models_are_taken_from_where_one_says(tmp_path):
    speechocean(tmp_path, NOISE)
    text = tmp_path / "other.txt"
    text.write_text("ONE\n")
    conf, _ = variables("speechocean", f"CORPUS_DIR={tmp_path}", f"TEXT={text}")
    assert settings("dnn", conf).lm.text == [str(text)]
    (tmp_path / "lm_text.txt").unlink()
    ended = make("speechocean", f"CORPUS_DIR={tmp_path}", "table")
    assert f"{tmp_path}/lm_text.txt is missing" in ended.stderr
    mini_librispeech(tmp_path, NOISE)
    small = tmp_path / "lm/4-gram.arpa.gz"
    asked = f"CORPUS_DIR={tmp_path}", f"LM_SMALL={small}", "LM_BIG="
    assert settings("dnn", variables("mini_librispeech", *asked)[0]).lm.small.file == str(small)


@pytest.mark.parametrize("recipe", ["librispeech", "mini_librispeech"])
def test_one_file_does_not_silently_become_both_models(recipe, tmp_path):
    librispeech(tmp_path, NOISE)
    text = tmp_path / "text.txt"
    text.write_text("ONE\n")
    for given, message in (
        ("LM_SMALL=", "LM_SMALL is empty, but the decoding graph needs a language model; name"),
        (f"TEXT={text}", f"TEXT is '{text}', but this recipe reads no such files; leave it out"),
        ("LM_BIG=no/such.gz", "/no/such.gz is missing: correct LM_BIG='no/such.gz', or leave"),
    ):
        ended = make(recipe, f"CORPUS_DIR={tmp_path}", given, "table")
        assert message in ended.stderr
    same = f"LM_SMALL={tmp_path}/lm/4-gram.arpa.gz"
    models = settings("dnn", variables(recipe, f"CORPUS_DIR={tmp_path}", same)[0]).lm
    assert models.small.file == models.big.file == same.partition("=")[2]  # as one says


def test_parts_of_librispeech_are_chosen(tmp_path):
    librispeech(tmp_path, NOISE)
    parts = "PARTS=dev-clean train-clean-100 train-other-500"
    conf, _ = variables("librispeech", f"CORPUS_DIR={tmp_path}", parts)
    splits = settings("dnn", conf).corpus.published.splits
    assert splits["train"] == ["train-clean-100", "train-other-500"]
    assert splits["test_other"] == ["test-other"]


@pytest.mark.parametrize("recipe", ["fsdd", "yesno"])
def test_a_papers_tables_may_be_of_a_corpus_with_recordings(recipe, tmp_path):
    FOLDERS[recipe](tmp_path, NOISE)
    asked = [f"CORPUS={recipe}", f"CORPUS_DIR={tmp_path}", "SCALE=tiny", "TABLES=table2"]
    asked.append(f"PY={sys.executable}")
    conf, splits = variables("strom2015", *asked)
    corpus = settings("dnn", conf).corpus
    assert (corpus.folder or corpus.published).dir == str(tmp_path)
    assert splits == list(COUNTS[recipe])
    named = [each.partition("=")[2] for each in conf if ".file=" in each]
    assert all(Path(path).exists() for path in named)
