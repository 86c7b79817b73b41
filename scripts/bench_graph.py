"""bench_graph.py FOLDER exp/MODEL/model.json lang/index.json [lang/index.json ...]

Build the decoding graph of each lang folder with the states of a system of Gaussian mixtures, each
in its own process, and measure states, arcs, size, seconds and peak memory.
Writes FOLDER/graphs.json and graphs.md.
"""

import datetime
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from asr_train import jobs
from asr_train.align.gmm import load_gmm
from asr_train.files import write_json, write_text
from asr_train.lang.arpa import read_arpa
from asr_train.lang.index import load_lang
from asr_train.provenance import commit, machine
from asr_train.report.tables import as_markdown
from asr_train.search.graph import decoding_graph, load_graph, quiet, write_graph

COLUMNS = ["words of the grammar", "n-grams", "pronunciations", "leaves", "states", "arcs"]
COLUMNS += ["MB on disk", "CPU seconds", "seconds", "peak memory MB", "of it before"]


def main(folder: str, model: str, language: str, *more: str) -> None:
    began = os.getloadavg()
    rows = [built(model, language) for language in (language, *more)]
    about = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "load_before": [round(load, 2) for load in began],
    }
    notes = [f"{key}: {value}" for key, value in about.items()]
    notes.append("Built in one thread and minimised; `before`: imports, lexicon and model.")
    text = as_markdown("Decoding graphs", COLUMNS, map(cells, rows), notes)
    print(text)
    write_json(Path(folder) / "graphs.json", {"about": about, "graphs": rows})
    write_text(Path(folder) / "graphs.md", text)


def built(model: str, language: str) -> dict[str, Any]:
    """Build one graph in a fresh process, so that peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, model, language).result()


def measured(model: str, language: str) -> dict[str, Any]:
    """Build one graph, write it and read it back, which compares hashes and sizes."""
    lang, mixtures = load_lang(language), load_gmm(Path(model))
    assert lang.arpa is not None, f"{language} has no n-gram model, so there is nothing to grow"
    before, start, cpu_start = jobs.peak_megabytes(), time.perf_counter(), time.process_time()
    with quiet():
        graph = decoding_graph(lang, mixtures.states, mixtures.gmm.loop_S)
    cpu_seconds = time.process_time() - cpu_start
    seconds, peak = time.perf_counter() - start, jobs.peak_megabytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "HCLG.json"
        write_graph(path, graph, lang, mixtures.states, {})
        load_graph(path, lang, mixtures.states, arrays=False)
        size = path.with_suffix(".fst").stat().st_size
    counts = read_arpa(lang.arpa).counts
    return {
        "words": counts[0] - len(("<s>", "</s>", "<unk>")),
        "ngrams": counts,
        "pronunciations": sum(len(prons) for prons in lang.lexicon.prons.values()),
        "leaves": mixtures.states.num_states,
        "states": len(graph.final_N),
        "arcs": len(graph.arcs_A),
        "bytes": size,
        "cpu_seconds": cpu_seconds,
        "seconds": seconds,
        "peak_megabytes": peak,
        "megabytes_before": before,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row as one text per column."""
    return [
        f"{row['words']:,}",
        " + ".join(f"{count:,}" for count in row["ngrams"]),
        *(f"{row[key]:,}" for key in ("pronunciations", "leaves", "states", "arcs")),
        f"{row['bytes'] / 1e6:,.0f}",
        *(f"{row[key]:,.0f}" for key in ("cpu_seconds", "seconds")),
        *(f"{row[key]:,.0f}" for key in ("peak_megabytes", "megabytes_before")),
    ]


if __name__ == "__main__":
    jobs.main(main, __doc__ or "")
