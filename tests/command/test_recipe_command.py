"""asr-train check, plan and recipe; and the files that a wheel brings for them."""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import layouts
import pytest
import soundfile
from spoken import RATE, said

from asr_train.command.main import main
from asr_train.command.plan import call
from asr_train.files import read_yaml

ROOT = Path(__file__).parents[2]


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code


@pytest.fixture
def corpus(tmp_path):
    layouts.table(tmp_path / "a b", {name: ["one two", "three"] for name in "abcdef"})
    return tmp_path / "a b"


def test_check_prints_what_make_check_does(corpus, capsys):
    corpus = corpus.rename(corpus.with_name("a \\b${c}\\'d\\"))
    own = ["feats=telephone", "lang.lexicon.source=letters"]
    assert run("check", corpus, *own) == 0
    out = capsys.readouterr().out
    assert "check: 0 of 3 different words without pronunciation" in out
    assert "check: 0 of 12 utterances dropped" in out
    other = corpus.with_name("other")
    layouts.table(other, {"x": ["one two"], "y": ["three"]})
    (other / "utterances.tsv").open("a").write("z\tx\tno.wav\t1.0\tone\n")
    for key in ("test_dirs", "more_tests"):
        named = f"test_two: {other}" + f", test: {other}2" * (key == "test_dirs")
        shutil.copytree(other, f"{other}2", dirs_exist_ok=True)
        assert run("check", corpus, *own, f"corpus.folder.{key}={{{named}}}") == 1
        assert "  z: missing audio: " in capsys.readouterr().out
    table = corpus / "utterances.tsv"
    table.write_text(table.read_text() + "x\ta\tno.wav\t1.0\tone\ny\tb\tno.wav\t1.0\tone\n")
    assert run("check", corpus, *own) == 1
    out, error = capsys.readouterr()
    assert "2 missing audio" in error
    assert "  x: missing audio: " in out
    assert "  y: missing audio: " in out
    assert error.count("\n") == 1


def test_plan_writes_where_it_is_told(tmp_path, capsys, monkeypatch):
    given = "cluster=h200_10g", "workers=4", "blocks=5", "groups=2", "model=1M"
    assert run("plan", *given, f"out={tmp_path}") == 0
    known = (tmp_path / "plan.md").read_text()
    assert "make plan CLUSTER=h200_10g MODEL=1M WORKERS=4 " in known
    assert f"'OUT={tmp_path}/a b'" in call({"cluster": "", "out": f"{tmp_path}/a b"})
    monkeypatch.setattr("asr_train.command.plan.IS_CHECKOUT", False)
    assert call({"workers": "4", "out": "a b"}) == "asr-train plan workers=4 'out=a b'"
    assert run("plan", "mels=0") == 1
    assert "mels is '0'; it must be an integer, 1 or more" in capsys.readouterr().err
    assert run("plan", "cluter=x") == 1
    assert "did you mean cluster?" in capsys.readouterr().err


