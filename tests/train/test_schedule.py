import pytest
import tiny
import torch

from asr_train.comm.loopback import Loopback
from asr_train.schema import SettingsError
from asr_train.shards.batch import Cut
from asr_train.train.feed import Feed
from asr_train.train.schedule import Schedule, warning

CPU = torch.device("cpu")

NAN = float("nan")


def rates(losses: list[float], **optim) -> list[float]:
    """Return the rates of the first epoch, and after each loss on DEV."""
    schedule = Schedule(tiny.settings(rate=8.0, **optim).optim)
    seen = [schedule.rate]
    for loss in losses:
        schedule.end_epoch(loss)
        seen.append(schedule.rate)
    return seen


@pytest.mark.parametrize(
    "hold_epochs, wanted",
    [(0, [8, 4, 2, 1]), (1, [8, 4, 2, 1]), (2, [8, 8, 4, 2]), (9, [8, 8, 8, 8])],
)
def test_the_rate_is_halved_after_every_epoch_once_it_was_held(hold_epochs, wanted):
    assert rates([3.0, 2.0, 1.0], halving="each_epoch", hold_epochs=hold_epochs) == wanted


@pytest.mark.parametrize(
    "losses, wanted",
    [
        ([3.0, 2.0, 1.0, 0.5], [8, 8, 8, 8, 8]),  # the loss still falls enough
        ([3.0, 2.0, 1.99, 1.0], [8, 8, 8, 4, 2]),  # halves from then on, at any loss
        ([3.0, 3.1, 1.0, 0.5], [8, 8, 4, 2, 1]),
        ([3.0, NAN, 1.0, 0.5], [8, 8, 4, 2, 1]),
        ([2.0, 1.75, 1.0], [8, 8, 8, 8]),  # a fall of exactly the gain is enough
    ],
)
def test_newbob_halves_every_epoch_from_the_first_that_helped_too_little(losses, wanted):
    assert rates(losses, halving="newbob", hold_epochs=1, newbob_gain=0.125) == wanted


def test_newbob_does_not_halve_while_the_rate_is_held():
    losses = [3.0, 3.0, 3.0, 3.0]
    assert rates(losses, halving="newbob", hold_epochs=3) == [8, 8, 8, 4, 2]


def test_newbob_compares_with_the_epoch_before_not_with_the_best_one():
    losses = [2.0, 3.0, 2.5, 2.0]  # worse once while the rate is held, then better each time
    wanted = [8, 8, 8, 8, 8]
    assert rates(losses, halving="newbob", hold_epochs=3, newbob_gain=0.125) == wanted


def test_a_list_of_divisors_says_the_rate_of_each_epoch_and_its_last_entry_stays():
    listed = {"halving": "listed", "divisors": [1.0, 2.0, 40.0], "hold_epochs": 9}
    assert rates([3.0, 4.0, 3.0], **listed) == [8, 4, 0.2, 0.2]
    assert rates([], halving="listed", divisors=[4.0]) == [2.0]
    for wrong in ({"halving": "listed"}, {"halving": "newbob", "divisors": [1.0]}):
        with pytest.raises(SettingsError, match="belongs to listed and to nothing else"):
            rates([], **wrong)


@pytest.mark.parametrize("halving", ["each_epoch", "newbob"])
def test_a_restored_schedule_goes_on_alike(halving):
    losses = [3.0, 2.0, 1.99, 1.5, 1.0]
    for done in range(len(losses) + 1):
        settings = tiny.settings(halving=halving, hold_epochs=2).optim
        unbroken, broken, restored = (Schedule(settings) for _ in range(3))
        for loss in losses:
            unbroken.end_epoch(loss)
        for loss in losses[:done]:
            broken.end_epoch(loss)
        restored.load_state_dict(broken.state_dict())
        assert restored.rate == broken.rate
        for loss in losses[done:]:
            restored.end_epoch(loss)
        assert restored.state_dict() == unbroken.state_dict()


# --- several workers ------------------------------------------------------------------------------


def steps_rates(points: list[float], added_up: int, **optim) -> list[float]:
    schedule = Schedule(tiny.settings(rate=8.0, **optim).optim)
    return [schedule.rate_at(epochs, added_up) for epochs in points]


@pytest.mark.parametrize("scaling, wanted", [("sum", 8.0), ("sqrt", 4.0), ("mean", 2.0)])
def test_the_rate_follows_the_number_of_gradients_that_are_added_up(scaling, wanted):
    assert steps_rates([0, 0.5, 3], 4, scaling=scaling) == [wanted] * 3
    assert steps_rates([0, 0.5, 3], 1, scaling=scaling) == [8.0] * 3


