"""A small folder for each recipe, in the layout of its corpus.

`FOLDERS[recipe](root, talk)` makes it; `talk` has the sentences and makes their samples.
"""

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import layouts
import numpy as np
from layouts import Say, noise
from scipy.signal import resample_poly

from asr_train.data.published import hub5_text, ms98_text
from asr_train.data.synth import _synthesise, cast

WIDE, TELEPHONE = 16000, 8000  # Hz
SENTENCES = (
    "THE CAT SAT ON THE MAT",
    "TEN MEN RAN TO THE SUN",
    "A DOG SAT IN THE SUN",
    "THE MAN RAN TO A CAT",
    "TEN CATS AND A DOG",
)


@dataclass(frozen=True)
class Talk:
    """Sentences, and how to make their samples."""

    texts: Sequence[str]
    at: Callable[[int], Say]  # a sample rate in Hz -> a text -> samples

    def by(self, people: Iterable[str]) -> dict[str, list[str]]:
        """Return every text for each speaker."""
        return {person: list(self.texts) for person in people}

    def sides(self, marked: Callable[[str], str]) -> list[list[str]]:
        """Return both sides of a conversation."""
        texts = [marked(text) for text in self.texts]
        return [texts, texts[::-1]]


def spoken(seed: int = 3, count: int = 8) -> Talk:
    """Return speech of espeak-ng in several voices in turn, with short silences and faint noise."""
    people = itertools.cycle(cast(seed, {"": count})[""])

    def at(rate: int) -> Say:
        def say(text: str) -> np.ndarray:
            said_T, own_rate, _ = _synthesise(text.lower(), next(people), seed)
            wave_T = resample_poly(np.pad(said_T / 2**15, own_rate // 5), rate, own_rate)
            rng = np.random.default_rng(zlib.crc32(text.encode()))
            return np.clip(wave_T + 0.003 * rng.standard_normal(len(wave_T)), -1, 1)

        return say

    return Talk(SENTENCES, at)


# Noise cannot be learned: for all tests but those of training.
NOISE = Talk(("ONE TWO", "THREE"), lambda rate: lambda text: np.repeat(noise(text), rate // 8000))


def table(root: Path, talk: Talk, people: Iterable[str], rate: int = WIDE) -> None:
    layouts.table(root, talk.by(people), talk.at(rate), rate)


def text_of(talk: Talk, path: Path) -> None:
    """Write further text for language models."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w") as file:
        file.writelines(f"{text}\n" for text in talk.texts)


def fsdd(root: Path, talk: Talk) -> None:
    texts = {"theo": [*talk.texts] * 5, "yweweler": list(talk.texts)}
    layouts.table(root, texts, talk.at(TELEPHONE), TELEPHONE)


def folder(root: Path, talk: Talk) -> None:
    table(root, talk, "abcdefghij")


def speechocean(root: Path, talk: Talk) -> None:
    table(root, talk, "abcdefghij")
    text_of(talk, root / "lm_text.txt")


def librispeech_mini(root: Path, talk: Talk) -> None:
    table(root, talk, "abcdefghij")
    text_of(talk, root / "lm_text.txt.gz")


def arctic(root: Path, talk: Talk) -> None:
    layouts.table(root, {who: [*talk.texts] * 5 for who in ("bdl", "slt")}, talk.at(WIDE), WIDE)
    text_of(talk, root / "lm_text.txt")
    labels = (f"slt-{i}\t0.0\t0.2\tpau" for i in range(len(talk.texts) * 5))
    layouts.lines(
        root / "phone_labels_slt.tsv", "utt_id\tstart_seconds\tend_seconds\tphone", *labels
    )


def pooled(root: Path, talk: Talk) -> None:
    librispeech_mini(root / "librispeech_mini", talk)
    speechocean(root / "speechocean762", talk)
    table(root / "cmu_arctic", talk, ("bdl", "slt"))


def english(root: Path, talk: Talk) -> None:
    pooled(root, talk)
    table(root / "alphanumeric_digits", talk, "klmnopqrst")
    table(root / "speechocean762_digits", talk, "uvwx")


def _libri(root: Path, talk: Talk, parts: dict[str, Iterable[str]]) -> None:
    said = {part: talk.by(readers) for part, readers in parts.items()}
    layouts.librispeech(root, said, talk.at(WIDE), WIDE)
    layouts.language_models(root / "lm", talk.texts)


def mini_librispeech(root: Path, talk: Talk) -> None:
    _libri(root, talk, {"train-clean-5": "abcdefghij", "dev-clean-2": ["84"]})


def librispeech(root: Path, talk: Talk) -> None:
    parts = {"train-clean-100": "abcdefghij", "dev-clean": ["84"]}
    _libri(root, talk, {**parts, "test-clean": ["61"], "test-other": ["6"]})


def an4(root: Path, talk: Talk) -> None:
    parts = {"train": talk.by("abcdefghij"), "test": talk.by(["fcaw"])}
    layouts.an4(root, parts, talk.at(WIDE), WIDE)


def yesno(root: Path, talk: Talk) -> None:
    hebrew = {"YES": "KEN", "NO": "LO"}
    say = talk.at(TELEPHONE)
    layouts.yesno(root, lambda text: say(" ".join(map(hebrew.__getitem__, text.split()))))


def swbd(root: Path, talk: Talk) -> None:
    say, numbers = talk.at(TELEPHONE), [str(number) for number in range(2001, 2006)]
    sides = talk.sides(lambda text: f"[laughter-{text.lower()} [noise]".replace(" ", "] ", 1))
    layouts.switchboard(root, dict.fromkeys(numbers, sides), say, plain=ms98_text)
    halves = talk.sides(lambda text: f"%um, (({text.lower()})) {{laugh}}")
    layouts.hub5(root, {"sw_4390": halves, "en_4156": halves}, say, plain=hub5_text)


FOLDERS: dict[str, Callable[[Path, Talk], None]] = {
    lay_out.__name__: lay_out
    for lay_out in (
        *(fsdd, folder, speechocean, librispeech_mini, arctic, pooled, english),
        *(mini_librispeech, librispeech, an4, yesno, swbd),
    )
}
