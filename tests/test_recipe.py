"""The whole pipeline, recipes/digits with SIZE=tiny: its outputs and plans, and its behaviour if
stages run in parallel, are killed, or read damaged files."""

import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from asr_train import Recogniser
from asr_train.align.gmm import load_gmm
from asr_train.align.table import Alignments
from asr_train.bundle.grammar import Wanted, change_grammar
from asr_train.bundle.store import open_bundle
from asr_train.data.features import open_feats
from asr_train.decode.posteriors import load_scorer
from asr_train.files import read_json, read_jsonl
from asr_train.lang.index import load_lang
from asr_train.score.words import WordErrors
from asr_train.search.graph import load_graph
from asr_train.shards.reader import Shards

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
GMMS, NETS, SPLITS = ("mono", "tri"), ("dnn", "dnn-realign1"), ("dev", "test")
RUNS = (*GMMS, *NETS)
SETTINGS = [  # little speech: few leaves, Gaussians, passes and weights; the laws hold for any size
    "gmm=tri",
    *("gmm.mono.gaussians=150", "gmm.mono.passes=8", "gmm.mono.flat.passes=7"),
    *("gmm.tri.tree.leaves=90", "gmm.tri.tree.min_count=40", "gmm.tri.tree.min_gain=50"),
    *("gmm.tri.gaussians=250", "gmm.tri.passes=6"),
    *("model.dnn.layers=3", "model.dnn.width=128"),
    *(
        *("optim.epochs=4", "optim.keep_epochs=true"),
        "decode.acoustic_scales=[0.1,0.2]",
        "decode.insertion_penalties=[2.0]",  # DEV is 106 words, too few for a choice
    ),
]
STAGES = {
    *("manifests", "lang", "feats", "gmm", "ali", "shards"),
    *("train", "tune", "decode", "score", "tables", "exchange", "report"),
}
PATIENCE_SECONDS = 600