def test_the_rate_rises_in_a_straight_line_from_a_single_workers_update():
    points = [0, 0.25, 0.5, 1, 2]
    assert steps_rates(points, 4, warmup_epochs=1.0) == [2.0, 3.5, 5.0, 8.0, 8.0]
    assert steps_rates(points, 4, warmup_epochs=1.0, scaling="sqrt") == [2.0, 2.5, 3.0, 4.0, 4.0]
    assert steps_rates(points, 4, warmup_epochs=1.0, scaling="mean") == [2.0] * 5
    falls = {"warmup_epochs": 1.0, "scaling": "mean", "warmup_from": 0.5}
    assert steps_rates(points, 4, **falls) == [2.0] * 5  # it does not fall
    assert steps_rates(points, 1, warmup_epochs=1.0) == [8.0] * 5
    assert steps_rates(points, 1, warmup_epochs=1.0, warmup_from=0.5) == [4.0, 5.0, 6.0, 8.0, 8.0]


def test_min_rate_newbob_ends_the_run_before_the_rate_falls_below():
    optim = {"halving": "newbob", "hold_epochs": 1, "newbob_gain": 0.05, "min_rate": 2.0}
    schedule = Schedule(tiny.settings(rate=8.0, epochs=20, **optim).optim)
    seen = []
    for loss in [3.0, 2.5, 2.4, 2.2, 1.0, 0.5]:  # the third epoch's fall is 4 %
        if schedule.is_finished:
            break
        seen.append(schedule.rate)
        schedule.end_epoch(loss)
    assert seen == [8, 8, 8, 4, 2]
    restored = Schedule(tiny.settings(rate=8.0, epochs=20, **optim).optim)
    restored.load_state_dict(schedule.state_dict())
    assert restored.is_finished


def test_a_run_is_finished_after_its_epochs():
    schedule = Schedule(tiny.settings(epochs=2).optim)
    schedule.end_epoch(1.0)
    assert not schedule.is_finished
    schedule.end_epoch(1.0)
    assert schedule.is_finished


@pytest.mark.parametrize(
    "workers, scaling, warmup, is_bounded, warns",
    [
        (1, "sum", 0.0, False, False),
        (2, "sum", 0.0, False, False),
        (8, "sum", 1.0, True, True),
        (8, "sqrt", 0.0, True, True),
        (8, "sqrt", 1.0, True, False),
        (8, "sqrt", 1.0, False, True),
        (8, "mean", 0.0, False, False),
    ],
)
def test_a_run_that_may_well_diverge_is_told_so(workers, scaling, warmup, is_bounded, warns):
    optim = {"rate": 0.008, "minibatch_frames": 256, "scaling": scaling, "warmup_epochs": warmup}
    said = warning(tiny.settings(**optim).optim, workers, is_bounded)
    assert (said is not None) == warns
    if said:
        size = {"sum": "16.4", "sqrt": "5.79"}[scaling]
        assert "8 workers' minibatches of 256 frames" in said
        assert f"counts {size} times a mean gradient" in said


def test_with_double_buffering_an_update_counts_half_a_minibatch():
    optim = tiny.settings(rate=0.008, minibatch_frames=256).optim
    said = warning(optim, 8, False, halves=2)
    assert "8 workers' minibatches of 128 frames" in said
    assert "counts 8.19 times a mean gradient" in said


# --- phases --------------------------------------------------------------------------------------


def phased(*given: dict):
    return tiny.settings(minibatch_frames=64, phases=list(given)).optim


FIRST = {"until": 0.25, "minibatch_frames": 8, "workers": 2}
SECOND = {"until": 1.5, "minibatch_frames": 16, "workers": None}


def test_an_epoch_has_the_parts_that_the_settings_say():
    optim = phased(FIRST, SECOND)
    assert list(optim.parts(0)) == [(0.0, 0.25, 8, 2), (0.25, 1.0, 16, None)]
    assert list(optim.parts(1)) == [(0.0, 0.5, 16, None), (0.5, 1.0, 64, None)]
    assert list(optim.parts(2)) == [(0.0, 1.0, 64, None)]


