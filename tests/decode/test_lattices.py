"""Lattices for sequence training hold their reference, at the graph's own costs."""

from pathlib import Path

import numpy as np
import pytest
import torch
import toy

from asr_train.align.front import Front
from asr_train.align.gmm import Gmm, Mixtures, save_gmm
from asr_train.align.speakers import Speakers
from asr_train.align.table import write_alignments
from asr_train.align.viterbi import Aligned
from asr_train.data.features import Utterance
from asr_train.decode.lattices import Competitors, state_arcs
from asr_train.decode.words import Choice, Effort
from asr_train.files import read_yaml, write_json, write_jsonl, write_yaml
from asr_train.lang.arpa import read_arpa
from asr_train.lang.index import load_lang, write_lang
from asr_train.model.store import build_model, save_model
from asr_train.schema import FrontSettings, ModelSettings, NormBy, NormSettings, build, plain
from asr_train.search.graph import decoding_graph
from asr_train.search.lattice import Lattices
from asr_train.search.occupancy import EMPTY, check_arcs, frame_of_node, has_path
from asr_train.shards.reader import Shards
from scripts.shards import shards
from scripts.weak import weak

SCALE = 0.3
SYSTEM = {"run": "sat", "sha256": "abc"}
DNN = {"layers": 1, "width": 8, "nonlinearity": "relu", "context_left": 1, "context_right": 1}
WIDE = Effort(beam=200.0, max_active=10_000, lattice_beam=200.0, nbest=0)
NARROW = Effort(beam=200.0, max_active=10_000, lattice_beam=0.5, nbest=0)


@pytest.fixture(scope="module")
def graph(lang):
    return decoding_graph(lang, lang.states, np.full(lang.states.num_states, 0.6))


def searched(lang, graph, effort, said, reference, seed, arcs_per_frame=1000):
    """Return what is found where `said` is clear, and the path of `reference` is aligned."""
    rng = np.random.default_rng(seed)
    path_T = toy.path_of(lang, said, rng)
    ali_T = toy.path_of(lang, reference, rng, stay=1)
    ali_T = np.pad(ali_T, (0, max(0, len(path_T) - len(ali_T))), mode="edge")
    path_T = np.pad(path_T, (0, len(ali_T) - len(path_T)), mode="edge")
    scores = {"u": toy.scores_of(path_T, lang.states.num_states, rng)}
    scorer = toy.scorer_of(lang.states, np.full(lang.states.num_states, 0.6), scores)
    utterance = Utterance("u", "s", " ".join(reference), 0.01 * len(ali_T), len(ali_T))
    choice = Choice(SCALE, 0.0, 1.0)
    return Competitors(scorer, graph, choice, effort, arcs_per_frame)(utterance, ali_T), ali_T


