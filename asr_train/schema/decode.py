"""Search, and tuning on DEV: conf/decode."""

from dataclasses import dataclass, field, fields
from typing import Annotated

from asr_train.schema.fields import SettingsError, at
from asr_train.schema.limits import Checked, Natural, Positive, between

MaxActive = Annotated[int, between(2, 2**31 - 1)]  # FasterDecoder asserts that it is above 1


@dataclass(kw_only=True, slots=True)
class DecodeSettings(Checked):
    """Search settings; the lists are searched on DEV, one after the other, and extended if the best
    value is at their end (`decode.tune`)."""

    beam: Positive
    max_active: MaxActive
    acoustic_scales: list[Positive]
    insertion_penalties: list[float]
    lm_weights: list[Positive]
    minimise: bool
    transition_scale: float = 1.0
    self_loop_scale: Annotated[float, between(0, 10)] = 0.1  # Kaldi's; 1 counts them in full
    nbest: Natural
    lattice_beam: Positive
    rescore_lm_weights: list[Positive]
    rescore_penalties: list[float]
    rescore_mbr: list[bool] = field(default_factory=lambda: [False])

    def check(self) -> None:
        if self.transition_scale != 1:
            raise SettingsError(
                f"{at('transition_scale')} is {self.transition_scale}, but every state has only "
                "one way out, of cost 0 at any scale; leave it at 1.0"
            )
        for f in fields(self):
            if getattr(self, f.name) == []:
                raise SettingsError(f"{at(f.name)} is empty; it needs at least one value")
