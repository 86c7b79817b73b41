"""Settings are composed and checked before any stage; a plan leaves finished stages fresh."""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from asr_train.choices import Choices
from asr_train.compose import CONF, settings
from asr_train.files import read_yaml
from asr_train.locks import FOLDER, at_work, locked, settling
from asr_train.schema import Config, SettingsError, Smoothing
from scripts.resolve import resolve


@pytest.mark.parametrize(
    "override, message",
    [
        ("decode.beem=3", "did you mean decode.beam"),
        ("decode.beam=x", "decode.beam is 'x'; it must be a number"),
        ("decode.beam=-1", "decode.beam is -1.0; it must be positive"),
        ("foo=1", "^foo is not a setting; allowed there: corpus"),
        ("=1", "the setting '=1' is neither group.key=value"),
        ("foo.bar=1", "foo is not a setting; .*allowed there: .*corpus"),
        ("cluster=abc", "^cluster is not a setting; allowed there: corpus"),  # a folder of conf/
        ("model=dnn_9", "allowed: .*dnn_4x256"),
        ("model=", "^model/.yaml is not in conf/; allowed: .*dnn_4x256"),
        ("lang.lexicon.source=web", "allowed: cmudict, file, letters"),
        ("recipe=digits_huge", "^SIZE is huge; digits has default, large, tiny$"),
        ("recipe=digitz", "allowed: .*digits, digits_large"),
        ("beam", "group.key=value"),
        ("+decode.x=1", "decode.x is not a setting"),
        ("decode.acoustic_scales=[0.1,0.2", r"acoustic_scales=\[0.1,0.2' cannot be read"),
        ("optim=sgd,relu", "the setting 'optim=sgd,relu' cannot be read; check its brackets"),
        ("hydra.job.name=x", "^hydra is not a setting; allowed there: corpus"),
        ("hydra/job_logging=none", "^hydra is not a setting"),
        (
            "optim.pretrain.share=0.5",
            r"^optim\.pretrain\.share is given, but optim\.pretrain is null .* one of conf/optim "
            r"that has it, or set all of it: optim\.pretrain=\{share:\.\.\.,epochs",
        ),
        ("comm.gtc.threshold=5", r"comm\.gtc is null .* choose one of conf/comm that has it"),
        ("optim.pretrain.shore=0.5", "pretrain.shore is not a .*did you mean optim.pretrain.share"),
        ("optim=null", "^optim=null, but optim takes the name of a file of conf/optim$"),
        ("optim.phases={until:1,minibatch_frames:256}", r"write it whole: optim\.phases=\["),
        ("optim.phases.0.until=1", r"optim\.phases is a list"),
        ("optim.phases.until=0.1", r"until=0\.1': the setting optim\.phases is a list"),
        ("model.dnn.rank=128", r"model\.dnn\.rank is 128; it must lie in \[1, 127\]"),
        ("optim.hold_epochs=-5", "hold_epochs is -5"),
        (
            "optim.warmup_epochs=0 optim.warmup_from=0.1",
            r"optim\.warmup_from is 0\.1, but has no effect, as optim\.warmup_epochs is 0; set",
        ),
        ("comm.timeout_seconds=1e10", r"^comm\.timeout_seconds is 1\S+; it must lie in \[0.001,"),
        ("optim.newbob_gain=5", "newbob_gain is 5"),
        ("gmm.mono.realign_first=-4", "realign_first is -4"),
        ("cluster=null", "^cluster is not a setting"),
        ("CORPUS=an4", "CORPUS is a variable of make"),
        ("LANG=digits", "LANG=digits: groups are in lower case; set lang=digits"),
        ("SET=lang=digits", "'SET=lang=digits': give the setting by itself: lang=digits"),
        ("WORKERS=2", r"WORKERS is a variable of make; call make with WORKERS=\.\.\."),
    ],
)
def test_a_bad_override_is_refused(override, message):
    with pytest.raises(SettingsError, match=message):
        settings("dnn", override.split())


@pytest.mark.parametrize(
    "run, override, message",
    [
        ("gtc", "comm.gtc.adaptive.density=0.01", r"given, but comm\.gtc\.adaptive is null in the"),
        ("lstm", "model.dnn.width=64", r"^model\.dnn\.width is given, but model\.dnn is null"),
        ("bmuf_gtc", "comm.group_sise=4", r"did you mean comm\.group_size\?"),
        ("gtc", "comm.group_size=4", "chosen here do not have it; choose one of conf/comm"),
    ],
)
def test_what_is_refused_is_said_of_the_files_of_the_run(run, override, message):
    with pytest.raises(SettingsError, match=message):
        settings(run, [override])


@pytest.mark.parametrize(
    "given, message",
    [
        (["RESCORE=dnn"], "set lang=sentences lm=fourgram, or call make with RESCORE=$"),
        (["RESCORE=dnn", "lm=fourgram", "decode=large"], r"but lang\.grammar\.kind is loop"),
        (["lm=trigram"], r"^lm=trigram has no effect, as lang\.grammar\.kind is loop"),
        (["lm.vocabulary=9"], r"^lm\.vocabulary=9 has no effect, as lm\.small is null: .* lm=trig"),
        (["lang=words", "lm=trigram", "lm.vocabulary=9"], "^lm=trigram has no effect"),
        (["objective.rate=0.5"], "^objective.rate=0.5 has no effect, .* SEQUENCE is empty; set"),
        (["lattices.order=2"], "^lattices.order=2 has no effect, .* SEQUENCE is empty; set"),
        (["decode.rescore_mbr=[true]"], r"^decode.rescore_mbr=\[true\] has no .* RESCORE is empty"),
        (["lm.bigram.vocabulary=9"], "^lm.bigram.vocabulary=9 has no effect, .* BIGRAM is empty"),
        (["lang.pronprobs.pron_count=2"], "^lang.pronprobs.pron_.* has no effect, .* PRONPROBS is"),
        (["gmm.tri.gaussians=5000"], "^gmm.tri.gaussians=5000 has no effect, as GMMS='mono sat' d"),
    ],
)
def test_what_would_have_no_effect_is_refused_before_any_stage(tmp_path, given, message):
    with pytest.raises(SettingsError, match=message):
        resolved(tmp_path, *given)


def resolved(folder: Path, *given: str) -> None:
    """Resolve settings and variables of recipes/digits with a speaker-adaptive system."""
    names = [each for each in given if re.match("[A-Z]+=", each)]
    others = [each for each in given if each not in names]
    known = "NETS=dnn", "GMMS=mono sat", *names
    resolve(str(folder), "dnn", *known, "gmm=sat", "recipe=digits", *others)


