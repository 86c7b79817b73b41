"""Training raises likelihoods, finds states and contexts, and reports every lost utterance."""

import copy
import itertools
import weakref
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from toy import path_of, phone_of_state, toy_lang

import asr_train.align.train
from asr_train.align.gmm import Gmm, Mixtures, count
from asr_train.align.train import Job, _mllt, _one_gaussian_each, train
from asr_train.align.transforms import Classes, FullSums
from asr_train.align.tree import Stats
from asr_train.align.viterbi import Aligned, Lost
from asr_train.compose import settings
from asr_train.data.features import Utterance
from asr_train.lang.states import States
from asr_train.lang.tree import LEFT, Tree
from asr_train.schema import GmmSettings, build, plain

CONFIG = settings("dnn", ["gmm=tri"])
CONFIG_LDA = settings("dnn", ["gmm=lda"])
WORDS = ("A", "AB", "ABC", "C")


def after_silence(states: States) -> States:
    """Return states that depend on whether a phone is the first after a silence (or the edge)."""
    questions_QP = np.eye(1, len(states.phones), dtype=bool)
    rows = [[-1, 0, -1, -1, s] for s in range(states.silence_states)]
    root_PJ = np.full((len(states.phones), max(states.silence_states, states.phone_states)), -1)
    root_PJ[0, : states.silence_states] = range(states.silence_states)
    leaves = states.silence_states
    for phone in range(1, len(states.phones)):
        for j in range(states.phone_states):
            n = root_PJ[phone, j] = len(rows)
            rows += [[0, LEFT, n + 1, n + 2, -1], [-1, 0, -1, -1, leaves]]
            rows += [[-1, 0, -1, -1, leaves + 1]]
            leaves += 2
    nodes = np.array(rows, np.int32).T
    return replace(states, tree=Tree(questions_QP, *nodes, root_PJ.astype(np.int32)))


class FakeFeats:
    """Features in which every state is a different Gaussian; replaces `data.features.Feats`."""

    def __init__(self, lang, states=None, utterances=60, seed=0):
        rng = np.random.default_rng(seed)
        self.settings = CONFIG.feats
        states = states or lang.states
        self.mean_SD = 4 * rng.standard_normal((states.num_states, 6))
        self.paths, self.arrays, self.utterances = {}, {}, []
        for u in range(utterances):
            words = [WORDS[i] for i in rng.integers(0, 4, 4)]
            path_T = path_of(lang, words, rng, stay=6, states=states)
            name = f"u{u}"
            self.paths[name] = path_T
            noise_TD = rng.standard_normal((len(path_T), 6))
            self.arrays[name] = (self.mean_SD[path_T] + noise_TD).astype(np.float32)
            row = Utterance(name, "s", " ".join(words), len(path_T) / 100, len(path_T))
            self.utterances.append(row)

    def normaliser(self, norm):
        return lambda utterance, x_TD: x_TD

    def load(self, utterance):
        return self.arrays[utterance.id]


FRONT = {"num_ceps": 0, "deltas": 0}


def system(name, **change) -> GmmSettings:
    """Return settings for synthetic data; `tree` changes those of the tree."""
    values = plain(CONFIG.gmm[name])
    values["front"] |= FRONT
    values |= {"passes": 8, "gaussians": 14, **change}
    if name == "mono":
        values["flat"] = plain(CONFIG.gmm["mono"].flat) | change.get("flat", {})
    if name == "tri":
        tree = {"leaves": 23, "min_count": 10.0, "min_gain": 30.0}
        values["tree"] = plain(CONFIG.gmm["tri"].tree) | tree | change.get("tree", {})
    return build(GmmSettings, values)


FEW = {"passes": 3}  # of a flat start, for tests that do not depend on its quality


def train_on(feats, lang, own=None, before: Mixtures | None = None):
    rows = []
    model, outcomes = train(feats, lang, own or system("mono"), CONFIG.ali, before, rows.append)
    return model, outcomes, rows


@pytest.fixture(autouse=True)
def one_job(monkeypatch):
    """Use one process: so little work takes less time than forking."""
    monkeypatch.setenv("JOBS", "1")


