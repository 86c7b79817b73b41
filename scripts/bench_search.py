"""bench_search.py OUTPUT.json [words]

Frames a second and real-time factor of best-path and lattice search over one large graph: a made-up
lexicon (default 5,000 words) and bigram model, scores from nearly flat to peaked. Costs of best
paths are compared first.
"""

import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kaldi_decoder
import numpy as np

from asr_train.files import write_json
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.states import States
from asr_train.schema import GrammarKind, GrammarSettings
from asr_train.search.beam import Beam
from asr_train.search.graph import Arrays, decoding_graph, to_vector
from asr_train.search.lattice import Lattices, best_path

SHIFT = 0.01  # seconds a frame
FRAMES = 400
SIMPLE_FRAMES = 20  # for kaldi_decoder's lattice decoder, which has no limit on tokens
BEAM, MAX_ACTIVE, LATTICE_BEAM = 13.0, 5000, 8.0  # nats, tokens a frame, nats
FOLLOWERS = 32  # bigrams a word
MARGINS = {"flat": 0.3, "soft": 1.0, "peaked": 4.0}  # nats of the true state above the noise


def made_up(words: int, rng: np.random.Generator, folder: Path) -> Lang:
    """A language of random words of 2 to 9 phones, and a random bigram model."""
    phones = [f"p{i:02}" for i in range(39)]
    prons: dict[str, tuple[tuple[str, ...], ...]] = {}
    for i in range(words):
        length = int(rng.integers(2, 10))
        prons[f"W{i:05}"] = (tuple(phones[p] for p in rng.integers(0, len(phones), length)),)
    arpa = folder / "bigram.arpa"
    share = 1 / np.arange(10, 10 + words)
    p_W = np.log10(rng.permutation(share / share.sum()) * 0.97)
    lines = ["\\data\\", f"ngram 1={words + 2}", f"ngram 2={(words + 1) * FOLLOWERS}", ""]
    lines += ["\\1-grams:", "-99 <s> -0.4", "-1.5 </s>"]
    lines += [f"{p:.5f} {word} -0.4" for p, word in zip(p_W, prons, strict=True)]
    lines += ["", "\\2-grams:"]
    names = list(prons)
    for word in ["<s>", *names]:
        after = sorted(rng.choice(words, FOLLOWERS, replace=False))
        lines += [f"{p_W[k] / 2 - 0.5:.5f} {word} {names[k]}" for k in after]
    arpa.write_text("\n".join([*lines, "", "\\end\\", ""]))
    grammar = GrammarSettings(
        kind=GrammarKind.arpa, words=[], min_words=1, max_words=None, file=str(arpa)
    )
    lexicon = Lexicon(prons)
    return Lang(lexicon, States(tuple(lexicon.phones), 3, 5), grammar, arpa, 0.4)


def a_path(lang: Lang, rng: np.random.Generator) -> np.ndarray:
    """The states of random words, FRAMES long."""
    names, path = lang.lexicon.words, list(lang.states.of("SIL")) * 2
    while len(path) < FRAMES - 25:
        for phone in lang.lexicon.prons[names[rng.integers(len(names))]][0]:
            for state in lang.states.of(phone):
                path += [state] * int(rng.integers(1, 5))
    path = path[: FRAMES - 25]
    return np.array(path + [lang.states.of("SIL")[-1]] * (FRAMES - len(path)))


def timed(search: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """The fastest of some runs, in seconds, and the result."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = search()
        seconds.append(time.perf_counter() - start)
    return min(seconds), found


def simple_lattice(fst: Any, scores_TS: np.ndarray) -> bool:
    options = kaldi_decoder.LatticeSimpleDecoderConfig(beam=BEAM, lattice_beam=LATTICE_BEAM)
    decoder = kaldi_decoder.LatticeSimpleDecoder(fst, options)
    return decoder.decode(kaldi_decoder.DecodableCtc(scores_TS))


def compare(graph: Arrays, fst: Any, lattices: Lattices, scores_TS: np.ndarray) -> dict[str, Any]:
    """One kind of scores: equal costs with an ample beam on some frames, then times."""
    states = scores_TS.shape[1]
    top = int(graph.arcs_A["ilabel"].max())
    some_TS = np.ascontiguousarray(scores_TS[:60])
    wide = Beam(fst, states, 30.0, 10**6, top).best_path(some_TS)
    ours = lattices.decode(some_TS, 30.0, 10**6, LATTICE_BEAM)
    assert wide is not None and ours is not None and wide.final == ours.final
    assert abs(ours.cost - (wide.graph_cost + wide.acoustic_cost)) < 1e-4 * max(1, abs(ours.cost))

    row: dict[str, Any] = {}
    beam = Beam(fst, states, BEAM, MAX_ACTIVE, top)
    row["faster_decoder"], path = timed(lambda: beam.best_path(scores_TS))
    row["ours"], lattice = timed(lambda: lattices.decode(scores_TS, BEAM, MAX_ACTIVE, LATTICE_BEAM))
    row["ours_narrow"], _ = timed(lambda: lattices.decode(scores_TS, BEAM, MAX_ACTIVE, 2.0))
    few_TS = np.ascontiguousarray(scores_TS[:SIMPLE_FRAMES])
    simple, _ = timed(lambda: simple_lattice(fst, few_TS), 1)
    row["lattice_simple_decoder"] = simple * len(scores_TS) / SIMPLE_FRAMES
    row = {name: {"frames_per_second": len(scores_TS) / s, "rtf": s / len(scores_TS) / SHIFT}
           for name, s in row.items()}  # fmt: skip
    row["cost"] = {"faster_decoder": path.graph_cost + path.acoustic_cost, "ours": lattice.cost}
    row["arcs"], row["active"] = len(lattice.arcs_A), float(lattice.active_T.mean())
    return row


def main(output: str, words: str = "5000") -> None:
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        lang = made_up(int(words), rng, Path(folder))
        graph = decoding_graph(lang, np.full(lang.states.num_states, 0.6))
    fst = to_vector(graph)
    import kaldifst

    fst = kaldifst.StdConstFst(fst)
    built = time.perf_counter() - start
    start = time.perf_counter()
    lattices = Lattices(graph, lang.states.num_states)
    loaded = time.perf_counter() - start
    print(
        f"{len(graph.final_N)} nodes {len(graph.arcs_A)} arcs, {built:.1f} s; ours {loaded:.1f} s"
    )
    path_T = a_path(lang, rng)
    rows = {}
    for name, margin in MARGINS.items():
        scores_TS = rng.standard_normal((FRAMES, lang.states.num_states)).astype(np.float32)
        scores_TS[np.arange(FRAMES), path_T] += margin
        rows[name] = compare(graph, fst, lattices, scores_TS)
        print(name, json.dumps(rows[name], indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
