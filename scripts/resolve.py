"""resolve.py work/conf 'RUN RUN ...' [TABLE.yaml@SCALE[:SEED...] ...] ['NAME=word word' ...]
    [group=file ...] [group.key=value ...]

Compose conf/ and the overrides, check every value, and write one file per stage into work/conf.
recipe=NAME picks conf/recipe/NAME.yaml, a recipe's numbers; other overrides take precedence.
ASR_SET in the environment is the user's SET, whose overrides come last, and are refused if nothing
reads them; without it, all are the user's.
Arguments with names in capitals, before all overrides, are make's variables (`choices.Choices`,
WORKERS, STRIPES; with CHECK=1 only the files that `make check` reads are written). Some files
depend on them alone: shown.yaml and splits.yaml (what this call shows), from/NAME.yaml (whose
alignments a model begins with) and scales/RUN.yaml (whose scales a run is decoded with, and whether
its lattices are kept for rescoring). A run is a file of conf/run/, an exchange method (a file of
conf/comm/ or its name), one of these with another seed (RUN-seedN), one of these trained further
with an objective of conf/objective (RUN-mmi, RUN-seedN-mmi), or a row of a paper's table, whose
settings come last.

A settings file is rewritten only when its content changes, so that make reruns only the stages that
a change affects. It is touched when a file that it names (a lexicon, text, a mapping) has other
content than when NAME.files.tsv listed it, or is newer if it was not listed: editing or replacing
one counts as a change, though make does not know the file.
"""

import asr_train.interrupt  # noqa: F401

import os
import re
import sys
import time
from dataclasses import replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from asr_train import compose
from asr_train.choices import Choices, check_known
from asr_train.data.recordings import changed_files, list_files, listed_sums
from asr_train.facts import Traffic
from asr_train.files import read_yaml, write_yaml
from asr_train.jobs import main
from asr_train.locks import settling
from asr_train.paper.rows import Run, check_effect, read_table, runs_by_settings
from asr_train.schema import AdagradPlace, Config, GrammarKind, Inputs, Method, SettingsError, plain

VARIABLE = re.compile(r"[A-Z]+=")
CLOCK_SECONDS = 60  # that machines' clocks may differ by
# Settings that are read only for the models that a variable of make names
READ_FOR = {
    "objective.": "SEQUENCE",
    "lattices.": "SEQUENCE",
    "decode.rescore_": "RESCORE",
    "lm.bigram.": "BIGRAM",
    "lang.pronprobs.": "PRONPROBS",
}
READ_BY_CHECK = ("corpus", "lexicon", "ali", "splits")


