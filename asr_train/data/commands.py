"""Sentences of a grammar (data.grammar), spoken by espeak-ng (data.synth) in rooms (data.room).

    grammar file --sayable--> Grammar of words that espeak-ng pronounces as in the lexicon
    (settings, split, number) --> one utterance, independent of the others
    utterances 0, 1, ... up to the wanted length of the split --> cuts with true times
    test_NAME: the utterances of test under another condition; test_human: a folder of recordings
    more_dirs: folders of recordings --> train, after the synthesised utterances

Knows nothing of other corpora. Equal settings give equal bytes, with any number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import kaldialign
import numpy as np
from lhotse import MonoCut
from scipy.signal import resample_poly

from asr_train import schema
from asr_train.checks import spelled
from asr_train.data import intake, synth
from asr_train.data.corpus import CorpusError, PreparedSplit, check_split
from asr_train.data.digits import seed_of, spoken_cut, spoken_split
from asr_train.data.folder import refuse_twice, tabled, tell_apart
from asr_train.data.grammar import Grammar, read_grammar
from asr_train.data.intake import Row
from asr_train.data.remarks import reasons
from asr_train.data.room import room_response
from asr_train.data.table import TABLE
from asr_train.jobs import parallel_map
from asr_train.lang import g2p
from asr_train.lang.lexicon import Lexicon
from asr_train.schema import HUMAN, CommandsSettings, CorpusSettings, LexiconSettings

FIRST_BLOCK = 200  # utterances, from whose length the number of the rest is estimated


def commands(
    settings: CorpusSettings, lexicon: LexiconSettings, split: str, audio_dir: Path | str
) -> PreparedSplit:
    """Synthesise sentences into `audio_dir`/*.flac up to the length in the settings.

    `test_NAME` of the settings' conditions has the sentences of `test`; `test_human` is read from a
    folder, and so is what `more_dirs` add to `train`. A killed run starts again and overwrites its
    files.

    Raises:
        CorpusError: for an unknown split, or recordings that cannot be used.
    """
    assert settings.commands is not None
    wanted = settings.commands
    if split == HUMAN and wanted.human is not None:
        root = Path(wanted.human)
        return _recorded(HUMAN, tabled(root), wanted, lexicon, Path(audio_dir), [root], 0.0)
    like = split  # the split whose sentences and voices it has
    if split not in wanted.hours:
        if split == HUMAN:
            raise CorpusError(f"{HUMAN} needs corpus.commands.human, a folder (HUMAN in make)")
        conditions = wanted.conditions if "test" in wanted.hours else {}
        known = [*wanted.hours, *(f"test_{name}" for name in conditions)]
        check_split(split, "corpus.commands", known)
        like, wanted = "test", wanted.under(conditions[split.removeprefix("test_")])
    grammar, notes = sayable(read_grammar(wanted.grammar), lexicon, wanted.max_phone_distance)
    rates, dialects = wanted.words_per_minute, synth.OPEN_DIALECTS
    voices = synth.cast(settings.seed, wanted.speakers, rates, dialects)[like]
    audio = Path(audio_dir)

    def cut(i: int) -> MonoCut:
        voice = voices[i % len(voices)]
        rng = np.random.default_rng(seed_of(settings.seed, like, i))
        words = grammar.draw(rng)
        speech = command_utterance(words, voice, wanted, rng)
        name = "".join(f"-{part}" for part in split.split("_")[1:])  # no id is in two test sets
        return spoken_cut(speech, words, voice, f"{voice.id}{name}-{i:06d}", audio)

    cuts = _as_long_as(3600 * wanted.hours[like], cut, f"speech of {split}")
    made = spoken_split(split, cuts, audio, notes)
    if split == "train" and wanted.more_dirs:
        _add_recordings(made, wanted, lexicon, audio)
    return made


class Recorded(schema.IntakeSettings):
    """Requirements on people's recordings."""

    GROUP = "corpus.commands"


def _add_recordings(
    made: PreparedSplit, settings: CommandsSettings, lexicon: LexiconSettings, audio_dir: Path
) -> None:
    """Add the recordings of `more_dirs` to TRAIN."""
    roots = [Path(folder) for folder in settings.more_dirs]
    tested = [Path(settings.human)] if settings.human else []
    refuse_twice([*tested, *roots], "corpus.commands.human and more_dirs")
    tables = [tabled(root) for root in roots]
    voices = {cut.supervisions[0].speaker for cut in made.cuts}
    notes = tell_apart(roots, tables, voices, (cut.id for cut in made.cuts))
    rows = [row for table in tables for row in table]
    people = _recorded(made.split, rows, settings, lexicon, audio_dir, roots, 0.05)
    made.cuts += people.cuts
    made.remarks += people.remarks
    made.audio += people.audio
    made.tables += people.tables
    made.notes += intake.notes(people, {made.split: rows}, _named(roots)) + notes


def _recorded(
    split: str,
    rows: list[Row],
    settings: CommandsSettings,
    lexicon: LexiconSettings,
    audio_dir: Path,
    roots: Sequence[Path],
    max_dropped_share: float,
) -> PreparedSplit:
    """Return recordings of which no larger share may be unusable."""
    own = Recorded(
        dev_by=schema.SplitBy.speakers,
        dev_share=0.1,
        normaliser=schema.NormaliserKind.words,
        digits=schema.Digits.refuse,
        sample_rate=settings.sample_rate,
        low_rate=schema.LowRate.resample,
        channel=schema.Channel.mix,
        duration_tolerance_seconds=0.05,
        min_seconds=0.1,
        max_seconds=40.0,
        max_dropped_share=max_dropped_share,
    )
    made = intake.take(split, rows, own, lexicon, audio_dir)
    if made.dropped > max_dropped_share * len(rows):
        raise CorpusError(
            f"{made.dropped} of {spelled(len(rows), 'recording')} in {_named(roots)} cannot be "
            f"used, more than a share of {max_dropped_share}: {reasons(made.remarks)}; correct or "
            "remove them"
        )
    made.tables += [root / TABLE for root in roots]
    return made


def _named(roots: Sequence[Path]) -> str:
    return " + ".join(map(str, roots))


def sayable(
    grammar: Grammar, lexicon: LexiconSettings, max_phone_distance: float
) -> tuple[Grammar, list[str]]:
    """Remove words from the grammar that the lexicon lacks, or espeak-ng pronounces differently.

    Args:
        lexicon: in ARPAbet.
        max_phone_distance: edits between the two, per phone of the lexicon's variant.
    Returns:
        The grammar and, if something is left out, a note.
    """
    # Not guesses: these would agree with espeak-ng anyway
    listed = replace(lexicon, unknown=schema.Unknown.lose)
    prons = Lexicon.from_settings(listed, grammar.words).prons
    spoken = g2p.spoken(prons, schwa=False)
    far = {
        word: min(_distance(pron, spoken.get(word, ())) for pron in variants)
        for word, variants in prons.items()
    }
    left_out = {w for w in grammar.words if w not in prons or far[w] > max_phone_distance}
    if not left_out:
        return grammar, []
    unknown = sum(word not in prons for word in left_out)
    note = (
        f"grammar: {len(left_out)} of {len(grammar.words)} words left out, {unknown} of them "
        f"without pronunciation, the others pronounced differently by espeak-ng: "
        f"{', '.join(sorted(left_out))}"
    )
    return grammar.without(left_out), [note]


def _distance(pron: g2p.Pronunciation, spoken: g2p.Pronunciation) -> float:
    plain = ["AH" if phone == "AX" else phone for phone in pron]
    return float(kaldialign.edit_distance(plain, list(spoken))["total"]) / len(pron)


def _as_long_as(seconds: float, cut: Callable[[int], MonoCut], what: str) -> Iterator[MonoCut]:
    """Yield cut(0), cut(1), ... until they last so many seconds; the last one goes beyond."""
    first, total, count = 0, 0.0, FIRST_BLOCK
    while True:
        for made in parallel_map(cut, range(first, first + count), what):
            yield made
            total += made.duration
            if total >= seconds:
                return
        first += count
        count = 1 + int((seconds - total) * first / total)


def command_utterance(
    words: list[str], voice: synth.Voice, settings: CommandsSettings, rng: np.random.Generator
) -> synth.Speech:
    """Synthesise a sentence between silences, with random pauses, room, noise and level.

    Returns:
        Samples at `settings.sample_rate`; `about` has the values drawn.
    Raises:
        synth.SynthesisError: for words that espeak-ng merges, or sounds without a name.
    """
    spoken = synth.breaths(words, voice, rng, settings.pause_share, synth.open_names)
    speech = synth.in_a_row(spoken, rng, settings.margin_seconds)
    rate, response_T = settings.sample_rate, None
    room: dict[str, float] = {}
    if rng.random() < settings.room_share:
        room["rt60_seconds"] = round(_between(settings.rt60_seconds, rng), 3)
        room["drr_db"] = round(_between(settings.drr_db, rng), 2)
        response_T = room_response(rate, room["rt60_seconds"], room["drr_db"], rng)
    heard = synth.recorded(speech, rate, settings.snr_db, settings.level_db, rng, response_T)
    if settings.telephone_rate is not None:
        heard = _telephoned(heard, settings.telephone_rate)
    heard.about.update(room)
    return heard


def _telephoned(speech: synth.Speech, rate: int) -> synth.Speech:
    """Return speech after sampling at a lower rate, which removes all above half of it."""
    narrow_T = resample_poly(speech.samples_T.astype(float), rate, speech.rate)
    samples_T = resample_poly(narrow_T, speech.rate, rate)[: len(speech.samples_T)]
    samples_T *= np.abs(speech.samples_T).max() / np.abs(samples_T).max()
    about = speech.about | {"telephone_rate": rate}
    return replace(speech, samples_T=samples_T.astype(np.float32), about=about)


def _between(limits: list[float], rng: np.random.Generator) -> float:
    return float(rng.uniform(limits[0], limits[1]))
