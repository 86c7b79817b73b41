"""Wrong settings are refused with key, value and what is allowed; plain data are kept."""

import contextlib
import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from asr_train.compose import settings
from asr_train.data.logmel import LogMel
from asr_train.files import write_yaml
from asr_train.schema import (
    AliSettings,
    Capacity,
    Codec,
    Config,
    CorpusSettings,
    DecodeSettings,
    FeatsSettings,
    GmmSettings,
    GtcSettings,
    SettingsError,
    build,
    load,
    plain,
)
from asr_train.schema.limits import Checked, Count, Interval, Positive, Share

DECODE = {
    "beam": 16.0,
    "max_active": 100,
    "acoustic_scales": [0.1],
    "insertion_penalties": [0.0],
    "lm_weights": [1.0],
    "minimise": True,
    "nbest": 0,
    "lattice_beam": 8.0,
    "rescore_lm_weights": [1.0],
    "rescore_penalties": [0.0],
}


def test_settings_survive_being_plain_data():
    config = settings("dnn", [])
    assert build(Config, plain(config)) == config


def test_without_stripes_the_files_are_those_of_earlier_versions():
    """Else an update of the software would train every network anew."""
    assert "stripes" not in plain(settings("gtc", []).comm)
    assert plain(settings("gtc", ["comm.stripes=2"]).comm)["stripes"] == 2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"beem": 1.0}, "decode.beem is not a setting; did you mean decode.beam"),
        ({"beam": "x"}, "decode.beam is 'x'; it must be a number"),
        ({"beam": float("inf")}, "decode.beam is inf; it must be a finite number"),
        ({"beam": True}, "decode.beam is True"),
        ({"beam": -1}, "decode.beam is -1.0; it must be positive"),
        ({"max_active": 1.5}, "decode.max_active is 1.5; it must be an integer"),
        ({"acoustic_scales": 0.1}, "decode.acoustic_scales is 0.1; it must be a list"),
        ({"acoustic_scales": ["a"]}, r"decode.acoustic_scales\[0\] is 'a'"),
        ({"acoustic_scales": []}, "decode.acoustic_scales is empty"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(change, message):
    with pytest.raises(SettingsError, match=message):
        build(DecodeSettings, DECODE | change, "decode")


@pytest.mark.parametrize(
    "wrong",
    [
        "corpus.seed=-1",
        "corpus.digits.sample_rate=100",
        "feats.shift_seconds=10",
        "feats.window_seconds=25",
        "corpus.digits.level_db=[0.0,-1.0]",
        "lang.grammar.min_words=2",
        "lang.grammar.max_words=2 lang.grammar.kind=ngram lm=trigram",
        "lang.grammar.words=[YES] lang=sentences lm=trigram",
        "lang.lexicon.max_variants=0",
        "lm.small.order=5 lm=fourgram",
        "lm.big.order=5 lm=fourgram",
        "lm.big.prune=-1 lm=fourgram",
        "lm.bigram.vocabulary=0 lm=trigram",
        "gmm.mono.passes=0",
        "gmm.mono.flat.seconds=0",
        "gmm.tri.front.splice=-1 gmm=tri",
        "gmm.tri.tree.leaves=0 gmm=sat",
        "gmm.sat.tree.leaves=0 gmm=sat",
        "gmm.lda.lda.dims=0 gmm=lda",
        "gmm.sat.fmllr.silence_weight=2 gmm=sat",
        "ali.retry_beam=1",
        "shards.utterances=0",
        "model.dnn.context_right=-1",
        "model.lstm.warm=-1 model=lstm_2x128",
        "optim.rate=-1",
        "optim.max_norm=0",
        "optim.seed=-1",
        "optim.pretrain.epochs=0 optim=strom2015",
        "optim.auto_minibatch.trial=0 optim=seide2014_auto",
        "optim.auto_minibatch.factors=[2.0] optim=seide2014_auto",
        "optim.auto_minibatch.least=300000 optim=seide2014_auto",
        "optim.auto_rate.gain=-1 optim=seide2014_auto",
        "optim.divisors=[0.0] optim=seide2014_auto",
        "comm.gtc.threshold=0 comm=gtc",
        "comm.gtc.adaptive.band=0 comm=gtc_adaptive",
        "comm.asynchronous.virtual_time.slowdown=0 comm=gtc_async",
        "comm.bmuf.block_steps=0 comm=bmuf_gtc",
        "comm.group_size=-1 comm=bmuf_gtc",
        "comm.stripes=0",
        "comm.stripes=2 model=lstm_2x128",
        "comm.stripes=257 model=dnn_4x256",
        "comm.stripes=2 comm.virtual=batched",
        "comm.stripes=2 optim.precision=bf16",
        "comm.stripes=2 comm=gtc_async optim.momentum=0",
        "decode.nbest=-1",
        "score.bootstrap=99",
        "lang.phone_states=65",
        "lang.silence_states=0",
        "score.seed=-1",
        "score.normaliser.mapping=x",
        "score.speaker_groups='(a'",
        "score.speaker_groups=a",
    ],
)
def test_a_wrong_value_is_named_by_the_override_that_sets_it(wrong):
    given = wrong.split()
    key = given[0].partition("=")[0]
    with pytest.raises(SettingsError, match=rf"(^| ){re.escape(key)} is "):
        settings("dnn", given)


def test_built_alone_settings_name_their_own_field():
    with pytest.raises(SettingsError, match=r"^threshold is 0.0; it must lie in"):
        GtcSettings(threshold=0.0, codec=Codec.rice, capacity=Capacity.exact)


@dataclass(kw_only=True, slots=True)
class Limited(Checked):
    share: Share = 0.5
    words: Interval[Count] = field(default_factory=lambda: [1, 2])
    hours: dict[str, Positive] = field(default_factory=dict)
    most: Count | None = None


@pytest.mark.parametrize(
    "change, message",
    [
        ({"share": 1.5}, r"share is 1.5; it must lie in \[0, 1\]"),
        ({"words": [2, 1]}, r"words is \[2, 1\]; it must be \[lowest, highest\]"),
        ({"words": [0, 1]}, "words is 0; it must be positive"),
        ({"hours": {"dev": 0.0}}, "hours.dev is 0.0; it must be positive"),
        ({"most": 0}, "most is 0; it must be positive"),
    ],
)
def test_annotations_limit_a_value_and_what_is_in_it(change, message):
    with pytest.raises(SettingsError, match=f"^{message}$"):
        Limited(**change)


def test_a_stage_names_the_file_and_the_key_in_it(tmp_path):
    values = plain(settings("dnn", ["gmm=tri"]).gmm["tri"])
    values["tree"]["leaves"] = 0
    write_yaml(tmp_path / "tri.yaml", values)
    with pytest.raises(SettingsError, match=r"tri.yaml: tree.leaves is 0; it must be positive"):
        load(GmmSettings, tmp_path / "tri.yaml")


def test_a_missing_key_is_named():
    with pytest.raises(SettingsError, match=r"decode\.beam is missing"):
        build(DecodeSettings, {k: v for k, v in DECODE.items() if k != "beam"}, "decode")


def test_whole_numbers_count_as_numbers():
    assert build(DecodeSettings, DECODE | {"beam": 12}, "decode").beam == 12.0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"high_hz": 9000.0}, "half of feats.sample_rate"),
        ({"low_hz": 8000.0}, "half of feats.sample_rate"),
        ({"dither": -1.0}, "feats.dither is -1.0"),
        ({"num_mels": 0}, "feats.num_mels is 0"),
        ({"num_mels": 1000}, r"num_mels is 1000, but .* 16000 .* set feats.num_mels=126 or fewer"),
        ({"sample_rate": 100}, r"feats.sample_rate is 100; it must lie in \[4000, 192000\]"),
        ({"window_seconds": 1e-5}, "feats.window_seconds is 1e-05, too short for a spectrum"),
    ],
)
def test_features_that_cannot_be_are_refused(change, message):
    values = plain(settings("dnn", []).feats)
    with pytest.raises(SettingsError, match=message):
        build(FeatsSettings, values | change, "feats")


