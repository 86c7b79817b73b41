"""A trained model as one **bundle**: a folder or a .tar that decodes and aligns anywhere.

    bundle.json     manifest: versions, licence of the data, WER lines, scales, features, parts
    model.json      the model, and its tensors: model.pt or gmm.safetensors
    first.json      of a network on fMLLR features: the system that adapts, in gmm.safetensors
    lang.json       words, pronunciations, phones
    HCLG.fst        the decoding graph (OpenFst's ConstFst), in the order of the search
    heights.npy     of its nodes

Each part is listed with size and SHA-256, checked when the bundle is opened; the manifest has its
own hash. No file can execute code. The grammar is in the graph alone. The graph is mapped into
memory where it lies, also within a .tar.
"""

import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from asr_train import files, schema
from asr_train.data.features import Sums
from asr_train.decode.posteriors import FIRST
from asr_train.decode.words import Choice, Effort
from asr_train.files import DamagedFileError, Region
from asr_train.lang.index import Lang, load_lang, write_lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.states import States
from asr_train.search.arrays import Arrays
from asr_train.search.graph import SELF_LOOP_SCALE
from asr_train.search.lattice import ordered, write_ordered

FORMAT, VERSION = "asr-train bundle", 1
MANIFEST = "bundle.json"
GRAPH = ("HCLG.fst", "heights.npy")  # parts that are mapped
NEEDED = ("model.json", "lang.json")
SHIPPED = Path(__file__).with_name("shipped")  # bundles of the package: NAME.tar


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What a bundle is made from, and read as, apart from its graph.

    Attributes:
        name: the recipe's.
        model: path of model.json; its tensors lie beside it.
        first_model: model.json of the system that adapts the model's frames to speakers, if any.
        choice, first: of the last pass, and of those before it of speaker-adapted systems.
        lexicon: the source of further words' pronunciations; None: only the words of `lang` have
            any.
        frames: sums over the training data's features.
        self_loop_scale: with which the graph was made.
    """

    name: str
    model: Path
    first_model: Path | None
    lang: Lang
    choice: Choice
    first: Choice
    effort: Effort
    lexicon: schema.LexiconSettings | None
    frames: Sums
    self_loop_scale: float


def write_bundle(
    path: Path | str, system: System, states: States, graph: Arrays, about: dict[str, Any]
) -> dict[str, Any]:
    """Write a bundle; return its manifest. A name that ends in `.tar` gives one file.

    Equal contents give equal bytes.

    Args:
        graph: HCLG, made with the choice's weight and penalty.
        about: versions, data_licence and wer (lines), for people.
    Raises:
        DamagedFileError: if the model is damaged.
        FileExistsError: if `path` is a folder with other files.
        OSError: if the folder of temporary files is full, where a .tar is made; names it.
        ValueError: for the name of a compressed file.
    """
    path = Path(path)
    if path.suffix in (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip"):
        raise ValueError(f"{path} would be compressed; name a .tar, or a folder")
    if path.suffix != ".tar":
        is_ours = lambda file: file.name in _names_in(path)  # noqa: E731
        with files.replacing_folder(path, is_ours) as scratch:
            return _write_parts(scratch, system, states, graph, about)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with files.naming_full_disk(folder):
            manifest = _write_parts(folder, system, states, graph, about)
        with files.replacing(path) as scratch, tarfile.open(scratch, "w") as tar:
            for part in [MANIFEST, *(listed["path"] for listed in manifest["parts"])]:
                member = tarfile.TarInfo(part)  # without times and owners
                member.size = (folder / part).stat().st_size
                with open(folder / part, "rb") as file:
                    tar.addfile(member, file)
    return manifest


def _names_in(path: Path) -> set[str]:
    """Return the names of a bundle's files in this folder; none if it holds no bundle."""
    try:
        manifest = files.read_json(path / MANIFEST)
        return {MANIFEST, *(listed["path"] for listed in manifest["parts"])}
    except (OSError, files.DamagedFileError, KeyError, TypeError):
        return set()