def resolve(folder: str, runs: str, *overrides: str) -> None:
    """Write the settings files of all stages and runs."""
    files_of_tables = [o for o in overrides if "=" not in o and "@" in o]
    others = [o for o in overrides if o not in files_of_tables]
    variables = list(takewhile(VARIABLE.match, others))
    given = others[len(variables) :]
    by_user = list(given)
    if "ASR_SET" in os.environ:
        by_user = compose.words_of_set()
        given += by_user
    choices = Choices.of(variables)
    for name in choices.gmms:
        systems = sorted(p.stem for p in (compose.CONF / "gmm").glob("*.yaml"))
        check_known("GMMS", name, systems, "is no file of conf/gmm")
    check_aligner(choices, given)
    objectives = sorted(p.stem for p in (compose.CONF / "objective").glob("*.yaml"))
    for name in choices.sequence:
        check_known("SEQUENCE", name, objectives, "is no file of conf/objective")
    workers, stripes = (whole_number(name, variables) for name in ("WORKERS", "STRIPES"))
    check_variables(given, runs.split(), workers)
    check_read(choices, by_user)
    if stripes > 1:
        given.insert(0, f"comm.stripes={stripes}")
    named = runs_of_tables(files_of_tables)
    check_effect(given, named.values())
    composed, begins = {}, {}
    for name in runs.split() or ["dnn"]:
        begins[name], objective = _continued(name, choices)
        run = named.get(begins[name] or name)
        base, more = _with_seed(begins[name] or name) if run is None else (run.base, run.overrides)
        composed[name] = compose.settings(base, [*given, *more, *objective])
        check_systems(choices, composed[name], base, given)
        check_outside(composed[name], workers)
    files: dict[str, Any] = {}
    inputs: dict[str, list[tuple[str, str]]] = {}
    for run, config in composed.items():
        shared = {
            "corpus": config.corpus,
            "lexicon": config.lang.lexicon,
            "lang": replace(config.lang, pronprobs=None),
            "pronprobs": config.lang.pronprobs,
            "lm": replace(config.lm, bigram=None),
            "bigram": config.lm.bigram,
            "feats": config.feats,
            "ali": config.ali,
            "shards": config.shards,
            "lattices": config.lattices,
            "decode": config.decode,
            "score": config.score,
            "normaliser": config.score.normaliser,
            **{f"gmm/{name}": gmm for name, gmm in config.gmm.items()},
        }
        for name, value in shared.items():
            if value is None:
                continue
            if files.setdefault(name, plain(value)) != plain(value):
                raise SettingsError(f"run {run} changes {name}, which all runs of a recipe share")
        inputs |= inputs_of(config)
        check_order(choices, config)
        check_lists(choices, config)
        check_language_model(choices, config, by_user)
        check_given_models(choices, config, by_user)
        check_inputs(choices, config, by_user)
        check_passes(config, by_user)
        if config.comm.workers is None:
            alone = config.comm.method is Method.sgd
            config.comm.workers = 1 if alone else workers
        settings = config.run
        if begins[run]:
            settings = settings.continued(config.objective, choices.initial or begins[run])
        files[f"run/{run}"] = plain(settings)
    files["shown"] = {"runs": choices.shown}
    files["splits"] = {"splits": choices.splits}
    if files_of_tables:
        files["recorded"] = {"runs": choices.recorded}
        if seeds := files_of_tables[0].rpartition("@")[2].split(":")[1:]:
            files["recorded"]["seeds"] = seeds
    origins = dict(zip(choices.gmms, ["", *choices.gmms], strict=False))
    origins |= {name: choices.gmms[-1] for name in ["pronprobs", *composed] if not begins.get(name)}
    files |= {f"from/{name}": {"system": system} for name, system in origins.items()}
    for run in choices.decoded:
        scales = {"scales": choices.scales_of(run)}
        known = Path(folder) / f"scales/{run}.yaml"
        if run.partition("/epochs/")[0] in choices.recorded and known.exists():
            continue  # what was decoded here, in a call without this record, stays as it is
        before = read_yaml(known) if known.exists() else {}
        # A run that was rescored is not decoded again only because it is no longer
        kept = run in choices.rescore or before == {**scales, "lattices": True}
        files[f"scales/{run}"] = {**scales, "lattices": True} if kept else scales
    files["names"] = sorted(files)  # of this call, for the hash of settings
    if "CHECK=1" in variables:
        files = {name: files[name] for name in READ_BY_CHECK}
    if Path(folder).name != "conf":  # of make -n
        write(Path(folder), files, inputs)
        return
    # Make tells its process: that runs on between two stages
    with settling(Path(folder).parent, os.environ.get("MAKE_PID", "")) as other:
        if other:
            check_same(Path(folder), files, other)
        write(Path(folder), files, inputs)


def write(folder: Path, contents: dict[str, Any], inputs: dict[str, list[tuple[str, str]]]) -> None:
    """Write settings files, and touch those that name a file whose content changed (`inputs`)."""
    check_clock(folder)
    for name, value in contents.items():
        path = folder / f"{name}.yaml"
        is_new = not path.exists()
        write_yaml(path, value)
        if is_new and name.startswith(("from/", "recorded")):
            os.utime(path, (0, 0))  # what was made before there was such a file need not be again
        named = sorted({file for _, file in inputs.get(name, ())})
        table = path.with_suffix(".files.tsv")
        if list(listed_sums(table)) != named:
            edited = max((os.stat(file).st_mtime_ns for file in named), default=0)
            if edited > path.stat().st_mtime_ns:
                os.utime(path, ns=(edited, edited))
        elif named and changed_files(table, keep=True):
            os.utime(path)
        else:
            continue
        list_files(named, table)


def check_clock(folder: Path) -> None:
    """Check that new settings would be newer than what was made with the old ones.

    Raises:
        SettingsError: if settings were written over a minute later than it is now.
    """
    dated = {path: path.stat().st_mtime for path in folder.rglob("*.yaml")}
    newest = max(dated, key=dated.__getitem__, default=None)
    if newest is not None and (ahead := dated[newest] - time.time()) > CLOCK_SECONDS:
        raise SettingsError(
            f"{newest} was written {ahead:.0f} s later than it is by this machine's clock, so "
            "make cannot tell what a change makes stale; correct the clock, or touch the file if "
            "its date is wrong"
        )


