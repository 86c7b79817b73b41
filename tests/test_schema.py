"""Settings are refused by dotted key, value and what is allowed; plain data come back the same."""

import pytest

from asr_train.schema import (
    AliSettings,
    Config,
    CorpusSettings,
    DecodeSettings,
    FeatsSettings,
    SettingsError,
    build,
    plain,
)
from scripts.resolve import settings

DECODE = {
    "beam": 16.0,
    "max_active": 100,
    "acoustic_scales": [0.1],
    "insertion_penalties": [0.0],
    "lm_weights": [1.0],
}


def test_settings_survive_being_plain_data():
    config = settings("dnn", [])
    assert build(Config, plain(config)) == config


@pytest.mark.parametrize(
    "change, message",
    [
        ({"beem": 1.0}, "decode.beem is no setting; did you mean decode.beam"),
        ({"beam": "x"}, "decode.beam is 'x'; it must be a number"),
        ({"beam": True}, "decode.beam is True"),
        ({"beam": -1}, "decode.beam is -1.0; it must be positive"),
        ({"max_active": 1.5}, "decode.max_active is 1.5; it must be a whole number"),
        ({"acoustic_scales": 0.1}, "decode.acoustic_scales is 0.1; it must be a list"),
        ({"acoustic_scales": ["a"]}, r"decode.acoustic_scales\[0\] is 'a'"),
        ({"acoustic_scales": []}, "decode.acoustic_scales is empty"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(change, message):
    with pytest.raises(SettingsError, match=message):
        build(DecodeSettings, DECODE | change, "decode")


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
    ],
)
def test_features_that_cannot_be_are_refused(change, message):
    values = plain(settings("dnn", []).feats)
    with pytest.raises(SettingsError, match=message):
        build(FeatsSettings, values | change, "feats")


def test_a_narrower_retry_is_refused():
    values = plain(settings("dnn", []).ali)
    with pytest.raises(SettingsError, match="wider"):
        build(AliSettings, values | {"retry_beam": 1.0}, "ali")


def test_a_corpus_is_of_one_kind():
    values = plain(settings("dnn", []).corpus)
    with pytest.raises(SettingsError, match="exactly one"):
        build(CorpusSettings, values | {"digits": None}, "corpus")
