"""Growing finds the rule behind the data, gains more with more leaves, keeps leaves large."""

import itertools
import json

import numpy as np
import pytest

from asr_train.align.tree import (
    Stats,
    grow,
    loglik,
    questions,
    summed,
    variance_floor,
)
from asr_train.lang.tree import Tree
from asr_train.schema import QuestionStates, SettingsError, TreeSettings

PHONES = ["SIL", "AA", "AH", "AX", "B", "D", "M", "N"]
STATES = [5] + [3] * 7
VOWELS, STOPS, NASALS = {1, 2, 3}, {4, 5}, {6, 7}
DIMS = 6
ROOTS = sum(STATES)


def settings(**changes) -> TreeSettings:
    values = {
        "leaves": 100,
        "min_count": 50.0,
        "min_gain": 0.0,
        "variance_floor": 0.01,
        "question_states": QuestionStates.all,
        "share": [],
        "merge": False,
    }
    return TreeSettings(**(values | changes))


def class_of(phone: int) -> int:
    return next(i for i, c in enumerate([{0}, VOWELS, STOPS, NASALS]) if phone in c)


def rule(left, centre, right, position) -> tuple:
    """Return what determines a triphone state's distribution: phone, and class of neighbour."""
    if centre == 0:
        return centre, position
    if position == 0:
        return centre, position, left in NASALS
    if position == 2:
        return centre, position, class_of(right)
    return centre, position


def ruled_stats(rng, unseen=0.3, noise=0.03) -> Stats:
    """Return statistics of a language that follows the rule, without some of its triphones."""
    of_phone = 8 * np.array([np.eye(DIMS)[class_of(p)] for p in range(8)])
    of_phone = of_phone + 0.5 * rng.standard_normal((8, DIMS))
    keys = [(0, 0, 0, j) for j in range(5)]
    keys += [k for k in itertools.product(range(8), range(1, 8), range(8), range(3))]
    keys = [k for k in keys if k[1] == 0 or rng.random() > unseen]
    mean_of, rows = {}, []
    for key in keys:
        sound = rule(*key)
        if sound not in mean_of:
            mean_of[sound] = of_phone[key[1]] + 0.8 * rng.standard_normal(DIMS)
        count = int(rng.integers(20, 200))
        mean_D = mean_of[sound] + noise * rng.standard_normal(DIMS)
        rows.append((count, mean_D * count, (mean_D**2 + 1) * count))
    counts, sums, squares = (np.array(column, float) for column in zip(*rows, strict=True))
    return Stats(np.array(keys), np.column_stack([counts, sums, squares]))


@pytest.fixture(params=range(3))
def rng(request):
    return np.random.default_rng(request.param)


def every_context():
    return [k for k in itertools.product(range(8), range(1, 8), range(8), range(3))]


def frames_of_leaves(tree, stats):
    leaf_K = tree.table()[tuple(stats.key_K4.T)]
    return np.bincount(leaf_K, stats.sum_KM[:, 0], tree.num_leaves)


# --- statistics ---------------------------------------------------------------------------------


def test_statistics_of_chunks_add_up_to_those_of_all_frames(rng):
    key_T4 = rng.integers(0, 3, (5000, 4))
    x_TD = rng.standard_normal((5000, DIMS)).astype(np.float32)
    chunks = np.array_split(np.arange(5000), 13)
    found = summed(Stats.of(key_T4[chunk], x_TD[chunk]) for chunk in chunks)
    assert len(found.key_K4) == 81
    assert found.key_K4.tolist() == sorted(found.key_K4.tolist())
    for key, (count, *sums) in zip(found.key_K4, found.sum_KM, strict=True):
        own = x_TD[(key_T4 == key).all(1)].astype(float)
        assert count == len(own)
        np.testing.assert_allclose(sums, [*own.sum(0), *(own**2).sum(0)], atol=1e-9)
    np.testing.assert_allclose(variance_floor(found, 0.25), 0.25 * x_TD.astype(float).var(0))


def test_likelihood_is_that_of_the_frames_under_their_own_gaussian(rng):
    x_TD = rng.standard_normal((40, DIMS)) * rng.uniform(0.1, 2, DIMS) + 3
    floor_D = np.full(DIMS, 0.5)
    variance_D = np.maximum(x_TD.var(0), floor_D)
    terms_TD = np.log(2 * np.pi * variance_D) + (x_TD - x_TD.mean(0)) ** 2 / variance_D
    stats_1M = np.concatenate([[40], x_TD.sum(0), (x_TD**2).sum(0)])[None]
    assert loglik(stats_1M, floor_D)[0] == pytest.approx(-0.5 * terms_TD.sum())
    assert (x_TD.var(0) < floor_D).any()


