"""Speakers that are affine transforms of each other get equal adapted frames."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
from speakers import CONFIG, Speakers, system, trained
from toy import toy_lang

from asr_train.align.adapt import Adapted, adapt, scores
from asr_train.align.gmm import Mixtures, load_gmm, save_gmm
from asr_train.align.viterbi import Aligned, Aligner, transcripts
from asr_train.schema import GmmSettings

SHORT = "s3"  # the speaker with too few frames
ARRAYS = ("state_G", "weight_G", "mean_GD", "variance_GD", "loop_S")


@pytest.fixture(autouse=True)
def one_job(monkeypatch):
    monkeypatch.setenv("JOBS", "1")


@pytest.fixture(scope="module")
def lang():
    return toy_lang()


@pytest.fixture(scope="module")
def chain(lang):
    """Different speakers; mono, then one system without and one with adaptation."""
    feats = Speakers(lang)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")  # so little work takes less time than forking processes
        mono, *_ = trained(feats, lang, system("mono"))
        plainly = trained(feats, lang, unadapted(), mono)
        sat = trained(feats, lang, system("sat"), mono)
    return feats, mono, plainly, sat


def unadapted(**change) -> GmmSettings:
    return replace(system("sat", **change), fmllr=None)


def loglik(model: Mixtures, read: Adapted, feats, lang) -> float:
    """Nats per frame of the correct words."""
    said = transcripts(feats.utterances)
    aligner = Aligner(lang, model.states, model.gmm.loop_S, CONFIG.ali)
    found = aligner.align_all(scores(model, read), said)
    assert all(isinstance(o, Aligned) for o in found)
    return sum(o.loglik for o in found) / sum(len(o.states_T) for o in found)


def test_adapted_speakers_are_as_likely_as_if_they_were_one(chain, lang):
    """Includes the determinants, without which their likelihoods would not be comparable."""
    feats, _, (_, _, plain_rows), (*_, rows) = chain
    alike = Speakers(lang, alike=True)
    *_, one_rows = trained(alike, lang, unadapted(), trained(alike, lang, system("mono"))[0])
    best, without = one_rows[-1]["loglik_per_frame"], plain_rows[-1]["loglik_per_frame"]
    changes = [c for s, c in feats.change.items() for u in feats.utterances if u.speaker == s]
    frames = [u.frames for s in feats.change for u in feats.utterances if u.speaker == s]
    logdets = [np.linalg.slogdet(c[:, :-1])[1] for c in changes]
    best -= np.average(logdets, weights=frames)  # the transforms' effect on densities
    assert best > without + 0.5
    assert rows[-1]["loglik_per_frame"] > without + 0.8 * (best - without)


def test_adaptation_finds_the_states_that_made_the_speech(chain):
    feats, _, (_, plainly, _), (_, outcomes, _) = chain

    def right(found):
        pairs = zip(feats.utterances, found, strict=True)
        return np.mean([(o.states_T == feats.paths[u.id]).mean() for u, o in pairs])

    assert right(outcomes) > max(0.9, right(plainly))


def test_speakers_of_few_frames_are_listed_and_read_as_they_are(chain):
    *_, (_, _, rows) = chain
    said = [row["speakers"] for row in rows if "speakers" in row]
    assert len(said) == 3  # the initial estimate, and two passes
    for speakers in said:
        assert (speakers["speakers"], speakers["adapted"]) == (4, 3)
        ((name, why),) = speakers["kept"]
        assert name == SHORT
        assert "fewer than 200" in why
    assert said[0]["gain_per_frame"] > 0.5
    assert all(s["gain_per_frame"] >= 0 for s in said)


def test_without_anybody_to_adapt_all_is_as_in_the_plain_system(chain, lang):
    feats, mono, (plainly, outcomes, _), _ = chain
    model, others, _ = trained(feats, lang, system("sat", fmllr={"min_frames": 1e9}), mono)
    for array in ARRAYS:
        wanted = getattr(plainly.gmm, array)
        assert np.array_equal(getattr(model.gmm, array), wanted)
        assert np.array_equal(getattr(model.adaptive.unadapted, array), wanted), array
    for a, b in zip(outcomes, others, strict=True):
        assert np.array_equal(a.states_T, b.states_T)
    found = adapt(model, mono.front(feats), transcripts(feats.utterances), lang, CONFIG.ali)
    assert found.summary()["adapted"] == 0
    u = feats.utterances[0]
    ids = np.arange(model.gmm.num_states)
    wanted_TS = scores(plainly, Adapted(mono.front(feats)))(u)(ids, slice(None))
    assert np.array_equal(scores(model, found)(u)(ids, slice(None)), wanted_TS)


def test_the_number_of_processes_changes_nothing(chain, lang, monkeypatch):
    feats, mono, *_ = chain
    models, found = [], []
    for jobs in ("1", "3"):
        monkeypatch.setenv("JOBS", jobs)
        model, *_ = trained(feats, lang, system("sat", passes=3, gaussians=20), mono)
        models.append(model)
        said = transcripts(feats.utterances)
        found.append(adapt(model, model.front(feats), said, lang, CONFIG.ali))
    for array in ARRAYS:
        for gmms in ([m.gmm for m in models], [m.adaptive.unadapted for m in models]):
            assert np.array_equal(getattr(gmms[0], array), getattr(gmms[1], array))
    for speaker, transform in found[0].speakers.items():
        assert np.array_equal(transform.matrix, found[1].speakers[speaker].matrix)


def test_the_first_paths_are_gone_when_the_adapted_ones_are_found(chain, lang, monkeypatch):
    """Those of 960 hours take 2 GB."""
    feats, *_, (model, *_) = chain
    made, alive, align_all = [], [], Aligner.align_all

    def noted(*given):
        alive.append(sum(path() is not None for path in made))
        found = align_all(*given)
        made.extend(weakref.ref(o.states_T) for o in found)
        return found

    monkeypatch.setattr(Aligner, "align_all", noted)
    adapt(model, model.front(feats), transcripts(feats.utterances), lang, CONFIG.ali)
    assert alive == [0, 0]
    assert len(made) == 2 * len(feats.utterances)


@pytest.fixture(scope="module")
def new(lang):
    """Speakers that are not in the training data."""
    return Speakers(lang, seed=5, prefix="new")


def test_new_speakers_become_likelier_adapted(chain, new, lang):
    """Even if a third of the words used for adaptation are wrong; best if all are right."""
    *_, (model, *_) = chain
    read, said = model.front(new), transcripts(new.utterances)
    heard = [(u, words if n % 3 else ["ABC", "C", "A", "AB"]) for n, (u, words) in enumerate(said)]
    before = loglik(model, Adapted(read), new, lang)
    told, guessed = (adapt(model, read, words, lang, CONFIG.ali) for words in (said, heard))
    after = loglik(model, told, new, lang)
    assert before + 0.5 < loglik(model, guessed, new, lang) <= after
    assert told.gain == pytest.approx(after - before, abs=0.2)
    assert told.summary()["adapted"] == 3


def test_only_the_words_given_are_looked_at(chain, new, lang):
    *_, (model, *_) = chain
    silent = [replace(u, words="") for u in new.utterances]
    said = transcripts(new.utterances)
    unsaid = [(u, words) for u, (_, words) in zip(silent, said, strict=True)]
    one, other = (adapt(model, model.front(new), s, lang, CONFIG.ali) for s in (said, unsaid))
    for speaker, transform in one.speakers.items():
        assert np.array_equal(transform.matrix, other.speakers[speaker].matrix)


def test_speakers_of_whom_nothing_was_heard_are_listed(chain, new, lang):
    *_, (model, *_) = chain
    read = adapt(model, model.front(new), [(u, []) for u in new.utterances], lang, CONFIG.ali)
    assert [why for _, why in read.summary()["kept"]] == ["0 frames, fewer than 200"] * 4


def test_an_unknown_speaker_meets_the_unadapted_gaussians(chain, new):
    *_, (model, *_) = chain
    read, u = model.front(new), new.utterances[0]
    ids = np.arange(model.gmm.num_states)
    wanted_TS = model.adaptive.unadapted.scores(read(u))
    np.testing.assert_array_equal(scores(model, Adapted(read))(u)(ids, slice(None)), wanted_TS)


def test_a_saved_system_adapts_alike(chain, new, lang, tmp_path):
    *_, (model, *_) = chain
    save_gmm(tmp_path / "model.json", model, CONFIG.feats, {})
    back, said = load_gmm(tmp_path / "model.json"), transcripts(new.utterances)
    assert back.adaptive.settings == model.adaptive.settings
    one, other = (adapt(m, m.front(new), said, lang, CONFIG.ali) for m in (model, back))
    for speaker, transform in one.speakers.items():
        assert np.array_equal(transform.matrix, other.speakers[speaker].matrix)


def test_silence_counts_as_much_as_it_is_said_to(chain, lang):
    *_, (model, *_) = chain
    feats, *_ = chain
    said, frames = transcripts(feats.utterances), []
    for weight in (0.0, 0.5, 1.0):
        own = replace(model.adaptive.settings, silence_weight=weight)
        weighed = replace(model, adaptive=replace(model.adaptive, settings=own))
        read = adapt(weighed, model.front(feats), said, lang, CONFIG.ali)
        frames.append(read.speakers["s0"].frames)
    total = sum(u.frames for u in feats.utterances if u.speaker == "s0")
    assert frames[0] < frames[1] < frames[2] == pytest.approx(total)


def test_a_system_may_follow_an_adapted_one(chain, lang):
    """It is aligned with the adapted frames; its own front end follows its own settings."""
    feats, *_, (sat, *_) = chain
    again, _, rows = trained(feats, lang, system("sat", passes=2), sat)
    assert rows[0]["loglik_per_frame"] == pytest.approx(loglik_of(sat, feats, lang), abs=1e-3)
    assert rows[0]["speakers"]["gain_per_frame"] < 0.1  # the frames were already adapted to this
    assert again.adaptive is not None
    after, *_ = trained(feats, lang, unadapted(passes=2), sat)
    assert after.adaptive is None


def loglik_of(model, feats, lang) -> float:
    read = adapt(model, model.front(feats), transcripts(feats.utterances), lang, CONFIG.ali)
    return loglik(model, read, feats, lang)
