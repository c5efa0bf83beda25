"""Covers a run that is stopped or fails on the way: the exit code, and what its card says afterwards."""

import signal
import time


def test_a_run_that_is_interrupted_says_so(workshop, refused):
    process = workshop.start("-m", "qwen_vl_grpo", "train", "--config", workshop.config("stopped", max_steps=100_000))
    try:
        metrics = workshop.run_dir("stopped") / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors
    card = workshop.card("stopped")
    assert (card["state"], card["checkpoint"]) == ("interrupted", None)
    assert card["finished"]
    assert "has no checkpoint (state: interrupted)" in refused(workshop.infer("--run_id", "stopped", "--prompt", "Why?"))


def test_a_reward_that_breaks_on_the_way_ends_the_run_as_failed(workshop, refused):
    (workshop.folder / "breaks.py").write_text("def breaks(completions, **_):\n    return [1.0]\n", encoding="utf-8")
    said = refused(workshop.train("broke", rewards=[{"function": "breaks.py:breaks"}]))
    assert "reward breaks: returned 1 scores for 8 completions" in said
    card = workshop.card("broke")
    assert (card["state"], card["checkpoint"]) == ("failed", None)
    assert "returned 1 scores for 8 completions" in card["error"]
