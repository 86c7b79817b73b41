"""resolve.py work/conf 'RUN RUN ...' [TABLE.yaml@SCALE ...] [group=file | group.key=value ...]

Composes conf/ and the overrides, checks every value, and writes one file a stage into work/conf.
A run is a file of conf/run/, such a file with another seed (RUN-seedN), or named by a paper's
table, whose settings then come last. A file is rewritten only when its content changes, so that
make reruns just what a change touches.
The only user of Hydra.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import os
import re
import sys
import types
import typing
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asr_train.files import write_yaml
from asr_train.jobs import main
from asr_train.paper.rows import Run, read_tables
from asr_train.schema import Config, SettingsError, build, plain, unknown_key

CONF = Path(__file__).resolve().parents[1] / "conf"


def resolve(folder: str, runs: str, *overrides: str) -> None:
    """Write the settings files of all stages and runs."""
    files_of_tables = [o for o in overrides if "=" not in o and "@" in o]
    given = [o for o in overrides if o not in files_of_tables]
    named = runs_of_tables(files_of_tables)
    composed = {}
    for name in runs.split() or ["dnn"]:
        run = named.get(name)
        base, more = _with_seed(name) if run is None else (run.base, run.overrides)
        composed[name] = settings(base, [*given, *more])
        check_outside(composed[name])
    files: dict[str, Any] = {}
    for run, config in composed.items():
        shared = {
            "corpus": config.corpus,
            "lexicon": config.lang.lexicon,
            "lang": config.lang,
            "lm": config.lm,
            "feats": config.feats,
            "ali": config.ali,
            "shards": config.shards,
            "decode": config.decode,
            "score": config.score,
            "normaliser": config.score.normaliser,
            **{f"gmm/{name}": gmm for name, gmm in config.gmm.items()},
        }
        for name, value in shared.items():
            if files.setdefault(name, plain(value)) != plain(value):
                raise SettingsError(f"run {run} changes {name}, which all runs of a recipe share")
        files[f"run/{run}"] = {k: plain(getattr(config, k)) for k in ("model", "optim", "comm")}
    for name, value in files.items():
        write_yaml(Path(folder) / f"{name}.yaml", value)


def _with_seed(name: str) -> tuple[str, list[str]]:
    """`gtc-seed2` is conf/run/gtc.yaml with another seed."""
    found = re.fullmatch(r"(.+)-seed(\d+)", name)
    return (name, []) if found is None else (found[1], [f"optim.seed={found[2]}"])


def runs_of_tables(names: list[str]) -> dict[str, Run]:
    """The runs of `TABLE.yaml@SCALE`, by their names."""
    found = {}
    for name in names:
        path, _, scale = name.rpartition("@")
        for table in read_tables([path], scale, CONF / "papers"):
            found |= {run.name: run for run in table.runs}
    return found


def settings(run: str, overrides: list[str]) -> Config:
    """The checked settings of one run.

    Raises:
        SettingsError: naming the key, its value and what is allowed.
    """
    known = sorted(p.stem for p in (CONF / "run").glob("*.yaml"))
    if run not in known:
        raise SettingsError(f"run {run} has no file conf/run/{run}.yaml; there are {known}")
    for override in overrides:
        if "=" not in override:
            raise SettingsError(f"SET holds {override!r}; it takes group.key=value or group=file")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [f"run={run}", *map(as_text, overrides)])
        values = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(_cause(error, overrides)) from error
    return build(Config, values)


def check_outside(config: Config) -> None:
    """Refuse what the settings name outside of them: workers, files of words and text.

    Raises:
        SettingsError: naming variable or key, its value and what to do.
    """
    wish = os.environ.get("WORKERS") or "1"
    if not wish.isdecimal() or int(wish) < 1:
        raise SettingsError(f"WORKERS is {wish!r}; it must be a whole number from 1")
    if config.comm.group_size is not None:
        config.comm.group_of(config.comm.workers or int(wish))
    models = {"small": config.lm.small, "big": config.lm.big}
    files = [
        ("lang.lexicon.file", config.lang.lexicon.file),
        ("lang.grammar.file", config.lang.grammar.file),
        ("score.normaliser.mapping", config.score.normaliser.mapping),
        *(("lm.text", path) for path in config.lm.text),
        *((f"lm.{name}.file", model.file) for name, model in models.items() if model is not None),
    ]
    for key, path in files:
        if path is not None and not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise SettingsError(
                f"{key} is {path}, but there is no file {os.path.abspath(path)} that can be read; "
                "correct the path"
            )


def as_text(override: str) -> str:
    """The override, quoted where text is wanted, so that Hydra takes the name 1183 for a name."""
    key, sign, value = override.partition("=")
    hint: Any = Config
    for name in key.lstrip("+").split("."):
        hint = typing.get_type_hints(hint).get(name) if is_dataclass(hint) else None
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        hint = inner[0] if isinstance(hint, types.UnionType) and len(inner) == 1 else hint
    items = re.fullmatch(r"\[([^\[\]'\"]+)\]", value)
    if hint == list[str] and items:
        return f"{key}{sign}[{','.join(map(_quoted, items[1].split(',')))}]"
    is_number = re.fullmatch(r"[-+]?[\d_.]+(e[-+]?\d+)?", value, re.IGNORECASE)
    return f"{key}{sign}{_quoted(value)}" if hint is str and is_number else override


def _quoted(value: str) -> str:
    return f"'{value.strip()}'"


def _cause(error: Exception, overrides: list[str]) -> str:
    """Hydra's message, with the nearest key where one was not found."""
    text = str(error)
    missing = re.search(r"Could not override '([^']+)'", text)
    if missing:
        *groups, key = missing.group(1).split(".")
        with initialize_config_dir(str(CONF), version_base="1.3"):
            node: Any = compose("config", [o for o in overrides if "." not in o.split("=")[0]])
        for depth, group in enumerate(groups):
            if group not in node:
                return unknown_key(".".join(groups[: depth + 1]), [str(k) for k in node])
            node = node[group]
        return unknown_key(".".join([*groups, key]), [str(k) for k in node])
    absent = re.search(r"Could not find '([^']+)'", text)
    if absent:
        group = CONF / Path(absent.group(1)).parent
        there = ", ".join(sorted(p.stem for p in group.glob("*.yaml")))
        return f"{absent.group(1)}.yaml is not in conf/; allowed: {there}"
    return text


if __name__ == "__main__":
    sys.argv[3:] = [a for a in sys.argv[3:] if a]
    main(resolve, __doc__)
