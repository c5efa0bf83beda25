"""Covers what a run writes as it goes: one line of metrics a log, with the names of evaluations made plain."""

import json
import logging

import pytest
from transformers import TrainerState

from qwen_vl_grpo.errors import AlarmError
from qwen_vl_grpo.ledger import Ledger


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path, 3)
    yield made
    made.close()


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(step, main=True):
    return TrainerState(global_step=step, is_world_process_zero=main)


def test_every_log_is_one_line_with_its_step(ledger, tmp_path):
    ledger.on_log(None, state(1), None, {"reward": 0.5, "loss": 0.1})
    ledger.on_log(None, state(2), None, {"reward": 0.75})
    assert [(line["step"], line["reward"]) for line in lines(tmp_path)] == [(1, 0.5), (2, 0.75)]


def test_an_evaluation_is_named_with_a_slash(ledger, tmp_path):
    ledger.on_log(None, state(2), None, {"eval_greedy/correct": 0.25})
    assert lines(tmp_path)[0]["eval/greedy/correct"] == 0.25


def test_another_rank_writes_nothing(ledger, tmp_path):
    ledger.on_log(None, state(1, main=False), None, {"reward": 0.5})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_last_step_of_training_is_kept_past_an_evaluation(ledger):
    ledger.on_log(None, state(1), None, {"reward": 0.5, "loss": 0.1, "grad_norm": 2.0})
    ledger.on_log(None, state(1), None, {"eval_greedy/correct": 0.25})
    assert ledger.last == {"reward": 0.5, "loss": 0.1, "grad_norm": 2.0}


def test_an_alarm_is_logged_when_it_starts_and_ends_and_marks_the_steps_between(ledger, tmp_path, caplog):
    caplog.set_level(logging.INFO, "qwen_vl_grpo")
    for step, reward in enumerate((0.5, None, None, 0.5), 1):
        ledger.on_log(None, state(step), None, {"reward": 0.5, "rewards/judged/mean": reward})
    told = [record.getMessage() for record in caplog.records if "alarm" in record.getMessage()]
    assert [line.split(":")[0] for line in told] == [
        "alarm not_a_number at step 2",
        "alarm not_a_number is over at step 4; it held from step 2",
    ]
    assert [line.get("alarms/not_a_number") for line in lines(tmp_path)] == [None, 1.0, 1.0, 0.0]
    assert [(alarm["first_step"], alarm["last_step"]) for alarm in ledger.watch.rang] == [(2, 3)]


def test_an_alarm_that_may_stop_the_run_ends_it_where_it_starts_with_its_line_written_and_not_again_when_it_is_resumed(tmp_path):
    silent = {"reward": 0.5, "rewards/judged/mean": None}
    ledger = Ledger(tmp_path, 3, stop=("not_a_number",))
    with pytest.raises(
        AlarmError, match=r"^alarm not_a_number at step 1: no number in rewards/judged/mean\. .*; it is one of alarms\.stop$"
    ):
        ledger.on_log(None, state(1), None, silent)
    ledger.close()
    written = lines(tmp_path)
    assert [(line["step"], line["alarms/not_a_number"]) for line in written] == [(1, 1.0)]
    resumed = Ledger(tmp_path, 3, 2, written, stop=("not_a_number",))
    resumed.on_log(None, state(2), None, silent)
    resumed.close()


def test_the_log_of_the_run_is_written_until_it_is_closed(ledger, tmp_path):
    logging.getLogger("qwen_vl_grpo").warning("something happened")
    ledger.close()
    logging.getLogger("qwen_vl_grpo").warning("after the end")
    written = (tmp_path / "training.log").read_text()
    assert "something happened" in written
    assert "after the end" not in written
