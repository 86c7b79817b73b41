"""scripts/paper.py: the command that a table names."""

from pathlib import Path

import pytest

from scripts.paper import VARIABLES, command

TABLE = Path("recipes/seide2014_1bit/table6.yaml")


@pytest.mark.parametrize(
    "given, splits, wanted",
    [
        ({}, {"test"}, ""),
        ({"CORPUS": "commands"}, {"test"}, " CORPUS=commands"),
        ({"CORPUS": "commands"}, {"test_clean", "test_human"}, " CORPUS=commands HUMAN=path"),
        (
            {"CORPUS": "commands", "SET": "optim.max_norm=1\nlm.order=2", "HOURS": "1"},
            {"test"},
            " CORPUS=commands SET='optim.max_norm=1 lm.order=2' HOURS=1",
        ),
    ],
)
def test_a_table_names_every_variable_it_was_made_with(monkeypatch, given, splits, wanted):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    made = command(TABLE, "small", splits)
    assert made == f"make seide2014_1bit-table6 SCALE=small{wanted}"


def test_a_table_names_the_seeds_that_replaced_its_own(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = command(TABLE, "small:1:2", {"test"})
    assert made == "make seide2014_1bit-table6 SCALE=small SEEDS='1 2'"