def check_same(folder: Path, contents: dict[str, Any], other: str) -> None:
    """Refuse to change settings that another make still reads.

    Raises:
        SettingsError: names the settings, and the `other`.
    """
    for name, value in contents.items():
        path = folder / f"{name}.yaml"
        if path.exists() and read_yaml(path) != value:
            raise SettingsError(
                f"{path} would change while another make still reads it ({other}); "
                "wait for it, or name another folder with W="
            )


def whole_number(name: str, variables: list[str]) -> int:
    """Return the value of a variable of make, else 1.

    Raises:
        SettingsError: if it is not a positive integer.
    """
    value = next((each.partition("=")[2] for each in variables if each.startswith(f"{name}=")), "1")
    if not value.isdecimal() or int(value) < 1:
        raise SettingsError(f"{name} is {value!r}; it must be a positive integer")
    return int(value)


def check_aligner(choices: Choices, overrides: list[str]) -> None:
    """Check that `gmm=NAME` names the last of GMMS, on whose alignments networks are trained.

    Raises:
        SettingsError: if it names another system, whose settings would silently be changed.
    """
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("gmm=")]
    if chosen and chosen[-1] != choices.gmms[-1]:
        raise SettingsError(
            f"SET says gmm={chosen[-1]}, but the last of GMMS='{' '.join(choices.gmms)}' is "
            f"{choices.gmms[-1]}; name the systems by GMMS, for example GMMS='mono {chosen[-1]}', "
            "and leave gmm= out"
        )


def check_variables(overrides: list[str], runs: list[str], workers: int) -> None:
    """Check that SET says nothing that a variable of make says too, or says alone.

    Raises:
        SettingsError: naming both; one of them would silently not count.
    """
    chosen = {key.lstrip("+"): value for key, _, value in (o.partition("=") for o in overrides)}
    for key, name in (("run", "RUNS"), ("objective", "SEQUENCE"), ("comm.stripes", "STRIPES")):
        if key in chosen:
            raise SettingsError(
                f"SET says {key}={chosen[key]}, which {name} chooses; call make with "
                f"{name}={chosen[key]}"
            )
    seeds = [run for run in runs if _with_seed(run)[1]]
    for key, name, value in (
        ("optim.seed", "a run of SEEDS", seeds[0] if seeds else None),
        ("comm.workers", "WORKERS", str(workers) if workers > 1 else None),
    ):
        if value is not None and chosen.get(key, value) != value:
            raise SettingsError(
                f"SET says {key}={chosen[key]}, but {name} is {value}; leave one out"
            )


def check_read(choices: Choices, overrides: list[str]) -> None:
    """Check that settings for some models alone are given only with such models.

    Raises:
        SettingsError: naming the setting, and the variable that would name the models.
    """
    for override in overrides:
        for start, name in READ_FOR.items():
            if override.lstrip("+").startswith(start) and not getattr(choices, name.lower()):
                raise SettingsError(
                    f"{override} has no effect, as it is for the models that {name} names, and "
                    f"{name} is empty; set {name}, or leave the setting out"
                )


def check_order(choices: Choices, config: Config) -> None:
    """Check that each of GMMS can be trained from the one before it, and the first from nothing.

    Raises:
        SettingsError: if they are in another order, or the first has no flat start.
    """
    in_order = [name for name in config.gmm if name in choices.gmms]
    from_nothing = [name for name in in_order if config.gmm[name].flat is not None]
    if choices.gmms != in_order or choices.gmms[:1] != from_nothing:
        raise SettingsError(
            f"GMMS is '{' '.join(choices.gmms)}', but each system is trained from the one before "
            "it; name them in order, the first with a flat start, for example GMMS='mono tri lda'"
        )


def check_systems(choices: Choices, config: Config, run: str, overrides: list[str]) -> None:
    """Check that a setting of a system that is not trained counts in another one, by reference.

    Raises:
        SettingsError: if it does not.
    """
    for override in overrides:
        system = re.match(r"\+*gmm\.(\w+)[.=]", override)
        if system is None or system[1] in choices.gmms:
            continue
        without = compose.settings(run, [each for each in overrides if each != override]).gmm
        changes = {name for name, numbers in config.gmm.items() if without.get(name) != numbers}
        if changes and changes.isdisjoint(choices.gmms):
            raise SettingsError(
                f"{override} has no effect, as GMMS='{' '.join(choices.gmms)}' does not train "
                f"{system[1]}; name it in GMMS, or leave it out"
            )


