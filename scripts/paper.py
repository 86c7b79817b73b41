"""Make a paper's table: our results beside the published ones.

    paper.py SCALE recipes/PAPER/TABLE.yaml tables/PAPER-TABLE.ratios.json conf/score.yaml exp
        tables/PAPER-TABLE.md

CORPUS in the environment names the recipe whose speech was used. Reads
exp/RUN/{run.json,log.jsonl,score.SPLIT.json}; also writes .json, .txt and .png.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import os
from pathlib import Path

from asr_train.cost.cluster import read_cluster
from asr_train.files import read_json, read_jsonl, write_json, write_text
from asr_train.jobs import main
from asr_train.paper.plot import plot
from asr_train.paper.rows import Run, read_tables
from asr_train.paper.table import markdown, paper_table, plain
from asr_train.report.exchange import Trained
from asr_train.report.tables import Score, held_out, provenance, read_score
from asr_train.schema import ScoreSettings, load

CONF = Path(__file__).resolve().parents[1] / "conf"


def paper(scale: str, file: str, ratios: str, conf: str, exp: str, output: str) -> None:
    (table,) = read_tables([file], scale, CONF / "papers")
    names = list(dict.fromkeys(run.name for run in table.runs))
    decoded = table.settings.decode_epochs
    found = paper_table(
        table,
        {name: finished(Path(exp, name)) for name in names},
        {run.name: by_epoch(run, Path(exp)) for run in table.runs} if decoded else {},
        load(ScoreSettings, conf),
        read_cluster(table.paper.cluster, CONF / "cluster"),
        provenance(conf) | {"command": command(Path(file), scale)},
        CONF / "papers",
        read_json(ratios),
    )
    path = Path(output)
    write_json(path.with_suffix(".json"), found)
    write_text(path.with_suffix(".txt"), plain(found))
    plot(found, path.with_suffix(".png"))
    write_text(path, markdown(found))


def command(file: Path, scale: str) -> str:
    """Return the command that makes the table, from the root."""
    words = ["make", f"{file.parent.name}-{file.stem}", f"SCALE={scale}"]
    if corpus := os.environ.get("CORPUS"):
        words.append(f"CORPUS={corpus}")
    return " ".join(words)


def finished(folder: Path) -> Trained:
    """Read the results of a run."""
    return Trained(
        folder.name,
        read_json(folder / "run.json"),
        read_jsonl(folder / "log.jsonl"),
        [read_score(path) for path in sorted(folder.glob("score.*.json"))],
    )


def by_epoch(run: Run, exp: Path) -> list[Score]:
    """Return the TEST score of each epoch's model."""
    epochs = range(1, run.epochs + 1)
    return [
        score
        for n in epochs
        for score in map(read_score, (exp / run.name / "epochs" / str(n)).glob("score.*.json"))
        if held_out(score["split"])
    ]


if __name__ == "__main__":
    main(paper, __doc__)
