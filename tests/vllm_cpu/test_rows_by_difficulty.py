"""Covers the probe and dynamic sampling on the real engine: draws differ, and rows from the reserve are scored as the policy's own."""

from three_steps import BOUND, metrics

from qwen_vl_grpo import probe

LUCK = """\
from qwen_vl_grpo.interfaces import Task, Verdict
from qwen_vl_grpo.tasks import visual_reasoning

def judge(completion, sample):
    return Verdict(True, len(completion) % 7 < int(sample.answer))

def luck():
    return Task("luck", "Answer.", (), visual_reasoning.read_row, judge)
"""


def task(folder):
    (folder / "luck.py").write_text(LUCK, encoding="utf-8")
    return {"name": f"{folder / 'luck.py'}:luck"}


def test_rows_from_the_reserve_have_the_trainers_own_log_probabilities(trainer_of, tmp_path):
    trainer, _ = trainer_of(task=task(tmp_path), dynamic_sampling={"reserve": 8}, max_steps=1, trl={"shuffle_dataset": False})
    trainer.train()
    assert metrics(trainer, "dynamic_sampling/replaced")[0] > 0
    assert metrics(trainer, "rollouts/logp_difference/mean")[0] < BOUND


def test_the_engine_draws_each_row_anew(config_of, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    config = config_of(task=task(tmp_path), lora=False)
    records = probe.probe(config, 4, "vllm")
    assert (records[0]["solve_rate"], records[7]["solve_rate"]) == (0.0, 1.0)
    assert any(len({*record["reward"]}) > 1 for record in records)
    assert probe.probe(config, 4, "vllm") == records
