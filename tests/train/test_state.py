from collections.abc import Iterator

import pytest
import torch
from torch import nn

from asr_train import files
from asr_train.comm.bucket import Bucket
from asr_train.files import DamagedFileError
from asr_train.train.state import Checkpoints, Interval, NotFiniteError, check_finite


def content(step: int) -> dict:
    return {"weights_P": torch.full((5,), float(step)), "progress": {"step": step, "loss": 0.1}}


def one(step: int) -> Iterator:
    """Return the state of a run with one worker."""
    yield 0, content(step)


def saved(folder, steps=(10, 20, 30), identity="a", keep=3) -> Checkpoints:
    checkpoints = Checkpoints(folder, identity, keep, epochs=9)
    for step in steps:
        checkpoints.save(step, one(step), begun=step // 10)
    return checkpoints


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_checkpoint_comes_back_as_it_was(tmp_path):
    found = saved(tmp_path).newest().load(0)
    assert found["progress"] == content(30)["progress"]
    assert torch.equal(found["weights_P"], content(30)["weights_P"])


def test_without_checkpoints_a_run_begins_at_the_beginning(tmp_path):
    assert Checkpoints(tmp_path / "none", "a", keep=1, epochs=1).newest() is None


def test_more_than_eight_digits_sort_by_step(tmp_path):
    checkpoints = Checkpoints(tmp_path, "a", keep=2, epochs=9)
    for step in (99_999_999, 100_000_000, 100_000_001):
        checkpoints.save(step, one(step), begun=1)
    assert checkpoints.newest().step == 100_000_001
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_only_the_newest_few_are_kept(tmp_path):
    saved(tmp_path, steps=(10, 20, 30, 1000), keep=2)
    stems = ("step-00000030", "step-00001000")
    assert names(tmp_path) == [stem + end for stem in stems for end in (".json", ".pt")]


def test_a_checkpoint_is_replaced_by_one_of_the_same_step_only_when_that_is_whole(
    tmp_path, monkeypatch
):
    checkpoints = saved(tmp_path, steps=(10,), keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", None)  # stops before the index
        with pytest.raises(TypeError):
            checkpoints.save(10, one(11), begun=1)
    assert checkpoints.newest().load(0)["progress"]["step"] == 10
    checkpoints.save(10, one(11), begun=1)
    assert checkpoints.newest().load(0)["progress"]["step"] == 11
    assert names(tmp_path) == ["step-00000010.end.pt", "step-00000010.json"]


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, lambda path: path.unlink()])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, capsys, damage):
    checkpoints = saved(tmp_path)
    damage(tmp_path / "step-00000030.pt")
    assert checkpoints.newest().step == 20
    assert "step-00000030.pt" in capsys.readouterr().out
    assert not (tmp_path / "step-00000030.json").exists()  # else it would count as the newest


def test_a_damaged_index_is_named_and_the_checkpoint_before_is_used(tmp_path, capsys):
    checkpoints = saved(tmp_path)
    (tmp_path / "step-00000030.json").write_text('{"path": "step-00000030.pt", "identity": "a"')
    assert checkpoints.newest().step == 20
    assert "step-00000030.json is not valid JSON" in capsys.readouterr().out


def test_a_checkpoint_without_index_was_not_finished(tmp_path, capsys):
    checkpoints = saved(tmp_path)
    (tmp_path / "step-00000030.json").unlink()
    (tmp_path / ".tmp.step-00000040.pt").write_bytes(b"half")
    assert checkpoints.newest().step == 20
    assert "step-00000030.pt was not finished" in capsys.readouterr().out
    assert all(name.startswith(("step-00000010", "step-00000020")) for name in names(tmp_path))


def test_a_run_whose_only_checkpoint_was_not_finished_begins_at_the_beginning(tmp_path):
    checkpoints = saved(tmp_path, steps=(10,))
    (tmp_path / "step-00000010.json").unlink()
    assert checkpoints.newest() is None


def test_if_all_are_damaged_nothing_is_thrown_away(tmp_path):
    checkpoints = saved(tmp_path)
    for path in tmp_path.glob("*.pt"):
        cut_short(path)
    before = names(tmp_path)
    with pytest.raises(DamagedFileError, match=r"no checkpoint .* is intact: .* delete"):
        checkpoints.newest()
    assert names(tmp_path) == before


def test_a_full_disk_is_said_and_leaves_the_checkpoints_that_are_there(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path)
    before = names(tmp_path)

    def full(content, path):
        path.write_bytes(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc:668] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"step-00000040.pt cannot be written .* is the disk full\?"):
        checkpoints.save(40, one(40), begun=4)
    assert names(tmp_path) == before


def test_checkpoints_of_another_run_are_not_gone_on_from(tmp_path, capsys):
    saved(tmp_path, identity="a")
    assert Checkpoints(tmp_path, "b", keep=3, epochs=9).newest() is None
    assert "other settings or shards" in capsys.readouterr().out
    assert names(tmp_path) == []


def test_a_run_of_fewer_epochs_goes_on_from_its_own_only(tmp_path, capsys):
    saved(tmp_path)
    assert Checkpoints(tmp_path, "a", keep=3, epochs=2).newest().step == 20
    assert "1 checkpoints up to step-00000030" in capsys.readouterr().out
    assert Checkpoints(tmp_path, "a", keep=3, epochs=0).newest() is None


def test_a_damaged_checkpoint_does_not_push_out_a_sound_one(tmp_path):
    saved(tmp_path)
    for step in (20, 30):
        cut_short(tmp_path / f"step-{step:08d}.pt")
    checkpoints = Checkpoints(tmp_path, "a", keep=1, epochs=9)
    checkpoints.newest()
    checkpoints.save(15, one(15), begun=2)
    assert checkpoints.newest().step == 15


def test_a_checkpoint_cannot_run_code(tmp_path):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return ran.touch, ()

    checkpoints = Checkpoints(tmp_path / "ckpt", "a", keep=1, epochs=1)
    checkpoints.save(10, iter([(0, {"evil": Evil()})]), begun=1)
    with pytest.raises(DamagedFileError, match="no tensors that torch can read safely"):
        checkpoints.newest().load(0)
    assert not ran.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_parameter_that_is_not_finite_is_named(value):
    bucket = Bucket(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    check_finite("the weights", bucket.weights_P, bucket, step=7)
    bucket.weights_P[17] = value
    with pytest.raises(NotFiniteError, match=rf"weights of 1.weight hold {value} at step 7 \(1 of"):
        check_finite("the weights", bucket.weights_P, bucket, step=7)


def test_large_numbers_are_finite_even_if_their_sum_is_not():
    bucket = Bucket(nn.Linear(3, 4))
    bucket.weights_P.fill_(3e38)
    check_finite("the weights", bucket.weights_P, bucket, step=7)


def test_intervals_add_up():
    parts = [Interval(steps=2, frames=10, loss=5.0), Interval(steps=1, skipped=1)]
    total = sum(parts, Interval())
    assert total == Interval(steps=3, skipped=1, frames=10, loss=5.0)
    assert total.mean_loss() == 0.5
    assert parts[1].mean_loss() is None
    assert parts[1].accuracy() is None