def check_lists(choices: Choices, config: Config) -> None:
    """Check that the settings name the models that RESCORE, BIGRAM and PRONPROBS need.

    Raises:
        SettingsError: naming the setting that is missing.
    """
    if choices.rescore and config.lm.big is None:
        raise SettingsError(
            f"RESCORE names {choices.rescore[0]}, but lm.big is null: there is no larger language "
            "model to rescore with; set "
            + ("lang=sentences " if config.lang.grammar.kind is GrammarKind.loop else "")
            + "lm=fourgram, or call make with RESCORE="
        )
    if choices.rescore and config.lang.grammar.kind is GrammarKind.loop:
        raise SettingsError(
            f"RESCORE names {choices.rescore[0]}, but lang.grammar.kind is loop: the graph has no "
            "n-gram model for a larger one to replace; set lang=sentences, or call make with "
            "RESCORE="
        )
    if choices.rescore and config.decode.nbest == 0:
        raise SettingsError(
            f"RESCORE names {choices.rescore[0]}, but decode.nbest is 0: there are no lattices "
            "to rescore; set decode.nbest=100, or call make with RESCORE="
        )
    if choices.bigram and (config.lm.bigram is None or not config.lm.bigram.text):
        raise SettingsError(
            f"BIGRAM names {choices.bigram[0]}, but lm.bigram.text is empty: there is no text to "
            "learn a bigram from; set lm.text, or leave BIGRAM out"
        )
    if choices.pronprobs and config.lang.pronprobs is None:
        raise SettingsError(
            f"PRONPROBS names {choices.pronprobs[0]}, but lang.pronprobs is null; set its counts "
            "as in conf/lang/words.yaml, or leave PRONPROBS out"
        )


def check_language_model(choices: Choices, config: Config, overrides: list[str]) -> None:
    """Check that a language model that is chosen by name, or has settings, is used.

    Raises:
        SettingsError: if no graph has one.
    """
    kind = config.lang.grammar.kind
    if choices.bigram or choices.rescore or kind is GrammarKind.ngram:
        return
    has_model = config.lm.small is not None
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        chooses = key == "lm" and has_model
        if not chooses and (not key.startswith("lm.") or value == "null"):
            continue
        if not has_model:
            raise SettingsError(
                f"{override} has no effect, as lm.small is null: there is no language model; set "
                "lang=sentences lm=trigram, too"
            )
        graph = "a graph of all words in any order"
        if kind is GrammarKind.arpa:
            graph = f"a graph of the model {config.lang.grammar.file}"
        raise SettingsError(
            f"{override} has no effect, as lang.grammar.kind is {kind.value}, {graph}; set "
            "lang=sentences, whose graph has the language model"
        )


def check_given_models(choices: Choices, config: Config, overrides: list[str]) -> None:
    """Check that nothing is said of training language models if all of them are given.

    Raises:
        SettingsError: naming the setting without effect, and a file.
    """
    lm = config.lm
    models = [model for model in (lm.small, lm.big) if model is not None]
    if not models or any(model.file is None for model in models):
        return
    of_training = {"vocabulary": lm.vocabulary, "mix": lm.mix}
    if not choices.bigram:  # whose text it is, too
        of_training |= {"text": lm.text, "without_eval": lm.without_eval}
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if of_training.get(key.removeprefix("lm.")) and key.startswith("lm."):
            raise SettingsError(
                f"{key}={value} has no effect, as no language model is trained: lm.small.file is "
                f"{models[0].file}; leave one out"
            )


def check_passes(config: Config, overrides: list[str]) -> None:
    """Check that passes that are listed for speakers' transforms come before the last one.

    Raises:
        SettingsError: if none does.
    """
    given = {override.lstrip("+").partition("=")[0]: override for override in overrides}
    for name, gmm in config.gmm.items():
        override = given.get(f"gmm.{name}.fmllr.passes")
        listed = gmm.fmllr.passes if gmm.fmllr is not None else []
        if override and listed and min(listed) >= gmm.passes:
            raise SettingsError(
                f"{override} has no effect, as gmm.{name}.passes is {gmm.passes}, and transforms "
                "are re-estimated only after earlier passes; list one of those, or []"
            )


