"""bench_search.py OUTPUT.json [words]

Measure frames per second and real-time factor of best-path and lattice search over one large graph:
a made-up lexicon (default 5,000 words) and bigram model, scores from nearly flat to peaked. The
costs of best paths are compared first.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kaldi_decoder
import kaldialign
import kaldifst
import numpy as np

from asr_train.files import write_json
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.states import States
from asr_train.report.tables import machine
from asr_train.schema import GrammarKind, GrammarSettings
from asr_train.search.arrays import to_vector
from asr_train.search.beam import beam_search
from asr_train.search.confidence import confidences
from asr_train.search.graph import decoding_graph, quiet
from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import lattice_oracle, nbest

SHIFT = 0.01  # seconds per frame
FRAMES = 400
SIMPLE_FRAMES = 100  # the first ones, for kaldi_decoder's lattice decoder, without a token limit
BEAM, MAX_ACTIVE, LATTICE_BEAM = 13.0, 5000, 8.0  # nats, tokens per frame, nats
FOLLOWERS = 32  # bigrams per word
SENTENCES = 100
CHECKED_FRAMES, AMPLE_BEAM = 60, 40.0  # where costs are compared: no limit on tokens, nats
MARGINS = {"flat": 0.3, "soft": 1.0, "peaked": 4.0}  # nats of the true state above noise of 1 nat


def made_up(words: int, rng: np.random.Generator, folder: Path) -> Lang:
    """Make a language of random words of 2 to 9 phones, and a random bigram model."""
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


def a_path(lang: Lang, rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Return the states of random words with silence around them, FRAMES long, and the word ids."""
    names, silence = lang.lexicon.words, list(lang.states.of("SIL"))
    path, spoken = [s for s in silence for _ in range(2)], []
    while len(path) < FRAMES - 110:  # the longest word has 27 states of at most 4 frames
        spoken.append(int(rng.integers(len(names))) + 1)
        for phone in lang.lexicon.prons[names[spoken[-1] - 1]][0]:
            for state in lang.states.of(phone):
                path += [state] * int(rng.integers(1, 5))
    path += silence
    return np.array(path + silence[-1:] * (FRAMES - len(path))), spoken


