"""A stage that gets bad input, or cannot write, ends with one line that names the item and the next
action, and leaves no output, complete or partial.

Stages run as their scripts do, in forked children that have the libraries loaded already.
"""

import json
import multiprocessing
import os
import resource
import runpy
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import h5py  # noqa: F401
import hydra  # noqa: F401
import lhotse.features.io  # noqa: F401
import pytest
import soundfile
import torch.utils.tensorboard  # noqa: F401

import asr_train.data.digits
import asr_train.decode.tune
import asr_train.report.page
import asr_train.train.loop  # noqa: F401
from asr_train.files import read_json, read_jsonl, read_yaml, write_json, write_jsonl, write_yaml
from asr_train.lang.index import load_lang, write_lang

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 300  # for what takes seconds on an idle machine
COMMANDS = {  # as in recipes/stages.mk; the last path is the output
    "manifests": "conf/corpus.yaml conf/lexicon.yaml manifests/{}.jsonl.gz",
    "check": "conf/corpus.yaml conf/lexicon.yaml conf/ali.yaml manifests/train.jsonl.gz "
    "manifests/dev.jsonl.gz manifests/check.txt",
    "lm": "conf/lm.yaml conf/corpus.yaml conf/lexicon.yaml manifests/train.jsonl.gz "
    "manifests/dev.jsonl.gz lm/index.json",
    "lang": "manifests/train.jsonl.gz manifests/dev.jsonl.gz conf/lang.yaml lm/index.json "
    "lang/index.json",
    "feats": "manifests/{}.jsonl.gz conf/feats.yaml feats/{}.jsonl.gz",
    "gmm": "feats/train.jsonl.gz lang/index.json conf/ali.yaml conf/gmm/mono.yaml "
    "exp/mono/model.json",
    "ali": "feats/{}.jsonl.gz lang/index.json exp/mono/model.json conf/ali.yaml "
    "ali/mono/{}.jsonl.gz",
    "shards": "feats/{}.jsonl.gz ali/mono/{}.jsonl.gz conf/shards.yaml shards/mono/{}/index.json",
    "train": "shards/mono/train/index.json shards/mono/dev/index.json conf/run/dnn.yaml "
    "exp/dnn/model.json",
    "tune": "exp/{}/model.json conf/decode.yaml conf/normaliser.yaml lang/index.json "
    "feats/dev.jsonl.gz "
    "exp/{}/tuned.json",
    "decode": "exp/{}/model.json exp/{}/tuned.json lang/index.json feats/dev.jsonl.gz "
    "exp/{}/hyp.dev.jsonl",
    "score": "exp/{}/hyp.dev.jsonl manifests/dev.jsonl.gz conf/score.yaml exp/{}/score.dev.json",
    "tables": "conf/score.yaml exp/mono/score.dev.json exp/dnn/score.dev.json tables/wer.md",
    "report": "tables/wer.json ali/mono/dev.report.json exp/dnn/log.jsonl report/index.html",
}
CHAIN = [
    *("manifests train", "manifests dev", "check", "lang", "feats train", "feats dev", "gmm"),
    *("ali train", "ali dev", "shards train", "shards dev", "train", "tune mono", "decode mono"),
    *("score mono", "tune dnn", "decode dnn", "score dnn", "tables", "report"),
]


@dataclass
class Ended:
    """The result of a child process."""

    code: int
    out: str
    err: str


def paths_of(call: str) -> list[str]:
    """Return the script's arguments, relative to a work folder: for example of `feats dev`."""
    stage, *which = call.split()
    return [word.format(*which * 3) for word in COMMANDS[stage].split()]


