"""Covers the sign demonstration as a command: a few steps with the real recogniser, its table and the answer by run_id."""

import json

SMALL = ("max_steps=2", "warmup.steps=40", "warmup.batch_size=8", "batch_size=16", "data.limit=12", "evaluation.samples=1")


def test_a_run_of_two_steps_is_scored_by_what_is_read_and_answers_by_its_id(demo, tmp_path):
    done = demo("demo.sign", *(argument for setting in SMALL for argument in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "outputs/demo/sign-demo/run.json").read_text(encoding="utf-8"))
    assert (card["state"], card["metrics"]["after"]["greedy"]["rows"]) == ("finished", 12)
    greedy = card["metrics"]["after"]["greedy"]
    assert greedy["rewards"]["rendered_reward"] == greedy["correct"]
    assert greedy["format"] > 0
    ends = json.loads((tmp_path / "outputs/demo/sign-s0.json").read_text(encoding="utf-8"))
    assert ends["controls"]["the prompt, copied"] == 0.0
    assert 0 < ends["controls"]["the most frequent sign"] < 0.2
    steps = [json.loads(line) for line in (tmp_path / "outputs/demo/sign-demo/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [step["rendered/failed"] for step in steps if "rendered/failed" in step] == [0.0, 0.0]
    said = " ".join(done.stdout.split())
    assert "held-out signs, before and after GRPO" in said and "was asked for)" in said


def test_a_wrong_key_is_said_in_one_line(demo):
    done = demo("demo.sign", "--set", "lerning_rate=1")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "did you mean 'learning_rate'?" in done.stderr
