"""conf/ and the schema -> the **settings reference**, as MyST directives.

The schema says which settings there are, their types and allowed values; the comments of conf/ say
what they mean. A comment belongs to the key on its line, or to the next key if it has lines of its
own; the first lines of a file describe the file.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from asr_train.schema import Config, limits

KINDS = {int: "integer", float: "number", bool: "true or false", str: "string"}
PLURALS = {int: "integers", float: "numbers", str: "strings"}
UNIONS = types.UnionType, typing.Union


@dataclass(frozen=True)
class Setting:
    """A field of the schema; `path` has NAME where any name may stand."""

    path: str
    owner: type
    name: str
    hint: Any
    default: Any  # MISSING: none in the schema
    limits: str  # of its numbers; empty: none

    @property
    def inner(self) -> Any:
        """The type without null."""
        given = [a for a in typing.get_args(self.hint) if a is not type(None)]
        return given[0] if typing.get_origin(self.hint) in UNIONS else self.hint

    @property
    def is_group(self) -> bool:
        return is_dataclass(self.inner)


def settings(owner: type = Config, path: str = "") -> Iterator[Setting]:
    """Yield all settings below a class of the schema, groups before what they hold."""
    hints, limited = (typing.get_type_hints(owner, include_extras=e) for e in (False, True))
    for field in fields(owner):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        dotted = f"{path}.{field.name}" if path else field.name
        words = ", ".join(_limits(limited[field.name]))
        setting = Setting(dotted, owner, field.name, hints[field.name], default, words)
        inner = setting.inner
        if typing.get_origin(inner) is dict and is_dataclass(typing.get_args(inner)[1]):
            dotted, inner = f"{dotted}.NAME", typing.get_args(inner)[1]
        else:
            yield setting
        if is_dataclass(inner):
            yield from settings(inner, dotted)


# --- conf/ ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file of conf/: its description, and by dotted key its values and comments."""

    name: str
    about: str
    parents: tuple[Any, ...]  # names; config.yaml has groups and names
    values: dict[str, Any]
    comments: dict[str, str]


def read(path: Path) -> File:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    head = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    values: dict[str, Any] = {}
    comments: dict[str, str] = {}
    _collect(yaml.compose(text), "", lines, head, values, comments, set())
    parents = tuple(p for p in values.pop("defaults", []) if p != "_self_")
    return File(path.stem, _joined(lines[:head]), parents, values, comments)


def _collect(
    node: yaml.Node | None,
    path: str,
    lines: list[str],
    head: int,
    values: dict[str, Any],
    comments: dict[str, str],
    taken: set[int],
) -> None:
    if not isinstance(node, yaml.MappingNode) or not node.value:
        values[path] = _plain(node)
        return
    for key, value in node.value:
        dotted = f"{path}.{key.value}" if path else key.value
        line = key.start_mark.line
        if line not in taken:  # keys of a mapping in one line have one comment, the mapping's
            taken.add(line)
            first = line
            while first > head and lines[first - 1].lstrip().startswith("#"):
                first -= 1
            own = re.search(r"(?<=\s)#.*", lines[line])
            said = _joined([own[0]] if own else []), _joined(lines[first:line])
            if any(said):
                comments[dotted] = ". ".join(each.removesuffix(".") for each in said if each)
        if dotted == "defaults":
            values[dotted] = _plain(value)
        else:
            _collect(value, dotted, lines, head, values, comments, taken)


def _plain(node: yaml.Node | None) -> Any:
    return None if node is None else yaml.safe_load(yaml.serialize(node))


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip().removeprefix("#").strip() for line in lines).strip()


# --- the page -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A group of settings, with its files: first the default, then those that others build on."""

    name: str
    chosen: str  # by config.yaml
    files: tuple[File, ...]
    settings: tuple[Setting, ...]
    meanings: dict[str, str]  # by path; "" where conf/ and the schema are silent


def groups(conf: Path) -> Iterator[Group]:
    """Yield the groups of settings, in the order of the schema."""
    main = read(conf / "config.yaml")
    chosen = {key: name for each in main.parents for key, name in each.items()}
    listed = list(settings())
    for field in fields(Config):
        name = field.name
        found = {p.stem: read(p) for p in sorted((conf / name).glob("*.yaml"))}
        order = sorted(found.values(), key=lambda f: (f.name != chosen[name], _depth(f, found)))
        own = {k.partition(".")[2]: v for k, v in main.comments.items() if k.startswith(name)}
        files = (*order, File("config", "", (), {}, own))
        inside = tuple(s for s in listed if s.path.startswith(f"{name}."))
        yield Group(name, chosen[name], tuple(order), inside, _meanings(name, inside, files))


def reference(conf: Path) -> str:
    """Return a section per group of conf/, with a directive per setting."""
    return "\n\n".join(map(_section, groups(conf)))


def _depth(file: File, files: dict[str, File]) -> int:
    return 1 + max((_depth(files[parent], files) for parent in file.parents), default=0)


def _section(group: Group) -> str:
    rows = [f"## {group.name}", ""]
    rows += [f"`{group.name}=NAME` takes `conf/{group.name}/NAME.yaml`:", ""]
    for file in sorted(group.files, key=lambda f: f.name):
        default = " (default)" if file.name == group.chosen else ""
        rows.append(f"- `{file.name}`{default}" + (f": {file.about}" if file.about else ""))
    for setting in group.settings:
        meaning = group.meanings[setting.path]
        if setting.is_group and not meaning:
            continue
        rows += ["", f"```{{confval}} {setting.path}", f":type: {_type(setting.inner)}"]
        rows[-1] += f", {setting.limits}" * bool(setting.limits)
        if setting.hint is not setting.inner:
            rows[-1] += ", or null"
        if not setting.is_group and (values := _values(setting, group)):
            rows.append(f":default: {values}")
        rows += ["", meaning, *_choices(setting.inner), "```"]
    return "\n".join(rows)