def run(work: Path, call: str, paths: list[str] | None = None, most_bytes: int = -1) -> Ended:
    """Run a stage in `work`; no file may grow beyond `most_bytes`."""
    stage = call.split()[0]

    def child(out: int, err: int) -> None:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(work)
        os.environ |= {"JOBS": "2" if stage != "train" else "1", "DEVICE": "cpu"}
        os.environ.pop("DEBUG", None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        sys.argv = [f"{stage}.py", *(paths or paths_of(call))]
        runpy.run_path(str(ROOT / "scripts" / sys.argv[0]), run_name="__main__")

    (out, child_out), (err, child_err) = os.pipe(), os.pipe()  # 64 kB are enough
    process = multiprocessing.get_context("fork").Process(target=child, args=(child_out, child_err))
    process.start()
    os.close(child_out)
    os.close(child_err)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode is not None, f"{call} hangs"
    with open(out) as said, open(err) as complained:
        return Ended(process.exitcode, said.read(), complained.read())


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A work folder in which all stages have run, on very little speech."""
    work = tmp_path_factory.mktemp("finished")
    conf = [
        "lang.lexicon.source=letters",  # reading the dictionary takes a second
        "corpus.digits.speakers={train:3,dev:2}",
        "corpus.digits.utterances={train:20,dev:4}",
        *("gmm.mono.passes=3", "gmm.mono.gaussians=70", "optim.epochs=1", "model.dnn.width=16"),
        *(
            "decode.acoustic_scales=[0.1]",
            "decode.insertion_penalties=[0.0]",
            "score.bootstrap=100",
        ),
    ]
    resolve = ["conf", "dnn", "corpus=digits", "lang=digits", *conf]
    for call in ["resolve", *CHAIN]:
        ended = run(work, call, resolve if call == "resolve" else None)
        assert ended.code == 0, (call, ended.err)
    return work


@pytest.fixture
def work(finished, tmp_path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "work")


def refused(work: Path, call: str, *says: str, **limits: int) -> None:
    """Check that the stage fails with one line that contains all of this, and leaves no output."""
    output = work / paths_of(call)[-1]
    if output.parent.is_dir():
        output.unlink(missing_ok=True)
    if call == "train":  # from the beginning: a finished run does not read shards
        shutil.rmtree(output.parent, ignore_errors=True)
    ended = run(work, call, **limits)
    assert ended.code == 1, ended
    assert ended.err.startswith(f"{call.split()[0]}: ")
    assert ended.err.count("\n") == 1, ended.err
    for text in says:
        assert text in ended.err
    assert not output.exists()
    assert not list(work.rglob(".tmp.*"))


# --- files that are not there, or truncated -----------------------------------------------------


@pytest.mark.parametrize(
    "call, lacks, advice",
    [
        ("manifests dev", "conf/corpus.yaml", "is missing; call make conf in the recipe's folder"),
        ("lang", "manifests/train.jsonl.gz", "the manifests stage makes it: run make"),
        ("feats dev", "manifests/dev.jsonl.gz", "the manifests stage makes it: run make"),
        ("gmm", "feats/train.jsonl.gz", "the feats stage makes it: run make"),
        ("gmm", "feats/train/index.json", "delete feats/train.jsonl.gz and run make"),
        ("gmm", "feats/train/part-00000.h5", "delete feats/train.jsonl.gz and run make"),
        ("ali dev", "exp/mono/model.json", "the gmm stage makes it: run make"),
        ("ali dev", "exp/mono/gmm.safetensors", "run make again"),
        ("tune dnn", "exp/dnn/model.pt", "delete exp/dnn/model.json and run make"),
        (
            "train",
            "shards/mono/train/00000.tar",
            "delete shards/mono/train/index.json and run make",
        ),
        ("shards dev", "ali/mono/dev.jsonl.gz", "the ali stage makes it: run make"),
        ("train", "shards/mono/dev/index.json", "the shards stage makes it: run make"),
        ("tune dnn", "exp/dnn/model.json", "the train stage makes it: run make"),
        ("decode dnn", "exp/dnn/tuned.json", "the tune stage makes it: run make"),
        ("decode dnn", "exp/dnn/graph/HCLG.json", "delete exp/dnn/tuned.json and run make"),
        ("decode dnn", "exp/dnn/graph/HCLG.fst", "delete exp/dnn/tuned.json and run make"),
        ("score dnn", "exp/dnn/hyp.dev.jsonl", "the decode stage makes it: run make"),
        ("tables", "exp/mono/score.dev.json", "the score stage makes it: run make"),
        ("report", "exp/dnn/log.jsonl", "delete exp/dnn and run make"),
        ("report", "ali/mono/dev.report.json", "delete ali/mono/dev.jsonl.gz and run make"),
    ],
)
def test_a_missing_file_is_named_with_the_stage_that_makes_it(work, call, lacks, advice):
    (work / lacks).unlink()
    refused(work, call, lacks, advice)


@pytest.mark.parametrize(
    "call, cut",
    [
        ("lang", "manifests/train.jsonl.gz"),
        ("feats dev", "manifests/dev.jsonl.gz"),
        ("gmm", "feats/train.jsonl.gz"),
        ("gmm", "lang/index.json"),
        ("ali dev", "exp/mono/model.json"),
        ("shards dev", "ali/mono/dev.jsonl.gz"),
        ("shards dev", "ali/mono/dev/states.h5"),
        ("train", "shards/mono/train/index.json"),
        ("train", "shards/mono/train/00000.tar"),
        ("tune dnn", "exp/dnn/model.pt"),
        ("decode mono", "exp/mono/tuned.json"),
        ("score mono", "exp/mono/hyp.dev.jsonl"),
        ("tables", "exp/dnn/score.dev.json"),
        ("report", "tables/wer.json"),
    ],
)
def test_a_file_that_was_cut_short_is_named(work, call, cut):
    content = (work / cut).read_bytes()
    (work / cut).write_bytes(content[: len(content) * 2 // 3])
    refused(work, call, cut, "run make again")


@pytest.mark.parametrize(
    "call, file",
    [
        ("gmm", "feats/train/part-00000.h5"),
        ("tune dnn", "feats/dev/part-00000.h5"),
        ("ali dev", "exp/mono/gmm.safetensors"),
        ("tune mono", "exp/mono/gmm.safetensors"),
        ("train", "shards/mono/train/00000.tar"),
        ("train", "shards/mono/dev/00000.tar"),
        ("decode dnn", "exp/dnn/model.pt"),
        ("decode dnn", "exp/dnn/graph/HCLG.fst"),
    ],
)
def test_a_flipped_bit_is_noticed_with_both_checksums(work, call, file):
    content = bytearray((work / file).read_bytes())
    content[len(content) // 3] ^= 1
    (work / file).write_bytes(content)
    refused(work, call, f"{file} has SHA-256 ", "but its index says", "run make again")


def test_features_that_changed_are_computed_anew(work):
    """The advice to rerun the stage would be useless if it kept the damaged part."""
    part = work / "feats/dev/part-00000.h5"
    whole = part.read_bytes()
    part.write_bytes(whole[:-100] + bytes(100))
    assert run(work, "feats dev").code == 0
    assert part.read_bytes() == whole
    assert run(work, "tune mono").code == 0


def test_features_of_another_recording_are_computed_anew(work):
    """With the same name and length."""
    audio = [work / cut["recording"]["sources"][0]["source"] for cut in cuts_of(work, "dev")]
    before = (work / "feats/dev/part-00000.h5").read_bytes()
    samples, rate = soundfile.read(audio[0])
    soundfile.write(audio[0], samples[::-1], rate, format="FLAC", subtype="PCM_16")
    assert run(work, "feats dev").code == 0
    assert (work / "feats/dev/part-00000.h5").read_bytes() != before


# --- audio --------------------------------------------------------------------------------------


def cuts_of(work: Path, split: str) -> list[dict]:
    return read_jsonl(work / f"manifests/{split}.jsonl.gz")


def test_audio_that_is_gone_is_named(work):
    source = cuts_of(work, "dev")[1]["recording"]["sources"][0]["source"]
    (work / source).unlink()
    refused(work, "feats dev", f"{source} is missing", "delete manifests/dev.jsonl.gz and run make")


def test_audio_that_cannot_be_read_is_named(work):
    cut = cuts_of(work, "dev")[1]
    source = cut["recording"]["sources"][0]["source"]
    (work / source).write_bytes(b"no sound")
    refused(work, "feats dev", f"{cut['id']}: {source} cannot be read", "repair or drop it")


def test_audio_that_became_shorter_is_said_with_both_lengths(work):
    cut = cuts_of(work, "dev")[1]
    source = cut["recording"]["sources"][0]["source"]
    samples, rate = soundfile.read(work / source)
    soundfile.write(work / source, samples[: rate // 4], rate, format="FLAC", subtype="PCM_16")
    seconds = cut["recording"]["duration"]
    refused(work, "feats dev", f"{cut['id']}: {source} has 0.250 s but had {seconds:.3f} s when")


@pytest.mark.parametrize("call", ["check", "feats dev"])
def test_a_cut_that_says_nothing_is_named(work, call):
    cuts = cuts_of(work, "dev")
    cuts[2]["supervisions"] = []
    write_jsonl(work / "manifests/dev.jsonl.gz", cuts)
    refused(work, call, f"manifests/dev.jsonl.gz: the cut {cuts[2]['id']} has 0 supervisions")


def test_audio_slower_than_the_features_want_is_refused_with_both_rates(work):
    settings = read_yaml(work / "conf/feats.yaml")
    write_yaml(work / "conf/feats.yaml", settings | {"sample_rate": 44100})
    cut = cuts_of(work, "dev")[0]
    refused(work, "feats dev", f"{cut['id']} has 16000 Hz, below feats.sample_rate 44100", "set ")


@pytest.mark.parametrize(
    "call, says", [("feats dev", "no cuts"), ("lang", "none of the utterances")]
)
def test_a_split_of_no_utterances_is_refused(work, call, says):
    manifest = paths_of(call)[0]
    write_jsonl(work / manifest, [])
    refused(work, call, manifest, says)


def test_transcripts_without_a_word_are_refused(work):
    cuts = cuts_of(work, "train")
    for cut in cuts:
        cut["supervisions"][0]["text"] = ""
    write_jsonl(work / "manifests/train.jsonl.gz", cuts)
    refused(work, "lang", "none of the utterances in manifests/train.jsonl.gz has a word")


# --- files that do not belong together ----------------------------------------------------------


def change_json(path: Path, **entries) -> None:
    write_json(path, read_json(path) | entries)


def other_lang(work: Path) -> None:
    """Use four states per phone instead of three."""
    lang = load_lang(work / "lang/index.json")
    states = replace(lang.states, phone_states=4)
    write_lang(work / "lang/index.json", replace(lang, states=states))


def other_feats(work: Path, split: str, **changes: int) -> None:
    settings = read_yaml(work / "conf/feats.yaml")
    write_yaml(work / "conf/feats.yaml", settings | changes)
    assert run(work, f"feats {split}").code == 0


@pytest.mark.parametrize("call", ["ali dev", "tune dnn", "decode mono"])
def test_a_model_of_other_states_is_refused_with_both_hashes(work, call):
    run_of = "dnn" if "dnn" in call else "mono"
    model = read_json(work / f"exp/{run_of}/model.json")
    other_lang(work)
    states = read_json(work / "lang/index.json")
    says = (f"exp/{run_of}/model.json: the model has", f"({model['states_hash']})", "other states")
    refused(work, call, *says, f"has {len(states['phones'])} (", "run make")
    assert states["num_states"] > model["num_states"]


@pytest.mark.parametrize("call", ["ali dev", "tune dnn", "decode mono"])
@pytest.mark.parametrize("changes", [{"num_mels": 24}, {"sample_rate": 8000}])
def test_features_for_another_model_are_refused_with_both_values(work, call, changes):
    ((name, value),) = changes.items()
    had = read_yaml(work / "conf/feats.yaml")[name]
    other_feats(work, "dev", **changes)
    refused(work, call, f"feats.{name}={had} but these features have {value}", "run make again")


def test_splits_with_other_features_are_not_trained_on(work):
    index = read_json(work / "shards/mono/dev/index.json")
    index["about"]["feats"]["low_hz"] = 50.0
    write_json(work / "shards/mono/dev/index.json", index)
    refused(work, "train", "shards/mono/train/index.json has feats", "'low_hz': 50.0", "rerun")


def test_alignments_of_other_lengths_are_refused_with_both(work):
    """The features were computed again with another shift, the alignments were not."""
    utterance = read_jsonl(work / "feats/dev.jsonl.gz")[0]
    other_feats(work, "dev", shift_seconds=0.0125)
    frames = {r["id"]: r["features"]["num_frames"] for r in read_jsonl(work / "feats/dev.jsonl.gz")}
    assert frames[utterance["id"]] < utterance["features"]["num_frames"]
    refused(work, "shards dev", "feature frames but", "alignment frames", "rerun the ali stage")


def test_a_choice_of_another_run_is_refused(work):
    shutil.copy(work / "exp/mono/tuned.json", work / "exp/dnn/tuned.json")
    refused(
        work,
        "decode dnn",
        "exp/dnn/tuned.json is of the run mono but lies in the folder of dnn",
        "delete exp/dnn/tuned.json and run make again",
    )


def test_a_graph_of_another_run_is_refused(work):
    for name in ("HCLG.json", "HCLG.fst"):
        shutil.copy(work / "exp/mono/graph" / name, work / "exp/dnn/graph" / name)
    refused(
        work, "decode dnn", "HCLG.json has run mono but", "delete exp/dnn/tuned.json and run make"
    )


def test_a_graph_of_another_language_is_refused_with_both_hashes(work):
    graph = read_json(work / "exp/dnn/graph/HCLG.json")
    change_json(work / "exp/dnn/graph/HCLG.json", grammar_hash="0" * 16)
    refused(
        work,
        "decode dnn",
        f"grammar_hash {'0' * 16} but model and lang folder have {graph['grammar_hash']}",
        "delete exp/dnn/tuned.json and run make",
    )


@pytest.mark.parametrize(
    "call, file, key",
    [
        ("tune mono", "exp/mono/model.json", "states"),
        ("tune mono", "exp/mono/model.json", "states_hash"),
        ("tune dnn", "exp/dnn/model.json", "priors"),
        ("decode dnn", "exp/dnn/tuned.json", "beam"),
        ("decode dnn", "exp/dnn/graph/HCLG.json", "states_hash"),
        ("train", "shards/mono/dev/index.json", "num_states"),
        ("score mono", "exp/mono/hyp.dev.jsonl", "lm_weight"),
        ("tables", "exp/mono/score.dev.json", "wer"),
    ],
)
def test_an_entry_that_is_missing_is_named(work, call, file, key):
    rows = read_jsonl(work / file) if file.endswith("l") else [read_json(work / file)]
    del rows[0][key]
    text = "\n".join(map(json.dumps, rows))
    (work / file).write_text(text)
    refused(work, call, Path(file).name, key, "run")


def test_words_for_other_utterances_than_were_said_are_refused(work):
    first, *others = cuts_of(work, "dev")
    write_jsonl(work / "manifests/dev.jsonl.gz", others)
    refused(work, "score dnn", first["id"], "exp/dnn/hyp.dev.jsonl", "manifests/dev.jsonl.gz")


# --- nowhere to write ---------------------------------------------------------------------------


WRITING = [call for call in CHAIN if not call.endswith(" train")]


@pytest.mark.parametrize("call", [c for c in WRITING if not c.startswith(("tune", "check"))])
def test_a_full_disk_is_said_and_leaves_nothing(work, call):
    """A limit on the size of files stands for a full disk; tune also writes to /tmp."""
    stage = call.split()[0]
    kept = {"manifests": "audio/dev", "feats": "feats/dev", "train": "exp/dnn"}
    if stage in kept:  # else the stage would find it already written
        shutil.rmtree(work / kept[stage])
    refused(work, call, "space", most_bytes=400)


@pytest.mark.parametrize("call", WRITING)
def test_an_output_that_cannot_be_written_is_named(work, call):
    """There is a file where its folder should be."""
    *inputs, output = (work / path for path in paths_of(call))
    folder = output.parent
    if any(folder in path.parents for path in inputs):
        output.unlink()
        output.mkdir()
    else:
        shutil.rmtree(folder)
        folder.write_text("in the way")
    ended = run(work, call)
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert str(folder.relative_to(work)) in ended.err
    assert "move what is there out of the way" in ended.err
    assert not list(work.rglob(".tmp.*"))
