"""Small folders in the layouts of published corpora: names, lists and markup, with other speech.

`say` makes the samples of a sentence; noise by default, which is enough for all but training.
"""

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile

from asr_train.lang.arpa import write_arpa
from asr_train.lang.ngram import Text, train

RATE = 8000  # Hz, of `noise`
Say = Callable[[str], np.ndarray]
Said = Mapping[str, Sequence[str]]  # speaker -> sentences
FORMATS = {".flac": "FLAC", ".wav": "WAV", ".sph": "NIST"}


def noise(text: str) -> np.ndarray:
    """Return a quarter of a second of noise per word."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return rng.uniform(-0.5, 0.5, RATE // 4 * max(1, len(text.split())))


def record(path: Path, wave_TC: np.ndarray, rate: int, subtype: str = "PCM_16") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave_TC, rate, format=FORMATS[path.suffix.lower()], subtype=subtype)


def record_piped(path: Path, wave_TC: np.ndarray, rate: int) -> None:
    """Write a FLAC file without the number of samples, which a pipe's writer cannot know."""
    record(path, wave_TC, rate)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)


def lines(path: Path, *content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in content))


def table(root: Path, said: Said, say: Say = noise, rate: int = RATE) -> None:
    """Write a folder with utterances.tsv."""
    rows = ["utt_id\tspeaker\tpath\tduration_seconds\ttranscript"]
    for speaker, texts in said.items():
        for number, text in enumerate(texts):
            path, wave_T = f"audio/{speaker}/{speaker}-{number}.flac", say(text)
            record(root / path, wave_T, rate)
            seconds = f"{len(wave_T) / rate:.4f}"
            rows.append("\t".join((f"{speaker}-{number}", speaker, path, seconds, text)))
    lines(root / "utterances.tsv", *rows)


def librispeech(root: Path, parts: Mapping[str, Said], say: Say = noise, rate: int = RATE) -> None:
    """Write LibriSpeech/SUBSET/READER/CHAPTER/READER-CHAPTER-NUMBER.flac and .trans.txt."""
    for subset, said in parts.items():
        for reader, texts in said.items():
            chapter = root / "LibriSpeech" / subset / reader / "198"
            names = [f"{reader}-198-{i:04d}" for i in range(len(texts))]
            for name, text in zip(names, texts, strict=True):
                record(chapter / f"{name}.flac", say(text), rate)
            listed = [f"{name} {text}" for name, text in zip(names, texts, strict=True)]
            lines(chapter / f"{reader}-198.trans.txt", *listed)


def yesno(root: Path, say: Say = noise, rate: int = RATE) -> None:
    """Write 60 recordings of eight words; their names tell which are YES."""
    for number in range(60):
        bits = f"{number * 4:08b}"
        text = " ".join("YES" if bit == "1" else "NO" for bit in bits)
        record(root / "waves_yesno" / ("_".join(bits) + ".wav"), say(text), rate)


def an4(
    root: Path, parts: Mapping[str, Said], say: Say = noise, rate: int = RATE, suffix: str = ".sph"
) -> None:
    """Write an4/etc/an4_{train,test}.{fileids,transcription}; only train's have <s> </s>."""
    for subset, said in parts.items():
        folder = {"train": "an4_clstk", "test": "an4test_clstk"}[subset]
        files, spoken = [], []
        for speaker, texts in said.items():
            for number, text in enumerate(texts):
                name = f"cen{number}-{speaker}-b"
                record(root / "an4/wav" / folder / speaker / f"{name}{suffix}", say(text), rate)
                files.append(f"{folder}/{speaker}/{name}")
                spoken.append(
                    f"<s> {text} </s> ({name})" if subset == "train" else f"{text} ({name})"
                )
        lines(root / f"an4/etc/an4_{subset}.fileids", *files)
        lines(root / f"an4/etc/an4_{subset}.transcription", *spoken)


def _conversation(texts: Sequence[Sequence[str]], say: Say, rate: int, plain: Callable[[str], str]):
    """Return two sides in turn: samples [T, 2], and (side, start, end, text) of each turn."""
    turns = [(side, text) for pair in zip(*texts, strict=True) for side, text in enumerate(pair)]
    waves, spans, at = [], [], 0
    for side, text in turns:
        wave_T = say(plain(text))
        wave_TC = np.zeros((len(wave_T), 2))
        wave_TC[:, side] = wave_T
        waves.append(wave_TC)
        spans.append((side, at / rate, (at + len(wave_T)) / rate, text))
        at += len(wave_T)
    return np.concatenate(waves), spans


def switchboard(
    root: Path,
    said: Mapping[str, Sequence[Sequence[str]]],
    say: Say = noise,
    rate: int = RATE,
    plain: Callable[[str], str] = str,
) -> None:
    """Write LDC97S62 and swb_ms98_transcriptions: number (2001) -> sentences of sides A and B.

    Args:
        plain: marked text -> the words to say.
    """
    for number, sides in said.items():
        wave_TC, spans = _conversation(sides, say, rate, plain)
        record(root / f"LDC97S62/swb1_d1/sw0{number}.sph", wave_TC, rate, "ULAW")
        for side, name in enumerate("AB"):
            stem = f"sw{number}{name}-ms98-a"
            listed, before = [], 0.0
            for who, start, end, text in spans:
                if who == side:
                    for begin, stop, words in ((before, start, "[silence]"), (start, end, text)):
                        if stop > begin:
                            listed.append(f"{begin:.6f} {stop:.6f} {words}")
                    before = end
            rows = [f"{stem}-{i:04d} {row}" for i, row in enumerate(listed, 1)]
            folder = root / "swb_ms98_transcriptions" / number[:2] / number
            lines(folder / f"{stem}-trans.text", *rows)


def hub5(
    root: Path,
    said: Mapping[str, Sequence[Sequence[str]]],
    say: Say = noise,
    rate: int = RATE,
    plain: Callable[[str], str] = str,
) -> None:
    """Write LDC2002S09 and LDC2002T43: name (sw_4390, en_4156) -> sentences of sides A and B."""
    for name, sides in said.items():
        wave_TC, spans = _conversation(sides, say, rate, plain)
        record(root / f"LDC2002S09/hub5e_00/english/{name}.sph", wave_TC, rate, "ULAW")
        turns = [f"{s:.3f} {e:.3f} {'AB'[side]}: {text}\n" for side, s, e, text in spans]
        lines(
            root / f"LDC2002T43/reference/english/{name}.txt",
            *("#Language: eng", f"#File id: {name}", "", *turns),
        )


def language_models(root: Path, texts: Sequence[str]) -> None:
    """Write LibriSpeech's pruned trigram and 4-gram, but trained on these texts."""
    text = Text.of([text.split() for text in texts], " ".join(texts).split())
    root.mkdir(parents=True)
    for name, order in (("3-gram.pruned.1e-7", 3), ("4-gram", 4)):
        write_arpa(root / f"{name}.arpa", train(text, order))
        packed = gzip.compress((root / f"{name}.arpa").read_bytes(), mtime=0)
        (root / f"{name}.arpa.gz").write_bytes(packed)
        (root / f"{name}.arpa").unlink()
