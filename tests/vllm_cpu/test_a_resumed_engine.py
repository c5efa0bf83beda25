"""Covers a run on a real engine that breaks down, is resumed, and then samples what it would have sampled."""

import gc

import pytest
import vllm

from qwen_vl_grpo import attempts, training
from qwen_vl_grpo.errors import EngineError

SAME = ("reward", "reward_std", "completions/mean_length", "loss", "grad_norm")


def numbers(config):
    """What each step that stands has measured."""
    lines = [line for line in attempts.standing(attempts.metrics(config.run_dir)) if "reward" in line]
    return [[line[name] for name in SAME] for line in lines]


def test_a_resumed_run_samples_and_learns_as_one_that_was_left_alone(config_of, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    alone = config_of(max_steps=4, save_steps=1)
    training.train(alone)
    gc.collect()

    broken = alone.model_copy(update={"run_id": "broken"})
    published, groups = vllm.LLM.generate, []

    def generate(self, requests, sampling_params, **named):
        if sampling_params[0].n > 1:
            groups.append(1)
            if len(groups) == 3:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return published(self, requests, sampling_params=sampling_params, **named)

    monkeypatch.setattr(vllm.LLM, "generate", generate)
    with pytest.raises(EngineError) as error:
        training.train(broken)
    del error  # its traceback holds the dead engine, and two at once share a process group
    gc.collect()
    card = training.train(broken, resume=True)
    gc.collect()
    assert [(attempt["state"], attempt["first_step"]) for attempt in card.attempts] == [("failed", 1), ("finished", 3)]
    assert len(groups) == 5  # two steps, the one that broke, and the two that were left
    assert numbers(broken) == numbers(alone)
    assert len({reward for reward, *_ in numbers(alone)}) == 4