@pytest.mark.parametrize("rate, most", [(8000, 95), (16000, 126), (44100, 267)])
def test_as_many_bins_as_are_said_to_be_possible_are(rate, most):
    values = plain(settings("dnn", []).feats) | {"sample_rate": rate}
    feats = build(FeatsSettings, values | {"num_mels": most}, "feats")
    assert LogMel(feats)(np.ones(rate, np.float32)).shape == (100, most)
    with pytest.raises(SettingsError, match=f"set feats.num_mels={most} or fewer"):
        build(FeatsSettings, values | {"num_mels": most + 1}, "feats")


def test_a_narrower_retry_is_refused():
    values = plain(settings("dnn", []).ali)
    build(AliSettings, values | {"retry_beam": values["beam"]}, "ali")  # equal is allowed
    with pytest.raises(SettingsError, match="wider"):
        build(AliSettings, values | {"retry_beam": 1.0}, "ali")


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("mono", {"passes": 0}, "gmm.mono.passes is 0"),
        ("mono", {"grown_by": 0.0}, r"gmm.mono.grown_by is 0.0; it must lie in \[0.05, 1\]"),
        ("mono", {"variance_floor": 0.0}, r"gmm.mono.variance_floor is 0.0; it must lie in"),
        (
            "mono",
            {"lda": {"dims": 40, "silence": False, "mllt_passes": []}},
            "cannot have tree, lda",
        ),
        ("mono", {"front": None}, "gmm.mono: a system with .* so it needs a front"),
        ("lda", {"front": None}, "gmm.lda.lda needs gmm.lda.front.splice above 0"),
        ("sat", {"fmllr.min_frames": 0.0}, "gmm.sat.fmllr.min_frames is 0"),
        ("sat", {"fmllr.silence_weight": 2.0}, r"silence_weight is 2.0; it must lie in \[0, 1\]"),
        (
            "sat",
            {"front": {"num_ceps": 13, "deltas": 2, "norm": {"by": "speaker", "variance": False}}},
            "gmm.sat.fmllr needs gmm.sat.front=null",
        ),
        ("lda", {"front.splice": 0}, "gmm.lda.lda needs gmm.lda.front.splice above 0"),
        ("lda", {"lda.dims": 0}, "gmm.lda.lda.dims is 0"),
        ("tri", {"tree.leaves": 0}, "gmm.tri.tree.leaves is 0"),
        ("tri", {"tree.min_gain": -1.0}, "gmm.tri.tree.min_gain is -1.0"),
        ("tri", {"tree.share": [["AH", "AX"], ["AH", "B"]]}, "names AH twice"),
        (
            "tri",
            {"tree.question_states": "first"},
            "allowed: middle, all|question_states is 'first'",
        ),
        ("tri", {"front.deltas": 3}, "gmm.tri.front.deltas is 3"),
    ],
)
def test_systems_of_gaussians_that_cannot_be_are_refused(name, change, message):
    values = plain(settings("dnn", ["gmm=sat"]).gmm[name])
    for key, value in change.items():
        *groups, last = key.split(".")
        target = values
        for group in groups:
            target = target[group]
        target[last] = value
    with pytest.raises(SettingsError, match=message):
        build(GmmSettings, values, f"gmm.{name}")


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("dnn_4x512", "dnn.dropout=1.0", r"model.dnn.dropout is 1.0; it must lie in \[0, 0.9\]"),
        ("lstm_2x128", "lstm.dropout=-0.1", r"model.lstm.dropout is -0.1; it must lie in"),
        ("lstm_2x128", "lstm.layers=1", None),
        ("lstm_2x128", "lstm.dropout=0.1 lstm.layers=1", "model.lstm.layers is 1; it applies"),
    ],
)
def test_dropout_is_a_share_and_stands_between_layers(name, change, message):
    given = [f"model={name}", *(f"model.{one}" for one in change.split())]
    with contextlib.nullcontext() if message is None else pytest.raises(Exception, match=message):
        settings("dnn", given)


def test_a_corpus_is_of_one_kind():
    values = plain(settings("dnn", []).corpus)
    with pytest.raises(SettingsError, match="exactly one"):
        build(CorpusSettings, values | {"digits": None}, "corpus")