def test_what_has_an_effect_or_is_the_recipes_own_is_taken(tmp_path, monkeypatch):
    resolved(tmp_path, "gmm.tri.tree.leaves=200")  # counts: sat has it by reference
    resolved(tmp_path, "gmm.tri.tree.leaves=1000")  # the recipe's own
    resolved(tmp_path, "gmm.tri.tree.leaves=100", "gmm.tri.tree.leaves=200")  # the later counts
    resolved(tmp_path, "SEQUENCE=mmi", "objective.rate=0.5", "lattices.order=2")
    sentences = "lang=sentences", "lm=fourgram", "decode=large"
    resolved(tmp_path, "RESCORE=dnn", *sentences, "decode.rescore_mbr=[true]", "lm.vocabulary=9")
    monkeypatch.setenv("ASR_SET", "lm=none")
    resolved(tmp_path, "objective.rate=0.5", "lm.vocabulary=9")


GIVEN = "lang=sentences lm=trigram lm.small.file={}"  # all models are files


@pytest.mark.parametrize(
    "given, more, message",
    [
        (
            "lang=words lang.grammar.kind=arpa lang.grammar.file={}",
            "lm=trigram",
            r"^lm=trigram has no effect, as lang\.grammar\.kind is arpa, a graph of the mo",
        ),
        (
            GIVEN,
            "lm.vocabulary=2",
            r"^lm\.vocabulary=2 has no effect, as no .*: lm\.small\.file is /",
        ),
        (
            GIVEN,
            "lm.text=[{}]",
            r"^lm\.text=\[/.*\] has no effect, as no language model is trained",
        ),
        (
            "shards.inputs=fmllr",
            "shards.norm.by=utterance",
            r"^shards\.norm\.by=utterance has no .* of sat norm",
        ),
        (
            "gmm.sat.passes=4",
            "gmm.sat.fmllr.passes=[4,6]",
            r"passes=\[4,6\] has no effect, as gmm\.sat\.passes is 4.*list one of those, or \[\]$",
        ),
    ],
)
def test_what_other_settings_make_void_is_refused(tmp_path, given, more, message):
    (tmp_path / "file").touch()

    def resolved(*overrides):
        overrides = [each.format(tmp_path / "file") for each in overrides]
        resolve(str(tmp_path / "conf"), "dnn", "GMMS=mono sat", "gmm=sat", *overrides)

    resolved(*given.split())
    with pytest.raises(SettingsError, match=message):
        resolved(*given.split(), more)


def test_settings_that_count_beside_those_that_do_not_are_taken(tmp_path):
    (tmp_path / "file").touch()
    text, systems = f"lm.text=[{tmp_path}/file]", "GMMS=mono sat"
    given = [*GIVEN.format(tmp_path / "file").split(), text]
    resolve(str(tmp_path), "dnn", "NETS=dnn", "BIGRAM=dnn", *given)  # the bigram's text
    resolve(str(tmp_path), "dnn", *given, "lm=fourgram", "lm.vocabulary=2")  # big is trained
    resolve(str(tmp_path), "dnn", systems, "gmm=sat", "gmm.sat.fmllr.passes=[]")
    resolve(str(tmp_path), "dnn", systems, "gmm=sat", "gmm.sat.passes=1")  # conf's own list


@pytest.mark.parametrize("key", ["lda.lda.mllt_passes", "sat.fmllr.passes"])
def test_passes_are_numbered_from_one(key):
    with pytest.raises(SettingsError, match="passes is 0; it must be positive"):
        settings("dnn", ["gmm=sat", f"gmm.{key}=[2,0]"])


def test_a_rate_below_which_listed_rates_do_not_end_is_refused():
    listed = ["optim.halving=listed", "optim.divisors=[1,40]", "optim.min_rate=0.001"]
    with pytest.raises(SettingsError, match=r"min_rate is 0\.001, but with optim\.halving=listed"):
        settings("dnn", listed)


@pytest.mark.parametrize(
    "override, message",
    [
        ("mono.front.num_ceps=30", "mono.front.num_ceps is 30, more than feats.num_mels 20"),
        ("lda.lda.dims=118", "lda.lda.dims is 118, but the frames to project have 117"),
    ],
)
def test_more_dimensions_than_the_frames_have_are_refused(override, message):
    with pytest.raises(SettingsError, match=rf"^gmm\.{message}"):
        settings("dnn", ["gmm=lda", f"gmm.{override}"])


def in_folder(*settings: str) -> list[str]:
    return ["corpus=folder", "corpus.folder.dir=x", *(f"corpus.folder.{one}" for one in settings)]


@pytest.mark.parametrize(
    "names, given",
    [
        ("[1183,84]", ["1183", "84"]),
        ("[1_0, 007,1e5,-3,true,null,a b]", ["1_0", "007", "1e5", "-3", "true", "null", "a b"]),
        ("['1183',\"x\"]", ["1183", "x"]),
        ("[o'neil,${oc.env:HOME},a\\${b},c\\]", ["o'neil", "${oc.env:HOME}", "a\\${b}", "c\\"]),
        ("[ann]", ["ann"]),
        ("[]", []),
    ],
)
def test_names_are_names(names, given):
    folder = settings("dnn", in_folder(f"test_speakers={names}")).corpus.folder
    assert folder.test_speakers == given


def test_other_lists_and_texts_stay_what_they_are():
    config = settings("dnn", [*in_folder("dir=1183", "phone_labels=null"), "corpus.speeds=[1.0]"])
    assert (config.corpus.folder.dir, config.corpus.folder.phone_labels) == ("1183", None)
    assert config.corpus.speeds == [1.0]
    assert settings("dnn", ["lang.grammar.words=[1,TWO]"]).lang.grammar.words == ["1", "TWO"]


@pytest.mark.parametrize("value", ["/tmp/Jörg/日本", "'/tmp/Jörg/日本'"])
def test_paths_may_have_letters_of_any_language(value):
    config = settings("dnn", [*in_folder(f"dir={value}"), "lm.text=[/tmp/Jörg]"])
    assert (config.corpus.folder.dir, config.lm.text) == ("/tmp/Jörg/日本", ["/tmp/Jörg"])


@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize("more", ["more_tests={test_b:/b}", "more_tests.test_b=/é"])
def test_a_mapping_may_have_new_names(plus, more):
    config = settings("dnn", [*in_folder(), f"{plus}corpus.folder.{more}"])
    assert config.corpus.folder.more_tests == {"test_b": more.rstrip("}")[-2:]}


def test_a_new_condition_of_commands_has_its_settings():
    far = "corpus.commands.conditions.far"
    given = ["recipe=commands", "corpus.commands.grammar=x", f"{far}.snr_db=[0,5]"]
    assert settings("dnn", given).corpus.commands.conditions["far"].snr_db == [0, 5]
    with pytest.raises(SettingsError, match=rf"{far}.snr is not .*did you mean {far}.snr_db"):
        settings("dnn", [*given, f"{far}.snr=[0,5]"])


