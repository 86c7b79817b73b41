"""A paper's settings files -> the **runs that its tables need**, and which row is which.

A folder of recipes/ holds paper.yaml, what all of its tables share, and a file a table. Rows say
the paper's own numbers; a scale says by what they are multiplied, so that the same row stands for
40 workers of the paper or for 4 of a laptop. A run is named after paper and settings, so that rows
of several tables that are the same run share it. Knows nothing of how runs are trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asr_train.files import read_yaml
from asr_train.schema import SettingsError, load

Value = int | float | str | bool
WORKERS = "comm.workers"


@dataclass(kw_only=True, slots=True)
class ScaleSettings:
    """How far a paper's runs are scaled down.

    Attributes:
        settings: overrides of all runs, beside the paper's.
        times: what numbers of rows are multiplied by, by their key; whole numbers stay whole, and
            do not fall below 1.
        seeds: every run is trained once with each.
    """

    settings: list[str] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1])

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SettingsError(f"scales.*.seeds is {self.seeds}; it needs one or more, each once")
        for key, factor in self.times.items():
            if not factor > 0:
                raise SettingsError(f"scales.*.times.{key} is {factor}; it must be positive")


@dataclass(kw_only=True, slots=True)
class PaperSettings:
    """What the tables of a paper share.

    Attributes:
        paper: the name of its file in conf/papers/.
        cluster: of conf/cluster/, whose speed is simulated.
        settings: overrides of all runs, at the paper's scale.
        runs: a file of conf/run/ or conf/comm/ -> what its rows set where they say nothing else.
    """

    paper: str
    title: str
    cluster: str
    settings: list[str]
    runs: dict[str, dict[str, Any]]
    scales: dict[str, ScaleSettings]


@dataclass(kw_only=True, slots=True)
class RowSettings:
    """One row of a table.

    Attributes:
        run: a file of conf/run/ or conf/comm/.
        set: its settings, as the paper has them.
        paper: values that name the row in the paper's table; empty: the paper has no such row.
        label: of the row; "": its values in the paper.
    """

    run: str
    set: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(kw_only=True, slots=True)
class TableSettings:
    """One table or figure.

    Attributes:
        table: its key in the paper's file.
        baseline: what the rows are compared with.
        decode_epochs: the model of every epoch is decoded, for a figure of word errors.
        times: by scale, factors of this table that differ from the scale's own.
    """

    table: str
    title: str
    baseline: RowSettings
    rows: list[RowSettings]
    decode_epochs: bool = False
    times: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one seed.

    Attributes:
        base: a file of conf/run/ or conf/comm/.
        values: of its settings, scaled, by their keys.
        overrides: all of them as Hydra takes them.
    """

    name: str
    base: str
    values: dict[str, Value]
    overrides: tuple[str, ...]

    @property
    def epochs(self) -> int:
        """As the settings say.

        Raises:
            SettingsError: if they do not.
        """
        said = [o.partition("=")[2] for o in self.overrides if o.startswith("optim.epochs=")]
        if not said or not said[-1].isdigit():
            raise SettingsError(
                f"{self.name} is decoded after every epoch, but optim.epochs is "
                f"{said[-1] if said else 'not set'}; give a number in paper.yaml"
            )
        return int(said[-1])


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, and its runs, a seed each."""

    label: str
    paper: dict[str, Any] | None  # all that the paper prints of it; None: it has no such row
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its runs.

    Attributes:
        name: of its file, and of what is made of it.
        paper: PaperSettings.
        scale: its name, and what it says.
        baselines: a seed each; row i of a seed is compared with baseline i.
    """

    name: str
    settings: TableSettings
    paper: PaperSettings
    scale: str
    baselines: tuple[Run, ...]
    rows: tuple[Row, ...]

    @property
    def runs(self) -> list[Run]:
        """All of them, the baselines first; one may come several times."""
        return [*self.baselines, *(run for row in self.rows for run in row.runs)]