# --- questions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", QuestionStates)
def test_questions_hold_the_classes_and_every_phone(rng, which):
    stats = ruled_stats(rng)
    found = questions(stats, STATES, which, variance_floor(stats, 0.01))
    sets = {frozenset(np.flatnonzero(q).tolist()) for q in found}
    assert {frozenset({p}) for p in range(8)} <= sets
    for wanted in (VOWELS, STOPS, NASALS):
        assert wanted in sets
    assert len(sets) == len(found)
    assert not any(frozenset(range(8)) - s in sets for s in sets)


def test_clusters_are_joined_where_the_union_loses_least(rng):
    """Compared with pooling the frames of every pair of clusters at each step."""
    mean_PD, count_P = 3 * rng.standard_normal((9, DIMS)), rng.integers(10, 500, 9).astype(float)
    square_PD = mean_PD**2 + rng.uniform(0.5, 2, (9, DIMS))
    sum_PM = np.column_stack([np.ones(9), mean_PD, square_PD]) * count_P[:, None]
    stats = Stats(np.array([(0, p, 0, 0) for p in range(9)]), sum_PM)
    floor_D = variance_floor(stats, 0.01)

    def fit(phones):
        return loglik(stats.sum_KM[sorted(phones)].sum(0, keepdims=True), floor_D)[0]

    clusters, wanted = [frozenset({p}) for p in range(1, 9)], set()
    while len(clusters) > 1:
        pairs = itertools.combinations(clusters, 2)
        one, two = min(pairs, key=lambda pair: fit(pair[0]) + fit(pair[1]) - fit(pair[0] | pair[1]))
        clusters = [c for c in clusters if c not in (one, two)] + [one | two]
        wanted.add(one | two)
    wanted.discard(frozenset(range(1, 9)))  # all but silence, which has its own question
    found = questions(stats, [1] * 9, QuestionStates.middle, floor_D)
    sets = {frozenset(np.flatnonzero(q).tolist()) for q in found}
    assert sets == wanted | {frozenset({p}) for p in range(9)}


def test_phones_are_clustered_at_the_positions_that_are_named():
    """Each of three positions pairs four phones in another way."""
    pairs = [({1, 2}, {3, 4}), ({1, 3}, {2, 4}), ({1, 4}, {2, 3})]
    keys = [(0, phone, 0, j) for phone in range(1, 5) for j in range(3)]
    mean_K1 = np.array([[9.0 * (p in pairs[j][0]) + 0.1 * p] for _, p, _, j in keys])
    sum_K3 = 100 * np.column_stack([np.ones(len(keys)), mean_K1, mean_K1**2 + 1])
    stats = Stats(np.array(keys), sum_K3)
    for which, places in ((QuestionStates.middle, [1]), (QuestionStates.all, [0, 1, 2])):
        found = questions(stats, [5, 3, 3, 3, 3], which, variance_floor(stats, 0.01))
        clusters = [set(np.flatnonzero(q).tolist()) for q in found if q.sum() == 2]
        wanted = [pair for j in places for pair in pairs[j]]
        assert sorted(map(sorted, clusters)) == sorted(map(sorted, wanted))


def test_a_phone_never_seen_is_only_a_question_of_its_own(rng):
    stats = ruled_stats(rng)
    seen = stats.key_K4[:, 1] != 7
    some = Stats(stats.key_K4[seen], stats.sum_KM[seen])
    found = questions(some, STATES, QuestionStates.middle, variance_floor(some, 0.01))
    with_it = [q for q in found if q[7]]
    assert len(with_it) == 1
    assert with_it[0].sum() == 1


# --- growing ------------------------------------------------------------------------------------


def test_the_rule_that_made_the_data_is_found_and_holds_for_unseen_contexts(rng):
    stats = ruled_stats(rng)
    sounds = {rule(*k) for k in every_context()}
    tree, growth = grow(stats, STATES, settings(leaves=len(sounds) + 5), PHONES)
    leaves_of: dict = {}
    for key in every_context():
        leaves_of.setdefault(rule(*key), set()).add(tree.find(*key))
    assert all(len(leaves) == 1 for leaves in leaves_of.values())
    assert len(set.union(*leaves_of.values())) == len(sounds)
    assert growth["stopped"] == "leaves"


def test_more_leaves_never_lower_the_likelihood_and_all_are_there(rng):
    stats = ruled_stats(rng)
    gains = []
    for leaves in (ROOTS, ROOTS + 1, 40, 60, 80, 100):
        tree, growth = grow(stats, STATES, settings(leaves=leaves), PHONES)
        assert tree.num_leaves == leaves == growth["leaves"]
        assert growth["roots"] + growth["splits"] - growth["merged"] == leaves
        frames_L = frames_of_leaves(tree, stats)
        assert len(frames_L) == leaves
        assert frames_L[5:].min() >= 50  # silence's positions are never split
        gains.append(growth["gain_per_frame"])
    assert gains[0] == pytest.approx(0, abs=1e-12)
    assert np.diff(gains).min() > 0


