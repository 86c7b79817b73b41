"""A paper's settings files -> the **runs that its tables need**, and their rows.

A folder of recipes/ holds paper.yaml, common to all of its tables, and a file per table. Rows
contain the paper's own numbers; a scale multiplies them, so that the same row stands for 40 workers
of the paper or for 4 on a laptop. A run is named after paper and settings, so that equal rows of
several tables share a run. Knows nothing of how runs are trained.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asr_train.cost.papers import read_paper
from asr_train.paper.ratios import RATIOS
from asr_train.schema import SettingsError, load
from asr_train.schema.fields import dotted

Value = int | float | str | bool | None | dict[str, Any]
WORKERS = "comm.workers"


@dataclass(kw_only=True, slots=True)
class ScaleSettings:
    """The scaling of a paper's runs.

    Attributes:
        settings: overrides of all runs, in addition to the paper's.
        times: factors of rows' numbers, by key; whole numbers stay whole, and at least 1 but for 0.
        runs: default values chosen at this scale, by run of `paper.runs` and key; not scaled.
        seeds: every run is trained once with each, but for rows that say otherwise and tables
            read with others.
        unlike: the reason why a ratio is far from the paper's, by its name in `paper.ratios`.
    """

    settings: list[str] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1])
    unlike: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_seeds("scales.*.seeds", self.seeds)
        for key, factor in self.times.items():
            if not factor > 0:
                raise SettingsError(f"scales.*.times.{key} is {factor}; it must be positive")
        _check_ratios("scales.*.unlike", self.unlike)


@dataclass(kw_only=True, slots=True)
class PaperSettings:
    """The settings common to a paper's tables.

    Attributes:
        paper: the name of its file in conf/papers/.
        cluster: of conf/cluster/, whose speed is simulated.
        settings: overrides of all runs, at the paper's scale.
        epoch_frames: frames (outputs of the network) of the paper's epoch.
        ratios: those of `paper.ratios.RATIOS` that the paper's effects depend on.
        runs: a file of conf/run/ or conf/comm/ -> default values of its rows.
    """

    paper: str
    title: str
    cluster: str
    epoch_frames: float
    ratios: list[str]
    settings: list[str]
    runs: dict[str, dict[str, Any]]
    scales: dict[str, ScaleSettings]

    def __post_init__(self) -> None:
        _check_ratios("ratios", self.ratios)
        for name, scale in self.scales.items():
            if unknown := scale.runs.keys() - self.runs.keys():
                raise SettingsError(
                    f"scales.{name}.runs has {min(unknown)!r}; paper.yaml's runs are "
                    f"{', '.join(self.runs)}"
                )


@dataclass(kw_only=True, slots=True)
class RowSettings:
    """One row of a table.

    Attributes:
        run: a file of conf/run/ or conf/comm/.
        set: its settings, with the paper's values.
        paper: values that identify the row in the paper's table; empty: no such row.
        label: of the row; "": its values in the paper.
        unlike: reasons for its ratios, in addition to the scale's.
        realign: whether it is trained once more, on the alignments of the run with these settings.
        seeds: by scale, those of this row; else the scale's. The baseline needs those of all rows.
    """

    run: str
    set: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    unlike: dict[str, str] = field(default_factory=dict)
    realign: bool = False
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_ratios("rows.*.unlike", self.unlike)
        for scale, seeds in self.seeds.items():
            _check_seeds(f"rows.*.seeds.{scale}", seeds)


BASELINE = "baseline"  # a claim's name for it, if it is not one of the rows


@dataclass(kw_only=True, slots=True)
class ClaimSettings:
    """What the paper says of two rows.

    Attributes:
        row, against: their labels, or BASELINE.
        claim: in words.
        epoch: compare the models after it (from 1); None: the final ones.
    """

    row: str
    against: str
    claim: str
    epoch: int | None = None


@dataclass(kw_only=True, slots=True)
class HoursSettings:
    """The paper's training whose hours a table prints.

    Attributes:
        speech_hours: of TRAIN in the paper.
        passes: over it, which our run's epochs stand for.
        parameters_millions: of its network.
        cluster: of conf/cluster.
    """

    speech_hours: float
    passes: int
    parameters_millions: float
    cluster: str


@dataclass(kw_only=True, slots=True)
class TableSettings:
    """One table or figure.

    Attributes:
        table: its key in the paper's file.
        baseline: the run that rows are compared with.
        decode_epochs: whether to decode the model of every epoch, for a figure of word errors.
        times: by scale, factors of this table that override the scale's.
        columns: of the printed table, to show; empty: all.
        splits: the paper's columns of WERs -> our test sets beside them; empty: one test set.
        claims: comparisons of two rows, shown below the table.
        hours: of the training that is simulated; None: none is.
    """

    table: str
    title: str
    baseline: RowSettings
    rows: list[RowSettings]
    decode_epochs: bool = False
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    splits: dict[str, str] = field(default_factory=dict)
    claims: list[ClaimSettings] = field(default_factory=list)
    hours: HoursSettings | None = None


REALIGNED = "-realign1"  # ends the name of a run that make trains on another's alignments


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one seed.

    Attributes:
        name: with REALIGNED, make trains on the alignments of the run without.
        seed: of its order of utterances and all other random numbers.
        base: a file of conf/run/ or conf/comm/.
        values: of its settings, scaled, by key.
        overrides: all of them for Hydra.
    """

    name: str
    seed: int
    base: str
    values: dict[str, Value]
    overrides: tuple[str, ...]

    @property
    def settings_name(self) -> str:
        """The name of its settings file, which a realigned run shares with the run before it."""
        return self.name.removesuffix(REALIGNED)

    @property
    def epochs(self) -> int:
        """The number of epochs in the settings.

        Raises:
            SettingsError: if there is none.
        """
        found = dict(o.split("=", 1) for o in self.overrides).get("optim.epochs", "not set")
        if not found.isdigit():
            raise SettingsError(
                f"{self.name} is decoded after every epoch, but optim.epochs is {found}; give a "
                "number in paper.yaml"
            )
        return int(found)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, or its baseline, and its runs, one per seed."""

    label: str
    settings: RowSettings
    paper: dict[str, Any] | None  # all that is printed in its row; None: there is no such row
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its runs.

    Attributes:
        name: of its file, and of its outputs.
        scale: its name.
        baseline: a row's runs are compared with its runs of the same seeds.
    """

    name: str
    settings: TableSettings
    paper: PaperSettings
    scale: str
    baseline: Row
    rows: tuple[Row, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, the baselines first; may contain duplicates."""
        return [run for row in (self.baseline, *self.rows) for run in row.runs]


def runs_by_settings(tables: Iterable[Table]) -> dict[str, Run]:
    """Return the runs of these tables by the name of their settings file.

    Raises:
        SettingsError: if two runs of one name differ, in one table or in two.
    """
    named: dict[str, Run] = {}
    for run in (run for table in tables for run in table.runs):
        other = named.setdefault(run.settings_name, run)
        if other.overrides != run.overrides:
            raise SettingsError(
                f"two runs are named {run.name}, with {run.overrides} and with "
                f"{other.overrides}; a name must show the difference"
            )
    return named


def check_effect(given: Iterable[str], runs: Iterable[Run]) -> None:
    """Check that overrides have an effect: those of a table's runs come last.

    Raises:
        SettingsError: naming one whose key all runs set to something else.
    """
    own = [dict(each.split("=", 1) for each in run.overrides) for run in runs]
    for key, _, value in (each.partition("=") for each in given):
        values = {settings.get(key, value) for settings in own}
        if values and value not in values:
            raise SettingsError(
                f"SET says {key}={value}, but the paper's tables set it to "
                f"{' or '.join(sorted(values))}, which would win; change it in paper.yaml or the "
                "table's file, or leave it out"
            )


def read_table(path: Path | str, scale: str) -> Table:
    """Read a table from its file, which is beside its paper.yaml.

    Args:
        scale: one of the paper's `scales`; `small:1:2` replaces the seeds of every row by 1 and 2.
    Raises:
        SettingsError: if a file is invalid, or two rows have one label, or two runs one name.
    """
    path, (scale, *given) = Path(path), scale.split(":")
    if not path.exists():
        known = sorted(p.stem for p in path.parent.glob("*.yaml") if p.stem != "paper")
        raise SettingsError(f"{path} is missing; TABLES may be {', '.join(known) or 'nothing'}")
    paper = load(PaperSettings, path.with_name("paper.yaml"))
    settings = load(TableSettings, path)
    if scale not in paper.scales:
        raise SettingsError(f"SCALE is {scale}; {path.parent.name} has {', '.join(paper.scales)}")
    _check_scales(path, settings, paper)
    printed = printed_rows(read_paper(paper.paper), settings.table)
    for word in given:
        if not word.isdecimal():
            raise SettingsError(f"SEEDS names {word!r}; it takes integers, such as SEEDS='1 2 3'")
    if given:
        _check_seeds("SEEDS", [int(word) for word in given])

    def runs(row: RowSettings) -> tuple[Run, ...]:
        more = settings.times.get(scale, {})
        seeds = map(int, given) if given else row.seeds.get(scale, paper.scales[scale].seeds)
        return tuple(run_of(row, paper, scale, seed, more) for seed in seeds)

    baseline = Row(BASELINE, settings.baseline, None, runs(settings.baseline))
    seeds = [run.seed for run in baseline.runs]
    rows: list[Row] = []
    for row in settings.rows:
        fitting = [each for each in printed if row.paper and row.paper.items() <= each.items()]
        if row.paper and len(fitting) != 1:
            count = f"{len(fitting)} rows" if fitting else "no row"
            raise SettingsError(
                f"{path}: {settings.table} has {count} with {row.paper}; paper: names exactly one"
            )
        found = fitting[0] if fitting else None
        if found is not None and settings.columns:
            missing = [key for key in settings.columns if key not in found]
            if missing:
                raise SettingsError(
                    f"{path}: {settings.table} has no column {missing[0]}; {', '.join(found)}"
                )
            shown = (*row.paper, *settings.columns)
            found = {key: value for key, value in found.items() if key in shown}
        label = row.label or _label(row.paper)
        if label in (other.label for other in rows):
            raise SettingsError(f"{path}: two rows are named {label!r}; give one another label")
        rows.append(Row(label, row, found, runs(row)))
        if lacking := {run.seed for run in rows[-1].runs}.difference(seeds):
            raise SettingsError(
                f"{path}: row {label!r} has seed {min(lacking)} at SCALE={scale}, but the "
                f"baseline has {', '.join(map(str, seeds))}; add it to the baseline's seeds"
            )
    table = Table(path.stem, settings, paper, scale, baseline, tuple(rows))
    _check_claims(path, table)
    runs_by_settings([table])
    return table


def _check_scales(path: Path, settings: TableSettings, paper: PaperSettings) -> None:
    """Refuse scales of `times` and `seeds` that the paper lacks, and factors of what no row sets.

    Factors of a table apply to its rows' own settings alone (see `run_of`).
    """
    rows = [settings.baseline, *settings.rows]
    scaled = [("times", settings.times.keys()), *(("seeds", row.seeds.keys()) for row in rows)]
    for name, scales in scaled:
        if unknown := scales - paper.scales.keys():
            raise SettingsError(
                f"{path}: {name} has the scale {min(unknown)!r}; paper.yaml's scales are "
                f"{', '.join(paper.scales)}"
            )
    known = dict.fromkeys(key for row in rows for key in _keys("", row.set))
    for scale, factors in settings.times.items():
        if unknown := factors.keys() - known.keys():
            raise SettingsError(
                f"{path}: times.{scale} has {min(unknown)!r}, which no row sets, so that it would "
                f"have no effect; rows set {', '.join(known) or 'nothing'}"
            )


def _keys(where: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of settings, of groups those within."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _keys(dotted(where, key), value)
        else:
            yield dotted(where, key)


def _check_claims(path: Path, table: Table) -> None:
    settings = table.settings
    seeds = {row.label: {run.seed for run in row.runs} for row in (table.baseline, *table.rows)}
    for claim in settings.claims:
        for label in (claim.row, claim.against):
            if label not in seeds:
                raise SettingsError(
                    f"{path}: a claim is about the row {label!r}; rows are {', '.join(seeds)}"
                )
        if claim.epoch is not None and not (settings.decode_epochs and claim.epoch > 0):
            raise SettingsError(
                f"{path}: the claim {claim.claim!r} is about epoch {claim.epoch}; epochs count "
                "from 1, and the table needs decode_epochs: true"
            )
        own, other = seeds[claim.row], seeds[claim.against]
        if not own & other:
            raise SettingsError(
                f"{path}: {claim.row!r} has seeds {sorted(own)}, {claim.against!r} "
                f"{sorted(other)}; the rows of a claim need a common one"
            )


def run_of(
    row: RowSettings,
    paper: PaperSettings,
    scale: str,
    seed: int,
    times: Mapping[str, float] = MappingProxyType({}),
) -> Run:
    """Return the run of a row: the paper's numbers times the scale's factors.

    Args:
        times: factors that override the scale's, for the row's own settings.
    Raises:
        SettingsError: if the run is not in paper.yaml, or a value is a list.
    """
    if row.run not in paper.runs:
        raise SettingsError(
            f"a row has run {row.run!r}; paper.yaml's runs are {', '.join(paper.runs)}"
        )
    usual, chosen = paper.runs[row.run], paper.scales[scale].runs.get(row.run, {})
    factors = paper.scales[scale].times
    defaults = {key: _times(key, v, factors) for key, v in usual.items()}
    defaults |= {key: _times(key, v, {}) for key, v in chosen.items()}
    own = {key: _times(key, v, {**factors, **times}) for key, v in row.set.items()}
    values = {**defaults, **own}
    shown = {k: v for k, v in values.items() if k == WORKERS or (k, v) not in defaults.items()}
    words = [
        key.rpartition(".")[2] + ("" if isinstance(v, dict) else _spelled(v))
        for key, v in sorted(shown.items())
    ]
    return Run(
        "-".join([paper.paper, row.run, *words, f"seed{seed}"]) + REALIGNED * row.realign,
        seed,
        row.run,
        values,
        (
            *paper.settings,
            *paper.scales[scale].settings,
            *(f"{key}={_spelled(value)}" for key, value in values.items()),
            f"optim.seed={seed}",
        ),
    )


def unscaled(row: RowSettings, paper: PaperSettings) -> Run:
    """Return the run of a row with the paper's own numbers."""
    return run_of(row, replace(paper, scales={"": ScaleSettings()}), "", 1)


def _check_seeds(key: str, seeds: list[int]) -> None:
    if not seeds or len(set(seeds)) < len(seeds):
        raise SettingsError(f"{key} is {seeds}; it needs one or more, each once")


def _check_ratios(key: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in RATIOS:
            raise SettingsError(f"{key} has {name!r}; ratios are {', '.join(RATIOS)}")


def _times(key: str, value: Any, factors: Mapping[str, float]) -> Value:
    if isinstance(value, dict):
        return {inner: _times(f"{key}.{inner}", v, factors) for inner, v in value.items()}
    if not isinstance(value, int | float | str | bool | None):
        raise SettingsError(f"{key} is {value!r}; it must be a number, a word, or settings by name")
    if key not in factors or isinstance(value, str | bool | None) or value == 0:
        return value
    if isinstance(value, int):
        return max(1, round(value * factors[key]))
    return float(f"{value * factors[key]:.4g}")


def _spelled(value: Value) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_spelled(v)}" for key, v in value.items()) + "}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _label(named: dict[str, Any]) -> str:
    return ", ".join(str(value).replace("_", "-") for value in named.values())


def printed_rows(paper: dict[str, Any], table: str) -> list[dict[str, Any]]:
    """Return the rows of a printed table as dicts; none for a figure.

    Raises:
        SettingsError: if the paper has no such table.
    """
    if table not in paper:
        known = [key for key in paper if key.startswith(("table", "figure"))]
        raise SettingsError(f"the paper has no {table}; it has {', '.join(known)}")
    found = paper[table]
    if not isinstance(found, dict):
        return []
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