def test_what_has_a_default_in_the_schema_can_be_set():
    more = ["lm.small.smoothing=witten_bell", "lm.small.file=/x.arpa"]
    found = settings("gtc", ["comm.timeout_seconds=60", "lm=trigram", *more])
    assert found.comm.timeout_seconds == 60
    assert found.lm.small.smoothing is Smoothing.witten_bell
    assert found.lm.small.file == "/x.arpa"


def test_a_setting_that_refers_to_another_systems_can_be_set_alone():
    given = ["gmm=sat", "gmm.tri.front.splice=5", "gmm.lda.tree.leaves=7"]
    gmm = settings("dnn", given).gmm
    assert [gmm[name].front.splice for name in ("mono", "tri")] == [0, 5]
    assert gmm["tri"].front.deltas == gmm["mono"].front.deltas
    assert gmm["lda"].tree.leaves == 7 != gmm["tri"].tree.leaves
    assert "sat" in settings("dnn", ["gmm=sat", "gmm=tri", *given]).gmm  # the later wins
    for wrong in ("gmm.sat.front.splice=3", "gmm.tri.front.x=1"):  # no front of its own; unknown
        with pytest.raises(SettingsError, match=f"{wrong.partition('=')[0]} is not a setting"):
            settings("dnn", ["gmm=sat", wrong])


@pytest.mark.parametrize("workers", ["0", "-1", "two", "1.5"])
def test_workers_that_cannot_be_are_refused_before_any_stage(tmp_path, workers):
    with pytest.raises(SettingsError, match=f"WORKERS is '{workers}'; it must be a positive"):
        resolve(str(tmp_path), "dnn", f"WORKERS={workers}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "runs, override, says",
    [
        ("dnn", "run=lstm", "SET says run=lstm, which RUNS chooses; call make with RUNS=lstm"),
        ("dnn", "objective=smbr", "objective=smbr, which SEQUENCE chooses"),
        ("dnn", "comm.stripes=2", r"comm\.stripes=2, which STRIPES chooses"),
        ("gtc", "comm.workers=4", "SET says comm.workers=4, but WORKERS is 2; leave one out"),
        ("gtc-seed2", "optim.seed=5", "optim.seed=5, but a run of SEEDS is gtc-seed2; leave"),
    ],
)
def test_what_a_variable_of_make_says_is_not_said_by_a_setting_too(tmp_path, runs, override, says):
    with pytest.raises(SettingsError, match=says):
        resolve(str(tmp_path), runs, "WORKERS=2", override)
    assert not list(tmp_path.iterdir())


def test_groups_that_do_not_divide_the_workers_are_refused_before_any_stage(tmp_path):
    with pytest.raises(SettingsError, match=r"6 workers do not make groups of comm.group_size=4"):
        resolve(str(tmp_path), "bmuf_gtc", "WORKERS=6", "comm.group_size=4")


def test_adagrad_of_a_single_worker_is_refused_before_any_stage_where_several_share_a_model(
    tmp_path,
):
    alone = "optim.adagrad={place:raw,window_frames:1000.0,floor:0.01}"
    for run, workers in (("gtc", 1), ("sgd", 2), ("bmuf", 2)):
        resolve(str(tmp_path / run), run, f"WORKERS={workers}", alone)
    for run, together in (("allreduce", 4), ("bmuf_gtc", 2)):
        with pytest.raises(SettingsError, match=f"raw.*={run} has {together} that share a model"):
            resolve(str(tmp_path / "no"), run, "WORKERS=4", alone)


@pytest.mark.parametrize(
    "more, key",
    [
        ("lang.lexicon.source=file lang.lexicon.file={}", "lang.lexicon.file"),
        ("lang=words lang.grammar.kind=arpa lang.grammar.file={}", "lang.grammar.file"),
        ("lang=sentences lm=arpa lm.small.file={} lm.big=null", "lm.small.file"),
        ("lang=sentences lm=fourgram lm.text=[{}]", "lm.text"),
        ("score.normaliser.kind=english score.normaliser.mapping={}", "score.normaliser.mapping"),
    ],
)
def test_files_that_settings_name_must_be_there_before_any_stage(tmp_path, more, key):
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.touch()
    conf = tmp_path / "conf"
    with pytest.raises(SettingsError, match=f"{key} is {absent}, but there is no file {absent}"):
        resolve(str(conf), "dnn", *more.format(absent).split())
    assert not conf.exists()
    resolve(str(conf), "dnn", *more.format(there).split())


def test_a_run_that_names_its_model_has_it_in_every_recipe():
    given = ["recipe=speechocean", "corpus.folder.dir=somewhere", "lm.text=[some.txt]"]
    assert settings("lstm", given).model.lstm is not None
    assert settings("gtc", given).model == settings("dnn", given).model
    assert settings("dnn", given).model.dnn.width == 512


def test_groups_that_do_not_go_together_are_refused_before_any_stage():
    with pytest.raises(SettingsError, match=r"optim\.momentum is 0\.9, but comm\.method=gtc_async"):
        settings("gtc_async", ["optim.momentum=0.9"])


def test_adapted_frames_need_a_speaker_adaptive_system_to_align(tmp_path):
    def resolved(*systems):
        names = f"GMMS={' '.join(systems)}", f"gmm={systems[-1]}"
        resolve(str(tmp_path), "dnn", *names, "shards.inputs=fmllr")

    resolved("mono", "sat")
    with pytest.raises(SettingsError, match=r"shards\.inputs is fmllr, but tri, the last of GMMS"):
        resolved("mono", "tri")


@pytest.mark.parametrize(
    "given, message",
    [
        ("GMMS=", "^GMMS is empty; .* for example mono$"),
        ("GMMS=mono tri mono", "^GMMS names mono twice"),
        ("NETS=dnn-seed1 dnn-seed1", "^RUNS or SEEDS names dnn-seed1 twice"),
    ],
)
def test_lists_name_each_thing_once(given, message):
    with pytest.raises(SettingsError, match=message):
        Choices.of([given])


def test_an_unknown_run_is_refused():
    with pytest.raises(SettingsError, match=r"RUNS names 'nosuch'.*dnn"):
        settings("nosuch", [])


# cluster and papers are settings of no stage: see tests/cost; recipe and run override other groups
APART = ("recipe", "run", "cluster", "papers")


@pytest.mark.parametrize(
    "group, name",
    [(p.parent.name, p.stem) for p in sorted(CONF.glob("*/*.yaml")) if p.parent.name not in APART],
)
def test_every_file_of_conf_is_valid(group, name):
    extra = []
    if group == "corpus" and name.startswith("commands"):
        extra = ["corpus.commands.grammar=some.gram"]
    elif group == "corpus" and not name.startswith("digits"):
        kind = "folder" if name == "folder" else "published"
        extra = [f"corpus.{kind}.dir=somewhere"]
    if (group, name) == ("lang", "sentences"):
        extra = ["lm=trigram"]
    if (group, name) == ("lm", "arpa"):
        extra = ["lm.small.file=small.arpa", "lm.big.file=big.arpa"]
    assert isinstance(settings("dnn", [f"{group}={name}", *extra]), Config)