def test_frames_and_gain_are_those_of_the_leaves(rng):
    stats = ruled_stats(rng)
    tree, growth = grow(stats, STATES, settings(merge=True), PHONES)
    frames_L = frames_of_leaves(tree, stats)
    assert (growth["frames"], growth["fewest_frames"]) == (frames_L.sum(), frames_L.min())
    floor_D = variance_floor(stats, 0.01)
    ungrown, _ = grow(stats, STATES, settings(leaves=ROOTS), PHONES)

    def fit(grown):
        leaf_K = grown.table()[tuple(stats.key_K4.T)]
        sum_LM = np.zeros((grown.num_leaves, 1 + 2 * DIMS))
        np.add.at(sum_LM, leaf_K, stats.sum_KM)
        return loglik(sum_LM, floor_D).sum()

    after, before = fit(tree), fit(ungrown)
    assert growth["gain_per_frame"] == pytest.approx((after - before) / stats.sum_KM[:, 0].sum())


def test_no_split_makes_a_leaf_of_too_few_frames(rng):
    stats = ruled_stats(rng)
    tree, growth = grow(stats, STATES, settings(leaves=10_000, min_count=700), PHONES)
    assert growth["stopped"] == "min_count"
    frames_L = frames_of_leaves(tree, stats)
    fewest = frames_L[5:].min()
    assert fewest >= 700
    exact, _ = grow(stats, STATES, settings(leaves=10_000, min_count=fewest), PHONES)
    assert frames_of_leaves(exact, stats).tolist() == frames_L.tolist()
    assert tree.num_leaves < 500


def test_no_split_wins_less_than_it_must(rng):
    stats = ruled_stats(rng)
    _, growth = grow(stats, STATES, settings(leaves=10_000, min_gain=200), PHONES)
    assert growth["stopped"] == "min_gain"
    assert growth["least_gain"] > 200
    _, all_of_them = grow(stats, STATES, settings(leaves=10_000), PHONES)
    assert growth["splits"] < all_of_them["splits"]


def test_the_first_split_is_the_best_of_all(rng):
    stats = ruled_stats(rng)
    floor_D = variance_floor(stats, 0.01)
    asked = questions(stats, STATES, QuestionStates.all, floor_D)
    matrix_KM, best = stats.sum_KM, 0.0
    for centre, j in itertools.product(range(1, 8), range(3)):
        here = (stats.key_K4[:, 1] == centre) & (stats.key_K4[:, 3] == j)
        for set_P, column in itertools.product(asked, (0, 2)):
            yes = here & set_P[stats.key_K4[:, column]]
            if min(stats.sum_KM[:, 0][yes].sum(), stats.sum_KM[:, 0][here & ~yes].sum()) < 50:
                continue
            parts = np.stack([matrix_KM[some].sum(0) for some in (yes, here & ~yes, here)])
            ll = loglik(parts, floor_D)
            best = max(best, ll[0] + ll[1] - ll[2])
    _, growth = grow(stats, STATES, settings(leaves=ROOTS + 1), PHONES)
    assert growth["least_gain"] == pytest.approx(best)


def test_merging_joins_what_a_split_of_the_other_side_pulled_apart():
    """If left and right must both be (un)voiced, three of four cases have one distribution."""
    rng = np.random.default_rng(5)
    keys, counts, means = [(0, 0, 0, j) for j in range(5)], [500.0] * 5, [np.zeros(DIMS)] * 5
    for left, centre, right, j in every_context():
        keys.append((left, centre, right, j))
        counts.append(30.0)
        both = left in VOWELS and right in VOWELS
        means.append(3 * np.eye(DIMS)[class_of(centre)] + 2.0 * both + 0.01 * rng.random())
    mean_KD, count_K1 = np.array(means), np.array(counts)[:, None]
    sum_KM = np.column_stack([np.ones(len(keys)), mean_KD, mean_KD**2 + 1]) * count_K1
    stats = Stats(np.array(keys), sum_KM)
    target = ROOTS + 2 * 21  # VOWELS on one side, then on the other: 3 leaves, 2 distributions
    tree, growth = grow(stats, STATES, settings(leaves=target, merge=True), PHONES)
    apart, unmerged = grow(stats, STATES, settings(leaves=target), PHONES)
    assert apart.num_leaves == target
    assert growth["merged"] == 21
    assert tree.num_leaves == ROOTS + 21
    assert growth["gain_per_frame"] == pytest.approx(unmerged["gain_per_frame"], rel=1e-3)
    for centre, j in itertools.product(range(1, 8), range(3)):
        assert (
            tree.find(1, centre, 5, j) == tree.find(4, centre, 5, j) == tree.find(4, centre, 1, j)
        )
        assert tree.find(1, centre, 2, j) != tree.find(1, centre, 5, j)
    table = tree.table()
    assert sorted(set(table[table >= 0].tolist())) == list(range(tree.num_leaves))


