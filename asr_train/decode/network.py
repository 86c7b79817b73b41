"""A network -> Scorers: its log posteriors with the priors divided out, in nats."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr_train.align.front import Read
from asr_train.align.viterbi import Scores
from asr_train.data.features import Utterance
from asr_train.decode.scorer import Scorer
from asr_train.lang.states import States
from asr_train.model.store import load_model
from asr_train.shards.batch import context_padded

WHOLE = 12_000  # frames that go through a network at once; longer utterances go in windows
RUN_IN = 300  # frames before a window with which a recurrent network sets up its state


def network_of(path: Path, about: dict[str, Any]) -> Callable[[Read], Scorer]:
    """Load the network of a model.json (`about`): a function, how utterances are read -> `Scorer`.

    From then on, torch uses one thread in this process: worker processes run in parallel.
    """
    torch.set_num_threads(1)
    model, _ = load_model(path)
    left, right = model.context_left, model.context_right
    log_priors_S = torch.log(torch.tensor(about["priors"], dtype=torch.float64)).float()

    def logp(padded_BTF: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            logits_TS = model.every_frame(padded_BTF)[0]
            return (torch.log_softmax(logits_TS, 1) - log_priors_S).numpy()

    def scores(read: Read, utterance: Utterance) -> Scores:
        feats_TF = np.ascontiguousarray(read(utterance), np.float32)
        padded_BTF = context_padded(torch.from_numpy(feats_TF), left, right)
        frames = len(feats_TF)
        if frames <= WHOLE:
            whole_TS = logp(padded_BTF)
            return lambda states, span: whole_TS[span][:, states]

        def window(states: np.ndarray, span: slice) -> np.ndarray:
            begin, end, _ = span.indices(frames)
            early = max(0, begin - RUN_IN)
            found_TS = logp(padded_BTF[:, early : left + end + right])
            return found_TS[begin - early :, states]

        return window

    states = None if about["states"] is None else States.stored(about, path)
    loop_S = np.array(about["self_loops"])
    known = about["run"], about["num_states"], states, loop_S
    return lambda read: Scorer(*known, lambda utterance: scores(read, utterance))
