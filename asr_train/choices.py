"""Choices on make's command line beside settings: runs, systems, workers, whose scales.

    NAME=value ... --checked--> Choices --plain--> settings files that stages depend on

An unknown name is refused before anything runs, with the nearest known one.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from asr_train.schema import SettingsError

RECORDED = "-recorded"  # after a run that was trained elsewhere


@dataclass(frozen=True, slots=True)
class Choices:
    """make's variables, split into words; see `make help`.

    Attributes:
        gmms: systems of Gaussians, each trained from the one before it.
        nets: networks to train, with those of further seeds and of realignment.
        scales: the run whose scales, chosen on DEV, all networks use; "": each its own. With
            RECORDED at its end, they are those of its record.
        bigram, pronprobs: models that are also decoded with a bigram, or with pronunciation
            and silence probabilities.
        rescore: models, or rows of `pronprobs`, that are also rescored.
        epochs: models of single epochs, RUN/epochs/N, that are also decoded.
        sequence: objectives that runs are trained further with, as RUN-OBJECTIVE.
        initial: the run that these begin with; "": each with its own.
        splits: that are decoded.
        recorded: runs of a paper's tables that were trained elsewhere.
    """

    gmms: list[str] = field(default_factory=lambda: ["mono"])
    nets: list[str] = field(default_factory=list)
    scales: str = ""
    rescore: list[str] = field(default_factory=list)
    bigram: list[str] = field(default_factory=list)
    pronprobs: list[str] = field(default_factory=list)
    epochs: list[str] = field(default_factory=list)
    sequence: list[str] = field(default_factory=list)
    initial: str = ""
    splits: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)

    @staticmethod
    def of(arguments: Iterable[str]) -> "Choices":
        """Parse `NAME=word word` arguments.

        Raises:
            SettingsError: for an unknown name, which gives the nearest known one; for a name that
                is there twice, and without any system of Gaussians.
        """
        values: dict[str, Any] = {}
        for each in arguments:
            name, _, text = each.partition("=")
            words = text.split()
            values[name.lower()] = " ".join(words) if name in ("SCALES", "INITIAL") else words
        known = {f.name for f in fields(Choices)}
        found = Choices(**{name: value for name, value in values.items() if name in known})
        found._check()
        return found

    @property
    def models(self) -> list[str]:
        """All systems and networks that are trained, in order."""
        return [*self.gmms, *self.nets]

    @property
    def shown(self) -> list[str]:
        """The rows of the table of word errors, in order."""
        rescored = [f"{name}-rescored" for name in self.rescore]
        return [*self._with_other_lang, *rescored, *self.epochs]

    @property
    def decoded(self) -> list[str]:
        """Those that need a search of their own."""
        return [*self._with_other_lang, *self.epochs]

    @property
    def _with_other_lang(self) -> list[str]:
        bigrams = [f"{name}-bigram" for name in self.bigram]
        return [*self.models, *bigrams, *self.probable]

    @property
    def probable(self) -> list[str]:
        """The rows decoded with pronunciation and silence probabilities."""
        return [f"{name}-pronprobs" for name in self.pronprobs]

    def scales_of(self, run: str) -> str:
        """Return the run whose scales `run` is decoded with."""
        if self.scales and (run in self.nets or run in self.epochs):
            return self.scales
        return run.partition("/epochs/")[0]

    def _check(self) -> None:
        if not self.gmms:
            raise SettingsError("GMMS is empty; it needs at least one system, for example mono")
        for name, words in (
            *(("GMMS", self.gmms), ("SEQUENCE", self.sequence), ("RUNS or SEEDS", self.nets)),
            *(("RESCORE", self.rescore), ("BIGRAM", self.bigram), ("PRONPROBS", self.pronprobs)),
            ("EPOCHS", self.epochs),
        ):
            if twice := [word for word in words if words.count(word) > 1]:
                raise SettingsError(f"{name} names {twice[0]} twice; name it once")
        for word in self.rescore:
            check_known("RESCORE", word, [*self.models, *self.probable])
        for name, words in (("BIGRAM", self.bigram), ("PRONPROBS", self.pronprobs)):
            for word in words:
                check_known(name, word, self.models)
        if self.scales:
            check_known("SCALES", self.scales.removesuffix(RECORDED), self.nets)
        if self.initial:
            if not self.sequence:
                raise SettingsError(
                    f"INITIAL is {self.initial}, but without SEQUENCE no network begins with "
                    "another; name objectives by SEQUENCE, or leave INITIAL out"
                )
            ends = tuple(f"-{objective}" for objective in self.sequence)
            first = [name for name in self.nets if not name.endswith(ends)]
            check_known("INITIAL", self.initial, first, "is not trained by frame cross-entropy")
        for word in self.epochs:
            run, _, number = word.partition("/epochs/")
            if not re.fullmatch(r"[1-9]\d*", number):
                raise SettingsError(
                    f"EPOCHS names {word!r}; it takes RUN/epochs/N, for example dnn/epochs/3"
                )
            check_known("EPOCHS", run, self.nets)


def run_of(path: Path) -> str:
    """Return the run that a file belongs to: `dnn` or `dnn/epochs/3`, of exp/RUN/FILE."""
    folder = path.parent
    of_epoch = folder.parent.name == "epochs"
    return f"{folder.parents[1].name}/epochs/{folder.name}" if of_epoch else folder.name


def check_known(
    variable: str, word: str, known: list[str], why: str = "is not trained by this call"
) -> None:
    """Raise SettingsError for an unknown word, naming the variable and the nearest known word."""
    if word in known:
        return
    near = difflib.get_close_matches(word, known, 1)
    raise SettingsError(
        f"{variable} names {word!r}, which {why}"
        + (f"; did you mean {near[0]!r}?" if near else "")
        + f" (known: {', '.join(known) or 'none'})"
    )