def cheapest_cost(arcs_A, ali_T):
    """Return the graph cost of the cheapest of the lattice's paths with these states."""
    frame_N, cost_N = frame_of_node(arcs_A), np.full(arcs_A["target"].max() + 1, np.inf)
    cost_N[0] = 0.0
    for source, target, state, graph in arcs_A.tolist():
        if state in (EMPTY, ali_T[min(frame_N[source], len(ali_T) - 1)]):
            cost_N[target] = min(cost_N[target], cost_N[source] + graph)
    return cost_N[-1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("effort, added", [(WIDE, False), (NARROW, True)])
def test_a_reference_lost_in_pruning_is_added_at_the_graphs_cost(lang, graph, effort, added, seed):
    (arcs_A, was_added), ali_T = searched(lang, graph, effort, ["A", "C"], ["ABC"], seed)
    check_arcs(arcs_A, len(ali_T), lang.states.num_states)
    assert was_added == added
    forced_TS = np.full((len(ali_T), lang.states.num_states), -1e6, np.float32)
    forced_TS[np.arange(len(ali_T)), ali_T] = 0.0
    assert cheapest_cost(arcs_A, ali_T) == pytest.approx(toy.cheapest(graph, forced_TS), abs=1e-3)


def test_more_arcs_than_asked_for_narrow_the_beam(lang, graph):
    (many, _), ali_T = searched(lang, graph, WIDE, ["A", "C"], ["A", "C"], 0)
    (few, _), _ = searched(lang, graph, WIDE, ["A", "C"], ["A", "C"], 0, arcs_per_frame=10)
    check_arcs(few, len(ali_T), lang.states.num_states)
    assert len(few) < 0.5 * len(many)


def test_an_alignment_that_the_graph_does_not_allow_is_said_so(lang, graph):
    rng = np.random.default_rng(0)
    states = lang.states.num_states
    ali_T = np.array([states - 1, 0, states - 1, 0])  # no phone is that short
    scorer = toy.scorer_of(lang.states, np.full(states, 0.6), {"u": np.zeros((12, states))})
    search = Competitors(scorer, graph, Choice(1.0, 0.0, 1.0), WIDE, 1000)
    found = search(Utterance("u", "s", "A", 0.12, 12), np.tile(ali_T, 3))
    assert found == "the weak language model's graph has no path of its alignment"
    short = toy.scorer_of(lang.states, np.full(states, 0.6), {"u": rng.normal(size=(1, states))})
    search = Competitors(short, graph, Choice(1.0, 0.0, 1.0), WIDE, 1000)
    found = search(Utterance("u", "s", "A", 0.01, 1), ali_T[:1])
    assert found == "the search reached no final state"


def test_a_lattices_arcs_end_in_one_node(lang, graph):
    scores_TS = np.random.default_rng(1).standard_normal((15, lang.states.num_states))
    lattice = Lattices(graph, lang.states.num_states).decode(
        scores_TS.astype(np.float32), 200.0, 10_000, 3.0
    )
    arcs_A = state_arcs(lattice)
    check_arcs(arcs_A, 15, lang.states.num_states)
    ends = np.isfinite(lattice.final_N).sum()
    assert len(arcs_A) == len(lattice.arcs_A) + ends
    assert (arcs_A["target"] == arcs_A["target"].max()).sum() == ends


@pytest.fixture
def work(lang, feats, tmp_path):
    """The files of earlier stages: Gaussians, their alignments, the language, and settings."""
    rng, states = np.random.default_rng(2), lang.states.num_states
    norm = NormSettings(by=NormBy.speaker, variance=True)
    gmm = Gmm(
        np.arange(states),
        np.ones(states),
        rng.standard_normal((states, 4)),
        np.ones((states, 4)),
        np.full(states, 0.6),
    )
    front = Front(FrontSettings(num_ceps=4, deltas=0, norm=norm))
    path = tmp_path / "exp/mono/model.json"
    save_gmm(path, Mixtures(front, gmm, lang.states), feats.settings, {})
    outcomes = []
    for u in feats.utterances:
        path_T = toy.path_of(lang, ["AB", "C"], rng, stay=1, silence=False)[: u.frames]
        path_T = np.pad(path_T, (0, u.frames - len(path_T)), mode="edge")
        silence_N3 = np.array([[0, 0, -1]], np.int32)
        outcomes.append(Aligned(path_T, np.zeros(u.frames, np.int8), silence_N3, -1.0, False))
    about = {"model": "mono", "self_loops": [0.6] * states}
    ali = tmp_path / "ali/mono/dev.jsonl.gz"
    speakers = Speakers(SYSTEM, front, {"s0": rng.standard_normal((4, 5))})
    write_alignments(ali, feats.utterances, outcomes, feats.settings, lang.states, about, speakers)
    write_lang(tmp_path / "lang/index.json", lang)
    rows = [{"supervisions": [{"text": text}]} for text in ("AB C", "AB C", "ABC", "AB NEVERHEARD")]
    write_jsonl(tmp_path / "train.jsonl.gz", rows)
    chosen = {"acoustic_scale": SCALE, "insertion_penalty": 0.5, "lm_weight": 1.0}
    write_json(tmp_path / "exp/mono/tuned.json", {"run": "mono", **chosen})
    write_yaml(tmp_path / "shards.yaml", {"utterances": 2, "norm": plain(norm)})
    lists = ["acoustic_scales", "insertion_penalties", "lm_weights"]
    lists = {key: [1.0] for key in [*lists, "rescore_lm_weights", "rescore_penalties"]}
    effort = {"beam": 50.0, "max_active": 1000, "lattice_beam": 1.0, "nbest": 0, "minimise": True}
    write_yaml(tmp_path / "decode.yaml", {**effort, **lists})
    lattices = {"order": 2, "lattice_beam": 2.0, "arcs_per_frame": 300}
    write_yaml(tmp_path / "lattices.yaml", lattices)
    return tmp_path


def with_lattices(work, feats, run) -> tuple[Shards, str]:
    """Call both stages for a run; return the shards and what the last one said."""
    paths = [str(work / p) for p in ("lattices.yaml", "lang/index.json", "train.jsonl.gz")]
    assert "weak: order 2" in weak(*paths, str(work / "lang-weak/index.json"))
    stored = Path(feats.utterances[0].row["features"]["storage_path"])
    inputs = ["ali/mono/dev.jsonl.gz", "shards.yaml", f"exp/{run}/model.json"]
    inputs += ["exp/mono/tuned.json", "lang-weak/index.json", "decode.yaml", "lattices.yaml"]
    output = work / f"shards/{run}-lattices/dev/index.json"
    paths = [stored.parents[1] / "dev.jsonl.gz", *(work / p for p in inputs), output]
    said = shards(*map(str, paths))
    return Shards(output), said


def test_the_stages_add_lattices_and_count_what_they_leave_out(work, lang, feats):
    found, said = with_lattices(work, feats, "mono")
    made = load_lang(work / "lang-weak/index.json")
    assert made.hash == lang.hash  # the model fits
    assert read_arpa(made.arpa).words == ["<s>", "</s>", "<unk>", "AB", "ABC", "C"]
    assert found.has_lattices
    whole = [u.id for u in feats.utterances if u.frames >= 15]  # all states of AB C
    samples = list(found.samples(None, 0, 1, 0))
    assert {s.id for s in samples} == set(whole)
    assert sorted(found.index["left_out"]) == sorted({u.id for u in feats} - set(whole))
    assert all(has_path(s.lattice_A, s.ali_T) for s in samples)
    about = found.about["lattices"]
    assert (about["run"], about["acoustic_scale"], about["silence"]) == ("mono", SCALE, [*range(5)])
    assert f"of {len(whole)}" in said
    assert "left out: the " in said


def test_a_network_on_adapted_frames_searches_with_the_transforms_of_its_shards(work, lang, feats):
    """Which are in the alignments: the system that made them is not read."""
    states, sizes = lang.states, (torch.zeros(4), torch.ones(4))
    settings = build(ModelSettings, {"dnn": DNN})
    model = build_model(settings, states.num_states, *sizes, seed=1)
    about = {"run": "dnn", "model": {"dnn": DNN}, "priors": [1.0] * states.num_states}
    about |= {"feats": plain(feats.settings), "norm": {"by": "none", "variance": False}}
    about |= {"states_hash": states.hash, "states": states.plain(), "fmllr": SYSTEM}
    save_model(work / "exp/dnn", model, {**about, "self_loops": [0.6] * states.num_states})
    with pytest.raises(
        FileNotFoundError, match=r"fMLLR features of sat .*sat/model.json is missing"
    ):
        with_lattices(work, feats, "dnn")  # whose shards would hold log-mel
    write_yaml(work / "shards.yaml", read_yaml(work / "shards.yaml") | {"inputs": "fmllr"})
    found, _ = with_lattices(work, feats, "dnn")
    assert found.has_lattices
    assert (found.num_mels, found.about["fmllr"]) == (4, SYSTEM)