def test_training_from_a_flat_start_finds_the_states():
    lang = toy_lang()
    feats = FakeFeats(lang)
    _, outcomes, rows = train_on(feats, lang, system("mono", passes=14))
    assert [row["flat_pass"] for row in rows[:12]] == list(range(1, 13))
    assert rows[-1]["loglik_per_frame"] > rows[0]["loglik_per_frame"] + 3
    assert rows[-1]["moved"] < 0.1
    phone_S = phone_of_state(lang.states)
    right = [
        (phone_S[o.states_T] == phone_S[feats.paths[u.id]]).mean()
        for u, o in zip(feats.utterances, outcomes, strict=True)
    ]
    assert np.mean(right) > 0.9


@pytest.fixture(scope="module")
def chain():
    """Speech whose states depend on what precedes them; mono, and tri trained after it."""
    lang = toy_lang()
    feats = FakeFeats(lang, after_silence(lang.states), utterances=110)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        mono = train_on(feats, lang, system("mono", gaussians=23, passes=12))
        tri = train_on(feats, lang, system("tri", gaussians=23), mono[0])
    return feats, mono, tri


def test_tied_states_raise_the_likelihood_with_as_many_gaussians(chain):
    """For speech whose states do depend on their neighbours."""
    _, (mono, _, mono_rows), (tri, _, tri_rows) = chain
    assert len(tri.gmm.state_G) <= len(mono.gmm.state_G) == 23
    gained = tri_rows[-1]["loglik_per_frame"] - mono_rows[-1]["loglik_per_frame"]
    assert gained > 0.5
    loglik = [row["loglik_per_frame"] for row in tri_rows if row.get("realigned")]
    assert loglik[-1] > loglik[0]


def test_passes_that_do_not_realign_log_no_likelihood(chain):
    """It would be the likelihood of the previous pass, whose Gaussians made the alignment."""
    _, (_, _, rows), _ = chain
    passes = [row for row in rows if "pass" in row]
    assert {row["realigned"] for row in passes} == {True, False}
    for row in passes:
        for key in ("loglik_per_frame", "lost", "retried", "moved"):
            assert (key in row) == row["realigned"]


@pytest.mark.parametrize("silence", [True, False])
def test_silence_counts_in_the_statistics_of_lda_and_mllt_where_told_so(monkeypatch, silence):
    """Both use every other frame; counted here from the frames aligned with silence or not."""
    lang = toy_lang()
    feats = FakeFeats(lang, utterances=60)
    mono = train_on(feats, lang, system("mono", passes=6))
    sums = {"lda": [], "mllt": []}

    def noted(kind, made):
        def of(x_ND, *more):
            sums[kind].append(len(x_ND))
            return made(x_ND, *more)

        return staticmethod(of)

    monkeypatch.setattr(Classes, "of", noted("lda", Classes.of))
    monkeypatch.setattr(FullSums, "of", noted("mllt", FullSums.of))
    values = plain(CONFIG_LDA.gmm["lda"])
    values["front"] |= FRONT | {"splice": 1}
    values |= {"passes": 4, "gaussians": 23}
    values["tree"] |= {"leaves": 14, "min_count": 10.0}
    values["lda"] |= {"dims": 6, "mllt_passes": [2], "silence": silence}
    states_S = np.zeros(lang.states.num_states, bool)
    states_S[lang.states.of("SIL")] = True
    whole = sum(u.frames for u in feats.utterances)
    silent = sum(states_S[o.states_T].sum() for o in mono[1])
    train_on(feats, lang, build(GmmSettings, values), mono[0])
    assert 0.02 * whole < silent < 0.5 * whole
    for counted in sums.values():
        share = 1 if silence else 1 - silent / whole
        assert sum(counted) == pytest.approx(share * whole, abs=0.02 * whole)


def seen_contexts(outcomes) -> list[tuple[int, int, int]]:
    """Return the aligned phones and neighbours that occur more than occasionally."""
    count = {}
    for o in outcomes:
        phones = [0, *o.phones_N3[:, 0].tolist(), 0]
        for key in zip(phones, phones[1:], phones[2:], strict=False):
            count[key] = count.get(key, 0) + 1
    return [key for key, n in count.items() if key[1] and n >= 5]


