"""The benchmark of graphs builds the graphs of the stages, and counts correctly."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from speakers import CONFIG
from toy import toy_lang

from asr_train.align.front import Front
from asr_train.align.gmm import Gmm, Mixtures, save_gmm
from asr_train.lang.index import write_lang
from asr_train.schema import FrontSettings, NormBy, NormSettings
from asr_train.search.graph import decoding_graph, write_graph

SCRIPTS = Path(__file__).parents[1] / "scripts"
ARPA = """\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-1.0 <s> -0.5
-1.0 <unk>
-0.6 </s>
-0.7 A -0.3
-0.5 ABC -0.2

\\2-grams:
-0.2 <s> ABC
-0.4 ABC A

\\end\\
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_graph

    yield bench_graph
    sys.modules.pop("bench_graph", None)


def test_graphs_are_those_of_the_stages_and_all_is_said(bench, tmp_path):
    (tmp_path / "G.arpa").write_text(ARPA)
    lang = toy_lang(arpa=tmp_path / "G.arpa")
    write_lang(tmp_path / "index.json", lang)
    num_states, size = lang.states.num_states, 4
    loop_S = np.linspace(0.2, 0.8, num_states)
    means, variances = np.zeros((num_states, size)), np.ones((num_states, size))
    gmm = Gmm(np.arange(num_states), np.ones(num_states), means, variances, loop_S)
    norm = NormSettings(by=NormBy.none, variance=False)
    front = Front(FrontSettings(num_ceps=size, deltas=0, norm=norm, splice=0))
    save_gmm(tmp_path / "model.json", Mixtures(front, gmm, lang.states), CONFIG.feats, {})

    bench.main(str(tmp_path), str(tmp_path / "model.json"), str(tmp_path / "index.json"))

    (row,) = json.loads((tmp_path / "graphs.json").read_text())["graphs"]
    graph = decoding_graph(lang, lang.states, loop_S)
    write_graph(tmp_path / "HCLG.json", graph, lang, lang.states, {})
    assert (row["states"], row["arcs"]) == (len(graph.final_N), len(graph.arcs_A))
    assert row["bytes"] == (tmp_path / "HCLG.fst").stat().st_size
    assert (row["words"], row["ngrams"]) == (2, [5, 2])
    assert row["pronunciations"] == 6
    assert row["peak_megabytes"] >= row["megabytes_before"] > 0
    text = (tmp_path / "graphs.md").read_text()
    assert f"| {row['arcs']} |" in text
