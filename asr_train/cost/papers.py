"""Numbers that the papers print: conf/papers/NAME.yaml."""

from pathlib import Path
from typing import Any

from asr_train.files import read_yaml
from asr_train.places import ROOT

PAPERS = Path(ROOT) / "conf" / "papers"


def read_paper(name: str) -> dict[str, Any]:
    """Return what is in the file of that name."""
    return read_yaml(PAPERS / f"{name}.yaml")