def read_tables(paths: Iterable[Path | str], scale: str, papers: Path) -> list[Table]:
    """The tables of these files, which lie beside their paper.yaml.

    Args:
        scale: one of the paper's `scales`.
        papers: the folder of what papers print.
    Raises:
        SettingsError: if a file does not say what it should, or two runs of one name differ.
    """
    tables = [_read_table(Path(path), scale, papers) for path in paths]
    named: dict[str, Run] = {}
    for run in (run for table in tables for run in table.runs):
        if named.setdefault(run.name, run) != run:
            raise SettingsError(
                f"two runs are named {run.name}, with {run.overrides} and with "
                f"{named[run.name].overrides}; a name must say what differs"
            )
    return tables


def _read_table(path: Path, scale: str, papers: Path) -> Table:
    if not path.exists():
        there = sorted(p.stem for p in path.parent.glob("*.yaml") if p.stem != "paper")
        raise SettingsError(f"{path} is not there; TABLES may be {', '.join(there) or 'nothing'}")
    paper = load(PaperSettings, path.with_name("paper.yaml"))
    settings = load(TableSettings, path)
    if scale not in paper.scales:
        raise SettingsError(f"SCALE is {scale}; {path.parent.name} has {', '.join(paper.scales)}")
    printed = printed_rows(read_yaml(papers / f"{paper.paper}.yaml"), settings.table)

    def runs(row: RowSettings) -> tuple[Run, ...]:
        more = settings.times.get(scale, {})
        return tuple(run_of(row, paper, scale, seed, more) for seed in paper.scales[scale].seeds)

    rows = []
    for row in settings.rows:
        found = matching(printed, row.paper) if row.paper else None
        if row.paper and found is None:
            raise SettingsError(f"{path}: {settings.table} has no row with {row.paper}")
        rows.append(Row(row.label or _label(row.paper), found, runs(row)))
    return Table(path.stem, settings, paper, scale, runs(settings.baseline), tuple(rows))


def run_of(
    row: RowSettings,
    paper: PaperSettings,
    scale: str,
    seed: int,
    times: Mapping[str, float] = MappingProxyType({}),
) -> Run:
    """The run of a row: the paper's numbers times the scale's.

    Args:
        times: factors in place of the scale's, of what the row itself sets.
    Raises:
        SettingsError: if paper.yaml does not know the run, or a value is none.
    """
    if row.run not in paper.runs:
        raise SettingsError(
            f"a row has run {row.run!r}; paper.yaml's runs are {', '.join(paper.runs)}"
        )
    usual = paper.runs[row.run]
    factors = paper.scales[scale].times
    unsaid = {key: _times(key, v, factors) for key, v in usual.items()}
    own = {key: _times(key, v, {**factors, **times}) for key, v in row.set.items()}
    values = {**unsaid, **own}
    said = {key: v for key, v in values.items() if unsaid.get(key) != v or key == WORKERS}
    words = [f"{key.rpartition('.')[2]}{_spelled(v)}" for key, v in sorted(said.items())]
    return Run(
        "-".join([paper.paper, row.run, *words, f"seed{seed}"]),
        row.run,
        values,
        (
            *paper.settings,
            *paper.scales[scale].settings,
            *(f"{key}={_spelled(value)}" for key, value in values.items()),
            f"optim.seed={seed}",
        ),
    )


def _times(key: str, value: Any, factors: Mapping[str, float]) -> Value:
    if not isinstance(value, int | float | str | bool):
        raise SettingsError(f"{key} is {value!r}; it must be a number or a word")
    if key not in factors or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return max(1, round(value * factors[key]))
    return float(f"{value * factors[key]:.4g}")


def _spelled(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _label(named: dict[str, Any]) -> str:
    return ", ".join(str(value).replace("_", "-") for value in named.values())


def printed_rows(paper: dict[str, Any], table: str) -> list[dict[str, Any]]:
    """A table of a paper's file, a dict a row; none for a figure, of which there are no numbers.

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


def matching(rows: Sequence[dict[str, Any]], named: dict[str, Any]) -> dict[str, Any] | None:
    """The row with these values; None if there is none."""
    return next((r for r in rows if all(r.get(k) == v for k, v in named.items())), None)
