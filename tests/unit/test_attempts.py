"""Covers what the card says of the attempts of a run, and metrics that a kill cut short."""

import json
import subprocess
import sys

import pytest

from qwen_vl_grpo import attempts, checkpoints
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.ledger import Ledger

HOLD = """
import pathlib, sys, time
from qwen_vl_grpo import attempts, checkpoints
held = attempts.hold(pathlib.Path(sys.argv[1]))
print(flush=True)
time.sleep(60)
"""


def card() -> RunCard:
    return RunCard(run_id="unit", task="task", base_model="model")


def write(run_dir, *lines):
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_attempt_that_never_ended_was_killed_when_it_was_last_heard_of(tmp_path):
    first = attempts.begin(card(), tmp_path, 0)
    write(tmp_path, {"step": 1, "attempt": 1, "time": 0.0}, {"step": 2, "attempt": 1, "time": 60.0})
    killed, running = attempts.begin(first, tmp_path, 1).attempts
    assert killed | {"start": ""} == {"start": "", "state": "killed", "first_step": 1, "last_step": 2, "end": "1970-01-01T00:01:00+00:00"}
    assert (running["state"], running["first_step"], running["end"]) == ("running", 2, None)


def test_an_attempt_that_ended_stays_as_it_was(tmp_path):
    failed = attempts.end(attempts.begin(card(), tmp_path, 0), "failed", 3)
    again = attempts.begin(failed, tmp_path, 3)
    assert again.attempts[0] == failed.attempts[0]
    assert (again.attempts[0]["state"], again.attempts[0]["last_step"], len(again.attempts)) == ("failed", 3, 2)


def test_a_line_that_a_kill_cut_short_costs_itself_alone(tmp_path):
    write(tmp_path, {"step": 1, "attempt": 1, "time": 0.0, "reward": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    ledger = Ledger(tmp_path, 3, attempt=2, done=attempts.metrics(tmp_path))
    assert ledger.last == {"reward": 0.5}
    state = type("State", (), {"global_step": 2, "is_world_process_zero": True})
    for _ in range(2):
        ledger.on_log(None, state, None, {"reward": 0.75})
    ledger.close()
    assert [(line["step"], line["attempt"]) for line in attempts.metrics(tmp_path)] == [(1, 1), (2, 2), (2, 2)]
    assert '{"step": 2, "rew\n' in (tmp_path / "metrics.jsonl").read_text()


def test_of_a_step_that_was_done_again_the_last_attempt_stands():
    lines = [{"step": step, "attempt": attempt} for step, attempt in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (3, 3), (4, 3))]
    assert attempts.standing(lines) == [lines[0], lines[3], lines[5], lines[6]]
    assert attempts.standing(lines, 2) == [lines[0], lines[3]]


def seal(run_dir, *steps):
    for step in steps:
        aside = run_dir / ".saving" / f"checkpoint-{step}"
        aside.mkdir(parents=True)
        checkpoints.publish(aside, run_dir)


@pytest.mark.parametrize(("metric", "step", "value"), [("reward", 4, 0.75), ("-reward", 6, 0.0), ("eval/greedy/correct", 2, 0.5)])
def test_the_best_checkpoint_is_the_first_whose_metric_was_highest_in_what_stands(tmp_path, metric, step, value):
    rewards = [(1, 1, 0.5), (2, 1, 0.5), (3, 1, 9.0), (3, 2, 0.25), (4, 2, 0.75), (5, 2, 0.0), (6, 2, float("nan"))]
    lines = [{"step": at, "attempt": attempt, "reward": reward} for at, attempt, reward in rewards]
    write(tmp_path, *lines[:2], lines[1] | {"eval/greedy/correct": 0.5}, *lines[2:], lines[-1] | {"eval/greedy/correct": 0.5})
    seal(tmp_path, 2, 4, 6)
    assert attempts.best(tmp_path, metric) == (tmp_path / f"checkpoint-{step}", value)
    assert attempts.best(tmp_path, "kl") is None


def test_an_alarm_that_held_when_a_run_was_killed_is_still_on_and_does_not_ring_again(tmp_path):
    broken = {"reward": 0.5, "rewards/judged/mean": None}
    ledger = Ledger(tmp_path, 3, 2, done=[broken | {"step": 1, "attempt": 1}])
    ledger.on_log(None, type("State", (), {"global_step": 2, "is_world_process_zero": True}), None, broken)
    ledger.close()
    assert [(alarm["name"], alarm["first_step"], alarm["last_step"]) for alarm in ledger.watch.rang] == [("not_a_number", 1, 2)]


def test_a_run_is_free_again_when_the_process_that_held_it_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    with pytest.raises(RegistryError, match="another process is running this run"):
        attempts.hold(tmp_path)
    process.kill()
    process.communicate()
    attempts.hold(tmp_path).close()