@pytest.mark.parametrize("run", [p.stem for p in sorted((CONF / "run").glob("*.yaml"))])
def test_every_run_is_valid(run):
    assert isinstance(settings(run, []), Config)


SIZES = [name + size for name in ("digits", "commands") for size in ("", "_tiny", "_large")]


def test_every_file_of_recipes_is_a_recipes():
    recipes = {p.parent for p in CONF.parent.glob("recipes/*/Makefile")}
    of_stages = {p.name for p in recipes if "stages.mk" in (p / "Makefile").read_text()}
    assert {p.stem for p in (CONF / "recipe").glob("*.yaml")} == of_stages | set(SIZES)


@pytest.mark.parametrize("name", SIZES)  # for the others: see test_corpora.py
def test_every_size_is_valid(name):
    more = ["corpus.commands.grammar=some.gram"] if "commands" in name else []
    assert isinstance(settings("dnn", [f"recipe={name}", "gmm=lda", *more]), Config)


def test_what_is_set_wins_over_the_recipe():
    given = ["recipe=speechocean", "gmm=tri", "lm.text=[x]", *in_folder()[1:]]
    own, other = (
        settings("dnn", [*given, *more])
        for more in ([], ["gmm.tri.gaussians=99", "model=dnn_4x256", "decode=small"])
    )
    assert (own.gmm["tri"].gaussians, own.model.dnn.width, own.decode.nbest) == (2500, 512, 100)
    assert (other.gmm["tri"].gaussians, other.model.dnn.width, other.decode.nbest) == (99, 256, 0)
    assert other.gmm["tri"].tree == own.gmm["tri"].tree


def test_a_recipes_numbers_for_systems_that_are_left_out_change_nothing():
    given = ["recipe=fsdd", *in_folder()[1:]]
    tri, sat = (settings("dnn", [*given, f"gmm={name}"]) for name in ("tri", "sat"))
    assert sat.gmm["sat"].gaussians == 1000
    assert tri == replace(sat, gmm={name: sat.gmm[name] for name in ("mono", "tri")})
    for key in ("gmm.sat.gaussians", "gmm.sat.passes", "+gmm.sat.passes", "gmm.lda.passes"):
        with pytest.raises(SettingsError, match=r"gmm\.(sat|lda) is not a setting.*: mono, tri$"):
            settings("dnn", [*given, "gmm=tri", f"{key}=9"])


def test_a_recipe_has_no_numbers_for_a_system_that_does_not_exist(own_recipe):
    own_recipe("gmm: {trie: {gaussians: 9}}")
    with pytest.raises(SettingsError, match=r"gmm\.trie is not a setting"):
        settings("dnn", ["recipe=own"])


@pytest.fixture
def own_recipe(tmp_path, monkeypatch):
    """A function that writes conf/recipe/own.yaml, in a copy of conf/."""
    shutil.copytree(CONF, tmp_path / "settings")
    monkeypatch.setattr("asr_train.compose.CONF", tmp_path / "settings")

    def write(text: str) -> None:
        path = tmp_path / "settings/recipe/own.yaml"
        path.write_text(f"# @package _global_\n{text}\n")

    return write


def test_settings_of_the_future_are_refused(tmp_path):
    """Else make would take what was made with the old ones for current."""
    resolve(str(tmp_path), "dnn")
    now = time.time()
    os.utime(tmp_path / "feats.yaml", (now + 30, now + 30))  # clocks of two machines
    resolve(str(tmp_path), "dnn", "feats.num_mels=20")
    os.utime(tmp_path / "run/dnn.yaml", (now + 3600, now + 3600))
    with pytest.raises(
        SettingsError, match=r"run/dnn.yaml was written 3\d{3} s later than .*correct the clock"
    ):
        resolve(str(tmp_path), "dnn", "feats.num_mels=30")
    assert read_yaml(tmp_path / "feats.yaml")["num_mels"] == 20


def test_settings_files_are_touched_when_a_file_that_they_name_changes(own_recipe, tmp_path):
    text, work = tmp_path / "text.txt", tmp_path / "w"
    text.write_text("one\n")
    own_recipe(f"defaults: [override /lm: trigram]\nlm: {{text: [{text}]}}")
    resolve(str(work), "dnn", "recipe=own")
    before = mtimes(work)
    resolve(str(work), "dnn", "recipe=own")
    assert mtimes(work) == before
    text.write_text("two\n")
    os.utime(text, (9, 9))
    resolve(str(work), "dnn", "recipe=own")
    changed = {name for name, when in mtimes(work).items() if when > before[name]}
    assert changed == {"lm.yaml", "bigram.yaml"}
    for table in work.glob("*.files.tsv"):  # as in a folder of an earlier version
        table.unlink()
    later = time.time_ns() + 10**9
    os.utime(text, ns=(later, later))
    resolve(str(work), "dnn", "recipe=own")
    now = mtimes(work)
    assert {name: now[name] for name in changed} == dict.fromkeys(changed, later)


def mtimes(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("*.yaml")}


def test_only_the_file_of_a_changed_setting_is_rewritten(tmp_path):
    resolve(str(tmp_path), "dnn")
    before = mtimes(tmp_path)
    resolve(str(tmp_path), "dnn", "decode.beam=12")
    after = mtimes(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"decode.yaml"}


def test_settings_that_another_make_reads_are_not_changed(tmp_path):
    conf = tmp_path / "conf"
    resolve(str(conf), "dnn")
    before = mtimes(conf)
    with locked(tmp_path / FOLDER / "feats_train.jsonl.gz", "never"):
        resolve(str(conf), "dnn")
        with pytest.raises(SettingsError, match=r"decode\.yaml would change .*feats_train"):
            resolve(str(conf), "dnn", "decode.beam=12")
        assert mtimes(conf) == before
        resolve(str(tmp_path / ".plan"), "dnn", "decode.beam=12")  # of make -n
    resolve(str(conf), "dnn", "decode.beam=12")
    assert mtimes(conf) != before


def test_settings_of_a_make_that_runs_are_not_changed_between_its_stages(tmp_path, monkeypatch):
    conf = tmp_path / "conf"
    with subprocess.Popen(["sleep", "1000"]) as first:
        try:
            monkeypatch.setenv("MAKE_PID", str(first.pid))
            resolve(str(conf), "dnn")
            before = mtimes(conf)
            resolve(str(conf), "dnn")  # of a make that it calls
            monkeypatch.setenv("MAKE_PID", str(os.getpid()))
            for more in ([], ["decode.beam=12"]):
                with pytest.raises(
                    ValueError, match=rf"process {first.pid} is at work in {tmp_path}"
                ):
                    resolve(str(conf), "dnn", *more)
            assert mtimes(conf) == before
        finally:
            first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but is still listed
        resolve(str(conf), "dnn", "decode.beam=12")
    claims = (tmp_path / FOLDER).glob("make.*")
    assert [p.name.split(".")[1] for p in claims] == [str(os.getpid())]