def test_the_tree_tells_the_contexts_apart_that_made_the_speech(chain):
    _, _, (tri, outcomes, rows) = chain
    made, found = after_silence(tri.states.monophones), tri.states
    assert rows[0]["states"] == found.num_states <= 23
    seen = seen_contexts(outcomes)
    assert len({key[0] for key in seen}) > 2
    pairs = [(a, b) for a in seen for b in seen if a[1] == b[1]]
    apart = [(a, b) for a, b in pairs if (a[0] == 0) != (b[0] == 0)]
    assert apart
    for a, b in apart:
        assert not set(made.ids(*a)) & set(made.ids(*b))
        assert not set(found.ids(*a)) & set(found.ids(*b)), (a, b)


def test_alignments_are_in_the_states_of_the_phones_neighbours(chain):
    """The states of the last system, which are nearly those that generated the speech."""
    feats, _, (tri, outcomes, _) = chain
    right = []
    for u, o in zip(feats.utterances, outcomes, strict=True):
        left_N = np.concatenate([[0], o.phones_N3[:-1, 0]])
        right_N = np.concatenate([o.phones_N3[1:, 0], [0]])
        key_T3 = np.stack([left_N, o.phones_N3[:, 0], right_N], 1)[o.phone_of_frames()]
        assert np.array_equal(tri.states.table_LPRJ[(*key_T3.T, o.position_T)], o.states_T)
        made = after_silence(tri.states.monophones)
        right.append((made.table_LPRJ[(*key_T3.T, o.position_T)] == feats.paths[u.id]).mean())
    assert np.mean(right) > 0.9


def test_without_a_tree_the_states_stay_as_they_are(chain):
    feats, (mono, *_), _ = chain
    own = replace(system("tri", gaussians=23, passes=2), tree=None)
    model, _, rows = train_on(feats, toy_lang(), own, mono)
    assert model.states == mono.states
    assert "tree" not in rows[0]


def test_states_are_left_as_often_as_in_the_last_alignments(chain):
    """A visit is a run of frames of one position of one phone."""
    _, *systems = chain
    for model, outcomes, _ in systems:
        frames_S, visits_S = np.zeros((2, model.states.num_states))
        for o in outcomes:
            places = zip(o.phone_of_frames(), o.position_T, o.states_T, strict=True)
            for (_, _, state), visit in itertools.groupby(places):
                visits_S[state] += 1
                frames_S[state] += len(list(visit))
        assert 1.5 * visits_S.sum() < frames_S.sum()
        np.testing.assert_allclose(model.gmm.loop_S, (frames_S - visits_S + 1) / (frames_S + 2))


def test_a_system_starts_with_mean_variance_and_staying_of_each_states_frames():
    """Ten frames of a state that was entered twice; a state without frames gets those of all."""
    lang = toy_lang()
    keys_T4 = np.repeat([[0, 1, 2, 0], [0, 1, 2, 1]], 10, axis=0).astype(np.int32)
    x_TD = np.arange(20.0)[:, None].astype(np.float32)
    stats = Stats.of(keys_T4, x_TD)
    first, second = lang.states.ids(0, 1, 2)[:2]
    visits_S = np.zeros(lang.states.num_states)
    visits_S[[first, second]] = 2, 5
    gmm, _ = _one_gaussian_each(stats, visits_S, lang.states, system("mono"))
    np.testing.assert_allclose(gmm.loop_S[[first, second, 0]], [9 / 12, 6 / 12, 1 / 2])
    np.testing.assert_allclose(gmm.mean_GD[[first, second, 0], 0], [4.5, 14.5, 9.5])
    np.testing.assert_allclose(gmm.variance_GD[[first, second], 0], [8.25, 8.25])
    assert gmm.variance_GD[0, 0] == pytest.approx(33.25, abs=1e-3)


def test_passes_realign_at_first_and_then_every_few_up_to_the_last():
    own = system("mono", passes=8, realign_first=2, realign_every=3, flat=FEW)
    _, _, rows = train_on(FakeFeats(toy_lang(), utterances=10), toy_lang(), own)
    realigned = [row["pass"] for row in rows if row.get("realigned")]
    assert realigned == [1, 2, 5, 8]


def test_after_a_flat_start_the_first_pass_aligns():
    own = system("mono", passes=4, realign_first=0, realign_every=4, flat=FEW)
    _, _, rows = train_on(FakeFeats(toy_lang(), utterances=10), toy_lang(), own)
    assert [row["realigned"] for row in rows if "pass" in row] == [True, False, False, True]


