"""scripts/paper.py: the command that a table names."""

from pathlib import Path

import pytest

from scripts.paper import command

TABLE = Path("recipes/seide2014_1bit/table6.yaml")


@pytest.mark.parametrize(
    "corpus, splits, wanted",
    [
        (None, {"test"}, "make seide2014_1bit-table6 SCALE=small"),
        ("commands", {"test"}, "make seide2014_1bit-table6 SCALE=small CORPUS=commands"),
        (
            "commands",
            {"test_clean", "test_human"},
            "make seide2014_1bit-table6 SCALE=small CORPUS=commands HUMAN=path",
        ),
    ],
)
def test_a_table_names_every_variable_it_was_made_with(monkeypatch, corpus, splits, wanted):
    monkeypatch.delenv("CORPUS", raising=False)
    if corpus is not None:
        monkeypatch.setenv("CORPUS", corpus)
    assert command(TABLE, "small", splits) == wanted