def _write_parts(
    folder: Path, system: System, states: States, graph: Arrays, about: dict[str, Any]
) -> dict[str, Any]:
    lang, model = system.lang, files.read_json(system.model)
    models = _copied(system.model, folder / "model.json")
    if system.first_model is not None:
        models += _copied(system.first_model, folder / FIRST)
    grammar, scale = lang.grammar, system.self_loop_scale
    if lang.arpa is not None:  # it is in the graph; a path would name this machine's folders
        grammar = replace(grammar, kind=schema.GrammarKind.ngram, file=None)
    lang = replace(lang, grammar=grammar, arpa=None)
    write_lang(folder / "lang.json", lang)
    paths = [*models, folder / "lang.json", *write_ordered(folder, ordered(graph))]
    lexicon = system.lexicon
    known = lexicon is not None and lexicon.source is not schema.LexiconSource.file
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": system.name,
        "run": model["run"],
        **about,
        "feats": model["feats"],
        "frames": system.frames.plain(),
        "choice": schema.plain(system.choice),
        "effort": schema.plain(system.effort),
        "first_scale": system.first.acoustic_scale,
        "lexicon": schema.plain(lexicon) if known else None,
        "graph": {
            "states_hash": states.hash,
            "lang_hash": lang.hash,
            "top_label": int(graph.arcs_A["ilabel"].max()),
            "nodes": len(graph.final_N),
            "arcs": len(graph.arcs_A),
            **({} if scale == SELF_LOOP_SCALE else {"self_loop_scale": scale}),
        },
        "parts": [files.part(path, folder) for path in paths],
    }
    manifest["hash"] = files.hash_of(manifest)
    files.write_json(folder / MANIFEST, manifest)
    return manifest


def _copied(model: Path, target: Path) -> list[Path]:
    """Copy a model.json and its tensors, after checking them; return the copies."""
    about = files.read_json(model)
    if about["kind"] == "scores":
        raise ValueError(
            f"{model} has scores of single recordings, by another program, and no network for "
            "others; bundle a network that was trained here"
        )
    listed = about["parts"][0] if about["kind"] == "gmm" else about | {"path": about["file"]}
    tensors = files.check_part(model.parent, listed, remake=model)
    copies = [target, target.with_name(tensors.name)]
    for source, copy in zip((model, tensors), copies, strict=True):
        shutil.copyfile(source, copy)
    return copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(System):
    """An open bundle: the files that it names lie there while it is open.

    Attributes:
        feats: of the model.
        fst, heights: where the graph is, also later.
        manifest: content of bundle.json.
    """

    feats: schema.FeatsSettings
    fst: Region
    heights: Region
    manifest: dict[str, Any]


def found_bundle(name: Path | str) -> Path:
    """Return the path of a bundle: the one named, or a bundle of the package (`english`).

    The latter also if a folder of that name here, as of recordings, is no bundle.

    Raises:
        FileNotFoundError: if there is neither; names those of the package.
    """
    path, shipped = Path(name), SHIPPED / f"{name}.tar"
    is_shipped = len(path.parts) == 1 and shipped.exists()
    if path.exists() and not (is_shipped and path.is_dir() and not (path / MANIFEST).exists()):
        return path
    if is_shipped:
        return shipped
    known = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.tar"))) or "none"
    raise FileNotFoundError(
        f"there is no bundle {name}; name a folder or .tar that `make bundle` wrote, or one of the "
        f"package ({known})"
    )


def bundle_files(name: Path | str) -> list[str]:
    """Return the path of a bundle and, of a folder, those of its parts: no output may replace them.

    Raises:
        FileNotFoundError: if there is no such bundle.
    """
    path = found_bundle(name)
    return [str(path), *(str(path / part) for part in sorted(_names_in(path)))]


@contextmanager
def open_bundle(name: Path | str) -> Iterator[Bundle]:
    """Open a bundle, after comparing every part with the manifest.

    The small parts of a .tar are unpacked into a temporary folder, which is removed when the block
    ends.

    Raises:
        FileNotFoundError: if there is no such bundle.
        DamagedFileError: for a missing or changed part, or a manifest that is no bundle's; gives
            both values.
        ValueError: for another version of the format.
        OSError: if the folder of temporary files is full; names it.
    """
    path = found_bundle(name)
    if path.is_dir():
        yield _checked(path, path, {p: Region.of(path / p) for p in GRAPH if (path / p).exists()})
        return
    with tempfile.TemporaryDirectory(prefix="asr-train-") as folder:
        with files.naming_full_disk(folder):
            graph = _unpack(path, Path(folder))
        yield _checked(Path(folder), path, graph)