@pytest.mark.parametrize(
    "passes, grown_by, wanted",
    [
        (8, 0.5, [14, 18, 22, 26, 30, 30, 30, 30]),
        (3, 1.0, [14, 22, 30]),  # after the last pass none are split: they would not be estimated
        (2, 0.8, [14, 30]),
    ],
)
def test_gaussians_grow_evenly_over_their_share_of_the_passes(passes, grown_by, wanted):
    """From one for each of 14 states to 30: in 8 passes, four more after each of the first half."""
    change = {"gaussians": 30, "grown_by": grown_by, "min_count": 2.0}
    own = system("mono", passes=passes, flat=FEW, **change)
    _, _, rows = train_on(FakeFeats(toy_lang(), utterances=20), toy_lang(), own)
    assert [row["gaussians"] for row in rows if "pass" in row] == wanted


def test_the_sums_of_chunks_are_not_kept_until_the_end_of_a_pass(monkeypatch):
    """A chunk's are as large as the model, and a large corpus has thousands of chunks."""
    monkeypatch.setattr(asr_train.align.train, "CHUNK", 2)
    made, alive = [], []

    def noted(*given):
        alive.append(sum(one() is not None for one in made))
        counts = count(*given)
        made.append(weakref.ref(counts.sum_GD))
        return counts

    monkeypatch.setattr(asr_train.align.train, "count", noted)
    own = system("mono", passes=1, flat={"passes": 1})
    train_on(FakeFeats(toy_lang(), utterances=12), toy_lang(), own)
    assert len(made) == 6
    assert max(alive) <= 2


def test_only_the_paths_before_a_pass_are_kept_beside_its_own(chain, monkeypatch):
    """Those of 960 hours take 2 GB."""
    feats, (mono, *_), _ = chain
    one_pass, given, alive = asr_train.align.train._pass, [], []

    def noted(job, model, read, outcomes, realign):
        alive.append(sum(path() is not None for path in given))
        given.extend(weakref.ref(o.states_T) for o in outcomes)
        return one_pass(job, model, read, outcomes, realign)

    monkeypatch.setattr(asr_train.align.train, "_pass", noted)
    train_on(feats, toy_lang(), system("tri", passes=3, realign_first=3), mono)
    assert len(given) == 3 * len(feats.utterances)
    assert alive == [0, 0, 0]


def test_mllt_turns_frames_and_means_alike_and_gains_what_it_says(chain):
    """For mixed dimensions, with one Gaussian per state."""
    feats, (mono, outcomes, _), _ = chain
    rng = np.random.default_rng(0)
    mix_DD = (np.eye(6) + 0.5 * rng.standard_normal((6, 6))).astype(np.float32)
    state_N = np.concatenate([o.states_T for o in outcomes])

    def frames(front):
        return np.concatenate([front(feats)(u) for u in feats.utterances]).astype(np.float64)

    def fit(model):
        x_ND, gmm = frames(model.front), model.gmm
        logp_ND = norm.logpdf(x_ND, gmm.mean_GD[state_N], gmm.variance_GD[state_N] ** 0.5)
        return logp_ND.sum(1).mean() + np.linalg.slogdet(model.front.transform_dD)[1]

    front = replace(mono.front, transform_dD=mix_DD)
    x_ND, states = frames(front), range(mono.gmm.num_states)
    means, variances = (
        np.stack([of(x_ND[state_N == s], axis=0) for s in states]) for of in (np.mean, np.var)
    )
    gmm = Gmm(np.array(states), np.ones(len(states)), means, variances, mono.gmm.loop_S)
    before = replace(mono, front=front, gmm=gmm)
    values = plain(system("tri"))
    values |= {"front": values["front"] | {"splice": 1}}
    values["lda"] = {"dims": 6, "silence": True, "mllt_passes": []}
    job = Job(feats, toy_lang(), build(GmmSettings, values), CONFIG.ali, [].append)
    after, gain = _mllt(job, before, outcomes)
    assert gain > 0.1
    assert fit(after) - fit(before) == pytest.approx(gain, rel=1e-3)