def check_inputs(choices: Choices, config: Config, overrides: list[str]) -> None:
    """Check that networks on adapted frames have the transforms, and no other normalisation.

    Raises:
        SettingsError: if the system that aligns for them is not speaker-adaptive, or shards.norm is
            given.
    """
    aligner = config.gmm.get(choices.gmms[-1])
    if config.shards.inputs is Inputs.fmllr and (aligner is None or aligner.fmllr is None):
        raise SettingsError(
            f"shards.inputs is fmllr, but {choices.gmms[-1]}, the last of GMMS="
            f"'{' '.join(choices.gmms)}', is not speaker-adaptive; end GMMS with sat, for example "
            "GMMS='mono tri lda sat', or set shards.inputs=logmel"
        )
    norm = [each for each in overrides if re.match(r"\+*shards\.norm[.=]", each)]
    if config.shards.inputs is Inputs.fmllr and norm:
        raise SettingsError(
            f"{norm[-1]} has no effect, as shards.inputs is fmllr: cepstra, which the front end of "
            f"{choices.gmms[-1]} normalises; leave one out"
        )


def _continued(name: str, choices: Choices) -> tuple[str, list[str]]:
    """Split `gtc-mmi` into gtc, a run that is trained further, and an override of the objective."""
    run, _, objective = name.rpartition("-")
    if run in choices.nets and objective in choices.sequence:
        return run, [f"objective={objective}"]
    return "", []


def _with_seed(name: str) -> tuple[str, list[str]]:
    """Split `gtc-seed2` into conf/run/gtc.yaml and an override of the seed."""
    found = re.fullmatch(r"(.+)-seed([^-]*)", name)
    if found is None:
        return name, []
    if not found[2].isdecimal():
        raise SettingsError(f"SEEDS names {found[2]!r}; it takes integers, such as SEEDS='1 2 3'")
    return found[1], [f"optim.seed={found[2]}"]


def runs_of_tables(names: list[str]) -> dict[str, Run]:
    """Return the runs of `TABLE.yaml@SCALE` and `TABLE.yaml@SCALE:SEED:SEED`, by name."""
    tables = (name.rpartition("@") for name in names)
    return runs_by_settings(read_table(path, scale) for path, _, scale in tables)


def check_outside(config: Config, workers: int) -> None:
    """Check what the settings refer to: workers that share a model, and files of words and text.

    Raises:
        SettingsError: naming variable or key, its value and what to do.
    """
    comm, adagrad = config.comm, config.optim.adagrad
    together = comm.workers or workers  # that share a model
    if comm.group_size is not None:
        size = comm.group_of(together)
        together = size if comm.method.traffic.in_groups else together
    shares = together > 1 and comm.method.traffic not in (Traffic.none, Traffic.bmuf)
    if shares and adagrad is not None and adagrad.place is AdagradPlace.raw:
        raise SettingsError(
            f"optim.adagrad.place is raw, which is for a single worker, but comm.method="
            f"{comm.method.value} has {together} that share a model; choose partial or aggregate"
        )
    for key, path in chain.from_iterable(inputs_of(config).values()):
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise SettingsError(
                f"{key} is {path}, but there is no file {os.path.abspath(path)} that can be read; "
                "correct the path"
            )


def inputs_of(config: Config) -> dict[str, list[tuple[str, str]]]:
    """Return the files that settings name and stages read: settings file -> keys and paths."""
    commands, lang, lm = config.corpus.commands, config.lang, config.lm
    human = commands and commands.human
    more_dirs = commands.more_dirs if commands else []
    lexicon = ("lang.lexicon.file", lang.lexicon.file)
    mapping = ("score.normaliser.mapping", config.score.normaliser.mapping)
    named = {
        "corpus": [
            ("corpus.commands.grammar", commands and commands.grammar),
            ("corpus.commands.human", human and f"{human}/utterances.tsv"),
            *(("corpus.commands.more_dirs", f"{d}/utterances.tsv") for d in more_dirs),
        ],
        "lexicon": [lexicon],
        "lang": [lexicon, ("lang.grammar.file", lang.grammar.file)],
        "lm": [
            *(("lm.text", path) for path in lm.text),
            ("lm.small.file", lm.small and lm.small.file),
            ("lm.big.file", lm.big and lm.big.file),
        ],
        "bigram": [("lm.bigram.text", path) for path in (lm.bigram.text if lm.bigram else [])],
        "normaliser": [mapping],
        "score": [mapping],
    }
    return {name: [(k, p) for k, p in files if p is not None] for name, files in named.items()}


if __name__ == "__main__":
    sys.argv[3:] = [a for a in sys.argv[3:] if a]
    main(resolve, __doc__)
