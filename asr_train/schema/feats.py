"""Features and their normalisation: conf/feats."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from asr_train.frames import is_whole, most_mels, whole_rate
from asr_train.schema.fields import SettingsError, at, here
from asr_train.schema.limits import Checked, Count, NotNegative, Share, between


@dataclass(kw_only=True, slots=True)
class FeatsSettings(Checked):
    """Log-mel filter banks as in `torchaudio.compliance.kaldi.fbank`."""

    sample_rate: Annotated[int, between(4000, 192_000)]
    num_mels: Count
    window_seconds: Annotated[float, between(1e-5, 1)]
    shift_seconds: Annotated[float, between(1e-5, 1)]
    low_hz: float
    high_hz: float
    preemphasis: Share
    dither: NotNegative

    def check(self) -> None:
        if not is_whole(self.shift_seconds, self.sample_rate):
            rate = whole_rate(self.sample_rate, self.shift_seconds)
            raise SettingsError(
                f"{at('shift_seconds')} {self.shift_seconds} is "
                f"{self.shift_seconds * self.sample_rate:g} samples at {at('sample_rate')} "
                f"{self.sample_rate}, so that times would drift; set "
                + (
                    f"{at('sample_rate')}={rate}, to which audio is resampled"
                    if rate
                    else f"{at('shift_seconds')}=0.01"
                )
            )
        nyquist = self.sample_rate / 2
        high = self.high_hz if self.high_hz > 0 else nyquist + self.high_hz
        if not 0 <= self.low_hz < high <= nyquist:
            raise SettingsError(
                f"{here()}: the band {self.low_hz} to {high} Hz must lie within 0 to {nyquist} Hz, "
                f"half of {at('sample_rate')}"
            )
        most = most_mels(self.sample_rate, self.window_seconds, self.low_hz, high, self.num_mels)
        if most == 0:
            raise SettingsError(
                f"{at('window_seconds')} is {self.window_seconds}, too short for a spectrum of the "
                f"band {self.low_hz} to {high} Hz; set it to 0.025"
            )
        if self.num_mels > most:
            raise SettingsError(
                f"{at('num_mels')} is {self.num_mels}, but with {at('sample_rate')} "
                f"{self.sample_rate} and {at('window_seconds')} {self.window_seconds} only {most} "
                f"bins contain a point of the spectrum each; set {at('num_mels')}={most} or fewer"
            )


class NormBy(Enum):
    """The frames over which mean and variance are computed."""

    none = "none"
    utterance = "utterance"
    speaker = "speaker"  # all of the speaker's utterances in the split


@dataclass(kw_only=True, slots=True)
class NormSettings:
    by: NormBy
    variance: bool