def _checked(folder: Path, named: Path, graph: dict[str, Region]) -> Bundle:
    if not (folder / MANIFEST).exists():
        raise DamagedFileError(f"{named} has no {MANIFEST}, so it is not a bundle; {_AGAIN}")
    try:
        manifest = files.read_json(folder / MANIFEST)
        _check_version(manifest, named)
        written = manifest.pop("hash", None)
        if written != (now := files.hash_of(manifest)):
            raise DamagedFileError(f"{MANIFEST} says hash {written} but its content has {now}")
        found = {path.name for path in folder.iterdir()} | graph.keys()
        if folder == named:  # its other files are not used
            found &= {FIRST}
        _check_names(manifest["parts"], found)
        for listed in manifest["parts"]:
            if listed["path"] in graph:
                region = graph[listed["path"]]
                files.check_content(listed["path"], listed, region.size, region.sha256)
            else:
                files.check_part(folder, listed)
        lexicon, choice = manifest["lexicon"], manifest["choice"]
        first = choice | {"acoustic_scale": manifest["first_scale"]}
        return Bundle(
            name=manifest["name"],
            model=folder / "model.json",
            first_model=folder / FIRST if (folder / FIRST).exists() else None,
            lang=load_lang(folder / "lang.json"),
            choice=schema.build(Choice, choice, "choice"),
            first=schema.build(Choice, first, "first_scale"),
            effort=schema.build(Effort, manifest["effort"], "effort"),
            lexicon=lexicon and schema.build(schema.LexiconSettings, lexicon, "lexicon"),
            frames=Sums.from_plain(manifest["frames"]),
            self_loop_scale=manifest["graph"].get("self_loop_scale", SELF_LOOP_SCALE),
            feats=schema.build(schema.FeatsSettings, manifest["feats"], "feats"),
            fst=graph[GRAPH[0]],
            heights=graph[GRAPH[1]],
            manifest=manifest,
        )
    except DamagedFileError as error:
        reason = str(error).replace(f"{folder}/", "").split("; delete")[0]
        raise DamagedFileError(f"{named}: {reason}; {_AGAIN}") from error
    except (KeyError, TypeError, schema.SettingsError) as error:
        raise DamagedFileError(
            f"{named}: {MANIFEST} is incomplete ({error!r}); {_AGAIN}"
        ) from error


def pronounced(settings: schema.LexiconSettings, words: Iterable[str], states: States) -> Lexicon:
    """Look words up as the bundle's recipe did; `missing` has those that need other phones, too."""
    if settings.unknown is schema.Unknown.refuse:
        settings = replace(settings, unknown=schema.Unknown.lose)
    return Lexicon.from_settings(settings, words).within(states.phones)


_AGAIN = "copy it anew, or make it again by: make bundle"


def _check_version(manifest: Any, named: Path) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DamagedFileError(f"{MANIFEST} is not that of a bundle")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{named} has version {manifest.get('version')} of the format, this program reads "
            f"{VERSION}; make the bundle again, or install the asr-train that wrote it "
            f"({(manifest.get('versions') or {}).get('asr_train', 'unknown')})"
        )


def _check_names(parts: Any, found: set[str]) -> None:
    """Check that the manifest lists what is needed and what was found, each once."""
    listed = Counter(part["path"] for part in parts)
    odd = [name for name, n in listed.items() if n > 1 or PurePosixPath(name).name != name]
    odd += sorted(({*NEEDED, *GRAPH} | found) - {MANIFEST, *listed})
    if odd:
        raise DamagedFileError(
            f"{MANIFEST} lists {odd[0]!r} {listed[odd[0]]} times; it must list each file of the "
            "bundle once, by its name"
        )


def _unpack(path: Path, folder: Path) -> dict[str, Region]:
    """Unpack the plain files of a .tar, which may lie nowhere but in `folder`; find the graph's."""
    graph = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if member.isdir() and not name.parts:  # of tar -C FOLDER .
                    continue
                is_plain = member.isfile() and not member.issparse()
                if not is_plain or len(name.parts) != 1 or name.name in ("", "..", "."):
                    raise DamagedFileError(
                        f"{path} has {member.name!r}, which is not a regular file; {_AGAIN}"
                    )
                if name.name in graph or (folder / name).exists():
                    raise DamagedFileError(f"{path} has {member.name!r} twice; {_AGAIN}")
                if name.name in GRAPH:
                    graph[name.name] = Region(path, member.offset_data, member.size)
                    continue
                content = tar.extractfile(member)
                assert content is not None
                with open(folder / name, "wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    except (tarfile.TarError, EOFError) as error:
        raise DamagedFileError(f"{path} cannot be unpacked ({error}); {_AGAIN}") from error
    return graph
