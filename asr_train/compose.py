"""conf/ and overrides -> the checked **settings** of one run. Only this module uses Hydra."""

import os
import re
import shlex
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asr_train.choices import check_known
from asr_train.places import ROOT
from asr_train.schema import Config, Method, SettingsError, build, unknown_key

CONF = Path(ROOT) / "conf"
FILES = {"recipe", "run", *(group.name for group in fields(Config))}  # are set to names of files


def settings(run: str, overrides: list[str]) -> Config:
    """Compose and check the settings of one run.

    Raises:
        SettingsError: naming the key, its value and what is allowed.
    """
    rows, exchanges = ({p.stem for p in (CONF / kind).glob("*.yaml")} for kind in ("run", "comm"))
    known = sorted(rows | exchanges | {method.value for method in Method})
    check_known("RUNS", run, known, "is no file of conf/run or conf/comm and no method")
    if run in rows:
        chosen = [f"run={run}"]
    else:
        chosen = [f"comm={run}"] if run in exchanges else ["comm=sgd", f"comm.method={run}"]
    for override in overrides:
        group, _, name = override.partition("=")
        if name == "null" and group in FILES:
            raise SettingsError(f"{override}, but {group} takes the name of a file of conf/{group}")
        if override.find("=") < 1:
            raise SettingsError(
                f"the setting {override!r} is neither group.key=value nor group=file; "
                "lists and mappings are without spaces"
            )
        if (CONF / group).is_dir() and group not in FILES:
            raise SettingsError(unknown_key(group, typing.get_type_hints(Config)))
        if group.isupper() and group.lower() in FILES - {"corpus", "recipe", "run"}:
            raise SettingsError(f"{override}: groups are in lower case; set {group.lower()}={name}")
        if group == "SET":
            raise SettingsError(f"{override!r}: give the setting by itself: {name}")
        if re.match(r"[A-Z_]+=", override):
            raise SettingsError(
                f"{group} is a variable of make; call make with {group}=..., not in SET"
            )
        if within := _list_above(group.lstrip("+~")):
            raise SettingsError(f"{override!r}: {_whole(within)}")
        if re.match(r"\W*hydra\b", override):  # which Hydra would take for its own settings
            raise SettingsError(unknown_key("hydra", typing.get_type_hints(Config)))
    try:
        values = _composed(chosen, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(_cause(error, chosen, overrides)) from error
    values["gmm"] = without_left_out(values["gmm"], overrides)
    return build(Config, values)


def _composed(chosen: list[str], overrides: list[str]) -> dict[str, Any]:
    """Return the values of conf/ and overrides, without references.

    A setting that conf/ lacks, or has by a reference such as `front: ${gmm.mono.front}`, is set in
    these values: Hydra's ++ would replace the reference by that one setting.
    """
    given = list(overrides)  # where two name one key, the later wins
    later: list[tuple[str, str, Exception]] = []
    while True:
        try:
            with initialize_config_dir(str(CONF), version_base="1.3"):
                config = compose("config", [*chosen, *map(as_text, given)])
            break
        except HydraException as error:
            missing = re.search(r"Could not override '([^']+)'", str(error))
            some = [o for o in given if missing and o.partition("=")[0].lstrip("+") == missing[1]]
            if missing is None or not some:
                raise
            later += [(missing[1], as_text(override), error) for override in some]
            given = [override for override in given if override not in some]
    values: Any = OmegaConf.to_container(config, resolve=True)
    for key, override, cause in later:
        *parents, last = key.split(".")
        node, is_new = values, _known(key)[1]
        for name in parents:
            node = node.setdefault(name, {}) if is_new else node.get(name)
            if not isinstance(node, dict):  # null, or there is none
                raise cause
        if not is_new and last not in node:
            raise cause
        node[last] = OverridesParser.create().parse_override(override).value()
    return dict(values)


def words_of_set() -> list[str]:
    """Return the overrides in SET, which make puts into the environment as ASR_SET.

    They are separated by spaces and may be quoted, as in a shell.

    Raises:
        SettingsError: if a quote is not closed.
    """
    text = os.environ.get("ASR_SET", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(
            f"SET is {text} ({str(error).lower()}); put a setting with ' in quotes of the other "
            'kind: SET="\\"corpus.folder.test_speakers=[o\'neil]\\""'
        ) from error


def of_group(group: str, name: str) -> Any:
    """Return the values of conf/GROUP/NAME.yaml, on top of those in its defaults list."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        values: Any = OmegaConf.to_container(compose(f"{group}/{name}"))
    return values[group]


def without_left_out(gmm: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Return the systems of conf/gmm/NAME.yaml up to NAME, the last that is trained.

    Later ones are present only because the recipe has numbers for them.

    Raises:
        SettingsError: if an override sets numbers for them, or there is no such system.
    """
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("gmm=")]
    names = list(gmm)
    trained = names[: names.index(chosen[-1] if chosen else "mono") + 1]  # config.yaml has mono
    for name in names[len(trained) :]:
        is_overridden = any(re.match(rf"\+*gmm\.{name}[.=]", override) for override in overrides)
        if is_overridden or not (CONF / "gmm" / f"{name}.yaml").exists():
            raise SettingsError(unknown_key(f"gmm.{name}", trained))
    return {name: gmm[name] for name in trained}


def as_text(override: str) -> str:
    """Return the override as Hydra needs it.

    Text is quoted, so that 1183 is a name, and letters beyond ASCII can be read. A mapping may have
    new names (++).
    """
    key, sign, value = override.partition("=")
    hint, _ = _known(key.lstrip("+"))
    if typing.get_origin(hint) is dict and value.startswith("{"):
        key = f"++{key.lstrip('+')}"
    items = re.fullmatch(r"\[([^\[\]]+)\]", value)
    if hint == list[str] and items and not re.search(r"[\[,]\s*['\"]", value):
        names = [quoted(item.strip()) for item in items[1].split(",")]
        return f"{key}{sign}[{','.join(names)}]"
    is_number = re.fullmatch(r"[-+]?[\d_.]+(e[-+]?\d+)?", value, re.IGNORECASE)
    is_foreign = not value.isascii() and value[0] not in "'\""
    if hint is str and (is_number or is_foreign):
        value = quoted(value.strip())
    return f"{key}{sign}{value}"


def _known(key: str) -> tuple[Any, bool]:
    """Return a setting's type, and whether conf/ may lack it.

    That is what has a default in the schema, and any name of a mapping that is not a folder of
    conf/.
    """
    hint: Any = Config
    folder, is_new, default = CONF, False, MISSING
    for name in key.split("."):
        is_mapping = typing.get_origin(hint) is dict
        is_new = is_new or (is_mapping and not folder.is_dir())
        folder /= name
        each = typing.get_args(hint)[1] if is_mapping else None
        defaults = {f.name: f.default for f in fields(hint)} if is_dataclass(hint) else {}
        default = defaults.get(name, MISSING)
        hint = typing.get_type_hints(hint).get(name) if is_dataclass(hint) else each
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        hint = inner[0] if isinstance(hint, types.UnionType) and len(inner) == 1 else hint
    return hint, is_new or default not in (MISSING, None)


def quoted(value: str) -> str:
    """Return text in quotes, in which neither ' nor ${...} means anything to Hydra."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return QuotedString(text, Quote.single).with_quotes()


def _list_above(key: str) -> str:
    """Return the list that a key such as optim.phases.until would be inside of; "" without one."""
    above = [key[: dot.start()] for dot in re.finditer(r"\.", key)]
    return next((name for name in above if typing.get_origin(_known(name)[0]) is list), "")


def _whole(key: str) -> str:
    return f"the setting {key} is a list; write it whole: {key}=[...], without spaces"


def _cause(error: Exception, chosen: list[str], overrides: list[str]) -> str:
    """Return Hydra's message, with the nearest key if one was not found.

    Args:
        chosen: the run's own overrides, which come first.
    """
    text = str(error)
    ambiguous = re.search(r"Ambiguous value for argument '(.+)'", text)
    if unread := ambiguous[1] if ambiguous else getattr(error, "override", None):
        return f"the setting {unread!r} cannot be read; check its brackets and quotes"
    missing = re.search(r"Could not override '([^']+)'", text)
    if missing:
        *groups, key = missing.group(1).split(".")
        with initialize_config_dir(str(CONF), version_base="1.3"):
            files = [o for o in overrides if (CONF / o.partition("=")[0]).is_dir()]
            node: Any = OmegaConf.to_container(compose("config", [*chosen, *files]))
        node["gmm"] = without_left_out(node["gmm"], overrides)
        for depth, group in enumerate(groups):
            path = ".".join(groups[: depth + 1])
            hint, _ = _known(path)
            if is_dataclass(hint) and node.get(group) is None and groups[0] != "gmm":
                inner, name = [each.name for each in fields(hint)], [*groups, key][depth + 1]
                if name not in inner:
                    return unknown_key(f"{path}.{name}", inner)
                return (
                    f"{missing[1]} is given, but {path} is null in the files chosen here; choose "
                    f"one of conf/{groups[0]} that has it, or set all of it: "
                    f"{path}={{{','.join(f'{each}:...' for each in inner)}}}"
                )
            if group not in node:
                return unknown_key(path, [str(k) for k in node])
            node = node[group] if isinstance(node[group], dict) else {}  # a leaf
        hint, _ = _known(".".join(groups))
        named = {each.name for each in fields(hint)} if is_dataclass(hint) else set()
        if key in named and groups[0] != "gmm":  # whose files hold one system each
            return (
                f"{missing[1]} is given, but the files chosen here do not have it; choose one of "
                f"conf/{groups[0]} that does"
            )
        return unknown_key(".".join([*groups, key]), [str(k) for k in node])
    absent = re.search(r"Could not find '([^']+)'", text)
    if absent:
        parent, _, stem = absent.group(1).rpartition("/")
        group = CONF / parent
        known = sorted(p.stem for p in group.glob("*.yaml"))
        recipe, _, size = stem.rpartition("_")
        if group.name == "recipe" and recipe in known:
            sizes = [k.removeprefix(f"{recipe}_") for k in known if k.startswith(f"{recipe}_")]
            return f"SIZE is {size}; {recipe} has {', '.join(['default', *sizes])}"
        return f"{absent.group(1)}.yaml is not in conf/; allowed: {', '.join(known)}"
    merged = re.match(r"Error merging override (\S+?)=", text)
    if merged and typing.get_origin(_known(merged[1])[0]) is list:
        return _whole(merged[1])
    return text
