"""Covers a disk that fills up while a run saves: one sentence, a card that says so, and nothing that looks like a checkpoint."""

import json

LIMITED = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000,) * 2); from qwen_vl_grpo.cli import main; main()"


def test_a_checkpoint_that_has_no_room_ends_the_run_in_one_sentence(workshop, refused):
    done = workshop.run("-c", LIMITED, "train", "--config", workshop.config("crammed", max_steps=1, data={"limit": 4, "workers": 1}))
    said = refused(done)
    assert "runs/crammed: the checkpoint of step 1 cannot be written" in said
    assert "make room and go on with --resume" in said
    card = workshop.card("crammed")
    assert (card["state"], card["checkpoint"]) == ("failed", None)
    assert not list(workshop.run_dir("crammed").glob("checkpoint-*"))
    assert not (workshop.run_dir("crammed") / ".saving").exists()
    assert json.loads(workshop.grpo("runs", "--state", "failed", "--json").stdout)[0]["run_id"] == "crammed"