class Recipe:
    """recipes/digits with SIZE=tiny; its work folder always has the same path, a link.

    Args:
        python: the command that make calls for its stages.
    """

    def __init__(self, root: Path, python: str) -> None:
        self.root, self.work = root, root / "w"
        self.variables = ["SIZE=tiny", f"W={self.work}", f"PY={python}", "V=1"]
        self.variables += [f"GMMS={' '.join(GMMS)}", "REALIGN=1"]

    def use(self, name: str) -> Path:
        """Make the work folder a link to the folder of this name."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        self.work.unlink(missing_ok=True)
        self.work.symlink_to(folder)
        return folder

    def start(self, *arguments: str, said=subprocess.PIPE) -> subprocess.Popen:
        """Start `make` as the leader of a process group; stderr goes where stdout goes.

        An argument `SET=...` adds to the settings of all runs; other variables replace theirs.
        """
        more = [a.removeprefix("SET=") for a in arguments if a.startswith("SET=")]
        arguments = tuple(a for a in arguments if not a.startswith("SET="))
        given = {a.partition("=")[0] for a in arguments}
        variables = [v for v in self.variables if v.partition("=")[0] not in given]
        arguments += (f"SET={' '.join([*SETTINGS, *more])}",)
        inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "DEBUG")}
        return subprocess.Popen(
            ["make", "-C", str(ROOT / "recipes/digits"), *variables, *arguments],
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            env={**inherited, "JOBS": "2"},  # which is also the number of training threads
            start_new_session=True,
        )

    def make(self, *arguments: str, fails: bool = False) -> str:
        """Return what `make` printed."""
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode != 0) == fails, said[-3000:]
        return said


def stages_in(said: str) -> list[str]:
    """Return the stages whose commands make printed."""
    return [name for name in re.findall(r"scripts/(\w+)\.py ", said) if name in STAGES]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, python) -> Recipe:
    return Recipe(tmp_path_factory.mktemp("recipe"), python)


@pytest.fixture(scope="module")
def unbroken(recipe) -> tuple[Path, str]:
    """A finished run and its output; only for reading."""
    folder = recipe.use("unbroken")
    return folder, recipe.make()


@pytest.fixture
def finished(recipe, unbroken) -> Path:
    """The work folder of the finished run; tests leave it unchanged."""
    recipe.use("unbroken")
    return recipe.work


# --- what there is in the end -------------------------------------------------------------------


def test_it_ends_with_a_line_for_every_run_and_split(unbroken):
    _, said = unbroken
    lines = [line for line in said.splitlines() if line.startswith("%WER")][-2 * len(RUNS) :]
    rows = [
        re.fullmatch(r"%WER (\d+\.\d\d) \[ (\d+) / (\d+), .* \] exp/([\w-]+) (\w+)", line)
        for line in lines
    ]
    assert {row.group(4, 5) for row in rows} == {(run, split) for run in RUNS for split in SPLITS}
    assert all(
        float(row[1]) == pytest.approx(100 * int(row[2]) / int(row[3]), 0.01) for row in rows
    )
    assert set(stages_in(said)) == STAGES


# Measured with these settings: 12.6, 10.2, 12.2 and 11.4 % of 246 words, with intervals of
# +- 4 and more (with those of conf/: 5.7 to 8.9 %).
@pytest.mark.parametrize("run", RUNS)
def test_word_error_rates_are_believable(finished, run):
    low, high = (0.01, 0.20) if run in GMMS else (0.005, 0.18)
    score = read_json(finished / f"exp/{run}/score.test.json")
    assert low <= score["wer"] <= high
    assert score["ci95"][0] <= score["wer"] <= score["ci95"][1]
    assert score["search_failures"] <= 0.05 * score["utterances"]


def test_scores_and_table_have_their_fields_and_agree(finished):
    table = read_json(finished / "tables/wer.json")
    assert {"paper", "table", "columns", "rows"} <= set(table)
    rows = {(row["ours"]["run"], row["ours"]["split"]): row for row in table["rows"]}
    assert set(rows) == {(run, split) for run in RUNS for split in SPLITS}
    for (run, split), row in rows.items():
        assert row["measured"] is True
        score = read_json(finished / f"exp/{run}/score.{split}.json")
        hyps = read_jsonl(finished / f"exp/{run}/hyp.{split}.jsonl")
        assert (score["run"], score["split"]) == (run, split)
        for key in ("words", "errors", "insertions", "deletions", "substitutions", "wer", "ci95"):
            assert row["ours"][key] == score[key]
        edits = score["insertions"] + score["deletions"] + score["substitutions"]
        assert score["wer"] == pytest.approx(edits / score["words"])
        assert score["utterances"] == len(hyps) - 1 == len(score["by_utterance"])
        assert score["real_time_factor"] == hyps[0]["real_time_factor"] > 0
        assert (
            f"| {run} | {split} | {100 * score['wer']:.2f} |"
            in (finished / "tables/wer.md").read_text()
        )


def test_every_stage_left_what_the_next_one_reads(finished):
    lang = load_lang(finished / "lang/index.json")
    sizes = {"train": 200, "dev": 30, "test": 60}  # as in conf/corpus/digits_tiny.yaml
    for split, size in sizes.items():
        feats = open_feats(finished / f"feats/{split}.jsonl.gz")
        cuts = read_jsonl(finished / f"manifests/{split}.jsonl.gz")
        assert [u.id for u in feats] == [cut["id"] for cut in cuts]
        assert len(cuts) == size
    tri = load_gmm(finished / "exp/tri/model.json").states
    for model, split in itertools.product(("tri", "dnn"), ("train", "dev")):
        ali = Alignments(finished / f"ali/{model}/{split}.jsonl.gz")
        feats = open_feats(finished / f"feats/{split}.jsonl.gz")
        shards = Shards(finished / f"shards/{model}/{split}/index.json")
        assert {s.id: len(s.ali_T) for s in shards.samples(None, 0, 1, 0)} == {
            u.id: u.frames for u in feats if u.id in ali.ids
        }
        assert len(ali.ids) >= 0.95 * sizes[split]
        assert shards.num_states == tri.num_states > lang.states.num_states
        assert shards.about["states_hash"] == tri.hash
    for run in RUNS:
        report = read_json(finished / f"ali/{run}/dev.report.json")
        assert report["model"] == run
        assert report["boundaries"]["compared"] > 300
        assert report["boundaries"]["median_ms"] < 40
    for run in RUNS:
        model = finished / f"exp/{run}/model.json"
        scorer = load_scorer(model, feats, lang)
        assert scorer.run == run
        assert scorer.states.hash == (lang.states if run == "mono" else tri).hash
        graph = finished / f"exp/{run}/graph/HCLG.json"
        assert load_graph(graph, lang, scorer.states, False).fst.start == 0
    for run in NETS:
        rows = read_jsonl(finished / f"exp/{run}/log.jsonl")
        assert {"step", "epoch", "frames", "loss", "accuracy", "rate", "minibatch"} <= set(rows[0])
        epochs = [row["dev_loss"] for row in rows if "dev_loss" in row]
        assert epochs[-1] < epochs[0]


@pytest.mark.parametrize("run", ["tri", "dnn"])
def test_a_bundle_hears_what_the_recipe_heard(recipe, finished, tmp_path, run):
    """Nearly: it normalises by recording, and the recipe by speaker."""
    paths = [tmp_path / name for name in ("a.tar", "b.tar", "folder")]
    for path in paths:
        assert "%WER" in recipe.make("bundle", f"RUN={run}", f"BUNDLE={path}", 'LICENCE=$100, "x"')
    assert paths[0].read_bytes() == paths[1].read_bytes()
    recogniser = Recogniser.load(paths[0], confidences=False)
    with open_bundle(paths[0]) as one, open_bundle(paths[2]) as other:
        assert one.manifest == other.manifest
        assert one.manifest["data_licence"] == '$100, "x"'
        assert (
            one.choice.acoustic_scale
            == read_json(finished / f"exp/{run}/tuned.json")["acoustic_scale"]
        )
    heard = {
        row["id"]: row["words"] for row in read_jsonl(finished / f"exp/{run}/hyp.test.jsonl")[1:]
    }
    errors, words = 0, 0
    for cut in read_jsonl(finished / "manifests/test.jsonl.gz"):
        said = cut["supervisions"][0]["text"].split()
        found = recogniser.transcribe(cut["recording"]["sources"][0]["source"]).text.split()
        errors += WordErrors.between(heard[cut["id"]], found).errors
        words += len(said)
    assert errors < 0.15 * words


ADAPTED = [  # a network on the frames of a speaker-adaptive system
    *("GMMS=mono tri sat", "REALIGN=0", "SET=gmm=sat", "SET=shards.inputs=fmllr"),
    *("SET=gmm.sat.gaussians=250", "SET=gmm.sat.passes=8", "SET=gmm.sat.fmllr.passes=[2,4]"),
    *("SET=gmm.sat.fmllr.min_frames=200", "SET=optim.epochs=3"),
]


def test_a_network_on_adapted_frames_goes_from_shards_to_a_bundle(recipe, unbroken, tmp_path):
    folder = copy_of(recipe, unbroken, "adapted")
    bundle = ("bundle", *ADAPTED, f"BUNDLE={tmp_path / 'dnn.tar'}")
    said = recipe.make(*bundle)
    assert [stages_in(said).count(stage) for stage in ("gmm", "train", "tune")] == [1, 1, 1]
    assert not stages_in(recipe.make(*bundle))
    logmel = [each for each in ADAPTED if "fmllr" not in each or "gmm" in each]
    planned = stages_in(recipe.make("-n", *logmel))
    first = planned.index("shards")
    assert planned[first : first + 4] == ["shards", "shards", "train", "tune"]
    sat = read_json(folder / "exp/sat/model.json")
    system = {"run": "sat", "sha256": sat["parts"][0]["sha256"]}
    assert read_json(folder / "exp/dnn/model.json")["fmllr"] == system
    header, *rows = read_jsonl(folder / "exp/dnn/hyp.test.jsonl")
    assert header["speakers"]["adapted"] == header["speakers"]["speakers"] > 1
    assert 0.005 < read_json(folder / "exp/dnn/score.test.json")["wer"] < 0.2
    with open_bundle(tmp_path / "dnn.tar") as opened:
        same = Wanted(words=opened.lang.grammar.words)
        made, _ = change_grammar(tmp_path / "dnn.tar", tmp_path / "same", same)
        assert made["parts"] == opened.manifest["parts"]
    recogniser = Recogniser.load(tmp_path / "dnn.tar", confidences=False)
    speakers: dict[str, list] = {}
    heard = {row["id"]: row["words"] for row in rows}
    for cut in read_jsonl(folder / "manifests/test.jsonl.gz"):
        features = recogniser.features(cut["recording"]["sources"][0]["source"])
        mine = speakers.setdefault(cut["supervisions"][0]["speaker"], [])
        mine.append((heard[cut["id"]], features))
    errors = words = 0
    for mine in speakers.values():
        found = recogniser.transcribe_features([features for _, features in mine])
        for (wanted, _), one in zip(mine, found, strict=True):
            errors += WordErrors.between(wanted, one.text.split()).errors
            words += len(wanted)
            assert not one.unadapted
    features_TF, _, rate = mine[0][1]
    (short,) = recogniser.transcribe_features([(features_TF[:100], 1.0, rate)])
    assert "fewer than 200" in short.unadapted
    assert errors < 0.05 * words  # a prior in the mean, and the scale of the first passes


def test_a_graph_is_refused_with_the_tree_of_another_system(finished):
    lang = load_lang(finished / "lang/index.json")
    tri = load_gmm(finished / "exp/tri/model.json").states
    load_graph(finished / "exp/tri/graph/HCLG.json", lang, tri, False)
    with pytest.raises(ValueError, match=f"states_hash {tri.hash} but .* {lang.states.hash}"):
        load_graph(finished / "exp/tri/graph/HCLG.json", lang, lang.states, False)


class Page(HTMLParser):
    """Counts elements, and keeps all links that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag == "a":
            return  # only followed by the reader
        fetching = [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")]
        self.fetched += [v for v in fetching if not v.startswith("data:")]


def test_the_page_is_one_file_with_table_and_pictures(finished):
    page = Page()
    text = (finished / "report/index.html").read_text()
    page.feed(text)
    assert page.count["table"] >= 1
    assert page.count["svg"] >= 2  # rates, an alignment
    assert not page.fetched
    for run in RUNS:
        wer = read_json(finished / f"exp/{run}/score.test.json")["wer"]
        assert f"{100 * wer:.2f}" in text


# --- plans --------------------------------------------------------------------------------------


TRANSIENT = {".plan", ".locks"}  # folders: settings of a plan, and who is at work


def times_of(work: Path) -> dict[str, int]:
    files = [path for path in work.rglob("*") if path.is_file() and not TRANSIENT & {*path.parts}]
    return {str(path.relative_to(work)): path.stat().st_mtime_ns for path in files}


def test_again_runs_no_stage(recipe, finished):
    before = times_of(finished)
    said = recipe.make()
    assert not stages_in(said)
    assert said.count("%WER") == 2 * len(RUNS)
    assert times_of(finished) == before


def rows_of(said: str) -> dict[str, str]:
    """Return the rows of `make status`: output -> its state."""
    rows = [line.split() for line in said.splitlines()]
    return {row[-1]: row[0] for row in rows if row and row[0] in ("done", "stale", "missing")}


def test_status_says_that_all_is_done(recipe, finished):
    before = times_of(finished)
    said = recipe.make("status")
    rows = rows_of(said)
    assert set(rows.values()) == {"done"}
    assert f"{len(rows)} done, 0 stale, 0 missing; nothing to do\n" in said
    assert times_of(finished) == before


@pytest.mark.parametrize(
    "setting, stale",
    [
        (
            "decode.beam=12",
            ["tuned.json", "hyp.*", "score.*", "wer.md", "exchange.md", "index.html"],
        ),
        ("score.seed=7", ["score.*", "wer.md", "exchange.md", "index.html"]),
    ],
)
def test_status_names_what_a_setting_would_make_stale_and_changes_nothing(
    recipe, finished, setting, stale
):
    before = times_of(finished)
    said = recipe.make("status", f"SET={setting}")
    rows = rows_of(said)
    for output, state in rows.items():
        touched = any(Path(output).match(pattern) for pattern in stale)
        assert state == ("stale" if touched else "done"), output
    next_call = shlex.split(re.search(r"next: make digits (.*)", said)[1])
    wanted = [*recipe.variables, f"SET={' '.join([*SETTINGS, setting])}"]
    assert sorted(next_call) == sorted(wanted)
    assert set(stages_in(recipe.make("-n", f"SET={setting}"))) >= {"score", "tables", "report"}
    assert not stages_in(recipe.make())
    assert times_of(finished) == before


def test_a_plan_does_not_disturb_a_running_make(recipe, finished):
    """Planning with other settings leaves the files unchanged that stages are about to read."""
    conf = {path: path.read_bytes() for path in (finished / "conf").rglob("*.yaml")}
    recipe.make("-n", "SET=decode.beam=12 optim.rate=0.1")
    assert {path: path.read_bytes() for path in (finished / "conf").rglob("*.yaml")} == conf


@pytest.mark.parametrize(
    "gone, stages",
    [
        ("tables report", ["tables", "exchange", "report"]),
        (
            "exp/*/*.test.json* tables report",
            ["decode", "score"] * 4 + ["tables", "exchange", "report"],
        ),
        (
            "exp/dnn-realign1 tables report",
            ["train", "ali", "tune", *["decode", "score"] * 2, "tables", "exchange", "report"],
        ),
        (
            "exp/tri exp/dnn* ali shards tables report",
            [
                *["gmm", *["ali", "shards"] * 2, "train", *["ali", "shards"] * 2, "train"],
                *["tune", *["decode", "score"] * 2] * 3,
                *["ali", "ali"],  # of DEV by mono and the last network
                *["tables", "exchange", "report"],
            ],
        ),
        ("audio feats shards exp/dnn/ckpt", []),  # large, and no longer needed
    ],
)
def test_just_what_is_missing_is_made_again(recipe, unbroken, gone, stages):
    """As after a kill, or after files were removed to free space."""
    folder = copy_of(recipe, unbroken, "partial")
    for pattern in gone.split():
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert sorted(stages_in(recipe.make("-n"))) == sorted(stages)


def test_a_call_without_networks_removes_the_table_of_earlier_ones(recipe, unbroken):
    folder = copy_of(recipe, unbroken, "partial")
    assert (folder / "tables/exchange.md").exists()
    recipe.make("RUNS=", "REALIGN=0")
    assert not list((folder / "tables").glob("exchange.*"))
    assert "dnn" not in (folder / "tables/wer.txt").read_text()


def test_stamps_tell_when_a_stage_began_so_that_edits_meanwhile_count(unbroken):
    stamps = sorted(unbroken[0].rglob("*.made"))
    assert len(stamps) >= 4
    for stamp in stamps:
        (output,) = stamp.parent.glob(f"{stamp.stem}.json*")
        assert stamp.stat().st_mtime_ns < output.stat().st_mtime_ns
    assert not list(unbroken[0].rglob("*.begun"))


def test_a_kill_between_an_output_and_its_stamp_repeats_nothing(recipe, unbroken):
    folder = copy_of(recipe, unbroken, "partial")
    stamps = [folder / "manifests/dev.made", folder / "lang/index.made"]
    times = [stamp.stat().st_mtime_ns for stamp in stamps]
    for stamp in stamps:
        stamp.rename(f"{stamp}.begun")
    assert not stages_in(recipe.make())
    assert [stamp.stat().st_mtime_ns for stamp in stamps] == times
    assert not list(folder.rglob("*.begun"))


def test_make_tells_how_to_train_a_deleted_network_again(recipe, unbroken):
    folder = copy_of(recipe, unbroken, "partial")
    assert "was deleted" not in recipe.make()
    shutil.rmtree(folder / "exp/dnn")
    assert "a model above was deleted (make status); to train it again, delete /" in recipe.make()
    assert "missing; nothing to do: tables and report are there;" in recipe.make("status")


def copy_of(recipe: Recipe, unbroken: tuple[Path, str], name: str) -> Path:
    """Make a copy of the finished run, to be damaged, the work folder from now on."""
    shutil.rmtree(recipe.root / name, ignore_errors=True)
    shutil.copytree(unbroken[0], recipe.root / name)
    return recipe.use(name)


def test_help_lists_the_targets(recipe):
    said = recipe.make("help")
    for word in ("make table", "make status", "make clean", "JOBS=", "SET="):
        assert word in said


def test_clean_removes_a_work_folder_and_nothing_else(recipe, tmp_path):
    for folder in ("w/conf", "other/conf"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "w/conf/corpus.yaml").touch()
    recipe.make("clean", f"W={tmp_path}/w")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert "is not a work folder" in recipe.make("clean", f"W={tmp_path}/other", fails=True)
    assert (tmp_path / "other").exists()


def test_clean_empties_the_folder_that_a_link_leads_to_and_keeps_the_link(recipe, tmp_path):
    (tmp_path / "disk/conf").mkdir(parents=True)
    (tmp_path / "disk/conf/corpus.yaml").touch()
    (tmp_path / "w").symlink_to(tmp_path / "disk")
    recipe.make("clean", f"W={tmp_path}/w")
    assert (tmp_path / "w").resolve() == tmp_path / "disk"
    assert not list((tmp_path / "disk").iterdir())


# --- the same bytes, side by side and however often it is killed --------------------------------

TIMED = {"real_time_factor", "seconds"}
VARYING = [  # what contains dates or seconds
    *("log/*", "report/*", "tables/*"),
    *("exp/*/log.jsonl", "exp/*/passes.jsonl", "exp/*/tensorboard/*", "exp/*/ckpt/*"),
]


def content_of(folder: Path) -> dict[str, object]:
    """Return all content that must be equal in two runs."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if (
            not path.is_file()
            or TRANSIENT & {*path.parts}
            or any(name.match(pattern) for pattern in VARYING)
        ):
            continue
        timed = path.name.startswith(("hyp.", "score.")) or path.name.endswith(".report.json")
        if timed and path.suffix in (".json", ".jsonl"):
            rows = read_jsonl(path) if path.suffix == ".jsonl" else [read_json(path)]
            rows = [{k: v for k, v in row.items() if k not in TIMED} for row in rows]
            found[str(name)] = json.dumps(rows)
        else:
            found[str(name)] = path.read_bytes()
    return found


def differing(one: dict[str, object], two: dict[str, object]) -> list[str]:
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


MOMENTS = [  # a sign that a stage is at work (a file, or output of make), and seconds after it
    ("audio/train/*.flac", 2.0),
    ("feats.py .*feats/train", 2.0),
    ("gmm: mono: pass", 2.0),
    ("gmm: tri: start", 0.5),
    ("ali.py .*ali/tri/train", 2.5),
    ("shards/tri/train/.tmp.*", 0.02),
    ("exp/dnn/ckpt/step-*.json", 2.0),
    ("tune.py .*exp/dnn/", 3.0),
    ("exp/dnn-realign1/ckpt/step-*.json", 1.0),
    ("decode.py .*hyp.test", 0.8),
]


def kill_after(recipe: Recipe, sign: str, seconds: float, log: Path) -> None:
    """Start make, wait for the sign and some seconds, and kill make and its children at once."""
    with open(log, "w+") as file:
        process = recipe.start("-j2", said=file)
        deadline = time.time() + PATIENCE_SECONDS
        while not (any(recipe.work.glob(sign)) or re.search(sign, log.read_text())):
            assert process.poll() is None, f"make ended before {sign!r}:\n{log.read_text()[-2000:]}"
            assert time.time() < deadline, sign
            time.sleep(0.002)
        time.sleep(seconds)
        assert process.poll() is None, f"make ended too early to be killed at {sign!r}"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_side_by_side_and_killed_in_every_stage_it_gives_the_bytes_of_the_unbroken_run(
    recipe, unbroken, tmp_path
):
    """One run at -j2, killed six times; the moments are drawn again in every test run."""
    folder = recipe.use("killed")
    for sign, longest in sorted(random.sample(MOMENTS, 6), key=MOMENTS.index):
        seconds = random.uniform(0, longest)
        print(f"killed {seconds:.3f} s after {sign}")  # pytest shows it if the test fails
        kill_after(recipe, sign, seconds, tmp_path / "said")
    recipe.make("-j2")
    assert not [path for path in folder.rglob(".tmp.*") if path.parent.name != "log"]
    assert differing(content_of(folder), content_of(unbroken[0])) == []
    assert not stages_in(recipe.make())


def test_what_a_finished_run_can_do_further(recipe, unbroken, tmp_path):
    """Sequence training on its own lattices; learned probabilities, which a bundle takes along;
    models of single epochs."""
    further = ("SEQUENCE=smbr", "PRONPROBS=tri", "SET=objective.epochs=2")
    further += ("EPOCHS=dnn/epochs/2 dnn-realign1/epochs/2",)
    whole = copy_of(recipe, unbroken, "sequence")
    said = recipe.make(*further)
    assert stages_in(said).count("train") == 1
    assert said.count("exp/dnn-smbr test") == 2  # when scored, and in the end
    found = Shards(whole / "shards/dnn-lattices/train/index.json")
    assert found.has_lattices
    assert found.num_samples == Shards(whole / "shards/tri/train/index.json").num_samples
    losses = [
        row["dev_loss"] for row in read_jsonl(whole / "exp/dnn-smbr/log.jsonl") if "dev_loss" in row
    ]
    assert losses[1] < losses[0]
    assert not stages_in(recipe.make(*further))
    for run in ("tri-pronprobs", "dnn/epochs/2", "dnn-realign1/epochs/2"):
        assert said.count(f"exp/{run} test") == 2
        assert f'"{run}"' in (whole / "report/index.html").read_text()
    plain, learned = (load_lang(whole / name / "index.json") for name in ("lang", "lang-pronprobs"))
    assert plain.pronprobs is None
    assert 0 < learned.pronprobs.start < 1
    path = tmp_path / "b.tar"
    recipe.make("bundle", "RUN=tri-pronprobs", f"BUNDLE={path}", *further)
    with open_bundle(path) as bundle:
        assert bundle.lang.pronprobs == learned.pronprobs


# --- a stage that fails -------------------------------------------------------------------------


@pytest.fixture
def damaged(recipe, unbroken):
    """A copy of a run that has yet to decode TEST, with a flipped bit in TEST's features."""
    folder = copy_of(recipe, unbroken, "damaged")
    part = folder / "feats/test/part-00000.h5"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 4
    part.write_bytes(content)
    for pattern in ("exp/*/*.test.json*", "tables/*", "report/*"):
        for path in folder.glob(pattern):
            path.unlink()
    (folder / "exp/dnn/nbest.test.jsonl").touch()  # of a call with decode.nbest
    return folder


def test_a_failing_stage_stops_the_chain_with_a_line_whose_advice_mends_it(
    recipe, unbroken, damaged
):
    said = recipe.make(fails=True)
    assert stages_in(said) == ["decode"]
    (cause,) = [line for line in said.splitlines() if line.startswith("decode: ")]
    assert "feats/test/part-00000.h5 has SHA-256" in cause
    assert "Traceback" not in said
    advice = re.search(r"delete (\S+) and run make again", cause)
    Path(advice[1]).unlink()
    assert stages_in(recipe.make())[0] == "feats"
    assert differing(content_of(damaged), content_of(unbroken[0])) == []