def test_recipe_calls_make_with_a_folder_here(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    assert run("recipe") == 0
    assert {"digits", "folder", "strom2015"} <= set(capfd.readouterr().out.split())
    assert run("recipe", "digits", "SIZE=tiny", "-n") == 0
    out = capfd.readouterr().out
    assert f"{tmp_path}/digits-work-tiny/exp/dnn/model.json" in out
    assert (tmp_path / "digits-work-tiny/conf/decode.yaml").exists()
    assert run("recipe", "digits", "SIZE=tiny", "status") == 0
    out = capfd.readouterr().out
    assert out.endswith(
        f"; next: asr-train recipe digits W={tmp_path}/digits-work-tiny SIZE=tiny\n"
    )
    layouts.table(tmp_path / "own", {"ann": ["one"]})
    assert run("recipe", "folder", "CORPUS_DIR=own", "status") == 0
    assert capfd.readouterr().out.endswith(
        f"; next: asr-train recipe folder W={tmp_path}/folder-work CORPUS_DIR={tmp_path}/own\n"
    )
    assert run("recipe", "digits", "W=", "-n") == 2
    assert "W is ''; name a folder" in capfd.readouterr().err
    layouts.table(tmp_path / "people", {"ann": ["one"]})
    (tmp_path / "my.gram").touch()
    given = "HUMAN=people", "GRAMMAR=my.gram"
    assert run("recipe", "commands", *given, "-n") == 0
    settings = read_yaml(tmp_path / "commands-work/conf/corpus.yaml")["commands"]
    assert settings["human"] == f"{tmp_path}/people"
    assert settings["grammar"] == f"{tmp_path}/my.gram"
    assert run("recipe", "digit") == 1
    assert "did you mean 'digits'?" in capfd.readouterr().err
    assert run("recipe", "digits", "RUN=sgd") == 2
    assert "RUN is for `make bundle`; the networks to train are RUNS" in capfd.readouterr().err


def test_a_folder_with_other_things_is_not_removed(tmp_path, capfd, monkeypatch):
    """What `conf` writes into a folder of the user's does not make all of it ours."""
    here = tmp_path / "mine" / "here"
    (here / "w" / "conf").mkdir(parents=True)
    monkeypatch.chdir(here)
    for work in ".", "..", here, f"{here}/w/..":
        assert run("recipe", "digits", f"W={work}", "clean") == 1
        assert "the current folder or one above it; " in capfd.readouterr().err
    monkeypatch.setenv("W", "..")
    assert run("recipe", "digits", "clean") == 1
    monkeypatch.delenv("W")
    for name in "conf/corpus.yaml", "lang-weak", "folds.md", ".tmp.x", "notes.txt":
        (here / "w" / name).touch()
    assert run("recipe", "digits", "W=w", "clean") == 2
    assert f"{here}/w contains notes.txt, which no stage makes; nothing" in capfd.readouterr().err
    (here / "w" / "notes.txt").unlink()
    assert run("recipe", "digits", "W=w", "clean") == 0
    assert not list(here.iterdir())


def test_ctrl_c_leaves_it_to_make_to_stop_its_stages(tmp_path):
    """It was killed after a quarter of a second, and the stage went on."""
    make = tmp_path / "make"
    make.write_text(
        "#!/bin/bash\ntrap 'sleep 1; echo stopped; exit 7' INT\necho up\n"
        "for ((i = 0; i < 3000; i++)); do sleep 0.1; done\n"
    )
    make.chmod(0o755)
    command = subprocess.Popen(
        [sys.executable, "-m", "asr_train", "recipe", "digits", f"W={tmp_path}/w"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert command.stdout.readline() == "up\n"
    os.killpg(command.pid, signal.SIGINT)
    assert command.communicate(timeout=300) == ("stopped\n", "")
    assert command.returncode == 7


def test_every_size_scale_and_corpus_has_a_folder_of_its_own(tmp_path, capsys, monkeypatch):
    """As in a checkout: another one would train in the folder of the first, and replace it."""
    called, environments = [], []

    def make(words, env, **_):
        called.append(words)
        environments.append(env)
        return subprocess.CompletedProcess([], 0)

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", make)
    for given in ("digits", "SIZE=tiny"), ("strom2015", "SCALE=tiny", "CORPUS=digits"):
        assert run("recipe", *given) == 0
    monkeypatch.setenv("SIZE", "tiny")  # not of fsdd, whose make does not read it
    monkeypatch.setenv("CORPUS_DIR", "corpus")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/fsdd").mkdir(parents=True)
    for given in ("digits",), ("fsdd",), ("fsdd", "W=w"):
        assert run("recipe", *given) == 0
    folders = [next(w for w in words if w.startswith("W=")) for words in called]
    assert [folder.rpartition("/")[2] for folder in folders] == [
        *("digits-work-tiny", "strom2015-work-tiny-digits"),
        *("digits-work-tiny", "fsdd-work", "w"),
    ]
    assert not any(word.startswith("CORPUS_DIR") for words in called for word in words)
    assert environments[-1]["CORPUS_DIR"] == f"{tmp_path}/corpus"
    monkeypatch.delenv("CORPUS_DIR")
    (tmp_path / "data/fsdd").rmdir()
    assert run("recipe", "fsdd") == 0
    assert f"CORPUS_DIR={tmp_path}/data/fsdd" in called[-1]  # it says what is missing there
    for name, corpus in {"english": "data", "arctic": "data/cmu_arctic"}.items():
        assert run("recipe", name) == 0
        assert f"CORPUS_DIR={tmp_path}/{corpus}" in called[-1]  # not in the package
    monkeypatch.setattr(subprocess, "run", real)
    monkeypatch.setenv("CORPUS_DIR", "corpus")
    for name in "fsdd", "digits":  # what a recipe does not read does not stop it
        assert run("recipe", name, "help") == 0
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path / "a b")
    assert run("recipe", "fsdd") == 1
    assert f"this folder is {tmp_path}/a b, and make cannot use" in capsys.readouterr().err
    (tmp_path / "a$b").mkdir()
    monkeypatch.chdir(tmp_path / "a$b")
    assert run("recipe", "digits", "clean") == 1
    assert f"this folder is {tmp_path}/a$b, and make cannot use" in capsys.readouterr().err


def test_a_corpus_is_fetched_to_where_its_recipe_looks(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive = tmp_path / "fsdd.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        soundfile.write("7.wav", [0.1] * 4000, 8000)
        tar.add("7.wav", "fsdd/recordings/7_ann_0.wav")
    monkeypatch.setenv("FETCH_URL", archive.as_uri())
    assert run("fetch", "fsdd") == 0
    assert "1 recordings of 1 speakers in data/fsdd" in capfd.readouterr().out
    called = []
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(subprocess, "run", lambda words, **_: called.append(words[-1]) or done)
    (tmp_path / "data/digits").mkdir()  # which that recipe does not read
    for given in ("fsdd",), ("strom2015", "CORPUS=fsdd"), ("fsdd", "CORPUS_DIR=x"), ("digits",):
        run("recipe", *given)
    run("recipe", "librispeech", "W=w", "CORPUS_DIR=x", "LM_BIG=4-gram.arpa.gz")
    assert called.pop() == f"LM_BIG={tmp_path}/4-gram.arpa.gz"
    assert called[:2] == [f"CORPUS_DIR={tmp_path}/data/fsdd"] * 2
    assert not any("data" in word for word in called[2:])


def test_a_kaldi_data_folder_becomes_a_corpus(tmp_path, capfd):
    data = tmp_path / "data" / "train"
    data.mkdir(parents=True)
    soundfile.write(tmp_path / "7.wav", [0.1] * 8000, 8000)
    rows = {"wav.scp": f"ann-7 {tmp_path}/7.wav", "text": "ann-7 seven", "utt2spk": "ann-7 ann"}
    for name, row in rows.items():
        (data / name).write_text(row + "\n")
    assert run("kaldi", "import", "data", data, tmp_path / "corpus") == 0
    assert "seven" in (tmp_path / "corpus" / "utterances.tsv").read_text()
    assert run("kaldi", "import", "data", "--help") == 0
    assert "CORPUS_DIR=OUT_FOLDER" in capfd.readouterr().out
    assert run("kaldi", "export", "nothing", "x") == 1
    assert "there is no export of 'nothing'" in capfd.readouterr().err


@pytest.mark.slow
def test_the_wheel_is_enough_to_decode_and_to_plan_a_recipe(tmp_path):
    """Unpacked somewhere else, it has the bundle, conf, recipes and scripts."""
    source = tmp_path / "source"
    for name in ("asr_train", "conf", "recipes", "scripts"):
        ignored = shutil.ignore_patterns("work*", "__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    env = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"}
    env["PYTHONPATH"] = str(tmp_path / "site")
    env["NUMBA_OPT"] = "0"  # in a new place all is compiled anew, for one utterance
    call = [sys.executable, "-m", "asr_train"]
    soundfile.write(tmp_path / "a.flac", said("NINE OH ONE").samples_T, RATE)
    said_by = {}
    for words in (
        ["recipe", "digits", "SIZE=tiny", "-n"],
        ["check", "--help"],
        ["decode", "digits", "a.flac"],
    ):
        ended = subprocess.run(
            [*call, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        said_by[words[0]] = ended.stdout
    assert f"{tmp_path}/site/asr_train/checkout/scripts" in said_by["recipe"]
    assert "NINE" in said_by["decode"]
