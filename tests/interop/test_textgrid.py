"""TextGrids: times are kept, gaps are empty intervals, and the layout is Praat's own."""

import pytest
from interop.made import cut_of, noise, read_textgrid

from asr_train.data.synth import cast, speak
from asr_train.interop.textgrid import write_textgrid
from asr_train.interop.times import Span, Timed, aligned

PRAAT = '''File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0 
xmax = 1.5 
tiers? <exists> 
size = 1 
item []: 
    item [1]:
        class = "IntervalTier" 
        name = "words" 
        xmin = 0 
        xmax = 1.5 
        intervals: size = 3 
        intervals [1]:
            xmin = 0 
            xmax = 0.25 
            text = "" 
        intervals [2]:
            xmin = 0.25 
            xmax = 1 
            text = "say ""ah""" 
        intervals [3]:
            xmin = 1 
            xmax = 1.5 
            text = "" 
'''


def timed(spans, start=0.0, seconds=1.5) -> Timed:
    return Timed("u1", "u1", 0, "anna", start, seconds, "", tuple(spans))


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "call.wav"
    noise(path, 5.0)
    cut = cut_of("anna-1", path, "anna", "ONE TWO", 1.25, 2.75)
    return cut.to_dict()


def test_the_file_is_praats_but_for_blanks(tmp_path):
    write_textgrid(tmp_path / "u.TextGrid", {"words": timed([Span('say "ah"', 0.25, 0.75)])})
    found = (tmp_path / "u.TextGrid").read_text().split()
    numbers = {"0.0": "0", "1.0": "1"}
    assert [numbers.get(word, word) for word in found] == PRAAT.split()


def test_words_and_phones_come_back(rows, tmp_path):
    tiers = {"words": aligned(rows, "word"), "phones": aligned(rows, "phone")}
    write_textgrid(tmp_path / "u.TextGrid", tiers)
    found = read_textgrid(tmp_path / "u.TextGrid", start=rows["start"])
    assert list(found) == ["words", "phones"]
    for name, expected in tiers.items():
        assert [s.label for s in found[name]] == [s.label for s in expected.spans]
        for span, true in zip(found[name], expected.spans, strict=True):
            assert span.start == pytest.approx(true.start, abs=1e-5)
            assert span.end == pytest.approx(true.end, abs=1e-5)


def test_every_tier_covers_all_of_the_utterance(rows, tmp_path):
    write_textgrid(tmp_path / "u.TextGrid", {"phones": aligned(rows, "phone")})
    text = (tmp_path / "u.TextGrid").read_text().split("intervals: size")[1]
    lines = [line.split(" = ")[1] for line in text.splitlines() if "xm" in line]
    starts, ends = [float(x) for x in lines[::2]], [float(x) for x in lines[1::2]]
    assert starts[0] == 0
    assert starts[1:] == ends[:-1]
    assert ends[-1] == rows["duration"]


def test_speech_with_known_times_comes_back(tmp_path):
    speech = speak("nine one six two", cast(1, {"": 1})[""][0], seed=1)
    spans = [Span(s.label, s.start, s.end - s.start) for s in speech.phones]
    seconds = len(speech.samples_T) / speech.rate
    write_textgrid(tmp_path / "u.TextGrid", {"phones": timed(spans, seconds=seconds)})
    found = read_textgrid(tmp_path / "u.TextGrid")["phones"]
    assert [s.label for s in found] == [s.label for s in spans]
    assert [s.end for s in found] == pytest.approx([s.end for s in spans], abs=1e-5)


@pytest.mark.parametrize(
    "spans, message",
    [
        ([Span("A", 0.1, 0.3), Span("B", 0.2, 0.3)], r"u1: B in words .* ends at 0\.4"),
        ([Span("A", 1.2, 0.5)], r"u1: A in words .*1\.7.*utterance ends at 1\.5"),
        ([Span("A", 0.3, 0.0)], r"u1: A in words .*no empty intervals"),
        ([Span(" ", 0.3, 0.1)], r"has no label"),
    ],
)
def test_what_praat_cannot_show_is_refused(tmp_path, spans, message):
    with pytest.raises(ValueError, match=message):
        write_textgrid(tmp_path / "u.TextGrid", {"words": timed(spans)})
    assert not list(tmp_path.iterdir())


def test_what_ends_within_half_a_frame_past_the_audio_is_cut_off(tmp_path):
    """The number of frames is rounded: 1.496 s have 150 frames of 10 ms."""
    tiers = {"words": timed([Span("A", 0.1, 1.4)], seconds=1.496)}
    with pytest.raises(ValueError, match=r"A in words .*1\.5.*utterance ends at 1\.496"):
        write_textgrid(tmp_path / "u.TextGrid", tiers)
    write_textgrid(tmp_path / "u.TextGrid", tiers, beyond_seconds=0.005)
    (span,) = read_textgrid(tmp_path / "u.TextGrid")["words"]
    assert (span.start, span.end) == (0.1, 1.496)


def test_a_short_phone_is_kept(tmp_path):
    spans = [Span("A", 0.1, 0.00001), Span("B", 0.10001, 0.2)]
    write_textgrid(tmp_path / "u.TextGrid", {"phones": timed(spans)})
    assert [s.label for s in read_textgrid(tmp_path / "u.TextGrid")["phones"]] == ["A", "B"]