@pytest.mark.parametrize("goal", ["conf", "-n"])
def test_make_claims_its_settings_until_it_ends(tmp_path, goal):
    command = ["make", "-C", "recipes/digits", goal, f"W={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as done:
        done.communicate(timeout=600)
    assert done.returncode == 0
    (claim,) = (tmp_path / FOLDER).glob("make.*")
    assert claim.name.startswith(f"make.{done.pid}.")
    assert at_work(tmp_path) is None


def test_a_work_folder_in_which_something_is_made_is_not_removed(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/corpus.yaml").touch()
    with settling(tmp_path, str(os.getpid())):
        pass
    command = ["make", "-C", "recipes/digits", "clean", f"W={tmp_path}"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert f"{tmp_path}: process {os.getpid()} is at work; wait for it" in refused.stderr
    assert (tmp_path / "conf/corpus.yaml").exists()


@pytest.fixture
def plan(tmp_path, python):
    """A function that returns the stages of `make -n` in recipes/digits, by the script's name."""
    recipe = CONF.parent / "recipes" / "digits"

    def run(*arguments: str) -> list[str]:
        folder, variables = ["-C", str(recipe)], [f"W={tmp_path}/w", f"PY={python}"]
        done = subprocess.run(
            ["make", "-n", "table", *folder, *variables, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"},
        )
        lines = done.stdout.replace("\\\n", " ").replace(python, "python").splitlines()
        run.lines = lines
        run.commands = [line.split()[1:] for line in lines if "scripts/" in line]
        return [Path(c[0]).stem for c in run.commands if "resolve" not in c[0]]

    return run


def test_each_system_and_each_pass_learns_from_the_one_before(plan, tmp_path):
    """REALIGN=2 adds two trainings, each on the alignments of the previous one; TEST has none."""
    stages = plan("GMMS=mono tri lda", "SET=gmm=lda", "REALIGN=2")
    assert (stages.count("gmm"), stages.count("train")) == (3, 3)
    made = {
        c[-1].removeprefix(f"{tmp_path}/w/"): [p.removeprefix(f"{tmp_path}/w/") for p in c[1:-1]]
        for c in plan.commands
    }
    assert "exp/mono/model.json" in made["exp/tri/model.json"]
    assert "exp/tri/model.json" in made["exp/lda/model.json"]
    teachers = {"dnn": "lda", "dnn-realign1": "dnn", "dnn-realign2": "dnn-realign1"}
    for run, teacher in teachers.items():
        index = f"shards/{teacher}/train/index.json"
        assert index in made[f"exp/{run}/model.json"]
        assert f"ali/{teacher}/train.jsonl.gz" in made[index]
        assert f"exp/{teacher}/model.json" in made[f"ali/{teacher}/train.jsonl.gz"]
    models = ["mono", "tri", "lda", *teachers]
    assert {o for o in made if o.startswith("ali/")} == {
        *(f"ali/{m}/dev.jsonl.gz" for m in models),
        *(f"ali/{m}/train.jsonl.gz" for m in teachers.values()),
    }
    reports = [p for p in made["report/index.html"] if p.endswith("report.json")]
    assert reports == [f"ali/{m}/dev.report.json" for m in models]


def test_runs_are_trained_further_with_an_objective(plan, tmp_path):
    """All begin with INITIAL and learn from its lattices; without it, each with its own."""
    inside = lambda p: p.removeprefix(f"{tmp_path}/w/")  # noqa: E731
    for said, initials in (([], ["dnn", "gtc"]), (["INITIAL=dnn"], ["dnn", "dnn"])):
        stages = plan("RUNS=dnn gtc", "SEQUENCE=mmi smbr", "WORKERS=2", "VIRTUAL=1", *said)
        assert (stages.count("train"), stages.count("weak")) == (6, 1)
        made = {inside(c[-1]): list(map(inside, c[1:-1])) for c in plan.commands}
        for run, initial in zip(["dnn", "gtc"], initials, strict=True):
            splits = [f"shards/{initial}-lattices/{s}/index.json" for s in ("train", "dev")]
            for path in splits:
                assert {f"exp/{initial}/{n}.json" for n in ("model", "tuned")} < set(made[path])
                assert "lang-weak/index.json" in made[path]
            for name in ("mmi", "smbr"):
                *inputs, settings, model = made[f"exp/{run}-{name}/model.json"]
                assert (inputs[-2:], model) == (splits, f"exp/{initial}/model.json")
                assert settings.endswith(f"/run/{run}-{name}.yaml")
                found = read_yaml(tmp_path / "w" / settings)
                assert (found["initial"], found["objective"]["criterion"]) == (initial, name)
                assert found["comm"]["method"] == {"dnn": "sgd", "gtc": "gtc"}[run]
                assert found["optim"]["rate"] == found["objective"]["rate"]
        assert sum("-lattices/" in path for path in made) == 2 * len(set(initials))
    assert "objective" not in read_yaml(tmp_path / "w/conf/run/dnn.yaml")


def test_models_of_epochs_are_decoded_with_their_runs(plan, tmp_path):
    stages = plan("RUNS=dnn", "EPOCHS=dnn/epochs/3")
    assert (stages.count("train"), stages.count("tune"), stages.count("decode")) == (1, 2, 6)
    outputs = [c[-1].removeprefix(f"{tmp_path}/w/") for c in plan.commands]
    run, epoch = (outputs.index(f"exp/dnn{n}") for n in ("/model.json", "/epochs/3/hyp.dev.jsonl"))
    assert run < epoch


def test_models_are_decoded_with_a_bigram_where_told_so(plan, tmp_path):
    """They are tuned and decoded with its graph; no model is trained again for it."""
    text = tmp_path / "text.txt"
    text.write_text("ONE TWO\n")
    own = ["SET=gmm=tri lang=sentences lm=trigram lm.text=[" + str(text) + "]"]
    own += ["GMMS=mono tri"]
    once, more = plan(*own), plan(*own, "BIGRAM=tri dnn")
    made = {c[-1].removeprefix(f"{tmp_path}/w/"): c for c in plan.commands}
    extra = sorted(more)
    for stage in once:
        extra.remove(stage)
    per_model = ["tune", "decode", "decode", "score", "score"]
    assert sorted(extra) == sorted(["bigram", *2 * per_model])
    for run in ("tri", "dnn"):
        for name in ("tuned.json", "hyp.dev.jsonl", "hyp.test.jsonl"):
            command = " ".join(made[f"exp/{run}-bigram/{name}"])
            assert f"exp/{run}/model.json" in command
            assert "lang-bigram/index.json" in command


def test_a_run_that_is_rescored_keeps_its_lattices(plan, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("ONE TWO\n")
    own = f"lang=sentences lm=fourgram lm.text=[{text}] decode.nbest=5"
    plan(f"SET={own}", "RESCORE=dnn")
    assert read_yaml(tmp_path / "w/conf/scales/dnn.yaml") == {"scales": "dnn", "lattices": True}
    assert read_yaml(tmp_path / "w/conf/scales/mono.yaml") == {"scales": "mono"}
    made = {c[-1].removeprefix(f"{tmp_path}/w/"): c[1:-1] for c in plan.commands}
    assert f"{tmp_path}/w/conf/scales/dnn.yaml" in made["exp/dnn/hyp.dev.jsonl"]
    for name in ("tuned.json", "hyp.test.jsonl"):
        inputs = made[f"exp/dnn-rescored/{name}"]
        assert {f"{tmp_path}/w/{each}/index.json" for each in ("lang", "lm")} <= set(inputs)


def test_a_run_that_is_no_longer_rescored_is_not_decoded_again(tmp_path):
    def scales(*choices):
        known = "GMMS=mono", "NETS=dnn", "SPLITS=dev test"
        resolve(str(tmp_path / "conf"), "dnn", *known, *choices, *settings)
        return read_yaml(tmp_path / "conf/scales/dnn.yaml")

    (tmp_path / "text.txt").write_text("ONE TWO\n")
    settings = "recipe=digits", "lang=sentences", "lm=fourgram", "decode.nbest=5"
    settings += (f"lm.text=[{tmp_path}/text.txt]",)
    assert scales() == {"scales": "dnn"}
    assert scales("RESCORE=dnn") == scales() == {"scales": "dnn", "lattices": True}
    known = tmp_path / "conf/scales/dnn.yaml"
    known.write_text("scales: other\nlattices: true\n")
    assert scales() == {"scales": "dnn"}  # is decoded again anyway


def test_without_networks_there_are_gaussians_alone(plan):
    stages = plan("GMMS=mono tri", "RUNS=")
    assert (stages.count("gmm"), stages.count("tune"), stages.count("train")) == (2, 2, 0)


def test_another_systems_network_is_not_taken_for_this_ones(plan, tmp_path):
    """Alignments of all systems are there, and older than the network, which learnt lda's."""
    conf, when = tmp_path / "w/conf", time.time() - 1000
    for call in ("mono tri", "mono tri lda"):
        given = f"GMMS={call}", "NETS=dnn", "SPLITS=dev test", "recipe=digits"
        resolve(str(conf), "dnn", *given, f"gmm={call.split()[-1]}")
        plan(f"GMMS={call}")
        for path in (Path(command[-1]) for command in plan.commands if "resolve" not in command[0]):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            when += 1
            os.utime(path, (when, when))
        for path in conf.rglob("*.yaml"):
            os.utime(path, (0, 0))
    for systems, remade in (
        ("mono tri", {"exp/dnn"}),
        ("mono lda", {"exp/lda", "exp/dnn"}),
        ("mono tri lda", set()),
    ):
        stages = plan(f"GMMS={systems}")
        models = {Path(command[-1]) for command in plan.commands if stages}
        assert {f"exp/{m.parent.name}" for m in models if m.name == "model.json"} == remade


@pytest.mark.parametrize(
    "arguments",
    [
        ["RUNS=", "PRONPROBS=mono"],
        ["RUNS=sgd gtc", "SCALES=sgd", "EPOCHS=sgd/epochs/1", "SET=optim.keep_epochs=true"],
    ],
)
def test_status_lists_what_make_makes(plan, tmp_path, arguments):
    """Otherwise something would be missing for ever."""
    plan(*arguments, "--eval=status-targets: ; @echo targets: $(TARGETS)", "status-targets")
    made = {command[-1] for command in plan.commands if "resolve" not in command[0]}
    (listed,) = (line.split()[2:] for line in plan.lines if "echo targets:" in line)
    made |= {path for path in listed if "/epochs/1/model.json" in path}  # by a shell's line
    assert sorted(listed) == sorted(made)


def test_with_seeds_each_run_is_trained_once_with_every_one(plan, tmp_path):
    plan("RUNS=sgd gtc", "SEEDS=1 2", "WORKERS=2", "REALIGN=1", "SCALES=sgd")
    trained = [c for c in plan.commands if "train.py" in " ".join(c)]
    runs = {Path(c[-1]).parent.name: c[-2].removeprefix(f"{tmp_path}/w/") for c in trained}
    assert runs == {
        f"{run}-seed{seed}{again}": f"conf/run/{run}-seed{seed}.yaml"
        for run in ("sgd", "gtc")
        for seed in (1, 2)
        for again in ("", "-realign1")
    }
    of_seed = {
        seed: read_yaml(tmp_path / f"w/conf/run/gtc-seed{seed}.yaml")["optim"] for seed in (1, 2)
    }
    assert [optim.pop("seed") for optim in of_seed.values()] == [1, 2]
    assert of_seed[1] == of_seed[2]
    tuned = {Path(c[-1]).parent.name for c in plan.commands if "tune.py" in " ".join(c)}
    assert tuned == {"mono", "sgd-seed1"}


@pytest.mark.parametrize(
    "given, said",
    [
        ("SEEDS=1 2", "SEEDS is '1 2', but nothing is trained for table4"),
        ("SET=optim.rate=1", "SET is 'optim.rate=1', but nothing is trained for table4"),
    ],
)
def test_what_would_have_no_effect_on_a_simulated_table_is_refused(given, said):
    folder = str(CONF.parent / "recipes/seide2014_1bit")
    make = ["make", "-n", "-C", folder, "TABLES=table4", given]
    env = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"}
    done = subprocess.run(make, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "warning" not in done.stderr


def test_a_dry_run_at_full_scale_counts_the_papers_hours():
    make = ["make", "-n", "-C", str(CONF.parent / "recipes" / "ladkat2019"), "SCALE=full"]
    env = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"}
    said = subprocess.run(
        [*make, "DRY_RUN=1", "TABLES=figure2", "CORPUS=digits"],
        **{"capture_output": True, "text": True, "env": env, "check": True},
    ).stdout
    assert "/ladkat2019/figure2.yaml 2000 " in said


@pytest.mark.parametrize(
    "said, processes",
    [("WORKERS=2 VIRTUAL=0", 2), ("WORKERS=3 STRIPES=2", 6), ("WORKERS=3 STRIPES=2 VIRTUAL=1", 2)],
)
def test_each_stripe_of_each_worker_has_a_process_unless_workers_are_virtual(plan, said, processes):
    plan("RUNS=gtc", *said.split())
    (trained,) = [c for c in plan.commands if "train.py" in " ".join(c)]
    assert trained[trained.index("--nproc-per-node") + 1] == str(processes)


def test_a_fresh_recipe_plans_every_stage_and_first_looks_at_all_splits(plan):
    stages = plan()
    assert {"lang", "feats", "gmm", "ali", "shards", "train", "tune"} <= set(stages)
    assert stages[:4] == ["manifests", "manifests", "manifests", "check"]
    assert not {"manifests", "check"} & set(stages[4:])


def test_a_recipe_that_was_finished_without_the_check_is_only_checked(plan, tmp_path):
    finish(plan, tmp_path / "w")
    (tmp_path / "w/manifests/check.txt").unlink()
    assert plan() == ["check"]


def test_no_stage_runs_again_because_its_small_inputs_were_removed(plan, tmp_path):
    finish(plan, tmp_path / "w")
    assert plan() == []
    for pattern in ("manifests/*.jsonl.gz", "lm/*.json", "lang/*.json"):
        for path in (tmp_path / "w").glob(pattern):
            path.unlink()
    assert plan() == []


def finish(plan, work: Path, *arguments: str, runs=("dnn",)) -> None:
    """Write the outputs of all stages of a call, in the order of the plan."""
    plan(*arguments)
    begin = time.time() - 1000
    for path in work.rglob("*.yaml"):
        os.utime(path, (begin, begin))
    names = ["train", "dev", "test"]
    order = [f"manifests/{s}.jsonl.gz" for s in names]
    order += ["manifests/check.txt", "lm/index.json", "lang/index.json"]
    order += [f"feats/{s}.jsonl.gz" for s in names] + ["exp/mono/model.json"]
    order += [f"ali/mono/{s}.jsonl.gz" for s in names[:2]]
    order += [f"shards/mono/{s}/index.json" for s in names[:2]]
    order += [f"exp/{run}/model.json" for run in runs]
    order += [f"ali/{run}/dev.jsonl.gz" for run in runs]
    for run in ("mono", *runs):
        order += [f"exp/{run}/tuned.json"]
        order += [f"exp/{run}/{kind}" for s in names[1:] for kind in (f"hyp.{s}.jsonl",)]
        order += [f"exp/{run}/score.{s}.json" for s in names[1:]]
    tables = ["tables/wer.md", "tables/exchange.md", "report/index.html"]
    for i, name in enumerate([*order, *tables]):
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        when = begin + 1 + i
        os.utime(path, (when, when))


@pytest.mark.parametrize(
    "setting, stages",
    [
        ("decode.beam=12", {"tune", "decode", "score", "tables", "exchange", "report"}),
        (
            "optim.rate=0.1",
            {"train", "ali", "tune", "decode", "score", "tables", "exchange", "report"},
        ),
        ("score.seed=2", {"score", "tables", "exchange", "report"}),
        (
            "score.normaliser.kind=english",
            {"tune", "decode", "score", "tables", "exchange", "report"},
        ),
    ],
)
def test_a_changed_setting_reruns_just_the_stages_it_touches(plan, tmp_path, setting, stages):
    finish(plan, tmp_path / "w")
    assert set(plan(f"SET={setting}")) == stages


def test_a_further_test_set_of_the_same_sentences_trains_nothing_again(plan, tmp_path):
    grammar = shutil.copy(CONF.parent / "recipes/commands/commands.gram", tmp_path)
    os.utime(grammar, (0, 0))  # a clone's files are new
    commands = ("-C", "../commands", "SIZE=tiny", "GMMS=mono", f"GRAMMAR={grammar}")
    finish(plan, tmp_path / "w", *commands)
    assert plan(*commands) == []
    shown = {"score", "tables", "exchange", "report"}
    decoded = {"manifests", "check", "feats", "decode"} | shown
    assert set(plan(*commands, "CONDITIONS=noise")) == decoded


def test_the_path_of_the_report_that_make_prints_exists_from_anywhere(tmp_path):
    recipe = CONF.parent / "recipes" / "digits"
    given = os.path.relpath(tmp_path / "w", recipe)
    done = subprocess.run(
        ["make", "-n", "table", "-C", str(recipe), f"W={given}", f"PY={sys.executable}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"report: {tmp_path}/w/report/index.html" in done.stdout


PRINTED = {"tables", "exchange", "report"}


@pytest.mark.parametrize(
    "before, after, stages",
    [
        # make prints what belongs to this call, even if every file of it exists.
        ("RUNS=sgd gtc", "RUNS=gtc", PRINTED),
        ("RUNS=gtc", "RUNS=gtc", set()),
        ("RUNS=gtc WORKERS=2 VIRTUAL=1", "RUNS=gtc WORKERS=2", set()),  # any number of processes
        (
            "RUNS=gtc WORKERS=2 VIRTUAL=1",
            "RUNS=gtc WORKERS=8 VIRTUAL=1",
            {"train", "ali", "tune", "decode", "score", *PRINTED},
        ),
        ("RUNS=sgd WORKERS=2 VIRTUAL=1", "RUNS=sgd WORKERS=8 VIRTUAL=1", set()),  # always one
        (
            "RUNS=gtc WORKERS=2",
            "RUNS=gtc WORKERS=2 STRIPES=2",
            {"launch", "ali", "tune", "decode", "score", *PRINTED},
        ),
        ("RUNS=sgd gtc", "RUNS=sgd gtc SCALES=sgd", {"decode", "score", *PRINTED}),
        ("RUNS=sgd gtc SCALES=sgd", "RUNS=sgd gtc", {"decode", "score", *PRINTED}),
        ("RUNS=dnn", "RUNS=dnn EPOCHS=dnn/epochs/3", {"decode", "score", *PRINTED}),
        ("RUNS=dnn", "RUNS=dnn REALIGN=1", None),
    ],
)
def test_what_is_said_on_the_command_line_counts_on_a_finished_folder(
    plan, tmp_path, before, after, stages
):
    split = lambda said: re.split(r" (?=[A-Z]+=)", said)  # noqa: E731
    (runs,) = [s.removeprefix("RUNS=").split() for s in split(before) if s.startswith("RUNS=")]
    finish(plan, tmp_path / "w", *split(before), runs=runs)
    (tmp_path / "w/exp/dnn/epochs/3").mkdir(parents=True)
    (tmp_path / "w/exp/dnn/epochs/3/model.json").touch()
    os.utime(tmp_path / "w/exp/dnn/epochs/3/model.json", (0, 0))
    found = set(plan(*split(after)))
    if stages is None:
        assert {"train", "decode", *PRINTED} <= found
    else:
        assert found == stages


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["SCALES=nosuch"], "SCALES names 'nosuch'.*known: dnn"),
        (["RUNS=gtc sgd", "SCALES=gt"], "SCALES names 'gt'.*did you mean 'gtc'"),
        (["RESCORE=dn"], "RESCORE names 'dn'.*did you mean 'dnn'"),
        (["RESCORE=dnn"], "RESCORE names dnn, but lm.big is null.*set lang=sentences lm=fourgram"),
        (["BIGRAM=dnn"], "BIGRAM names dnn, but lm.bigram.text is empty.*set lm.text"),
        (["EPOCHS=dnn"], "EPOCHS names 'dnn'; it takes RUN/epochs/N"),
        (["EPOCHS=dn/epochs/2"], "EPOCHS names 'dn'.*did you mean 'dnn'"),
        (["SEQUENCE=mmo"], "SEQUENCE names 'mmo'.*did you mean 'mmi'"),
        (["INITIAL=dnn"], "INITIAL is dnn, but without SEQUENCE no network begins with another"),
        (["SEQUENCE=mmi", "INITIAL=dn"], "INITIAL names 'dn'.*did you mean 'dnn'"),
        (["SEQUENCE=mmi", "INITIAL=dnn-mmi"], "INITIAL names 'dnn-mmi', which is not trained by"),
        (["SEEDS=1,2"], "SEEDS names '1,2'; it takes integers, such as SEEDS='1 2 3'"),
        (["REALIGN=abc"], "REALIGN is 'abc'; it must be an integer from 0 to 9"),
        (["RUNS=dnn,gtc"], "RUNS names 'dnn,gtc', which is no file of conf/run"),
        (["RUNS=gtcc"], "RUNS names 'gtcc'.*did you mean 'gtc'"),
        (["GMMS=mono tree"], "GMMS names 'tree'.*known: lda, mono, sat, tri"),
        (["GMMS=tri mono"], "GMMS is 'tri mono', but each system is trained from the one before"),
        (["GMMS=tri"], "GMMS is 'tri'.*name them in order, the first with a flat start"),
        (["SET=gmm=tri"], "SET says gmm=tri, but the last of GMMS='mono' is mono; name the sys"),
        (["bundle", "RUN=sat"], "RUN is 'sat', .* models: mono dnn; give the GMMS, RUNS, "),
        (["WORKERS=0"], "WORKERS is '0'; it must be a positive integer"),
        (["STRIPES=two"], "STRIPES is 'two'; it must be a positive integer"),
        (["RUNS=lstm", "STRIPES=2"], "comm.stripes is 2, but only layers of model.dnn can be cut"),
        (["SET=optim.rate=1", "SET=optim.epochs=2"], "SET is given twice, and make would use only"),
        (["SEQUENCE=mmi", "SEQUENCE=smbr"], "SEQUENCE is given twice, and make would use only"),
        (["W="], "W is ''; name a folder that holds nothing else, or leave W out"),
        ([f"W={CONF.parent}"], "W is '.*'; name a folder that holds nothing else"),
        (["WORKER=2"], r"unknown variable WORKER \(did you mean WORKERS\?\); `make help`"),
        (["set=optim.rate=1"], r"unknown variable set \(did you mean SET\?\); `make help`"),
        (
            ["SET=optim.epochs=2 corpus.seed=2", "optim.rate=1"],
            r"optim.rate is a setting, .*call make with SET='optim.rate=...'",
        ),
    ],
)
def test_a_name_that_does_not_exist_is_refused_before_anything_runs(
    plan, tmp_path, arguments, says
):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        plan(*arguments)
    lines = [line for line in caught.value.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    assert re.search(says, lines[0])
    assert not list(tmp_path.glob("w/conf/run/*"))


def test_an_edited_mapping_is_tuned_and_scored_with_anew(plan, tmp_path):
    mapping = tmp_path / "en.glm"
    mapping.touch()
    arguments = f"SET=score.normaliser.kind=english score.normaliser.mapping={mapping}"
    overrides = ["recipe=digits", *arguments.removeprefix("SET=").split()]
    given = "GMMS=mono", "NETS=dnn", "SPLITS=dev test"
    resolve(str(tmp_path / "w/conf"), "dnn", *given, *overrides)
    finish(lambda: None, tmp_path / "w")
    os.utime(mapping, (0, 0))
    assert plan(arguments) == []
    mapping.write_text("colour => color\n")
    assert set(plan(arguments)) == {"tune", "decode", "score", "tables", "exchange", "report"}


@pytest.mark.parametrize(
    "settings, first, untouched",
    [
        ("lang.lexicon.source=file lang.lexicon.file={}", "manifests", set()),
        ("lang=sentences lm=trigram lm.text=[{}]", "lm", {"manifests", "check", "feats"}),
        (
            "lang=words lang.grammar.kind=arpa lang.grammar.file={}",
            "lang",
            {"manifests", "lm", "feats"},
        ),
    ],
)
def test_an_edited_file_of_the_users_reruns_the_stages_that_read_it(
    plan, tmp_path, settings, first, untouched
):
    file = tmp_path / "file"
    file.write_text("one\n")
    os.utime(file, (0, 0))
    asked = f"SET={settings.format(file)}"
    given = "GMMS=mono", "NETS=dnn", "SPLITS=dev test", "recipe=digits", *asked[4:].split()
    resolve(str(tmp_path / "w/conf"), "dnn", *given)
    finish(plan, tmp_path / "w", asked)
    assert plan(asked) == []
    os.utime(file)  # a copy of the same content
    assert plan(asked) == []
    file.write_text("two\n")
    os.utime(file, (9, 9))  # replaced by a file that is older than the run
    before = mtimes(tmp_path / "w/conf")
    stages = plan(asked)
    assert mtimes(tmp_path / "w/conf") == before
    assert stages[0] == first
    assert {"lang", "train", "decode"} <= set(stages)
    assert not untouched & set(stages)


def test_planning_with_another_setting_touches_no_settings_file(plan, tmp_path):
    plan()
    before = mtimes(tmp_path / "w" / "conf")
    assert before
    assert "decode" in plan("SET=decode.beam=12")
    assert mtimes(tmp_path / "w" / "conf") == before


@pytest.mark.parametrize(("key", "value"), [("human", "{}"), ("more_dirs", "[{}]")])
def test_a_folder_of_peoples_recordings_must_be_there_and_its_table_counts(tmp_path, key, value):
    (tmp_path / "some.gram").write_text("#JSGF V1.0;\npublic <a> = one ;\n")
    people, work = tmp_path / "people", tmp_path / "conf"
    named = f"corpus.commands.{key}={value.format(people)}"
    given = [f"corpus.commands.grammar={tmp_path}/some.gram", named]
    with pytest.raises(SettingsError, match=rf"commands\.{key} is .*people/utterances\.tsv"):
        resolve(str(work), "dnn", "recipe=commands", *given)
    people.mkdir()
    table = people / "utterances.tsv"
    table.write_text("utt_id\n")
    resolve(str(work), "dnn", "recipe=commands", *given)
    before = mtimes(work)
    table.write_text("utt_id\tspeaker\n")
    resolve(str(work), "dnn", "recipe=commands", *given)
    changed = {name for name, when in mtimes(work).items() if when != before[name]}
    assert changed == {"corpus.yaml"}