def _meanings(name: str, inside: Iterable[Setting], files: Iterable[File]) -> dict[str, str]:
    """Return the meaning of each setting: from conf/, else the schema, else of the same field."""
    said: dict[str, str] = {}
    for file in files:
        for key, comment in file.comments.items():
            said.setdefault(re.sub(r"^gmm\.\w+", "gmm.NAME", f"{name}.{key}"), comment)
    known = {s.path: said.get(s.path, "") or _in_schema(s) for s in inside}
    same: dict[tuple[type, str], str] = {}
    for setting in inside:
        if known[setting.path]:
            same.setdefault((setting.owner, setting.name), known[setting.path])
    return {s.path: known[s.path] or same.get((s.owner, s.name), "") for s in inside}


def _in_schema(setting: Setting) -> str:
    """Return the comment beside or above a field; of a group, its class's first line."""
    comment, source = r"(?:\n    # (.*))?", _source(setting.owner)
    line = re.search(rf"{comment}\n    {setting.name}: [^#\n]*(?:# (.*))?\n", source)
    if line is not None and (about := line[2] or line[1]):
        return about
    if setting.is_group or (isinstance(setting.inner, type) and issubclass(setting.inner, Enum)):
        about = inspect.getdoc(setting.inner) or ""
        return "" if about.startswith(f"{setting.inner.__name__}(") else about.split("\n\n")[0]
    return ""


def _source(owner: type) -> str:
    return "\n".join(inspect.getsource(c) for c in owner.__mro__ if is_dataclass(c))


def _limits(hint: Any) -> list[str]:
    """Return what the annotations of a field say of its numbers."""
    own = [_limit(each) for each in getattr(hint, "__metadata__", ())]
    if own:
        hint = hint.__origin__
    return own + [words for inner in typing.get_args(hint) for words in _limits(inner)]


def _limit(check: Any) -> str:
    words = {limits.positive: "above 0", limits.not_negative: "0 or more"}
    words[limits.interval] = "[lowest, highest]"
    if check in words:
        return words[check]
    return " to ".join(_number(limit) for limit in check.args)  # of limits.between


def _number(value: float) -> str:
    powers = {2**63: "2^63", 2**63 - 1: "2^63 - 1"}
    return powers.get(value) or (f"{value:,}" if isinstance(value, int) else f"{value:g}")


def _type(hint: Any) -> str:
    if is_dataclass(hint):
        return "group"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(f"`{name}`" for name in hint.__members__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and arguments[0] in PLURALS:
        return f"list of {PLURALS[arguments[0]]}"
    if origin is list:
        held = arguments[0]
        names = ", ".join(f.name for f in fields(held)) if is_dataclass(held) else ""
        return f"list of groups of {names}" if names else f"list, each a {_type(held)}"
    if origin is dict:
        return f"map of names to {PLURALS.get(arguments[1]) or _type(arguments[1])}"
    return KINDS[hint]


def _choices(hint: Any) -> list[str]:
    """Return a list of an Enum's values that have a comment."""
    if not (isinstance(hint, type) and issubclass(hint, Enum)):
        return []
    named = re.findall(r"^    (\w+) = [^#\n]*# (.*)$", inspect.getsource(hint), re.MULTILINE)
    return ["", *(f"- `{name}`: {comment}" for name, comment in named)] if named else []


def _values(setting: Setting, group: Group) -> str:
    """Return the value in the default file, then those of other files that say something else."""
    key = setting.path.partition(".")[2]
    files = {file.name: file for file in group.files}
    if key.startswith("NAME."):
        return _by_system(key.removeprefix("NAME."), group.files)
    first = _inherited(key, group.chosen, files)
    if first is MISSING and setting.default is not MISSING:
        first = setting.default
    shown = [] if first is MISSING else [_shown(first)]
    others: dict[str, list[str]] = {}
    for file in group.files:
        value = _value(key, file)
        if value is not MISSING and _shown(value) not in shown:
            others.setdefault(_shown(value), []).append(file.name)
    return "; ".join(shown + [f"{value} in {', '.join(names)}" for value, names in others.items()])


def _value(key: str, file: File) -> Any:
    """Return a file's value, perhaps a mapping; MISSING if it has none."""
    inside = {
        k.removeprefix(f"{key}."): v
        for k, v in file.values.items()
        if f"{k}.".startswith(f"{key}.")
    }
    return inside.get(key, MISSING) if key in inside else inside or MISSING


def _inherited(key: str, name: str, files: dict[str, File]) -> Any:
    if (found := _value(key, files[name])) is not MISSING:
        return found
    for parent in reversed(files[name].parents):
        if (found := _inherited(key, parent, files)) is not MISSING:
            return found
    return MISSING


def _by_system(key: str, files: Iterable[File]) -> str:
    """Return the values of gmm's systems; a file may change those of an earlier system."""
    shown: dict[str, list[str]] = {}
    for file in files:
        for dotted, value in file.values.items():
            system, _, rest = dotted.partition(".")
            if rest == key:
                where = system if system == file.name else f"{system} in {file.name}"
                shown.setdefault(_shown(value), []).append(where)
    return "; ".join(f"{value} for {', '.join(names)}" for value, names in shown.items())


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.name
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).split("\n...")[0].strip()
    return f"`{text}`"