def test_in_every_part_all_frames_come_once_and_only_some_workers_read(splits):
    optim, shards, workers = phased(FIRST, SECOND), splits[0], 3

    def feed():
        return Feed(shards, optim, Cut(0, 0), Loopback(range(workers), CPU), 0)

    whole = feed()
    taken = [[whole.next(worker) for worker in range(workers)] for _ in range(whole.num_steps)]
    readers = [(0, 0.25, 8, 2), (0.25, 1, 16, 3)]
    fewest = [
        min(-(-sum(shards.span(a, b).frames(0, w, n, 0)) // size) for w in range(n))
        for a, b, size, n in readers
    ]
    assert whole.fewest == sum(fewest)
    early = [step for step in range(whole.num_steps) if whole.phase(step).workers == 2]
    assert early == list(range(len(early)))
    assert 0 < len(early) < whole.num_steps
    assert all(taken[step][2] is None for step in early)
    sizes = [{b.frames for b in row if b is not None} for row in taken]
    assert max(max(sizes[step]) for step in early) == 8
    assert max(max(s) for s in sizes[len(early) :]) == 16
    frames = torch.cat([b.feats_BTF[:, 0] for row in taken for b in row if b is not None])
    wanted = torch.cat([torch.from_numpy(s.feats_TF) for s in shards.samples(None, 0, 1, 0)])
    assert sorted(frames.tolist()) == sorted(wanted.tolist())
    for begin in (1, len(early), len(early) + 3, whole.num_steps):
        rest = feed()
        rest.start(begin)
        for row in taken[begin:]:
            for worker, batch in enumerate(row):
                found = rest.next(worker)
                assert (found is None) == (batch is None)
                assert batch is None or torch.equal(found.feats_BTF, batch.feats_BTF)


def test_the_share_of_an_epoch_that_is_done_counts_frames_not_steps(splits):
    for optim, workers in ((phased(), 1), (phased(FIRST, SECOND), 3), (phased(FIRST), 1)):
        feed = Feed(splits[0], optim, Cut(0, 0), Loopback(range(workers), CPU), 0)
        done, shares = 0, []
        for step in range(feed.num_steps):
            shares.append(feed.share(step))
            assert shares[-1] == pytest.approx(done / splits[0].num_frames, abs=0.06)
            assert feed.step_at(shares[-1]) == step
            batches = [feed.next(worker) for worker in range(workers)]
            done += sum(batch.frames for batch in batches if batch is not None)
        assert (shares[0], feed.share(feed.num_steps)) == (0.0, 1.0)
        assert feed.step_at(1.0) == feed.num_steps
        assert feed.step_at(1.5) == feed.num_steps
        assert shares == sorted(shares)
    assert feed.share(10) == 0.25 * 10 / (len([s for s in shares if s < 0.25]))


def test_fewer_workers_than_a_part_asks_for_read_all_of_it(splits):
    feed = Feed(splits[0], phased(FIRST), Cut(0, 0), Loopback(range(1), CPU), 0)
    batches = [feed.next(0) for _ in range(feed.num_steps)]
    assert sum(batch.frames for batch in batches if batch is not None) == splits[0].num_frames


def test_a_pool_may_be_a_single_minibatch():
    assert tiny.settings(pool_frames=32, minibatch_frames=32).optim.pool_frames == 32
    with pytest.raises(SettingsError, match=r"32 frames, above optim\.pool_frames 31"):
        tiny.settings(pool_frames=31, minibatch_frames=32)


@pytest.mark.parametrize("name", ["minibatch_frames", "phases", "pretrain"])
def test_a_pool_of_frames_holds_a_minibatch_of_an_lstms_outputs(name):
    def sized(size):
        pretrain = {"share": 0.5, "epochs": 1, "layer_by_layer": False, "minibatch_frames": size}
        given = {"minibatch_frames": size, "phases": [{**FIRST, "minibatch_frames": size}]}
        return tiny.settings(lstm=tiny.LSTM, **{name: {**given, "pretrain": pretrain}[name]})

    assert sized(250).optim.pool_frames == 500
    message = rf"optim\.{name} has minibatches of 251 outputs, each of .*subsample=2 frames, above"
    with pytest.raises(SettingsError, match=message):
        sized(251)


@pytest.mark.parametrize(
    "given, message",
    [
        ([SECOND, FIRST], r"phases end at \[1.5, 0.25\] epochs; each must end later"),
        ([FIRST, FIRST], r"phases end at \[0.25, 0.25\] epochs; each must end later"),
        (
            [{**FIRST, "minibatch_frames": 501}],
            "of 501 frames, above optim.pool_frames",
        ),
        ([{**FIRST, "workers": 0}], "workers is 0"),
    ],
)
def test_phases_that_cannot_be_are_refused(given, message):
    with pytest.raises(SettingsError, match=message):
        phased(*given)


def test_the_mean_of_models_is_not_taken_with_idle_workers():
    bmuf = {"block_steps": 4, "form": "chen_huo", "zeta": 1.0, "c": 1.0, "eta": None}
    comm = {"method": "bmuf", "bmuf": {**bmuf, "velocity": "reset"}}
    with pytest.raises(SettingsError, match="including idle ones; set workers to null"):
        tiny.settings(comm, phases=[FIRST])
    assert tiny.settings(comm, phases=[SECOND]).optim.phases[0].minibatch_frames == 16