def test_spliced_frames_are_projected_and_turned_after_the_passes_that_say_so(chain):
    feats, (mono, *_), _ = chain
    feats = copy.copy(feats)
    feats.utterances = feats.utterances[:60]  # two chunks
    values = plain(system("tri", gaussians=23, passes=4))
    values |= {"front": values["front"] | {"splice": 1}, "tree": None}
    own = build(GmmSettings, values | {"lda": {"dims": 5, "silence": True, "mllt_passes": [1, 3]}})
    model, outcomes, rows = train_on(feats, toy_lang(), own, mono)
    assert model.front.transform_dD.shape == (5, 18)
    assert model.gmm.mean_GD.shape[1] == 5
    assert [row["pass"] for row in rows if "mllt_gain" in row] == [1, 3]
    made = after_silence(mono.states)
    phone_S = np.zeros(made.num_states, int)
    for phone, table_LRJ in enumerate(made.table_LPRJ.swapaxes(0, 1)):
        phone_S[table_LRJ[table_LRJ >= 0]] = phone
    right = [
        (phone_S[feats.paths[u.id]] == o.phones_N3[o.phone_of_frames(), 0]).mean()
        for u, o in zip(feats.utterances, outcomes, strict=True)
    ]
    assert np.mean(right) > 0.9


@pytest.mark.parametrize("name", ["mono", "tri"])
def test_the_number_of_processes_changes_nothing(chain, monkeypatch, name):
    feats, (mono, *_), _ = chain
    feats = copy.copy(feats)
    feats.utterances = feats.utterances[:60]  # two chunks
    own, before = system("tri", passes=3, gaussians=30), mono
    if name == "mono":
        own, before = system("mono", passes=3, gaussians=30, flat=FEW), None
    models = []
    for jobs in ("1", "3"):
        monkeypatch.setenv("JOBS", jobs)
        models.append(train_on(feats, toy_lang(), own, before)[0])
    assert models[0].states.hash == models[1].states.hash
    for array in ("weight_G", "mean_GD", "variance_GD", "loop_S"):
        assert np.array_equal(getattr(models[0].gmm, array), getattr(models[1].gmm, array))


def spoilt(lang, *places, utterances=20):
    """Return speech in which some transcripts have a word without a pronunciation."""
    feats = FakeFeats(lang, utterances=utterances)
    for i in places:
        bad = feats.utterances[i]
        feats.utterances[i] = Utterance(bad.id, "s", "NOSUCH", bad.seconds, bad.frames)
    return feats


def test_utterances_that_cannot_be_trained_on_are_lost_by_name(monkeypatch):
    """In every system, even if all utterances of a chunk are lost."""
    monkeypatch.setattr(asr_train.align.train, "CHUNK", 5)
    lang, places = toy_lang(), {3, 10, 11, 12, 13, 14}
    feats = spoilt(lang, *places)
    mono, *first = train_on(feats, lang, system("mono", passes=1, flat=FEW))
    _, *second = train_on(feats, lang, system("tri", passes=1, tree={"leaves": 14}), mono)
    for outcomes, rows in (first, second):
        assert rows[-1]["lost"] == 6
        for i, o in enumerate(outcomes):
            assert isinstance(o, Lost if i in places else Aligned)
            assert i not in places or o.reason == "no pronunciation of NOSUCH"


def test_an_utterance_too_short_for_its_words_is_lost_by_name_and_tried_by_no_pass():
    lang = toy_lang()
    feats = FakeFeats(lang, utterances=20)
    short = feats.utterances[3]
    feats.arrays[short.id] = feats.arrays[short.id][:2]
    feats.utterances[3] = replace(short, frames=2)
    _, outcomes, rows = train_on(feats, lang, system("mono", passes=1, flat=FEW))
    assert rows[-1]["lost"] == 1
    assert outcomes[3].reason.startswith("2 frames, but its shortest pronunciation needs")


@pytest.mark.parametrize("name", ["mono", "tri"])
def test_nothing_to_train_on_is_said(name):
    lang = toy_lang()
    mono, *_ = train_on(FakeFeats(lang, utterances=5), lang, system("mono", passes=1, flat=FEW))
    feats = spoilt(lang, *range(5), utterances=5)
    with pytest.raises(ValueError, match=r"none of the 5 utterances|aligned no utterance"):
        train_on(feats, lang, system(name), None if name == "mono" else mono)


def test_fewer_leaves_than_phones_have_states_are_refused():
    lang = toy_lang()
    feats = FakeFeats(lang, utterances=10)
    mono, *_ = train_on(feats, lang, system("mono", passes=1, flat=FEW))
    with pytest.raises(ValueError, match=r"leaves is 13.* 14 states"):
        train_on(feats, lang, system("tri", tree={"leaves": 13}), mono)
