"""Covers `train --resume`: a run killed with -9, in a step and in a save, ends with the numbers of one that was left alone."""

import random
import time

import pytest

from benchmarks.kill_resume import compare, kill
from qwen_vl_grpo import checkpoints

LONG = {
    "max_steps": 8, "save_steps": 2, "save_total_limit": 1, "lora": {"enabled": True},
    "warmup": {"dataset_name": "digits", "steps": 2, "batch_size": 4}, "evaluation": {"dataset_split": "test", "samples": 2},
}  # fmt: skip
"""12 rows and 2 prompts a step: the run goes on in the second epoch, whose order of the data is another."""


def start(workshop, run_id, *arguments, **changes):
    return workshop.start("-m", "qwen_vl_grpo", "train", "--config", workshop.config(run_id, **LONG | changes), *arguments)


@pytest.fixture(scope="module")
def killed(workshop) -> str:
    """The id of a run of eight steps that was killed twice and resumed twice."""
    assert kill(start(workshop, "killed"), workshop.run_dir("killed"), "save", random.Random(0))
    workshop.killed_at(6, "killed", start(workshop, "killed", "--resume"))
    done = workshop.train("killed", "--resume", **LONG)
    assert done.returncode == 0, done.stderr
    return "killed"


def test_a_killed_run_ends_as_one_that_was_left_alone(workshop, killed):
    done = workshop.train("left-alone", **LONG)
    assert done.returncode == 0, done.stderr
    compared = compare(workshop.run_dir("left-alone"), workshop.run_dir(killed))
    assert {title: different for title, _, different in compared if different} == {}
    assert {title: number for title, number, _ in compared}["loss, steps"] == 8


def test_every_attempt_is_on_the_card_and_in_the_metrics(workshop, killed):
    attempts = workshop.card(killed)["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["killed", "killed", "finished"]
    assert all(attempt["start"] <= attempt["end"] for attempt in attempts)
    assert attempts[-1]["last_step"] == 8
    steps = {number: [line["step"] for line in workshop.metrics(killed) if line["attempt"] == number] for number in (1, 2, 3)}
    for number, attempt in enumerate(attempts, 1):
        assert steps[number][0] == attempt["first_step"]
        assert steps[number][-1] == attempt["last_step"]
    assert "attempt 3 goes on from runs/killed/checkpoint-" in (workshop.run_dir(killed) / "training.log").read_text()


def test_what_was_done_once_is_not_done_again(workshop, killed):
    told = (workshop.run_dir(killed) / "training.log").read_text()
    assert told.count("warm-up: 2 supervised steps") == 1
    assert told.count("scoring 12 held-out rows") == 2  # before, and after


def test_the_last_checkpoint_alone_is_kept_and_nothing_half_written(workshop, killed):
    assert [path.name for path in checkpoints.in_order(workshop.run_dir(killed))] == ["checkpoint-8"]
    assert not (workshop.run_dir(killed) / checkpoints.ASIDE).exists()


def test_a_finished_run_goes_on_to_more_steps_only(workshop, killed, refused):
    assert "has reached step 8 already; raise max_steps" in refused(workshop.train(killed, "--resume", **LONG))
    done = workshop.train(killed, "--resume", **LONG | {"max_steps": 9})
    assert done.returncode == 0, done.stderr
    assert workshop.card(killed)["checkpoint"] == "checkpoint-9"


def test_another_config_is_refused_with_the_keys_that_differ(workshop, finished, refused):
    said = refused(workshop.train(finished, "--resume", learning_rate=1e-2, data={"limit": 11}))
    assert "cannot be resumed with another data.limit, " in said
    assert ", learning_rate," in said


def test_a_run_that_is_not_there_is_not_resumed(workshop, refused):
    assert "there is no run in runs/nowhere to resume" in refused(workshop.train("nowhere", "--resume"))
    assert not workshop.run_dir("nowhere").exists()


def test_a_run_that_is_running_is_left_alone(workshop, refused):
    process = start(workshop, "busy", max_steps=100_000)
    try:
        while process.poll() is None and not (workshop.run_dir("busy") / "metrics.jsonl").exists():
            time.sleep(0.1)
        assert "another process is running this run" in refused(workshop.train("busy", "--resume", **LONG | {"max_steps": 100_000}))
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
