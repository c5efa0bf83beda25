"""Covers a run in two processes of this CPU by `accelerate launch`: told to stop, all ranks keep one step, and go on from it.

Its logs are in its folder.
"""

import os
import signal

from qwen_vl_grpo import attempts, checkpoints


def test_a_launch_that_is_told_to_stop_keeps_the_step_of_all_ranks_and_goes_on(workshop):
    launch = ("launch", "--cpu", "2", "--config", workshop.config("launched", batch_size=4, max_steps=50))
    process = workshop.start("-m", "qwen_vl_grpo", *launch)
    with workshop.held_before(2, "launched", process):
        process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=300)
    run_dir, card = workshop.run_dir("launched"), workshop.card("launched")
    assert process.returncode == 143, told
    step = attempts.metrics(run_dir)[-1]["step"]  # the launcher hands the signal on a moment later
    assert 2 <= step < 50
    assert (card["state"], card["checkpoint"], card["hardware"]["processes"]) == ("interrupted", f"checkpoint-{step}", 2)
    assert card["attempts"][0]["reason"] == "asked to stop by SIGTERM"
    assert checkpoints.whole(run_dir / f"checkpoint-{step}")
    assert [line["step"] for line in attempts.metrics(run_dir)] == list(range(1, step + 1))
    assert f"step {step} of 50 is kept in runs/launched/checkpoint-{step}" in told  # what rank 0 says is shown
    assert told.splitlines().count("interrupted") == 1  # and this is the launcher's to say

    logs = next((run_dir / "logs").iterdir())
    assert sorted(path.name for path in logs.iterdir()) == ["launcher.log", "rank-0.log", "rank-1.log"]
    assert f"step {step} of 50 is kept" in (logs / "rank-1.log").read_text(encoding="utf-8")
    assert (workshop.folder / "runs/training.log").resolve() == (run_dir / "training.log").resolve()
    assert os.readlink(workshop.folder / "runs/training.log") == "launched/training.log"
    assert not (workshop.folder / "runs/.launching").exists()
    merged = (run_dir / "training.log").read_text(encoding="utf-8")
    assert "asked to stop by SIGTERM" in merged
    assert " rank 1 qwen_vl_grpo" not in merged  # it had nothing to warn of; libraries are heard, too, where CI is set

    done = workshop.grpo(*launch, "--resume", "--set", f"max_steps={step + 1}")
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in attempts.metrics(run_dir) if "reward" in line] == list(range(1, step + 2))
    said = [path.read_text(encoding="utf-8").count("run launched is finished") for path in sorted(run_dir.glob("logs/*/rank-?.log"))]
    assert said == [0, 0, 1, 0]  # by the main process of the launch that ended it


def test_what_is_refused_is_refused_by_the_launcher_and_no_rank_is_started(workshop, refused):
    said = refused(workshop.grpo("launch", "--cpu", "2", "--config", workshop.config("wrong", batch_size=3)))
    assert "(3 a device x 1 micro-steps x 2 device(s))" in said
    assert "--cpu: takes the place of cards" in refused(workshop.grpo("launch", "--cpu", "2", "--gpus", "2", "--config", "0.yaml"))
    assert "the cluster requeue" in refused(
        workshop.grpo("launch", "--cpu", "1", "--nodes", "2", "--main_address", "a:1", "--monitor", "1", "--config", "0.yaml")
    )
