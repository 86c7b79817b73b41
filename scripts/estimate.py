"""Make a paper's table that needs no training, from printed constants and the cost model.

    estimate.py recipes/PAPER/paper.yaml recipes/PAPER/TABLE.yaml tables/PAPER-TABLE.md

Also writes .json, .txt and .png. All numbers of ours are simulated. Takes seconds.
"""

import asr_train.interrupt  # noqa: F401

import time
from pathlib import Path

from asr_train.cost.cluster import CLUSTERS
from asr_train.cost.papers import PAPERS
from asr_train.files import hash_of, read_yaml, write_json, write_text
from asr_train.jobs import main
from asr_train.paper.estimates import estimated, markdown, plain, plot
from asr_train.provenance import commit, machine, settings_hash


def estimate(paper: str, file: str, output: str) -> None:
    common, table = read_yaml(paper), read_yaml(file)
    found = estimated(
        common["paper"],
        table["table"],
        f"{common['title']}. {table['title']}",
        {
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit(),
            "settings": hash_of([settings_hash(folder) for folder in (PAPERS, CLUSTERS)]),
            "machine": machine(),
            "command": f"make {Path(file).parent.name}-{Path(file).stem}",
        },
    )
    path = Path(output)
    write_json(path.with_suffix(".json"), found)
    write_text(path.with_suffix(".txt"), plain(found))
    plot(found, path.with_suffix(".png"))
    write_text(path, markdown(found))


if __name__ == "__main__":
    main(estimate, __doc__ or "")