def timed(search: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Return the fastest of some runs, in CPU seconds of this process, and its result.

    CPU time depends less on other load than wall-clock time; all searches here use one core.
    """
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        found = search()
        seconds.append(time.process_time() - start)
    return min(seconds), found


def simple_lattice(fst: Any, scores_TS: np.ndarray) -> bool:
    """Run kaldi_decoder's lattice decoder, which has no limit on tokens."""
    options = kaldi_decoder.LatticeSimpleDecoderConfig(beam=BEAM, lattice_beam=LATTICE_BEAM)
    decoder = kaldi_decoder.LatticeSimpleDecoder(fst, options)
    return decoder.decode(kaldi_decoder.DecodableCtc(scores_TS))


def check(fst: Any, top_label: int, lattices: Lattices, scores_TS: np.ndarray) -> None:
    """Check that without pruning all find equally good paths, the lattice's best among them."""
    path = beam_search(fst, scores_TS, AMPLE_BEAM, 10**6, top_label)
    lattice = lattices.decode(scores_TS, AMPLE_BEAM, 10**6, LATTICE_BEAM)
    assert path is not None
    assert lattice is not None
    assert path.final == lattice.final
    np.testing.assert_allclose(lattice.cost, path.graph_cost + path.acoustic_cost, rtol=1e-5)
    np.testing.assert_allclose(best_path(lattice).cost, lattice.cost, rtol=1e-9)


def measured(
    fst: Any, top_label: int, lattices: Lattices, scores_TS: np.ndarray, words: list[int]
) -> dict[str, Any]:
    """Measure one kind of scores: seconds for all frames, and what was found."""
    check(fst, top_label, lattices, np.ascontiguousarray(scores_TS[:CHECKED_FRAMES]))
    best_seconds, path = timed(lambda: beam_search(fst, scores_TS, BEAM, MAX_ACTIVE, top_label))
    seconds, lattice = timed(lambda: lattices.decode(scores_TS, BEAM, MAX_ACTIVE, LATTICE_BEAM))
    few_TS = np.ascontiguousarray(scores_TS[:SIMPLE_FRAMES])
    simple_seconds, _ = timed(lambda: simple_lattice(fst, few_TS), 1)
    list_seconds, found = timed(lambda: nbest(lattice, SENTENCES))
    oracle_seconds, oracle = timed(lambda: lattice_oracle(lattice, words))
    sure_seconds, _ = timed(lambda: confidences(lattice, found.sentences[0]))
    return {
        "frames": len(scores_TS),
        "active_tokens": round(float(lattice.active_T.mean()), 1),
        "seconds": {
            "FasterDecoder, best path": best_seconds,
            "ours, lattice": seconds,
            "LatticeSimpleDecoder": simple_seconds * len(scores_TS) / len(few_TS),
            f"{SENTENCES}-best of the lattice": list_seconds,
            "oracle of the lattice": oracle_seconds,
            "confidences": sure_seconds,
        },
        "nodes": len(lattice.frame_N),
        "arcs": len(lattice.arcs_A),
        "sentences": len(found.sentences),
        "complete": found.complete,
        "words": len(words),
        "oracle_errors": oracle,
        "best_errors": kaldialign.edit_distance(words, best_path(lattice).words)["total"],
        "cost": {
            "FasterDecoder": path.graph_cost + path.acoustic_cost,
            "ours": lattice.cost,
        },
        "final": {"FasterDecoder": path.final, "ours": lattice.final},
    }


def show(name: str, row: dict[str, Any]) -> None:
    """Print one kind of scores as a few lines."""
    print(
        f"{name}: {row['active_tokens']:,.0f} tokens per frame; lattice of {row['arcs']:,} arcs, "
        f"{row['sentences']} sentences{'' if row['complete'] else ' (work limit reached)'}; "
        f"of {row['words']} words {row['best_errors']} wrong, oracle {row['oracle_errors']}; "
        f"costs {row['cost']['FasterDecoder']:.2f} and {row['cost']['ours']:.2f}"
    )
    for what, seconds in row["seconds"].items():
        rate, factor = row["frames"] / seconds, seconds / row["frames"] / SHIFT
        print(f"  {what:28} {rate:12,.0f} frames/s   real-time factor {factor:.5f}")


def main(output: str, words: str = "5000") -> None:
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, quiet():
        lang = made_up(int(words), rng, Path(folder))
        graph = decoding_graph(lang, lang.states, np.full(lang.states.num_states, 0.6))
        fst = kaldifst.StdConstFst(to_vector(graph))
    built = time.perf_counter()
    lattices = Lattices(graph, lang.states.num_states).compile()
    size = {"nodes": len(graph.final_N), "arcs": len(graph.arcs_A)}
    seconds = {"graph": built - start, "lattices": time.perf_counter() - built}
    print(
        f"graph of {size['nodes']:,} nodes, {size['arcs']:,} arcs: {seconds['graph']:.1f} s; "
        f"loaded (the first time: compiled) in {seconds['lattices']:.1f} s; "
        f"beam {BEAM:g}, {MAX_ACTIVE} tokens, lattice beam {LATTICE_BEAM:g}"
    )
    path_T, spoken = a_path(lang, rng)
    rows = {}
    for name, margin in MARGINS.items():
        noise_TS = rng.standard_normal((FRAMES, lang.states.num_states))
        noise_TS[np.arange(FRAMES), path_T] += margin
        scores_TS = noise_TS.astype(np.float32)
        top_label = int(graph.arcs_A["ilabel"].max())
        rows[name] = measured(fst, top_label, lattices, scores_TS, spoken)
        show(name, rows[name])
    settings = {"beam": BEAM, "max_active": MAX_ACTIVE, "lattice_beam": LATTICE_BEAM}
    about = {"machine": machine(), "words": int(words), "graph": size, "graph_seconds": seconds}
    write_json(output, {**about, "settings": settings, "scores": rows})


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
