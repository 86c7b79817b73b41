"""How make handles a corpus: paths with a space, unreadable folders, recordings that change."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import layouts
import pytest
import soundfile

from asr_train.files import read_yaml

ROOT = Path(__file__).parents[1]


def make(folder: Path, *arguments: str, **how) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "DEBUG")}
    env |= {"PYTHONPATH": str(ROOT), **how.pop("env", {})}
    return subprocess.run(
        ["make", "-s", "-C", str(folder), f"PY={sys.executable}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        **how,
    )


def one_line(ended: subprocess.CompletedProcess[str], says: str) -> None:
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.search(says, ended.stderr)
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("where", [ROOT, ROOT / "recipes/folder"])
def test_a_space_in_a_path_is_refused_in_one_line(where, tmp_path):
    corpus, spaced = tmp_path / "corpus", tmp_path / "a b"
    for folder in (corpus, spaced):
        folder.mkdir()
        (folder / "utterances.tsv").touch()
    goal = "folder" if where == ROOT else "table"
    asked = f"CORPUS_DIR={spaced}", f"W={tmp_path / 'w'}"
    one_line(make(where, goal, *asked), f"CORPUS_DIR is '{spaced}', but make .*; name a link")
    asked = f"CORPUS_DIR={corpus}", f"W={spaced}"
    one_line(make(where, goal, *asked), f"W is '{spaced}', but make does not support")


@pytest.mark.parametrize(
    "name", ["R&D", "a,b", "c(1)", "it's", "x;y", "50%", "a=b", "a:b", "a*", "a\\b", "a^b"]
)
def test_a_path_that_the_shell_or_settings_would_read_is_refused(tmp_path, name):
    corpus = tmp_path / name
    corpus.mkdir()
    (corpus / "utterances.tsv").touch()
    ended = make(ROOT / "recipes/folder", "-n", f"CORPUS_DIR={corpus}", f"W={tmp_path / 'w'}")
    one_line(ended, r"CORPUS_DIR is '.*', but paths with . are not supported; name a link")
    asked = f"CORPUS_DIR={tmp_path}", f"TEXT=/data/x.txt {corpus}", f"W={tmp_path / 'w'}"
    ended = make(ROOT / "recipes/speechocean", "-n", *asked)
    one_line(ended, r"TEXT is '.*', but paths with . are not supported; name a link")


@pytest.mark.parametrize("name", ["a$b", "a$(shell touch {})"])
def test_a_dollar_in_a_path_is_refused_and_not_expanded(tmp_path, name, monkeypatch):
    name = name.format(tmp_path / "trap")
    for given in ([f"CORPUS_DIR={name}", f"W={tmp_path / 'w'}"], [f"W={name}"], [f"TEXT={name}"]):
        ended = make(ROOT / "recipes/folder", "-n", *given)
        one_line(ended, rf"{given[0].split('=')[0]} is '{re.escape(name)}', but paths with \$")
    monkeypatch.setenv("CORPUS_DIR", name)
    one_line(make(ROOT, "-n", "folder"), r"CORPUS_DIR is 'a\$")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("lang=digits; feats=telephone", "the setting 'lang=digits;' cannot be read"),
        ("decode.beam=12 > x", "the setting '>' is neither group.key=value nor"),
        ("a=[x&y]", r"the setting 'a=\[x&y\]' cannot be read"),
        (
            "a=[o'neil]",
            r"SET is a=\[o'neil\] \(no closing quotation\); put a setting with ' in quo",
        ),
    ],
)
def test_no_shell_reads_settings(tmp_path, settings, says):
    ended = make(ROOT / "recipes/digits", "conf", f"SET={settings}", f"W={tmp_path / 'w'}")
    assert re.search(f"^resolve: {says}", ended.stderr)


def test_names_of_speakers_in_settings_are_no_commands(tmp_path):
    (tmp_path / "utterances.tsv").touch()
    (tmp_path / "command").write_text(f"#!/bin/sh\ntouch {tmp_path}/trap\n")
    (tmp_path / "command").chmod(0o755)
    name = f"o''neil||{tmp_path}/command||${{x}}"
    asked = f"CORPUS_DIR={tmp_path}", f"SET=corpus.folder.test_speakers=[{name}]"
    assert make(ROOT / "recipes/folder", "conf", *asked, f"W={tmp_path / 'w'}").returncode == 0
    assert not (tmp_path / "trap").exists()
    taken = read_yaml(tmp_path / "w/conf/corpus.yaml")["folder"]["test_speakers"]
    assert taken == [name.replace("'", "")]


def test_every_recipe_has_help():
    for recipe in sorted(path.parent for path in (ROOT / "recipes").glob("*/Makefile")):
        told = make(recipe, "help")
        assert (told.returncode, "make " in told.stdout) == (0, True), recipe


def test_the_hooks_recipe_refuses_variables_that_it_does_not_know():
    one_line(make(ROOT / "recipes/ddp_hook", "-n", "RANK=4"), "unknown variable RANK; `make -C rec")


def test_a_corpus_for_a_recipe_that_makes_its_own_is_told_where_it_goes(tmp_path):
    ended = make(ROOT / "recipes/digits", "status", f"CORPUS_DIR={tmp_path}")
    says = (
        "the recipe digits makes its own recordings, and has no CORPUS_DIR; for yours, call `make "
    )
    one_line(ended, f"{says}status RECIPE=folder CORPUS_DIR={tmp_path}`")
    ended = make(ROOT / "recipes/digits", "table", f"CORPUS_DIR={tmp_path}")
    one_line(ended, f"{says}folder CORPUS_DIR={tmp_path}`")


@pytest.mark.parametrize("device", ["gpu", "cuda0", "cuda:x", "cpu:1"])
def test_a_device_that_cannot_be_is_refused_before_any_stage(tmp_path, device):
    ended = make(ROOT / "recipes/digits", "-n", f"DEVICE={device}", f"W={tmp_path / 'w'}")
    one_line(ended, f"DEVICE is '{device}'; it must be cpu, cuda or cuda:N")


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:12"])
def test_a_device_is_handed_to_the_stages(monkeypatch, device):
    show = "--eval=show: ; @echo $$DEVICE"
    assert make(ROOT / "recipes/digits", show, f"DEVICE={device}", "show").stdout == f"{device}\n"
    monkeypatch.setenv("DEVICE", device)
    assert make(ROOT / "recipes/digits", show, "show").stdout == f"{device}\n"


def test_a_scale_that_no_paper_has_is_refused_in_one_line():
    for paper in sorted(path.parent for path in (ROOT / "recipes").glob("*/paper.yaml")):
        one_line(
            make(paper, "-n", "SCALE=huge"),
            "SCALE is 'huge'; it may be tiny, small, medium or full",
        )
        assert {*read_yaml(paper / "paper.yaml")["scales"]} == {"tiny", "small", "medium", "full"}


@pytest.mark.parametrize(
    ("recipe", "name", "content"),
    [
        ("speechocean", "official_test_speakers.txt", "so0001\nso2$(touch${{IFS}}{trap})\n"),
        ("fsdd", "utterances.tsv", "utt_id\tspeaker\nu1\ttheo\nu2\tx`touch${{IFS}}{trap}`\n"),
    ],
)
def test_names_of_speakers_are_no_commands(tmp_path, recipe, name, content):
    corpus, trap = tmp_path / "corpus", tmp_path / "trap"
    corpus.mkdir()
    for needed in ("utterances.tsv", "lm_text.txt"):
        (corpus / needed).touch()
    (corpus / name).write_text(content.format(trap=trap))
    asked = "-n", f"CORPUS_DIR={corpus}", f"W={tmp_path / 'w'}"
    ended = make(ROOT / "recipes" / recipe, "folds" if recipe == "fsdd" else "table", *asked)
    one_line(ended, f"a speaker in {corpus / name} is '.*touch.*', but names with . are not supp")
    assert not trap.exists()


def test_folds_are_for_the_goal_that_makes_them(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "utterances.tsv").write_text("utt_id\tspeaker\nu1\ttheo\nu2\tgeorge\n")
    fsdd = ROOT / "recipes/fsdd"
    asked = "-n", f"CORPUS_DIR={corpus}", f"W={tmp_path / 'w'}", "FOLDS=theo"
    one_line(make(fsdd, "table", *asked), "FOLDS is for .* folds`, but the goal is 'table'")
    ended = make(fsdd, "folds", *asked, "PRONPROBS=dnn", "EPOCHS=dnn/epochs/2")
    assert ended.returncode == 0
    (pooled,) = re.findall(r"scripts/pool\.py .*", ended.stdout)
    for row in ("mono", "dnn", "dnn-pronprobs", "dnn/epochs/2"):
        assert f"/fold-theo/exp/{row}/score.test.json " in pooled
    assert "fold-theo" in ended.stdout
    assert "fold-george" not in ended.stdout
    assert "undefined variable" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("given", ["LICENCE=CC0", "BUNDLE=mine.tar"])
def test_variables_of_a_bundle_are_for_its_goal(tmp_path, given):
    digits, name = ROOT / "recipes/digits", given.partition("=")[0]
    says = f"{name} is for `make bundle`, which .*; leave {name} out of the goal 'table'"
    one_line(make(digits, "-n", given, f"W={tmp_path / 'w'}"), says)
    assert make(digits, "-n", given, f"W={tmp_path / 'w'}", "bundle").returncode == 0


def test_a_recipe_is_named_by_the_goal_or_by_its_variable():
    for goal in ("digits", "strom2015", "strom2015-table3"):
        says = f"RECIPE is 'folder', but the goal is {goal}, .*; call `make folder`, or leave"
        one_line(make(ROOT, "-n", goal, "RECIPE=folder", "SIZE=tiny"), says)
    assert make(ROOT, "help", "RECIPE=folder").returncode == 0


@pytest.mark.parametrize("variable", ["TEXT", "MORE", "TEST_DIRS"])
def test_files_that_a_recipe_does_not_read_are_refused(tmp_path, variable):
    """Also where their path begins one that it reads."""
    corpus = tmp_path / "more" / "corpus"
    corpus.mkdir(parents=True)
    for folder in (corpus, corpus.parent):
        (folder / "utterances.tsv").touch()
    recipe = "folder" if variable == "TEXT" else "fsdd"
    asked = f"CORPUS_DIR={corpus}", f"{variable}={corpus.parent}", f"W={tmp_path / 'w'}"
    one_line(make(ROOT / "recipes" / recipe, "-n", *asked), f"{variable} is .*reads no such files")


def test_a_folder_that_is_not_named_is_asked_for():
    asked = make(ROOT / "recipes/folder")
    one_line(asked, "CORPUS_DIR is not given; .* a folder with utterances.tsv")
    one_line(make(ROOT, "check", "RECIPE=foldr"), "RECIPE is 'foldr'; it may be .* folder ")


@pytest.mark.parametrize("given", ["PYTHON=python3.12", "LMS=4-gram"])
def test_variables_of_the_roots_targets_may_be_given_with_a_recipe(given):
    show = "--eval=show: ; @echo $(UNKNOWN)"
    assert make(ROOT / "recipes/digits", show, given, "show").stdout == "\n"


def test_stages_run_the_code_of_their_checkout(tmp_path):
    """Not that of the checkout in which .venv was made, from which it was copied."""
    (tmp_path / "asr_train").mkdir()
    (tmp_path / "asr_train/__init__.py").touch()
    show = "--eval=show: ; @$(PY) -P -c 'import asr_train; print(asr_train.__file__)'"
    for folder in (ROOT, ROOT / "recipes/digits"):
        said = make(folder, show, "show", env={"PYTHONPATH": str(tmp_path)}).stdout
        assert said == f"{ROOT}/asr_train/__init__.py\n"


def test_what_the_page_on_kaldi_reads_is_there_after_its_call(tmp_path):
    """The settings; the manifests are of `check`, which a plan does not run."""
    page = (ROOT / "docs/kaldi.md").read_text()
    (call,) = re.findall(r"`make ([\w\s]+) CORPUS_DIR=path` makes the manifests and settings", page)
    layouts.table(tmp_path / "c", {name: ["one"] for name in "abc"})
    asked = [f"CORPUS_DIR={tmp_path / 'c'}", f"W={tmp_path / 'work'}"]
    ended = make(ROOT / "recipes/folder", "-n", *call.split(), *asked)
    assert ended.returncode == 0, ended.stderr
    read = {*re.findall(r"work/conf/\S+\.yaml", page)}
    assert read
    assert {path for path in read if not (tmp_path / path).exists()} == set()


def test_a_path_counts_from_the_root():
    show = "--eval=show: ; @echo $(CONF)"
    said = make(ROOT / "recipes/commands", show, "GRAMMAR=my.gram", "show").stdout
    assert f" corpus.commands.grammar={ROOT}/my.gram\n" in said


def test_changed_recordings_of_people_are_noticed_too():
    show = "--eval=show: ; @echo '$(SPEECH)'"
    for given, speech in ([], ""), (["HUMAN=/people"], "/people"):
        assert make(ROOT / "recipes/commands", show, *given, "show").stdout == f"{speech}\n"


def test_without_variables_nothing_is_undefined():
    """As in the plan that `make status` asks for."""
    words = ["make", "-C", str(ROOT / "recipes/digits"), "--warn-undefined-variables", "help"]
    env = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"}
    assert subprocess.run(words, capture_output=True, env=env, check=True).stderr == b""


def test_the_goal_that_status_names_counts_from_the_root_and_keeps_values_whole():
    show = "--eval=show: ; @printf '%s' \"$$ASR_GOAL\""
    given = "SET=a={b,c}\nd=$1 ", "GMMS=mono tri", "W=../w", "RECIPE=digits"
    said = make(ROOT / "recipes/digits", show, *given, "show").stdout
    assert r"SET=a={b,c}\ d=$1\ " in said
    assert r"GMMS=mono\ tri" in said
    assert f" W={ROOT}/recipes/w" in said
    assert "RECIPE" not in said


def test_the_goal_that_status_names_has_the_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("SEEDS", "1 2")
    show = "--eval=show: ; @printf '%s' \"$$ASR_GOAL\""
    said = make(ROOT / "recipes/digits", show, "RUNS=gtc", "show").stdout
    assert said.split(" ", 1)[0] == "digits"
    variables = dict(re.findall(r"(\S+)=((?:\\.|[^\\ ])*)", said))
    assert variables == {"PY": sys.executable, "RUNS": "gtc", "SEEDS": r"1\ 2"}


def test_a_plan_on_a_fresh_clone_says_that_packages_are_missing(tmp_path):
    (tmp_path / "recipes/digits").mkdir(parents=True)
    for part in ("Makefile", "recipes/paths.mk", "recipes/digits/Makefile"):
        shutil.copy(ROOT / part, tmp_path / part)
    for part in ("requirements.lock", "pyproject.toml"):
        (tmp_path / part).touch()
    said = make(tmp_path, "-n", "digits").stderr
    assert said.startswith("a plan (-n) needs .venv; set it up by: make .venv/.ready\n")


def test_a_space_in_the_path_of_the_checkout_is_refused_in_one_line(tmp_path):
    checkout = tmp_path / "a b"
    for part in ("recipes/folder/Makefile", "recipes/digits/Makefile", "Makefile"):
        (checkout / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, checkout / part)
    for part in (ROOT / "recipes").glob("*.mk"):
        shutil.copy(part, checkout / "recipes")
    for folder in (checkout, checkout / "recipes/digits", checkout / "recipes/folder"):
        one_line(make(folder, "help"), f"the checkout is '{folder}', but make does not support")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
def test_a_folder_that_may_not_be_read_is_not_called_empty():
    with tempfile.TemporaryDirectory() as folder:
        layouts.table(Path(folder), {"ann": ["ONE"]})
        os.chmod(folder, 0o700)
        asked = "table", f"CORPUS_DIR={folder}"
        ended = make(ROOT / "recipes/folder", *asked, user=65534, group=65534, extra_groups=[])
        if "Permission denied" in ended.stderr:
            pytest.skip("nobody else may read this checkout")
        one_line(ended, f"no permission to read the folder {folder}")


@pytest.fixture
def checked(tmp_path, python):
    """A folder of noises that was checked, and arguments of make."""
    layouts.table(tmp_path / "c", {name: ["one, two.", "three!"] for name in "abcdef"})
    asked = [f"CORPUS_DIR={tmp_path / 'c'}", f"W={tmp_path / 'w'}", "JOBS=1"]
    asked += [f"PY={python}", "SET=lang.lexicon.source=letters feats=telephone"]
    ended = make(ROOT / "recipes/folder", "check", *asked)
    assert ended.returncode == 0, ended.stderr
    assert "'one, two.' is ONE TWO" in ended.stdout
    assert "check: 0 of 3 different words without pronunciation" in ended.stdout
    return asked


def plan(*asked: str) -> list[str]:
    """Return the commands that make would run for stages."""
    ended = make(ROOT / "recipes/folder", "-n", "table", *asked)
    assert ended.returncode == 0, ended.stderr
    commands = re.findall(r"scripts/(\w+)\.py .* (\S+)$", ended.stdout, re.MULTILINE)
    return [Path(out).name.split(".")[0] for stage, out in commands if stage == "manifests"]


@pytest.mark.slow
def test_recordings_that_change_are_taken_anew_and_status_says_so(checked, tmp_path):
    recipe = ROOT / "recipes/folder"
    again = make(recipe, "check", *checked)
    assert again.stdout == (tmp_path / "w/manifests/check.txt").read_text()
    assert plan(*checked) == []
    listed = (tmp_path / "w/manifests/test.audio.tsv").read_text()
    audio = Path(listed.splitlines()[0].split("\t")[3])
    os.utime(audio, (9, 9))  # as in a copy of the corpus
    assert plan(*checked) == []
    wave, rate = soundfile.read(audio)
    soundfile.write(audio, wave[::-1], rate)
    assert plan(*checked) == ["test"]
    status = make(recipe, "status", *checked)
    assert f"{audio} changed since {tmp_path}/w/manifests/test.jsonl.gz was made" in status.stderr
    states = {row.split()[-1]: row.split()[0] for row in status.stdout.splitlines()[1:-1]}
    made = f"{tmp_path}/w/manifests"
    assert states[f"{made}/test.jsonl.gz"] == states[f"{made}/check.txt"] == "stale"
    assert states[f"{made}/train.jsonl.gz"] == "done"
    assert make(recipe, "check", *checked).returncode == 0
    assert plan(*checked) == []


def test_a_check_leaves_the_settings_of_what_was_made(checked, tmp_path):
    """Other runs and systems are no reason to make stages again, and its folder can be removed."""
    recipe, conf = ROOT / "recipes/folder", tmp_path / "w/conf"
    names = {path.name for path in conf.iterdir() if path.suffix == ".yaml"}
    assert names == {"corpus.yaml", "lexicon.yaml", "ali.yaml", "splits.yaml"}
    more = checked[-1] + " decode.beam=9 optim.rate=0.1"
    assert make(recipe, "conf", *checked[:-1], more, "RUNS=gtc", "GMMS=mono").returncode == 0
    settings = {path: path.read_text() for path in conf.rglob("*.yaml")}
    assert len(settings) > 20
    assert make(recipe, "check", *checked).returncode == 0
    assert {path: path.read_text() for path in conf.rglob("*.yaml")} == settings
    assert make(recipe, "clean", *checked).returncode == 0
    assert not conf.exists()


@pytest.mark.slow
def test_corrections_and_further_sets_of_test_train_nothing_again(checked, tmp_path):
    """TRAIN's files keep their time; another recording under an old name counts as changed."""
    recipe, work = ROOT / "recipes/folder", tmp_path / "w"
    for name, speakers in {"t": "gh", "u": "ij"}.items():
        layouts.table(tmp_path / name, {speaker: ["three two", "one"] for speaker in speakers})
    outputs = [
        "lang/index.json",
        *(f"feats/{split}.jsonl.gz" for split in ("train", "dev", "test")),
    ]
    trained = ["manifests/train.jsonl.gz", "lang/index.json", "feats/train.jsonl.gz"]

    def times(*test_dirs: str) -> dict[str, int]:
        wanted = [f"{work}/{output}" for output in outputs]
        asked = [f"TEST_DIRS={' '.join(str(tmp_path / name) for name in test_dirs)}", *checked]
        ended = make(recipe, *wanted, *asked)
        assert ended.returncode == 0, ended.stderr
        planned = make(recipe, "-n", *wanted, *asked).stdout
        assert set(re.findall(r"scripts/(\w+)", planned)) == {"resolve", "recordings"}
        return {name: (work / name).stat().st_mtime_ns for name in [*trained, *outputs]}

    first = times("t")
    table = tmp_path / "t/utterances.tsv"
    table.write_text(table.read_text().replace("three two", "two three"))
    corrected = times("t")
    assert {name for name in first if first[name] != corrected[name]} == {"feats/test.jsonl.gz"}
    outputs.append("feats/test_u.jsonl.gz")
    more = times("t", "u")
    assert more == corrected | {outputs[-1]: more[outputs[-1]]}
    audio = Path((work / "manifests/train.audio.tsv").read_text().splitlines()[0].split("\t")[3])
    wave, rate = soundfile.read(audio)
    soundfile.write(audio, wave[::-1], rate)
    assert audio.suffix != ".tsv"
    again = times("t", "u")
    assert {name for name in more if more[name] != again[name]} == {trained[0], trained[2]}
