"""Covers checkpoints that are whole or not there."""

import shutil

import pytest
import torch

from qwen_vl_grpo import checkpoints
from qwen_vl_grpo.errors import RegistryError


@pytest.fixture
def saved(tmp_path):
    """Save a checkpoint as the trainer does: aside first."""

    def save(step: int, content: str = "weights"):
        aside = tmp_path / checkpoints.ASIDE / f"checkpoint-{step}"
        (aside / "sharded").mkdir(parents=True)
        (aside / "model.safetensors").write_text(content)
        (aside / "sharded/optimizer.pt").write_text("moments")
        return checkpoints.publish(aside, tmp_path)

    return save


def steps(run_dir):
    return [checkpoints.step_of(path) for path in checkpoints.in_order(run_dir)]


def test_the_newest_step_is_taken_and_not_the_newest_name(saved, tmp_path):
    folders = [saved(step) for step in (9, 10)]
    assert checkpoints.in_order(tmp_path) == folders
    assert checkpoints.newest_whole(tmp_path) == folders[1]


@pytest.mark.parametrize("name", ["model.safetensors", "sharded/optimizer.pt"])
@pytest.mark.parametrize("fault", ["missing", "changed", "cut"])
def test_a_checkpoint_with_a_fault_is_passed_over(saved, tmp_path, name, fault, caplog):
    older, newer = saved(1), saved(2)
    if fault == "missing":
        (newer / name).unlink()
    else:
        (newer / name).write_text("other" if fault == "changed" else "")
    assert checkpoints.newest_whole(tmp_path) == older
    assert f"{newer} is not as it was written" in caplog.text


def test_a_run_does_not_begin_anew_because_its_only_checkpoint_lost_a_shard(saved, tmp_path):
    assert checkpoints.to_go_on_from(tmp_path) is None
    (saved(2) / "sharded/optimizer.pt").unlink()
    with pytest.raises(RegistryError, match=r"checkpoint-2: sharded/optimizer.pt is gone .*; put the file back, or start another run"):
        checkpoints.to_go_on_from(tmp_path)
    assert checkpoints.to_go_on_from(saved(3).parent) == tmp_path / "checkpoint-3"


def test_what_was_not_written_to_its_end_is_no_checkpoint(saved, tmp_path):
    (saved(1) / checkpoints.HASHES).unlink()
    (tmp_path / checkpoints.ASIDE / "checkpoint-2").mkdir(parents=True)
    assert checkpoints.newest_whole(tmp_path) is None


def test_a_step_that_was_broken_is_replaced(saved, tmp_path):
    saved(1, "broken")
    assert (saved(1, "mended") / "model.safetensors").read_text() == "mended"
    assert checkpoints.whole(tmp_path / "checkpoint-1")


@pytest.mark.parametrize(("limit", "kept"), [(None, [1, 2, 3]), (2, [2, 3]), (1, [3]), (9, [1, 2, 3])])
def test_the_last_ones_are_kept(saved, tmp_path, limit, kept):
    for step in (1, 2, 3):
        saved(step)
    checkpoints.prune(tmp_path, limit, step=3)
    assert steps(tmp_path) == kept


def test_the_best_is_kept_beside_the_last_ones(saved, tmp_path):
    best, *_ = [saved(step) for step in (1, 2, 3)]
    checkpoints.prune(tmp_path, 1, step=3, best=best)
    assert steps(tmp_path) == [1, 3]


def test_a_later_one_that_an_earlier_attempt_left_broken_does_not_push_out_the_one_that_was_just_saved(saved, tmp_path):
    saved(2)
    (saved(8) / "model.safetensors").write_text("changed on the disk")
    saved(4)
    checkpoints.prune(tmp_path, 1, step=4)
    assert steps(tmp_path) == [4, 8]
    assert checkpoints.newest_whole(tmp_path) == tmp_path / "checkpoint-4"


def test_a_model_alone_takes_no_room_for_the_optimizer():
    model = torch.nn.Linear(10, 10, bias=False)
    assert (checkpoints.saved_bytes(model), checkpoints.saved_bytes(model, only_model=True)) == (1200, 400)


def test_a_disk_without_room_for_another_like_the_newest_is_refused_before_a_byte_is_written(tmp_path, saved):
    free = shutil.disk_usage(tmp_path).free
    checkpoints.refuse_full(tmp_path, free // 2)
    with pytest.raises(OSError, match=r"it takes [\d,.]+ MiB, and [\d,.]+ MiB are free"):
        checkpoints.refuse_full(tmp_path, free * 2)
    with (saved(1) / "model.safetensors").open("r+b") as file:
        file.truncate(2 * free)  # a hole, which takes no room
    with pytest.raises(OSError, match="are free"):
        checkpoints.refuse_full(tmp_path, 0)


def test_one_that_is_not_whole_does_not_push_out_the_good_one(saved, tmp_path):
    good = saved(1)
    (saved(2) / checkpoints.HASHES).unlink()
    checkpoints.prune(tmp_path, 1, step=2)
    assert checkpoints.in_order(tmp_path) == [good]
