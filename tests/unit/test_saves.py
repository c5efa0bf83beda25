"""Covers saves.py: what is said of a checkpoint that could not be handed on, and of one that was pruned meanwhile."""

import logging
from types import SimpleNamespace

from qwen_vl_grpo.errors import HubError
from qwen_vl_grpo.saves import Saves


def test_a_checkpoint_that_was_pruned_on_its_way_is_not_said_to_be_kept(tmp_path, caplog):
    folders = {step: tmp_path / f"checkpoint-{step}" for step in (1, 2, 3)}
    for folder in folders.values():
        folder.mkdir()

    def hand_on(step):
        if step == 2:
            folders[step].rmdir()
        if step > 1:
            raise HubError("the Hub answered 500")

    caplog.set_level(logging.INFO, "qwen_vl_grpo")
    saves = Saves(hand_on)
    for step in folders:
        saves.on_save(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(is_world_process_zero=True, global_step=step), None)
        saves.going.result()
    saves.on_train_end(None, None, None)
    assert caplog.messages == [
        "checkpoint-1 is published",
        "checkpoint-2 gave way to newer checkpoints (save_total_limit) before it was published",
        "checkpoint-3 is kept here, but not published: the Hub answered 500",
    ]