def test_merging_loses_less_than_the_splits_won(rng):
    stats = ruled_stats(rng)
    tree, growth = grow(stats, STATES, settings(leaves=110, merge=True), PHONES)
    _, before = grow(stats, STATES, settings(leaves=110), PHONES)
    lost = (before["gain_per_frame"] - growth["gain_per_frame"]) * growth["frames"]
    assert 0 <= lost <= growth["merged"] * growth["least_gain"]
    assert tree.num_leaves == 110 - growth["merged"]


def test_phones_that_share_roots_share_leaves_until_a_question_parts_them(rng):
    stats = ruled_stats(rng)
    share = [["AX", "AH"], ["B", "D"]]
    few, growth = grow(stats, STATES, settings(leaves=ROOTS - 6, share=share), PHONES)
    assert growth["roots"] == ROOTS - 6
    for j in range(3):
        assert few.find(1, 2, 4, j) == few.find(1, 3, 4, j)
        assert few.find(1, 4, 2, j) == few.find(1, 5, 2, j) != few.find(1, 2, 2, j)
    many, _ = grow(stats, STATES, settings(leaves=110, share=share), PHONES)
    assert any(many.find(1, 2, 4, j) != many.find(1, 3, 4, j) for j in range(3))
    assert (many.side_N == 2).any()
    keys = np.array(every_context())
    assert many.table()[tuple(keys.T)].tolist() == [many.find(*k) for k in keys.tolist()]


def test_a_state_without_frames_is_a_leaf(rng):
    stats = ruled_stats(rng)
    seen = stats.key_K4[:, 1] != 6
    some = Stats(stats.key_K4[seen], stats.sum_KM[seen])
    tree, _ = grow(some, STATES, settings(), PHONES)
    leaves = [tree.find(1, 6, 2, j) for j in range(3)]
    assert leaves == [tree.find(4, 6, 0, j) for j in range(3)]
    assert frames_of_leaves(tree, some)[leaves].tolist() == [0, 0, 0]


def test_leaves_come_in_the_order_of_phones_and_positions(rng):
    stats = ruled_stats(rng)
    tree, _ = grow(stats, STATES, settings(leaves=100, merge=True), PHONES)
    table = tree.table()
    origins = [
        tuple(np.argwhere(table == leaf)[:, [1, 3]].min(0)) for leaf in range(tree.num_leaves)
    ]
    assert origins == sorted(origins)


def test_growing_twice_gives_the_same_tree_and_json_keeps_it(rng):
    stats = ruled_stats(rng)
    one, growth = grow(stats, STATES, settings(merge=True), PHONES)
    two, _ = grow(stats, STATES, settings(merge=True), PHONES)
    back = Tree.from_plain(json.loads(json.dumps(one.plain())))
    assert one.plain() == two.plain() == back.plain()
    assert json.loads(json.dumps(growth))["leaves"] == one.num_leaves


@pytest.mark.parametrize(
    "change, message",
    [
        ({"leaves": ROOTS - 1}, f"tree.leaves is {ROOTS - 1}, but 8 phones have {ROOTS}"),
        ({"share": [["AX", "XX"]]}, "tree.share names 'XX'"),
        ({"share": [["AX", "SIL"]]}, "tree.share names 'SIL'"),
    ],
)
def test_settings_that_do_not_fit_the_phones_are_refused(change, message):
    stats = ruled_stats(np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        grow(stats, STATES, settings(**change), PHONES)


def test_scripts_of_thousands_of_letters_are_refused():
    stats, names = ruled_stats(np.random.default_rng(0)), [f"p{i}" for i in range(501)]
    with pytest.raises(ValueError, match=r"tree: 501 phones are too many .* \(at most 500\)"):
        grow(stats, [3] * 501, settings(leaves=10_000), names)


def test_frames_that_do_not_vary_are_refused():
    stats = ruled_stats(np.random.default_rng(0))
    flat = Stats(stats.key_K4, stats.sum_KM * ([1] + [0] * 2 * DIMS))
    with pytest.raises(ValueError, match="dimension 0 of the frames has variance 0"):
        grow(flat, STATES, settings(), PHONES)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"leaves": 0}, "leaves is 0"),
        ({"min_count": 0}, "min_count is 0"),
        ({"min_gain": -1}, "min_gain is -1"),
        ({"variance_floor": 0}, "variance_floor is 0"),
        ({"share": [["AX", "AH"], ["AH", "AA"]]}, "share names AH twice"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(SettingsError, match=message):
        settings(**change)
