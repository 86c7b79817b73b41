"""**Controllers** (Seide et al., 2014): the minibatch size by trial, the rate by held-out accuracy.

optim.auto_minibatch  every so many epochs, several sizes are tried on the first data of what comes
                      next, from the same state; all is put back after each try; the largest that
                      does not hurt training frame accuracy is kept
optim.auto_rate       every so many epochs, DEV's frame accuracy is measured: the rate is halved if
                      it grew too slowly; if it fell, the model is reverted, too. A check that is
                      due exactly where training ends decides which model is kept; what is trained
                      after the last check is not checked
Both decide by numbers of all workers, so that all processes decide alike, and work with every
exchange method. A decision is a row of the log. A run that is killed in a trial repeats it.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from asr_train.model.store import Model
from asr_train.schema import AutoMinibatchSettings, AutoRateSettings
from asr_train.schema.optim import Part
from asr_train.shards.reader import Shards
from asr_train.train.async_steps import run_asynchronous
from asr_train.train.evaluate import evaluate
from asr_train.train.feed import Feed, seen_by, when
from asr_train.train.state import Interval, RunState
from asr_train.train.step import step

CLOSE = 1e-9  # epochs; shares of an epoch are rounded


class RateAction(Enum):
    """What held-out accuracy asks for."""

    keep = "keep"
    halve = "halve"
    revert = "revert"  # to the model at the last check; and halve, or it would go the same way


def rate_action(before: float | None, now: float, gain: float) -> RateAction:
    """Return what to do where held-out frame accuracy was `before`, and is `now`.

    Args:
        before: at the last check; None: this is the first.
        gain: by which it must have grown to keep the rate.
    """
    if before is None or now - before >= gain:
        return RateAction.keep
    return RateAction.revert if now < before else RateAction.halve


def largest_harmless(accuracies: Mapping[int, float | None], tolerance: float, current: int) -> int:
    """Return the largest minibatch size that does not hurt; `current` if no size learned anything.

    Args:
        accuracies: training frame accuracy by size; None: all steps were skipped.
        tolerance: accuracy below the best that does not count as hurt.
    """
    known = {size: accuracy for size, accuracy in accuracies.items() if accuracy is not None}
    if not known:
        return current
    best = max(known.values())
    return max(size for size, accuracy in known.items() if accuracy >= best - tolerance)


@dataclass(frozen=True, slots=True)
class Controllers:
    """The controllers of a run; without settings for them, nothing is ever due.

    Args:
        log: writes a row of log.jsonl.
        tell: prints a line.
        thread: as in `Feed`.
    """

    model: Model
    state: RunState
    train_shards: Shards
    dev_shards: Shards
    log: Callable[[dict[str, Any]], None]
    tell: Callable[[str], None]
    thread: Executor | None = None

    def feed(self, part: Part | None = None) -> Feed:
        """Return the minibatches of the current epoch, with the sizes chosen so far.

        Args:
            part: of the epoch, as `optim.parts` gives it; None: all of it.
        """
        state, epoch = self.state, self.state.progress.epoch
        return Feed(
            self.train_shards,
            state.optim,
            seen_by(self.model, state.objective.whole),
            state.method.exchange,
            epoch,
            [part] if part else state.optim.parts(epoch, state.control.minibatches),
            state.method.halves,
            self.thread,
        )

    def next_step(self, feed: Feed) -> int:
        """Return the first step of the epoch after this one before which something may be due."""
        progress, found = self.state.progress, [feed.num_steps]
        if self.state.optim.auto_minibatch is not None:
            found.append(feed.part_end(progress.epoch_step))
        if (auto := self.state.optim.auto_rate) is not None:
            epochs = (self.state.control.checks + 1) * auto.every - progress.epoch
            found.append(feed.step_at(epochs))
        return max(progress.epoch_step + 1, min(found))

    # --- rate -----------------------------------------------------------------------------------

    def rate_is_due(self, feed: Feed | None) -> bool:
        """Return whether to check held-out accuracy before the next step.

        Args:
            feed: None: training has ended; true only if a check is due exactly there. One that is
                first due within the last step does not take place, as in some runs of the published
                tables (due 0.016 epochs before the end).
        """
        auto, epoch = self.state.optim.auto_rate, self.state.progress.epoch
        if auto is None or (feed is None and abs(math.remainder(epoch, auto.every)) > CLOSE):
            return False
        return self._checks(auto, feed) > self.state.control.checks

    def _checks(self, auto: AutoRateSettings, feed: Feed | None) -> int:
        progress = self.state.progress
        done = progress.epoch + (0.0 if feed is None else feed.share(progress.epoch_step))
        return math.floor((done + CLOSE) / auto.every)

    def set_rate(self, feed: Feed | None) -> None:
        """Measure held-out accuracy, and act on it."""
        auto, state = self.state.optim.auto_rate, self.state
        assert auto is not None
        control = state.control
        self._finish_block()
        state.bucket.point_at(state.method.exported())
        exchange = state.method.exchange
        _, accuracy = evaluate(self.model, self.dev_shards, exchange, state.objective)
        before, control.checks = control.accuracy, self._checks(auto, feed)
        action = rate_action(before, accuracy, auto.gain)
        if action is RateAction.revert and state.kept is None:  # the number of workers has changed
            action = RateAction.halve
        if action is not RateAction.keep:
            state.schedule.halve()
        if action is RateAction.revert:
            assert state.kept is not None
            state.roll_back(state.kept)
        else:
            control.accuracy, state.kept = accuracy, state.held()
        rate = state.schedule.rate
        grown = "" if before is None else f" after {before:.2%}"
        self._report(
            "rate",
            f"DEV frame accuracy {accuracy:.2%}{grown}: {action.value}; rate {rate:g}",
            action=action.value,
            held_out_accuracy=accuracy,
            held_out_accuracy_before=before,
            new_rate=rate,
        )

    def _report(self, decision: str, line: str, **numbers: Any) -> None:
        progress = self.state.progress
        epoch = min(progress.epoch + 1, self.state.optim.epochs)
        about = {"step": progress.step, "epoch": epoch, "decision": decision}
        self.log(about | numbers)
        self.tell(f"step {progress.step}: {line}")

    # --- minibatch size -------------------------------------------------------------------------

    def minibatch_is_due(self, feed: Feed) -> bool:
        auto = self.state.optim.auto_minibatch
        return auto is not None and self._block(auto, feed) > len(self.state.control.minibatches)

    def _block(self, auto: AutoMinibatchSettings, feed: Feed) -> int:
        progress = self.state.progress
        first, _ = feed.phase(progress.epoch_step).share
        return auto.block(progress.epoch + first)

    def set_minibatch(self, feed: Feed) -> None:
        """Try several sizes, and choose one for what comes next."""
        auto, state = self.state.optim.auto_minibatch, self.state
        assert auto is not None
        control, progress = state.control, state.progress
        current = [self.state.optim.minibatch_frames, *control.minibatches][-1]
        self._finish_block()
        rate = when(state, feed, progress.epoch_step)
        first, last = feed.phase(progress.epoch_step).share
        workers = len(state.method.exchange)
        most_of_samples = 1.5 * workers / self.train_shards.num_samples
        last = min(last, first + max(auto.trial * auto.every, most_of_samples))
        frames = (last - first) * self.train_shards.num_frames / self.model.stride / workers
        accuracies = {
            size: self._tried((first, last, size, None), rate)
            for size in self.sizes(auto, current, int(frames))
        }
        chosen = largest_harmless(accuracies, auto.tolerance, current)
        missed = self._block(auto, feed) - len(control.minibatches)  # 1, unless workers changed
        control.minibatches += [chosen] * missed
        shown = ", ".join(
            f"{size} {'-' if accuracy is None else f'{accuracy:.2%}'}"
            for size, accuracy in accuracies.items()
        )
        self._report(
            "minibatch",
            f"training frame accuracy by minibatch size {shown}: {chosen} frames per worker",
            tried=[[size, accuracy] for size, accuracy in accuracies.items()],
            minibatch_frames_before=current,
            minibatch_frames=chosen,
        )

    def sizes(self, auto: AutoMinibatchSettings, current: int, frames: int) -> list[int]:
        """Return the sizes to try: of which the data, `frames` per worker, fill one minibatch.

        Sizes and `frames` are in outputs, of which an LSTM has one every `stride` frames.
        """
        limit = min(auto.most, self.state.optim.pool_frames // self.model.stride, frames)
        asked = {max(auto.least, round(factor * current)) for factor in auto.factors}
        return sorted({size for size in asked if size <= limit} | {current})

    def _tried(self, part: Part, rate: tuple[float, int]) -> float | None:
        """Train on a part of the epoch; return training frame accuracy, and put all back.

        Updates are not late meanwhile (Seide et al., 2014, 1-bit, table 3: "no DB for minibatch
        selection").
        """
        state, learned = self.state, Interval()
        with state.roll_back_after(), state.method.undelayed():
            trial = self.feed(part)
            state.since_log = {worker: Interval() for worker in state.since_log}
            done = 0
            while done < trial.num_steps:
                if state.method.asynchronous is None:
                    _, reading = when(state, trial, done)
                    state.method.begin_step(reading, trial.phase(done).minibatch_frames)
                    step(self.model, trial.next, state, state.schedule.rate_at(*rate))
                    done += 1
                    continue
                before, most = state.progress.step, trial.num_steps - done
                rows = run_asynchronous(self.model, trial, state, lambda frames: None, most, rate)
                learned = sum((one.interval for row in rows.values() for one in row), learned)
                done += state.progress.step - before
            state.settle()
            learned = sum(state.since_log.values(), learned)
            row = [float(learned.frames), float(learned.correct)]
            none = [[0.0, 0.0]] * (len(state.since_log) - 1)
            numbers = state.method.exchange.numbers([row, *none])
        frames, correct = (sum(column) for column in zip(*numbers, strict=True))
        return correct / frames if frames else None

    def _finish_block(self) -> None:
        """Let workers that average models do so now, so that there is one model to judge."""
        here = self.state.since_log[self.state.method.exchange.local[0]]
        with self.state.stopwatch(here, "exchange_seconds"):
            self.state.method.end_epoch()
