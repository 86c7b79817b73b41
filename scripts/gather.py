"""gather.py ROOT report/index.html

Gather the tables of all recipes that were run (recipes/NAME/work*/tables/*.md, with the name of the
work folder if it is not `work`), those kept with the repository (results/*/*.md), and the
RESULTS.md of recipes, into one page. A table's picture has the same name and is included.
"""

import asr_train.interrupt  # noqa: F401

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from asr_train.files import write_text
from asr_train.jobs import main
from asr_train.report.gather import Document, gathered_page


def gather(root: str, output: str) -> None:
    folder = Path(root)
    groups: dict[str, list[Document]] = defaultdict(list)
    for name, path in tables(folder):
        picture = path.with_suffix(".png")
        groups[name].append(
            Document(
                str(path.relative_to(folder)),
                path.read_text(encoding="utf-8"),
                picture.read_bytes() if picture.exists() else None,
            )
        )
    if not groups:
        raise ValueError(f"{root} has no tables; run a recipe first, for example make digits")
    root_from_page = os.path.relpath(folder, Path(output).parent)
    write_text(output, gathered_page(groups.items(), root_from_page))
    count = sum(map(len, groups.values()))
    print(f"{output}: {count} tables of {len(groups)} recipes, papers and benchmarks")


def tables(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield group and path of every table, those of local runs first."""
    for path in sorted(root.glob("recipes/*/work*/tables/*.md")):
        recipe, work = path.parts[-4], path.parts[-3]
        yield f"{recipe}, made here" + (f" ({work})" if work != "work" else ""), path
    for path in sorted(root.glob("results/*/**/*.md")):
        yield f"results/{path.relative_to(root / 'results').parts[0]}", path
    for path in sorted(root.glob("recipes/*/RESULTS.md")):
        yield path.parent.name, path


if __name__ == "__main__":
    main(gather, __doc__)
