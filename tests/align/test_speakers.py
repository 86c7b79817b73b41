"""Frames that networks read: unadapted by the identity, and the same bytes from a file."""

from dataclasses import replace

import numpy as np
import pytest
from speakers import DIMS
from speakers import Speakers as Feats
from toy import toy_lang

from asr_train.align.front import Front
from asr_train.align.speakers import Speakers, load_speakers, write_speakers
from asr_train.schema import FrontSettings, NormBy, NormSettings

NORM = NormSettings(by=NormBy.none, variance=False)
SYSTEM = {"run": "sat", "sha256": "abc"}


@pytest.fixture(scope="module")
def feats():
    return Feats(toy_lang())


@pytest.fixture
def speakers():
    """Two of four speakers have a matrix; frames are spliced and projected."""
    rng = np.random.default_rng(0)
    transform_dD = rng.standard_normal((5, 3 * DIMS)).astype(np.float32)
    front = Front(FrontSettings(num_ceps=0, deltas=0, norm=NORM, splice=1), transform_dD)
    return Speakers(SYSTEM, front, {name: rng.standard_normal((5, 6)) for name in ("s1", "s0")})


def test_frames_are_transformed_by_the_speakers_matrix(feats, speakers):
    plain, read = speakers.front(feats), speakers.read(feats)
    for u in feats.utterances:
        x_TD, matrix_DE = plain(u), speakers.matrices.get(u.speaker, np.eye(5, 6))
        wanted_TD = x_TD @ matrix_DE[:, :-1].T + matrix_DE[:, -1]
        np.testing.assert_allclose(read(u), wanted_TD, rtol=1e-5, atol=1e-4)  # float32
        assert read(u).dtype == np.float32


def test_the_identity_leaves_the_frames_unadapted(feats, speakers):
    alike = replace(speakers, matrices={"s0": np.eye(5, 6)})
    plain, read = speakers.front(feats), alike.read(feats)
    for u in feats.utterances[:4]:
        assert np.array_equal(read(u), plain(u))


@pytest.mark.parametrize("names", [("s0", "s1"), ()])
def test_what_is_read_back_reads_the_same_bytes(feats, speakers, tmp_path, names):
    speakers = replace(speakers, matrices={name: speakers.matrices[name] for name in names})
    write_speakers(tmp_path / "a", speakers)
    back = load_speakers(tmp_path / "a")
    assert back.system == SYSTEM
    for u in feats.utterances[:4]:
        assert np.array_equal(back.read(feats)(u), speakers.read(feats)(u))
    write_speakers(tmp_path / "b", back)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
