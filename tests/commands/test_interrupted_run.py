"""Covers a run that is stopped or fails on the way: the exit code, what is kept, and what its card says afterwards."""

import signal
import time

import pytest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_says_so_and_keeps_its_last_step(workshop, number, code):
    run_id = f"stopped-{number.name}"
    process = workshop.start("-m", "qwen_vl_grpo", "train", "--config", workshop.config(run_id, max_steps=100_000))
    try:
        metrics = workshop.run_dir(run_id) / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, errors
    card = workshop.card(run_id)
    assert card["state"] == "interrupted"
    assert card["finished"]
    step = workshop.metrics(run_id)[-1]["step"]
    assert card["checkpoint"] == f"checkpoint-{step}"
    assert errors.splitlines()[-2:] == [f"step {step} of 100000 is kept in runs/{run_id}/checkpoint-{step}", "interrupted"]
    assert "Traceback" not in errors
    answered = workshop.infer("--run_id", run_id, "--prompt", "Why?")
    assert answered.returncode == 0, answered.stderr


def test_a_reward_that_breaks_on_the_way_ends_the_run_as_failed(workshop, refused):
    (workshop.folder / "breaks.py").write_text("def breaks(completions, **_):\n    return [1.0]\n", encoding="utf-8")
    said = refused(workshop.train("broke", rewards=[{"function": "breaks.py:breaks"}]))
    assert "reward breaks: returned 1 scores for 8 completions" in said
    card = workshop.card("broke")
    assert (card["state"], card["checkpoint"]) == ("failed", None)
    assert "returned 1 scores for 8 completions" in card["error"]


TIRES = """\
calls = []
def tires(completions, **_):
    calls.append(1)
    return [float(len(calls))] * (len(completions) - len(calls) // 3)
"""


def test_a_reward_that_breaks_after_a_step_leaves_that_step(workshop, refused):
    (workshop.folder / "tires.py").write_text(TIRES, encoding="utf-8")
    said = refused(workshop.train("tired", rewards=[{"function": "tires.py:tires"}]))
    assert "reward tires: returned 7 scores for 8 completions" in said
    assert said.endswith("; step 2 of 3 is kept in runs/tired/checkpoint-2")
    card = workshop.card("tired")
    assert (card["state"], card["checkpoint"]) == ("failed", "checkpoint-2")
