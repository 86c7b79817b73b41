import pytest
import tiny

from asr_train.train.schedule import Schedule

NAN = float("nan")


def rates(losses: list[float], **optim) -> list[float]:
    """Of the first epoch, and after each loss on DEV."""
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
        ([3.0, 2.0, 1.0, 0.5], [8, 8, 8, 8, 8]),  # it still helps
        ([3.0, 2.0, 1.99, 1.0], [8, 8, 8, 4, 2]),  # halves on, whatever helps later
        ([3.0, 3.1, 1.0, 0.5], [8, 8, 4, 2, 1]),
        ([3.0, NAN, 1.0, 0.5], [8, 8, 4, 2, 1]),
        ([2.0, 1.75, 1.0], [8, 8, 8, 8]),  # a fall by just the gain is enough
    ],
)
def test_newbob_halves_every_epoch_from_the_first_that_helped_too_little(losses, wanted):
    assert rates(losses, halving="newbob", hold_epochs=1, newbob_gain=0.125) == wanted


def test_newbob_does_not_halve_while_the_rate_is_held():
    losses = [3.0, 3.0, 3.0, 3.0]
    assert rates(losses, halving="newbob", hold_epochs=3) == [8, 8, 8, 4, 2]


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
